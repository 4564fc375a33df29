//! Placement: which child gives a request its first token soonest. Pure; `docs/operate/devices.md` states the policy.
//!
//! Everything is counted in tokens of a prompt that a child computes, and none of it need be exact: whatever is
//! estimated wrongly costs time, and levelling ([`super::live`]) mends what turns out otherwise.

/// What each stream that a child decodes adds to the wait of a prompt.
///
/// Every step with a part of the prompt has a token of each stream, too, and the prompt makes each of them wait. So a
/// history stays where its beginning is cached until the streams there are so many more that all of them would be
/// better off had it been computed again elsewhere. A quarter of it does as well in the simulation, where
/// decoding costs little; on the CPU device a stream's token costs as much as one of a prompt.
const STREAM: u64 = 32;

/// What each turn of the line adds where every slot is taken: half of an answer of usual length, of which each
/// token is a step.
const TURN: u64 = 2048;

/// What a child has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Burden {
    /// Tokens of those to whom it has not told anything yet.
    pub ahead: u64,
    /// Requests that it was given.
    pub given: usize,
    /// Those of them that have tokens of it.
    pub streams: usize,
    /// Tokens of all their histories.
    pub kv_tokens: u64,
}

/// What a child can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Sequences that it decodes at once.
    pub slots: usize,
    /// Its KV cache, in tokens.
    pub kv_tokens: u64,
}

/// A request as one child would have it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Want {
    /// Tokens of its history.
    pub history: u64,
    /// Those that this child would have to compute.
    pub uncached: u64,
}

/// What a request takes of the child that has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hold {
    want: Want,
    stage: Stage,
}

/// How far a child has come with a request, as it has told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// In the child's queue.
    #[default]
    Waits,
    /// The child computes its prompt.
    Begun,
    /// It has a token of this child.
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
    /// The child is given a request.
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

    /// The child has the request no more.
    pub fn remove(&mut self, hold: Hold) {
        self.given -= 1;
        self.kv_tokens -= hold.want.history;
        match hold.stage {
            Stage::Waits | Stage::Begun => self.ahead -= hold.want.uncached,
            Stage::Streams => self.streams -= 1,
        }
    }

    /// Without a request that the child has.
    pub fn without(mut self, hold: Hold) -> Self {
        self.remove(hold);
        self
    }

    /// Tokens until the first one of this request.
    pub fn wait(&self, want: Want, capacity: Capacity) -> u64 {
        let turns = (self.given + 1).saturating_sub(capacity.slots) as u64;
        let kv_wanted = self.kv_tokens + want.history;
        let lacking = kv_wanted.saturating_sub(capacity.kv_tokens);
        // Who waits for pages waits for an end, too.
        let turns = turns.max(u64::from(lacking > 0));
        self.ahead + want.uncached + STREAM * self.streams as u64 + TURN * turns + lacking
    }

    /// The child could begin with it at once.
    pub fn has_room(&self, want: Want, capacity: Capacity) -> bool {
        self.given < capacity.slots && self.kv_tokens + want.history <= capacity.kv_tokens
    }
}

#[cfg(test)]
mod simulation;

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
