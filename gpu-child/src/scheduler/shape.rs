//! Size of a step.

use super::Limits;
use super::drafts::Allowance;
use super::sequence::{MOST_FORCED, Sequence};

/// Demand of the next step before its budget of prompt tokens is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepDemand {
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
    /// Rows of decoding sequences.
    pub decoding: usize,
    /// Tokens of prompts, or of sequences being recomputed.
    pub prompt_tokens: usize,
    /// Mean number of preceding positions of such a token.
    pub depth: usize,
    /// Rows of decoding sequences beyond the first of each: of drafts, or of tokens that a grammar forces.
    pub drafts: usize,
}

/// Maximum rows of each decoding sequence in a step. A sequence without drafts has more than one row if its grammar forces
/// its next tokens. Such a token is a draft that is right: beside sequences without a grammar, which wait for it, its row
/// must cost less than a token.
pub(super) fn rows_of_each<'a>(
    decoding: impl Iterator<Item = &'a Sequence> + Clone,
    limits: &Limits,
    allowance: Allowance,
) -> usize {
    let count = decoding.clone().count().max(1);
    let mut others = decoding.filter(|it| !it.constraint.is_grammar());
    match others.next() {
        Some(_) if allowance.favours_rows => allowance.rows(),
        Some(_) => 1,
        None => (limits.max_batch_tokens as usize / count).clamp(1, MOST_FORCED),
    }
}
