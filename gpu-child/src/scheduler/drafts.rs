//! Speculative decoding: drafts of a sequence's next tokens, from its own text.
//!
//! ```text
//!   tokens        … the cat sat on the mat. … the cat sat            draft: on the mat .
//!   rows of the step                          sat  on  the  mat .    one pass
//!   sampled                                   on   the sofa …        `on` and `the` count, and `sofa`
//! ```
//!
//! A step runs the newest token and drafts behind it, and samples a token from each of these rows. The first one counts,
//! and each further one as long as the draft before its row equals the token sampled there ([`accepted`]). A row's logits
//! depend on the tokens before it alone, and its sample on logits, parameters, history, seed and position. So the tokens
//! that count are those of steps without drafts, sampled or greedy. Rows behind a rejected draft are computed again, and
//! overwrite its keys and values before anything reads them.
//!
//! Drafts come from prompt lookup (<https://github.com/apoorvumang/prompt-lookup-decoding>): the tokens behind the latest
//! earlier occurrence of the last [`MATCH`] tokens. They are part of no promise: a replayed sequence gets drafts anew.
//!
//! The i-th draft saves a step if it and all before it are right. With the share p of recent drafts that were, the
//! probability is p^i. Its row makes the step longer; it is worth that [cost](DraftCosts) if p^i exceeds it. A sequence has
//! 1, 3, 7 or 15 drafts ([`rounded`]), fewer if its pages have no room.

use std::collections::HashMap;
use std::ops::Range;
use worker_orcd_ipc::{Drawn, TokenId};

/// Tokens that an earlier occurrence has in common with the end of the sequence. Shorter matches are accidents of the
/// language more often.
pub(super) const MATCH: usize = 8;

/// Drafts of a sequence in one step, at most: a power of two of rows.
const MOST: usize = 15;

/// Rows of all decoding sequences in a step with drafts, at most.
const MOST_ROWS: usize = 64;

/// Tokens without drafts after one that was wrong from its first token, the first time and at most: twice as many each
/// time.
const SHORTEST_PAUSE: usize = 8;
const LONGEST_PAUSE: usize = 256;

/// Prior of a new sequence: accepted drafts, and drafts that were accepted or rejected.
const PRIOR: [f32; 2] = [2.0, 2.5];

/// Weight of a step's drafts beside those of the next step.
const DECAY: f32 = 0.8;

/// Cost of a draft, by the number of decoding sequences (1, 2 to 3, 4 to 7, and so on): the time that its row adds to a
/// step, divided by the time of a step per sequence.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DraftCosts(pub [f32; DraftCosts::CLASSES]);

impl DraftCosts {
    pub const CLASSES: usize = 6;

    /// Class of a number of decoding sequences; `None` if there are too many for drafts.
    #[must_use]
    pub fn class_of(decoding: usize) -> Option<usize> {
        let class = decoding.checked_ilog2()? as usize;
        (class < Self::CLASSES).then_some(class)
    }

    fn of(&self, decoding: usize) -> f32 {
        Self::class_of(decoding).map_or(f32::INFINITY, |class| self.0[class])
    }
}

/// Limits of a step's drafts for each sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    pub most: usize,
    pub cost: f32,
}

impl Allowance {
    /// Limits if so many sequences decode in a step of at most `batch_tokens`.
    pub(super) fn of(decoding: usize, batch_tokens: usize, costs: &DraftCosts) -> Self {
        let rows = MOST_ROWS.min(batch_tokens) / decoding.max(1);
        Self {
            most: rows.saturating_sub(1).min(MOST),
            cost: costs.of(decoding),
        }
    }
}

/// Index of a sequence's text, and its recent success.
#[derive(Debug)]
pub(super) struct Drafter {
    /// The end of the latest occurrence of each run of [`MATCH`] tokens, by its hash.
    ends: HashMap<u64, u32>,
    /// Runs that end at or before this position are in `ends`.
    indexed: usize,
    /// Accepted drafts, and drafts that were accepted or rejected. Those of earlier steps weigh less ([`DECAY`]).
    right: f32,
    decided: f32,
    /// No drafts before the sequence has this many tokens.
    resumes_at: usize,
    pause: usize,
}

impl Default for Drafter {
    fn default() -> Self {
        Self {
            ends: HashMap::new(),
            indexed: MATCH - 1,
            right: 0.0,
            decided: 0.0,
            resumes_at: 0,
            pause: SHORTEST_PAUSE,
        }
    }
}

impl Drafter {
    /// Drafts behind these tokens.
    pub(super) fn drafts(&mut self, tokens: &[TokenId], allowance: Allowance) -> Vec<TokenId> {
        let places = self.places(tokens, allowance);
        let mut drafts = Vec::with_capacity(places.len());
        for at in places {
            // A text that repeats itself goes on with its own drafts.
            let token = tokens.get(at).or_else(|| drafts.get(at - tokens.len()));
            drafts.extend(token.copied());
        }
        drafts
    }

    /// True if drafts are likely behind the token after these ones, which is in flight.
    pub(super) fn is_promising(&mut self, tokens: &[TokenId], allowance: Allowance) -> bool {
        !self.places(tokens, allowance).is_empty()
    }

    /// Positions of the earlier text that are worth a draft. If none is, the sequence gradually forgets its success.
    fn places(&mut self, tokens: &[TokenId], allowance: Allowance) -> Range<usize> {
        let Some(end) = self.earlier_end(tokens) else {
            return 0..0;
        };
        let count = self.worthwhile(allowance);
        if count == 0 {
            self.right *= DECAY;
            self.decided *= DECAY;
        }
        end..end + count
    }

    /// Number of drafts that are worth their cost.
    fn worthwhile(&self, Allowance { most, cost }: Allowance) -> usize {
        let [right, decided] = PRIOR;
        let success = (self.right + right) / (self.decided + decided);
        let chances = std::iter::successors(Some(success), |chance| Some(chance * success));
        let worthwhile = chances.take(most).take_while(|chance| *chance > cost);
        rounded(worthwhile.count())
    }

    /// Records how many drafts of a step were accepted. `tokens`: length of the sequence after it.
    pub(super) fn observe(&mut self, offered: usize, accepted: usize, tokens: usize) {
        let wrong = usize::from(accepted < offered);
        self.right = DECAY * self.right + accepted as f32;
        self.decided = DECAY * self.decided + (accepted + wrong) as f32;
        if accepted > 0 {
            self.pause = SHORTEST_PAUSE;
        } else {
            self.resumes_at = tokens + self.pause;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }

    /// The end of the latest earlier occurrence of the last tokens, outside a pause.
    fn earlier_end(&mut self, tokens: &[TokenId]) -> Option<usize> {
        if tokens.len() < self.resumes_at.max(MATCH) {
            return None;
        }
        while self.indexed + 1 < tokens.len() {
            self.indexed += 1;
            let run = &tokens[self.indexed - MATCH..self.indexed];
            self.ends.insert(hash(run), self.indexed as u32);
        }
        let last = &tokens[tokens.len() - MATCH..];
        let end = *self.ends.get(&hash(last))? as usize;
        // Another run may have the same hash.
        (tokens[end - MATCH..end] == *last).then_some(end)
    }
}

/// The largest number of drafts up to this one that makes a power of two of rows. A device that records its steps has
/// a recording for each number of rows.
fn rounded(drafts: usize) -> usize {
    let rows = (1 + drafts).ilog2();
    (1 << rows) - 1
}

/// FNV-1a.
fn hash(run: &[TokenId]) -> u64 {
    let step =
        |hash: u64, token: &TokenId| (hash ^ u64::from(token.0)).wrapping_mul(0x0100_0000_01b3);
    run.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Number of sampled tokens that count: the first, and each further one behind a draft that equals the token sampled
/// for its position.
pub(super) fn accepted(drawn: &[Drawn], drafts: &[TokenId]) -> usize {
    let equal = drawn.iter().zip(drafts);
    let equal = equal.take_while(|(row, draft)| row.token == **draft);
    drawn.len().min(1 + equal.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::RequestId;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        ids.into_iter().map(TokenId).collect()
    }

    fn drawn(ids: &[u32]) -> Vec<Drawn> {
        let row = |(index, token): (usize, &u32)| Drawn {
            request: RequestId(1),
            index: index as u32,
            token: TokenId(*token),
        };
        ids.iter().enumerate().map(row).collect()
    }

    const FREE: Allowance = Allowance {
        most: MOST,
        cost: 0.0,
    };

    fn at_most(most: usize) -> Allowance {
        Allowance { most, ..FREE }
    }

    #[test]
    fn drafts_follow_the_latest_earlier_occurrence() {
        let mut text = tokens(0..8);
        text.extend(tokens([20, 21]));
        text.extend(tokens(0..8));
        text.extend(tokens([30, 31, 32, 33]));
        text.extend(tokens(0..8));
        let expected = tokens([30, 31, 32, 33, 0, 1, 2]);
        for (most, drafts) in [(7, 7), (6, 3), (3, 3), (2, 1), (1, 1), (0, 0)] {
            let of_most = Drafter::default().drafts(&text, at_most(most));
            assert_eq!(of_most, expected[..drafts], "at most {most}");
        }
        text.pop();
        assert_eq!(
            Drafter::default().drafts(&text, FREE),
            [],
            "seven tokens match"
        );
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_with_its_drafts() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(12));
        let expected = tokens([1, 2, 3].into_iter().cycle().take(MOST));
        assert_eq!(Drafter::default().drafts(&text, FREE), expected);
    }

    #[test]
    fn an_index_that_grows_equals_a_new_one() {
        let text = tokens((0..200).map(|i| i * i % 13));
        let mut growing = Drafter::default();
        for end in 0..text.len() {
            let of_growing = growing.drafts(&text[..end], FREE);
            assert_eq!(of_growing, Drafter::default().drafts(&text[..end], FREE));
        }
    }

    #[test]
    fn a_draft_is_worth_its_cost() {
        let costing = |cost| Allowance { most: MOST, cost };
        let mut drafter = Drafter::default();
        // 0.8, 0.64, 0.51, 0.41, ...
        let counts = [0.0, 0.3, 0.5, 0.7, 0.9].map(|cost| drafter.worthwhile(costing(cost)));
        assert_eq!(counts, [MOST, 3, 3, 1, 0]);
        for _ in 0..20 {
            drafter.observe(4, 4, 0);
        }
        assert_eq!(drafter.worthwhile(costing(0.7)), 15);
        for _ in 0..20 {
            drafter.observe(4, 1, 0);
        }
        assert_eq!(drafter.worthwhile(costing(0.4)), 1);
        assert_eq!(drafter.worthwhile(costing(0.6)), 0);
        let text = tokens([1; 20]);
        let tries = (0..50).take_while(|_| !drafter.is_promising(&text, costing(0.6)));
        assert!((2..40).contains(&tries.count()), "it forgets its failures");
        assert!(!drafter.is_promising(&text, costing(0.8)));
    }

    #[test]
    fn wrong_drafts_make_a_pause() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(1000));
        let mut drafter = Drafter::default();
        let has_drafts = |drafter: &mut Drafter, tokens: usize| {
            !drafter.drafts(&text[..tokens], FREE).is_empty()
        };
        for (tokens, accepted, pause) in [(100, 0, 8), (200, 0, 16), (300, 1, 0), (400, 0, 8)] {
            drafter.observe(2, accepted, tokens);
            assert!(pause == 0 || !has_drafts(&mut drafter, tokens + pause - 1));
            assert!(has_drafts(&mut drafter, tokens + pause));
        }
        for _ in 0..20 {
            drafter.observe(2, 0, 500);
        }
        assert!(!has_drafts(&mut drafter, 499 + LONGEST_PAUSE));
        assert!(has_drafts(&mut drafter, 500 + LONGEST_PAUSE));
    }

    #[test]
    fn many_sequences_have_none() {
        let of = |decoding| Allowance::of(decoding, 1000, &DraftCosts::default());
        let most = [1, 4, 5, 32, 33, 63].map(|decoding| of(decoding).most);
        assert_eq!(most, [MOST, MOST, 11, 1, 0, 0]);
        assert_eq!(Allowance::of(2, 16, &DraftCosts::default()).most, 7);
        let costs = DraftCosts([0.1, 0.2, 0.4, 0.8, 1.6, 3.2]);
        let cost = [1, 3, 4, 15, 63, 64].map(|decoding| Allowance::of(decoding, 1000, &costs).cost);
        assert_eq!(cost, [0.1, 0.2, 0.4, 0.8, 3.2, f32::INFINITY]);
    }

    #[test]
    fn a_token_counts_behind_equal_drafts_only() {
        let drafts = tokens([5, 6, 7]);
        for (sampled, expected) in [
            ([5, 6, 7, 8], 4),
            ([5, 6, 9, 8], 3),
            ([9, 6, 7, 8], 1),
            ([5, 9, 7, 8], 2),
        ] {
            assert_eq!(accepted(&drawn(&sampled), &drafts), expected, "{sampled:?}");
        }
        assert_eq!(accepted(&[], &[]), 0);
        assert_eq!(accepted(&drawn(&[3]), &[]), 1);
    }
}
