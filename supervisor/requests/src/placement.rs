//! Placement: the child with the shortest estimated time to the first token. Pure functions; `docs/operate/devices.md`
//! states the policy.
//!
//! The unit is the prompt token that a child computes. Estimates need not be exact: an error costs time, and
//! rebalancing ([`super::live`]) corrects it.

/// Cost that each decoding stream adds to the wait of a prompt, in prompt tokens.
///
/// Every step with a part of the prompt also has a token of each stream, and the prompt delays each stream. A request
/// therefore stays with its cached prefix until the streams there are so many more that all of them would gain from a
/// recomputation elsewhere. A quarter of this value performs equally in the simulation, where decoding is cheap; on the
/// CPU device a stream's token costs as much as a prompt token.
const STREAM: u64 = 32;

/// Cost of each turn in the queue if every slot is taken, in prompt tokens: half of an answer of typical length, each
/// of its tokens being a step.
const TURN: u64 = 2048;

/// Load of a child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildLoad {
    /// Tokens to compute for requests without a first token.
    pub ahead: u64,
    /// Number of requests.
    pub given: usize,
    /// Number of requests that have tokens from this child.
    pub streams: usize,
    /// Number of tokens of all histories.
    pub kv_tokens: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of sequences that the child decodes at once.
    pub slots: usize,
    /// Size of the KV cache, in tokens.
    pub kv_tokens: u64,
}

/// Demand of a request on one child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Number of tokens of the history.
    pub history: u64,
    /// Number of those tokens that this child would have to compute.
    pub uncached: u64,
}

/// Reservation of a request on the child that has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reservation {
    demand: Demand,
    stage: Stage,
}

/// Stage of a request on its child, as reported by the child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// The request is in the child's queue.
    #[default]
    Waits,
    /// The child computes the prompt.
    Begun,
    /// The request has a token from this child.
    Streams,
}

impl Reservation {
    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn demand(&self) -> Demand {
        self.demand
    }
}

impl ChildLoad {
    /// Adds a request and returns its reservation.
    pub fn take(&mut self, demand: Demand) -> Reservation {
        let reservation = Reservation {
            demand,
            stage: Stage::Waits,
        };
        self.add(reservation);
        reservation
    }

    pub fn advance(&mut self, reservation: &mut Reservation, stage: Stage) {
        self.remove(*reservation);
        reservation.stage = stage;
        self.add(*reservation);
    }

    fn add(&mut self, reservation: Reservation) {
        self.given += 1;
        self.kv_tokens += reservation.demand.history;
        match reservation.stage {
            Stage::Waits | Stage::Begun => self.ahead += reservation.demand.uncached,
            Stage::Streams => self.streams += 1,
        }
    }

    /// Removes a request.
    pub fn remove(&mut self, reservation: Reservation) {
        self.given -= 1;
        self.kv_tokens -= reservation.demand.history;
        match reservation.stage {
            Stage::Waits | Stage::Begun => self.ahead -= reservation.demand.uncached,
            Stage::Streams => self.streams -= 1,
        }
    }

    /// Load without one of the child's requests.
    pub fn without(mut self, reservation: Reservation) -> Self {
        self.remove(reservation);
        self
    }

    /// Estimated wait of a request for its first token, in prompt tokens.
    pub fn wait(&self, demand: Demand, capacity: Capacity) -> u64 {
        let turns = (self.given + 1).saturating_sub(capacity.slots) as u64;
        let kv_wanted = self.kv_tokens + demand.history;
        let lacking = kv_wanted.saturating_sub(capacity.kv_tokens);
        // A request that lacks pages must wait for another one to end, as for a slot.
        let turns = turns.max(u64::from(lacking > 0));
        self.ahead + demand.uncached + STREAM * self.streams as u64 + TURN * turns + lacking
    }

    /// True if the child could begin the request immediately.
    pub fn has_room(&self, demand: Demand, capacity: Capacity) -> bool {
        self.given < capacity.slots && self.kv_tokens + demand.history <= capacity.kv_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity {
        slots: 4,
        kv_tokens: 10_000,
    };

    fn demand(history: u64, uncached: u64) -> Demand {
        Demand { history, uncached }
    }

    fn wait(load: ChildLoad, uncached: u64) -> u64 {
        load.wait(demand(1000, uncached), CAPACITY)
    }

    fn streams(streams: usize) -> ChildLoad {
        ChildLoad {
            given: streams,
            streams,
            ..ChildLoad::default()
        }
    }

    #[test]
    fn a_conversation_stays_with_its_prefix_until_what_is_ahead_costs_more_than_it_saves() {
        let behind = |ahead| ChildLoad {
            ahead,
            ..streams(1)
        };
        assert!(wait(behind(800), 100) < wait(ChildLoad::default(), 1000));
        assert!(wait(behind(900), 100) > wait(ChildLoad::default(), 1000));
    }

    #[test]
    fn of_two_children_without_its_prefix_the_one_with_fewer_streams_is_better() {
        assert!(wait(streams(1), 1000) < wait(streams(2), 1000));
    }

    #[test]
    fn a_usual_prefix_is_not_worth_a_wait_for_somebodys_end() {
        assert!(wait(streams(4), 0) > wait(streams(3), 1000));
        let full = ChildLoad {
            kv_tokens: 9_500,
            ..streams(1)
        };
        assert!(wait(full, 0) > wait(streams(3), 1000));
        assert!(!full.has_room(demand(1000, 0), CAPACITY));
        assert!(full.has_room(demand(500, 0), CAPACITY));
        assert!(!streams(4).has_room(demand(1, 0), CAPACITY));
    }

    #[test]
    fn a_child_that_has_lost_everything_has_no_load() {
        let mut load = ChildLoad::default();
        let mut holds = [300, 200, 100].map(|tokens| load.take(demand(tokens, tokens / 2)));
        load.advance(&mut holds[0], Stage::Begun);
        load.advance(&mut holds[1], Stage::Streams);
        let expected = ChildLoad {
            ahead: 200,
            given: 3,
            streams: 1,
            kv_tokens: 600,
        };
        assert_eq!(load, expected);
        holds
            .into_iter()
            .for_each(|reservation| load.remove(reservation));
        assert_eq!(load, ChildLoad::default());
    }

    #[test]
    fn where_all_are_full_the_shorter_line_is_better() {
        let line = |given| ChildLoad {
            given,
            ..streams(4)
        };
        assert!(wait(line(6), 1000) < wait(line(7), 0));
    }
}
