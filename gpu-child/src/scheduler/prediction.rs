//! Drafts from the text that a request predicts.
//!
//! ```text
//!   prediction     … let a = 1; let b = 2; return a + b;
//!   generated      … let a = 1; let c = 2; return a         draft: + b ;
//!                                   ^ lost    ^ found again behind a run of equal tokens
//! ```
//!
//! The answer is expected to begin as the prediction does, and to go on with it. Behind a token that differs, the place
//! is found by the last [`MATCH`] generated tokens: shortly behind the place where it was lost, because parts of a list
//! or a program often have equal runs, else at their latest occurrence.

use super::drafts::{MATCH, Runs};
use std::sync::Arc;
use worker_orcd_ipc::TokenId;

/// Tokens behind the lost place that are searched first.
const NEAR: usize = 1024;

/// Tokens that one step adds to the index: it holds up the steps of all sequences.
const INDEXED_AT_ONCE: usize = 4096;

#[derive(Debug)]
pub(super) struct Prediction {
    text: Arc<[TokenId]>,
    runs: Runs,
    /// Place in the text behind the last generated token, unless it is lost.
    at: Option<usize>,
    /// Place of the token that differed last.
    lost_at: usize,
    /// Number of generated tokens before `at`.
    followed: usize,
    /// The place was lost, and is found since.
    is_found: bool,
}

impl Prediction {
    pub(super) fn new(text: Arc<[TokenId]>) -> Self {
        Self {
            text,
            runs: Runs::default(),
            at: Some(0),
            lost_at: 0,
            followed: 0,
            is_found: false,
        }
    }

    /// True once after a lost place was found again.
    pub(super) fn take_found(&mut self) -> bool {
        std::mem::take(&mut self.is_found)
    }

    /// Predicted tokens behind the generated ones; empty if none are known.
    pub(super) fn behind(&mut self, generated: &[TokenId]) -> &[TokenId] {
        if self.text.is_empty() {
            return &[];
        }
        for token in &generated[self.followed..] {
            let Some(at) = self.at else {
                break;
            };
            self.lost_at = at;
            self.at = (self.text.get(at) == Some(token)).then_some(at + 1);
        }
        self.followed = generated.len();
        if self.at.is_none() && generated.len() >= MATCH {
            self.at = self.find(generated);
            self.is_found |= self.at.is_some();
        }
        self.at.map_or(&[], |at| &self.text[at..])
    }

    fn find(&mut self, generated: &[TokenId]) -> Option<usize> {
        let last = &generated[generated.len() - MATCH..];
        let nearby = self.text[self.lost_at..].windows(MATCH).take(NEAR);
        if let Some(behind) = nearby.into_iter().position(|run| run == last) {
            return Some(self.lost_at + behind + MATCH);
        }
        self.runs.learn_some(&self.text, INDEXED_AT_ONCE);
        self.runs.find(&self.text, generated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        ids.into_iter().map(TokenId).collect()
    }

    #[test]
    fn an_answer_goes_on_where_it_left_the_prediction() {
        let text = tokens(0..40);
        let mut prediction = Prediction::new(text.clone().into());
        let mut generated = Vec::new();
        assert_eq!(
            prediction.behind(&generated),
            text,
            "before the first token"
        );
        generated.extend(tokens(0..10));
        assert_eq!(prediction.behind(&generated), &text[10..]);
        generated.push(TokenId(99));
        assert_eq!(prediction.behind(&generated), [], "it is lost");
        // Three tokens are left out.
        for token in 13..13 + MATCH as u32 {
            assert_eq!(prediction.behind(&generated), []);
            generated.push(TokenId(token));
        }
        assert_eq!(prediction.behind(&generated), &text[13 + MATCH..]);
        generated.extend(tokens(13 + MATCH as u32..40));
        assert_eq!(prediction.behind(&generated), [], "it is over");
        generated.push(TokenId(0));
        assert_eq!(prediction.behind(&generated), []);
    }

    /// Elements of a list that are equal but for one token each.
    #[test]
    fn a_place_is_found_near_where_it_was_lost() {
        let element = |id: u32| (0..30).map(move |at| if at == 5 { 1000 + id } else { at });
        let text = tokens((0..10).flat_map(element));
        let mut prediction = Prediction::new(text.clone().into());
        let mut generated = text[..50].to_vec();
        assert_eq!(prediction.behind(&generated), &text[50..]);
        assert!(!prediction.take_found());
        generated.push(TokenId(99));
        assert_eq!(prediction.behind(&generated), []);
        generated.extend(&text[51..51 + MATCH]);
        assert_eq!(prediction.behind(&generated), &text[51 + MATCH..]);
        assert!(prediction.take_found() && !prediction.take_found());
    }

    #[test]
    fn a_far_place_is_found_once_it_is_indexed() {
        let text = tokens(0..(2 * INDEXED_AT_ONCE + NEAR) as u32);
        let mut prediction = Prediction::new(text.clone().into());
        let mut generated = tokens([99_999]);
        let far = 2 * INDEXED_AT_ONCE;
        generated.extend(&text[far..far + MATCH]);
        for _ in 0..2 {
            assert_eq!(prediction.behind(&generated), []);
        }
        assert_eq!(prediction.behind(&generated), &text[far + MATCH..]);
    }

    #[test]
    fn a_history_is_followed_as_if_it_was_generated_here() {
        let text = tokens(0..100);
        let mut answer = text.clone();
        answer[30] = TokenId(200);
        answer.remove(60);
        let (mut growing, mut found) = (Prediction::new(text.clone().into()), 0);
        for end in 0..answer.len() {
            let mut new = Prediction::new(text.clone().into());
            let expected = growing.behind(&answer[..end]);
            assert_eq!(new.behind(&answer[..end]), expected, "{end}");
            found += usize::from(!expected.is_empty());
        }
        // It is lost behind each difference until eight tokens are equal again.
        assert!((70..answer.len() - MATCH).contains(&found), "{found}");
    }

    #[test]
    fn without_a_prediction_nothing_is_predicted() {
        let mut none = Prediction::new(Arc::default());
        assert_eq!(none.behind(&tokens(0..20)), []);
        let mut short = Prediction::new(tokens(5..7).into());
        assert_eq!(short.behind(&tokens(0..20)), []);
    }
}
