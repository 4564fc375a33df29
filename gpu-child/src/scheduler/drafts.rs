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
//! earlier occurrence of the last [`MATCH`] tokens. Their number follows the share that was accepted. They are part of no
//! promise: a replayed sequence gets drafts anew.

use std::collections::HashMap;
use worker_orcd_ipc::{Drawn, TokenId};

/// Tokens that an earlier occurrence has in common with the end of the sequence. Shorter matches are accidents of the
/// language more often.
pub(super) const MATCH: usize = 8;

/// Drafts of a sequence in one step: the first time, and at most.
const FIRST: usize = 4;
const MOST: usize = 15;

/// Rows of all decoding sequences in a step with drafts, at most.
const MOST_ROWS: usize = 64;

/// Tokens without drafts after a rejected one, the first time and at most: twice as many each time.
const SHORTEST_PAUSE: usize = 8;
const LONGEST_PAUSE: usize = 256;

/// Index of a sequence's text, and its recent success.
#[derive(Debug)]
pub(super) struct Drafter {
    /// The end of the latest occurrence of each run of [`MATCH`] tokens, by its hash.
    ends: HashMap<u64, u32>,
    /// Runs that end at or before this position are in `ends`.
    indexed: usize,
    /// Drafts of the next step, at most.
    length: usize,
    /// No drafts before the sequence has this many tokens.
    resumes_at: usize,
    pause: usize,
}

impl Default for Drafter {
    fn default() -> Self {
        Self {
            ends: HashMap::new(),
            indexed: MATCH - 1,
            length: FIRST,
            resumes_at: 0,
            pause: SHORTEST_PAUSE,
        }
    }
}

impl Drafter {
    /// Drafts behind these tokens, at most `most`.
    pub(super) fn drafts(&mut self, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        let Some(end) = self.earlier_end(tokens) else {
            return Vec::new();
        };
        let mut drafts = Vec::with_capacity(most.min(self.length));
        for at in end..end + most.min(self.length) {
            // A text that repeats itself goes on with its own drafts.
            let token = tokens.get(at).or_else(|| drafts.get(at - tokens.len()));
            drafts.extend(token.copied());
        }
        drafts
    }

    /// True if drafts are likely behind the token after these ones, which is in flight.
    pub(super) fn is_promising(&mut self, tokens: &[TokenId]) -> bool {
        self.earlier_end(tokens).is_some()
    }

    /// Adapts to the fate of a step's drafts; `tokens` is the sequence's length behind it.
    pub(super) fn observe(&mut self, offered: usize, accepted: usize, tokens: usize) {
        if accepted == offered {
            self.length = (2 * self.length).min(MOST);
        } else {
            self.length = accepted.max(1);
        }
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

/// Drafts of a sequence, at most, if so many decode in a step of at most `batch_tokens`.
pub(super) fn most(decoding: usize, batch_tokens: usize) -> usize {
    let rows = MOST_ROWS.min(batch_tokens) / decoding.max(1);
    rows.saturating_sub(1).min(MOST)
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

    #[test]
    fn drafts_follow_the_latest_earlier_occurrence() {
        let mut text = tokens(0..8);
        text.extend(tokens([20, 21]));
        text.extend(tokens(0..8));
        text.extend(tokens([30, 31, 32, 33]));
        text.extend(tokens(0..8));
        assert_eq!(
            Drafter::default().drafts(&text, MOST),
            tokens([30, 31, 32, 33])
        );
        assert_eq!(Drafter::default().drafts(&text, 2), tokens([30, 31]));
        text.pop();
        assert_eq!(
            Drafter::default().drafts(&text, MOST),
            [],
            "seven tokens match"
        );
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_with_its_drafts() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(12));
        let mut drafter = Drafter::default();
        drafter.observe(FIRST, FIRST, 0);
        let expected = tokens([1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(drafter.drafts(&text, MOST), expected);
    }

    #[test]
    fn an_index_that_grows_equals_a_new_one() {
        let text = tokens((0..200).map(|i| i * i % 13));
        let mut growing = Drafter::default();
        for end in 0..text.len() {
            let of_growing = growing.drafts(&text[..end], MOST);
            assert_eq!(of_growing, Drafter::default().drafts(&text[..end], MOST));
        }
    }

    #[test]
    fn their_number_follows_what_was_accepted() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(600));
        let mut drafter = Drafter::default();
        let offers =
            |drafter: &mut Drafter, tokens: usize| drafter.drafts(&text[..tokens], MOST).len();
        assert_eq!(offers(&mut drafter, 100), FIRST);
        drafter.observe(FIRST, FIRST, 100);
        assert_eq!(offers(&mut drafter, 100), 2 * FIRST);
        drafter.observe(2 * FIRST, 3, 100);
        assert_eq!(offers(&mut drafter, 100), 3);
        drafter.observe(3, 0, 100);
        assert_eq!(offers(&mut drafter, 99 + SHORTEST_PAUSE), 0);
        assert_eq!(offers(&mut drafter, 100 + SHORTEST_PAUSE), 1);
        for _ in 0..20 {
            drafter.observe(1, 0, 100);
        }
        assert_eq!(offers(&mut drafter, 99 + LONGEST_PAUSE), 0);
        assert_eq!(offers(&mut drafter, 100 + LONGEST_PAUSE), 1);
    }

    #[test]
    fn many_sequences_have_none() {
        let drafts = [1, 4, 5, 32, 33, 500].map(|decoding| most(decoding, 1000));
        assert_eq!(drafts, [MOST, MOST, 11, 1, 0, 0]);
        assert_eq!(most(2, 16), 7);
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
