//! Speculative decoding: drafts of a sequence's next tokens, from its own text or of a [draft model](super::draft_model).
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
//! Drafts come from the [prediction](super::prediction) of the request, where the answer follows it; otherwise from prompt
//! lookup (<https://github.com/apoorvumang/prompt-lookup-decoding>): the tokens behind the latest earlier occurrence of
//! the last [`MATCH`] tokens. They are part of no promise: a replayed sequence gets drafts anew.
//!
//! The number of drafts of each sequence is that with which the step yields most tokens in a second
//! ([`choose`](super::draft_lengths::choose)): 1, 3, 7 or 15 ([`rounded`]). The successes of the two
//! sources are counted apart.

use super::Limits;
use super::draft_lengths::StepSeconds;
use super::prediction::Prediction;
use std::collections::HashMap;
use std::sync::Arc;
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

/// Limits of a step's drafts for each sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Allowance {
    pub most: usize,
    /// Maximum tokens of a sequence in the draft model; 0 without one.
    pub reach: usize,
    /// Rows of tokens that a grammar forces take less time than the tokens are worth to other sequences.
    pub favours_rows: bool,
}

/// Source of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Source {
    /// The prediction or the text of the request.
    #[default]
    Text,
    Model,
}

impl Allowance {
    /// Limits if so many sequences decode. `reach`: maximum tokens of a sequence in the draft model.
    pub(super) fn of(
        decoding: usize,
        limits: &Limits,
        seconds: &StepSeconds,
        reach: usize,
    ) -> Self {
        let batch_tokens = limits.max_batch_tokens as usize;
        let rows = MOST_ROWS.min(batch_tokens) / decoding.max(1);
        Self {
            most: rows.saturating_sub(1).min(MOST),
            reach,
            favours_rows: seconds.favours_rows(decoding),
        }
    }

    /// The same with at most this many drafts.
    pub(super) fn at_most(self, most: usize) -> Self {
        let most = most.min(self.most);
        Self { most, ..self }
    }

    /// Rows of a sequence that may be sampled.
    pub(super) fn rows(self) -> usize {
        1 + self.most
    }
}

/// Index of a sequence's text, and its recent success.
#[derive(Debug)]
pub(super) struct Drafter {
    prediction: Prediction,
    /// Tokens of the prompt.
    prompt_len: usize,
    runs: Runs,
    of_text: Success,
    of_model: Success,
}

/// Recent success of a source of drafts.
#[derive(Debug)]
struct Success {
    /// Accepted drafts, and drafts that were accepted or rejected. Those of earlier steps weigh less ([`DECAY`]).
    right: f32,
    decided: f32,
    /// No drafts before the sequence has this many tokens.
    resumes_at: usize,
    pause: usize,
}

impl Default for Success {
    fn default() -> Self {
        Self {
            right: 0.0,
            decided: 0.0,
            resumes_at: 0,
            pause: SHORTEST_PAUSE,
        }
    }
}

impl Success {
    /// Share of drafts that are right behind right ones.
    fn share(&self) -> f32 {
        let [right, decided] = PRIOR;
        (self.right + right) / (self.decided + decided)
    }

    /// Records how many drafts of a step were accepted.
    fn observe(&mut self, offered: usize, accepted: usize) {
        let wrong = usize::from(accepted < offered);
        self.right = DECAY * self.right + accepted as f32;
        self.decided = DECAY * self.decided + (accepted + wrong) as f32;
    }

    /// Begins a pause behind so many tokens, twice as long as the last one.
    fn pause_at(&mut self, tokens: usize) {
        self.resumes_at = tokens.saturating_add(self.pause);
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }

    /// Forgets failures and successes gradually, or it would never draft again.
    fn forget(&mut self) {
        self.right *= DECAY;
        self.decided *= DECAY;
    }

    /// Pauses and forgets its failures, if it has more than a new sequence.
    fn pause_for_failures(&mut self, tokens: usize) {
        if self.share() < Self::default().share() {
            self.pause_at(tokens);
            (self.right, self.decided) = (0.0, 0.0);
        }
    }

    /// Ends the pause, and forgets those before.
    fn resume(&mut self) {
        self.resumes_at = 0;
        self.pause = SHORTEST_PAUSE;
    }
}

/// Runs of [`MATCH`] tokens in a text that grows.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The end of the latest occurrence of each run, by its hash.
    ends: HashMap<u64, u32>,
    /// Runs that end at or before this position are in `ends`.
    indexed: usize,
}

impl Runs {
    /// Adds the runs that end at or before this position.
    pub(super) fn learn(&mut self, text: &[TokenId], end: usize) {
        for end in self.indexed.max(MATCH - 1) + 1..=end {
            let run = &text[end - MATCH..end];
            self.ends.insert(hash(run), end as u32);
            self.indexed = end;
        }
    }

    /// Adds the runs that end in the next `count` tokens.
    pub(super) fn learn_some(&mut self, text: &[TokenId], count: usize) {
        self.learn(text, text.len().min(self.indexed + count));
    }

    /// The end of the latest known occurrence of the last tokens of `of`, which has at least [`MATCH`].
    pub(super) fn find(&self, text: &[TokenId], of: &[TokenId]) -> Option<usize> {
        let last = &of[of.len() - MATCH..];
        let end = *self.ends.get(&hash(last))? as usize;
        // Another run may have the same hash.
        (text[end - MATCH..end] == *last).then_some(end)
    }
}

impl Drafter {
    pub(super) fn new(prompt_len: usize, prediction: Arc<[TokenId]>) -> Self {
        Self {
            prediction: Prediction::new(prediction),
            prompt_len,
            runs: Runs::default(),
            of_text: Success::default(),
            of_model: Success::default(),
        }
    }

    /// At most so many drafts from the text behind these tokens.
    pub(super) fn drafts(&mut self, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        self.behind(tokens, 0, most)
    }

    /// Drafts behind these tokens and `in_flight` predicted ones.
    fn behind(&mut self, tokens: &[TokenId], in_flight: usize, most: usize) -> Vec<TokenId> {
        let predicted = self.prediction.behind(&tokens[self.prompt_len..]);
        let predicted = predicted.get(in_flight..).unwrap_or_default();
        let is_predicted = !predicted.is_empty();
        let predicted = predicted[..rounded(most.min(predicted.len()))].to_vec();
        if self.prediction.take_found() {
            // What was wrong before does not concern this place.
            self.of_text.resume();
        }
        if tokens.len() < self.of_text.resumes_at {
            return Vec::new();
        }
        if is_predicted {
            return predicted;
        }
        let end = self.earlier_end(tokens);
        end.map_or_else(Vec::new, |end| continued(tokens, end, rounded(most)))
    }

    /// Number of likely drafts behind the token after these ones, which is in flight.
    pub(super) fn promised(&mut self, tokens: &[TokenId], most: usize) -> usize {
        self.behind(tokens, 1, most).len()
    }

    /// Number of drafts that the model may make behind so many tokens.
    pub(super) fn wanted_of_model(&self, tokens: usize, allowance: Allowance) -> usize {
        match tokens < self.of_model.resumes_at {
            true => 0,
            false => allowance.most.min(allowance.reach.saturating_sub(tokens)),
        }
    }

    /// Share of drafts of this source that are right behind right ones.
    pub(super) fn share(&self, source: Source) -> f32 {
        match source {
            Source::Text => self.of_text.share(),
            Source::Model => self.of_model.share(),
        }
    }

    /// The next step has none of the drafts of this source, because it yields more without. Drafts from the text cost nothing to
    /// offer, and are right again soon behind a place that differs.
    pub(super) fn pass_over(&mut self, source: Source, tokens: usize) {
        match source {
            Source::Text => self.of_text.forget(),
            Source::Model => self.of_model.pause_for_failures(tokens),
        }
    }

    /// Pauses the drafts of the model, which has no room for the sequence.
    pub(super) fn goes_without_model(&mut self, tokens: usize) {
        self.of_model.pause_at(tokens);
    }

    /// Ends the drafts of the model: the sequence has a token that it does not know.
    pub(super) fn leaves_model(&mut self) {
        self.of_model.resumes_at = usize::MAX;
    }

    /// Records how many drafts of a step were accepted. `tokens`: length of the sequence after it.
    pub(super) fn observe(
        &mut self,
        source: Source,
        offered: usize,
        accepted: usize,
        tokens: usize,
    ) {
        match source {
            Source::Text => {
                self.of_text.observe(offered, accepted);
                match accepted {
                    0 => self.of_text.pause_at(tokens),
                    _ => self.of_text.pause = SHORTEST_PAUSE,
                }
            }
            Source::Model => {
                self.of_model.observe(offered, accepted);
                if accepted == offered {
                    self.of_model.pause = SHORTEST_PAUSE;
                }
            }
        }
    }

    /// The end of the latest earlier occurrence of the last tokens.
    fn earlier_end(&mut self, tokens: &[TokenId]) -> Option<usize> {
        if tokens.len() < MATCH {
            return None;
        }
        self.runs.learn(tokens, tokens.len() - 1);
        self.runs.find(tokens, tokens)
    }
}

/// The next `count` tokens of a text that goes on as behind this earlier position.
fn continued(tokens: &[TokenId], end: usize, count: usize) -> Vec<TokenId> {
    let mut drafts = Vec::with_capacity(count);
    for at in end..end + count {
        // A text that repeats itself goes on with its own drafts.
        let token = tokens.get(at).or_else(|| drafts.get(at - tokens.len()));
        drafts.extend(token.copied());
    }
    drafts
}

/// The largest number of drafts up to this one that makes a power of two of rows. A device that records its steps has
/// a recording for each number of rows.
pub(super) fn rounded(drafts: usize) -> usize {
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

    fn drafter() -> Drafter {
        Drafter::new(0, Arc::default())
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
            let of_most = drafter().drafts(&text, most);
            assert_eq!(of_most, expected[..drafts], "at most {most}");
        }
        text.pop();
        assert_eq!(drafter().drafts(&text, MOST), [], "seven tokens match");
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_with_its_drafts() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(12));
        let expected = tokens([1, 2, 3].into_iter().cycle().take(MOST));
        assert_eq!(drafter().drafts(&text, MOST), expected);
    }

    #[test]
    fn a_prediction_goes_before_the_text_until_it_is_lost() {
        let text = tokens((0..20).chain(0..10));
        let mut drafter = Drafter::new(20, tokens((0..10).chain(30..37)).into());
        let expected = tokens(30..37);
        assert_eq!(drafter.drafts(&text, MOST), expected, "7 of 15 are left");
        assert_eq!(drafter.drafts(&text, 5), expected[..3]);
        assert_eq!(drafter.promised(&text, MOST), 3, "6 of 15 are left");
        assert_eq!(drafter.drafts(&text, 0), []);
        let last = tokens((0..20).chain(0..10).chain(30..36));
        assert_eq!(drafter.drafts(&last, MOST), tokens([36]));
        assert_eq!(drafter.promised(&last, MOST), 0, "it is in flight");
        let mut other = Drafter::new(20, tokens((3..10).chain(30..37)).into());
        let expected = tokens((10..20).chain(0..5));
        assert_eq!(other.drafts(&text, MOST), expected, "seven tokens match");
    }

    /// Drafts from other text were wrong before it.
    #[test]
    fn a_prediction_that_is_found_ends_a_pause() {
        let mut drafter = Drafter::new(0, tokens(0..40).into());
        let mut text = tokens([99]);
        assert_eq!(drafter.drafts(&text, MOST), []);
        drafter.observe(Source::Text, 3, 0, 1);
        drafter.observe(Source::Text, 3, 0, 2);
        text.extend(tokens(3..3 + MATCH as u32));
        assert_eq!(drafter.drafts(&text, 1), tokens([3 + MATCH as u32]));
    }

    #[test]
    fn an_index_that_grows_equals_a_new_one() {
        let text = tokens((0..200).map(|i| i * i % 13));
        let mut growing = drafter();
        for end in 0..text.len() {
            let of_growing = growing.drafts(&text[..end], MOST);
            assert_eq!(of_growing, drafter().drafts(&text[..end], MOST));
        }
    }

    #[test]
    fn the_share_of_right_drafts_follows_the_recent_ones() {
        let mut drafter = drafter();
        let share = |drafter: &Drafter| drafter.share(Source::Text);
        assert_eq!(share(&drafter), 0.8);
        for _ in 0..20 {
            drafter.observe(Source::Text, 4, 4, 0);
        }
        assert!(share(&drafter) > 0.95);
        for _ in 0..20 {
            drafter.observe(Source::Text, 4, 1, 0);
        }
        assert!((0.4..0.6).contains(&share(&drafter)), "one of two decided");
        assert_eq!(drafter.share(Source::Model), 0.8);
    }

    #[test]
    fn drafts_that_are_passed_over_for_their_failures_are_tried_again() {
        let mut drafter = drafter();
        for _ in 0..9 {
            drafter.observe(Source::Text, 7, 1, 100);
        }
        let steps = (0..50).take_while(|_| {
            drafter.pass_over(Source::Text, 100);
            drafter.share(Source::Text) < 0.7
        });
        assert!((2..12).contains(&steps.count()), "of the text");
        let allowance = Allowance {
            most: 15,
            reach: 120,
            favours_rows: false,
        };
        drafter.pass_over(Source::Model, 110);
        assert_eq!(drafter.wanted_of_model(110, allowance), 10, "no failure");
        drafter.observe(Source::Model, 7, 1, 110);
        drafter.pass_over(Source::Model, 110);
        assert_eq!(drafter.wanted_of_model(117, allowance), 0);
        assert_eq!(drafter.wanted_of_model(118, allowance), 2);
        assert_eq!(drafter.share(Source::Model), 0.8);
    }

    #[test]
    fn wrong_drafts_make_a_pause() {
        let text = tokens([1, 2, 3].into_iter().cycle().take(1000));
        let mut drafter = drafter();
        let has_drafts = |drafter: &mut Drafter, tokens: usize| {
            !drafter.drafts(&text[..tokens], MOST).is_empty()
        };
        for (tokens, accepted, pause) in [(100, 0, 8), (200, 0, 16), (300, 1, 0), (400, 0, 8)] {
            drafter.observe(Source::Text, 2, accepted, tokens);
            assert!(pause == 0 || !has_drafts(&mut drafter, tokens + pause - 1));
            assert!(has_drafts(&mut drafter, tokens + pause));
        }
        for _ in 0..20 {
            drafter.observe(Source::Text, 2, 0, 500);
        }
        assert!(!has_drafts(&mut drafter, 499 + LONGEST_PAUSE));
        assert!(has_drafts(&mut drafter, 500 + LONGEST_PAUSE));
    }

    #[test]
    fn many_sequences_have_none() {
        let most = |decoding, max_batch_tokens| {
            let limits = Limits {
                max_batch_tokens,
                ..crate::scheduler::tests::limits()
            };
            Allowance::of(decoding, &limits, &StepSeconds::FREE, 0).most
        };
        let of_many = [1, 4, 5, 32, 33, 63].map(|decoding| most(decoding, 1000));
        assert_eq!(of_many, [MOST, MOST, 11, 1, 0, 0]);
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
