//! Size of a step, in numbers from which the pacer estimates its duration.

use super::Scheduler;
use super::sequence::Sequence;

/// Demand of the next step before its budget of prompt tokens is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Company {
    /// Decoding sequences.
    pub decoding: usize,
    /// Sequences without a generated token that hold a slot or can get a free one.
    pub prompts: usize,
    /// Computed positions of the furthest prompt.
    pub deepest: usize,
}

/// Size of the planned step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Decoding sequences.
    pub decoding: usize,
    /// Tokens of prompts, or of sequences being recomputed.
    pub prompt_tokens: usize,
    /// Mean number of preceding positions of such a token.
    pub depth: usize,
}

impl Scheduler {
    /// Demand of a step with planned decoding sequences.
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
