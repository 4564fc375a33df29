//! What a step holds, in numbers: enough to tell how long it will take, for those who know the time.

use super::Scheduler;
use super::sequence::Sequence;

/// Who is to be in the next step, before it is said how many tokens of prompts it may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Company {
    /// Sequences that decode.
    pub decoding: usize,
    /// Sequences that have no token yet, and a slot or a free one to come to.
    pub prompts: usize,
    /// Positions behind the prompt that is furthest.
    pub deepest: usize,
}

/// The planned step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences that decode.
    pub decoding: usize,
    /// Tokens that belong to prompts (or to sequences being recomputed).
    pub prompt_tokens: usize,
    /// The mean number of positions behind one of those.
    pub depth: usize,
}

impl Scheduler {
    /// Of the step whose decoding sequences are planned.
    pub(super) fn company(&self, decoding: usize) -> Company {
        let begun = || self.running.iter().filter(|sequence| !sequence.decodes());
        let free = (self.limits.max_running as usize).saturating_sub(self.running.len());
        Company {
            decoding,
            prompts: begun().count() + self.waiting.len().min(free),
            deepest: begun().map(Sequence::computed).max().unwrap_or(0),
        }
    }

    #[must_use]
    pub fn planned_shape(&self) -> StepShape {
        let (mut shape, mut reach) = (StepShape::default(), 0);
        for (sequence, &tokens) in self.running.iter().zip(&self.planned) {
            if sequence.decodes() {
                shape.decoding += tokens;
            } else {
                shape.prompt_tokens += tokens;
                reach += tokens * (sequence.computed() + tokens / 2);
            }
        }
        shape.depth = reach.checked_div(shape.prompt_tokens).unwrap_or(0);
        shape
    }
}
