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
pub struct Burden {
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
pub struct Want {
    /// Number of tokens of the history.
    pub history: u64,
    /// Number of those tokens that this child would have to compute.
    pub uncached: u64,
}

/// Reservation of a request on the child that has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hold {
    want: Want,
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

impl Hold {
    pub fn stage(&self) -> Stage {
        self.stage
    }

    pub fn want(&self) -> Want {
        self.want
    }
}

impl Burden {
    /// Adds a request and returns its reservation.
    pub fn take(&mut self, want: Want) -> Hold {
        let hold = Hold {
            want,
            stage: Stage::Waits,
        };
        self.add(hold);
        hold
    }

    pub fn advance(&mut self, hold: &mut Hold, stage: Stage) {
        self.remove(*hold);
        hold.stage = stage;
        self.add(*hold);
    }

    fn add(&mut self, hold: Hold) {
        self.given += 1;
        self.kv_tokens += hold.want.history;
        match hold.stage {
            Stage::Waits | Stage::Begun => self.ahead += hold.want.uncached,
            Stage::Streams => self.streams += 1,
        }
    }

    /// Removes a request.
    pub fn remove(&mut self, hold: Hold) {
        self.given -= 1;
        self.kv_tokens -= hold.want.history;
        match hold.stage {
            Stage::Waits | Stage::Begun => self.ahead -= hold.want.uncached,
            Stage::Streams => self.streams -= 1,
        }
    }

    /// Load without one of the child's requests.
    pub fn without(mut self, hold: Hold) -> Self {
        self.remove(hold);
        self
    }

    /// Estimated wait of a request for its first token, in prompt tokens.
    pub fn wait(&self, want: Want, capacity: Capacity) -> u64 {
        let turns = (self.given + 1).saturating_sub(capacity.slots) as u64;
        let kv_wanted = self.kv_tokens + want.history;
        let lacking = kv_wanted.saturating_sub(capacity.kv_tokens);
        // A request that lacks pages must wait for another one to end, as for a slot.
        let turns = turns.max(u64::from(lacking > 0));
        self.ahead + want.uncached + STREAM * self.streams as u64 + TURN * turns + lacking
    }

    /// True if the child could begin the request immediately.
    pub fn has_room(&self, want: Want, capacity: Capacity) -> bool {
        self.given < capacity.slots && self.kv_tokens + want.history <= capacity.kv_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity = Capacity {
        slots: 4,
        kv_tokens: 10_000,
    };

    fn want(history: u64, uncached: u64) -> Want {
        Want { history, uncached }
    }

    fn wait(burden: Burden, uncached: u64) -> u64 {
        burden.wait(want(1000, uncached), CAPACITY)
    }

    fn streams(streams: usize) -> Burden {
        Burden {
            given: streams,
            streams,
            ..Burden::default()
        }
    }

    #[test]
    fn a_conversation_stays_with_its_prefix_until_what_is_ahead_costs_more_than_it_saves() {
        let behind = |ahead| Burden {
            ahead,
            ..streams(1)
        };
        assert!(wait(behind(800), 100) < wait(Burden::default(), 1000));
        assert!(wait(behind(900), 100) > wait(Burden::default(), 1000));
    }

    #[test]
    fn of_two_children_without_its_prefix_the_one_with_fewer_streams_is_better() {
        assert!(wait(streams(1), 1000) < wait(streams(2), 1000));
    }

    #[test]
    fn a_usual_prefix_is_not_worth_a_wait_for_somebodys_end() {
        assert!(wait(streams(4), 0) > wait(streams(3), 1000));
        let full = Burden {
            kv_tokens: 9_500,
            ..streams(1)
        };
        assert!(wait(full, 0) > wait(streams(3), 1000));
        assert!(!full.has_room(want(1000, 0), CAPACITY));
        assert!(full.has_room(want(500, 0), CAPACITY));
        assert!(!streams(4).has_room(want(1, 0), CAPACITY));
    }

    #[test]
    fn a_child_that_has_lost_everything_has_no_burden() {
        let mut burden = Burden::default();
        let mut holds = [300, 200, 100].map(|tokens| burden.take(want(tokens, tokens / 2)));
        burden.advance(&mut holds[0], Stage::Begun);
        burden.advance(&mut holds[1], Stage::Streams);
        let expected = Burden {
            ahead: 200,
            given: 3,
            streams: 1,
            kv_tokens: 600,
        };
        assert_eq!(burden, expected);
        holds.into_iter().for_each(|hold| burden.remove(hold));
        assert_eq!(burden, Burden::default());
    }

    #[test]
    fn where_all_are_full_the_shorter_line_is_better() {
        let line = |given| Burden {
            given,
            ..streams(4)
        };
        assert!(wait(line(6), 1000) < wait(line(7), 0));
    }
}
