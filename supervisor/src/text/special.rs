//! Texts of special tokens inside a prompt.
//!
//! A prompt is cut at every control, unknown and user-defined token before the rest is
//! tokenized: longest token first over the whole text, as llama.cpp does, which differs from
//! leftmost-longest where special tokens overlap.
//!
//! Phi-3's special tokens swallow the white space behind them. GGUF has no field that says so;
//! llama.cpp goes by the model's name, this goes by a token that only Phi-3's vocabulary has.

use super::vocabulary::effective_kind;
use worker_orcd_ipc::{TokenId, TokenKind, TokenizerFacts};

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(TokenId),
}

#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Longest first.
    tokens: Vec<SpecialToken>,
}

#[derive(Debug)]
struct SpecialToken {
    text: String,
    token: TokenId,
    swallows_space: bool,
}

/// What C calls space.
const SPACE: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];
const ONLY_IN_PHI3: &str = "<|placeholder1|>";
const NEVER_SWALLOW: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

impl SpecialTokens {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Self {
        let phi3 = facts.tokens.iter().any(|text| text == ONLY_IN_PHI3);
        let mut tokens: Vec<SpecialToken> = (0_u32..)
            .zip(&facts.tokens)
            .filter(|(id, text)| !text.is_empty() && is_special(facts, *id as usize))
            .map(|(id, text)| SpecialToken {
                text: text.clone(),
                token: TokenId(id),
                swallows_space: phi3 && !NEVER_SWALLOW.contains(&text.as_str()),
            })
            .collect();
        tokens.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        Self { tokens }
    }

    pub(super) fn split<'a>(&self, prompt: &'a str) -> Vec<Fragment<'a>> {
        let mut fragments = vec![Fragment::Text(prompt)];
        for special in &self.tokens {
            if prompt.contains(&special.text) {
                fragments = fragments
                    .into_iter()
                    .flat_map(|part| special.split(part))
                    .collect();
            }
        }
        fragments.retain(|part| *part != Fragment::Text(""));
        fragments
    }
}

impl SpecialToken {
    fn split<'a>(&self, fragment: Fragment<'a>) -> Vec<Fragment<'a>> {
        let Fragment::Text(text) = fragment else {
            return vec![fragment];
        };
        let mut parts = Vec::new();
        for (index, between) in text.split(&self.text).enumerate() {
            if index == 0 {
                parts.push(Fragment::Text(between));
                continue;
            }
            parts.push(Fragment::Token(self.token));
            let rest = if self.swallows_space {
                between.trim_start_matches(SPACE)
            } else {
                between
            };
            parts.push(Fragment::Text(rest));
        }
        parts
    }
}

fn is_special(facts: &TokenizerFacts, index: usize) -> bool {
    matches!(
        effective_kind(facts, index),
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(texts: &[&str], swallows_space: bool) -> SpecialTokens {
        let mut tokens: Vec<SpecialToken> = (0..)
            .zip(texts)
            .map(|(id, text)| SpecialToken {
                text: (*text).to_owned(),
                token: TokenId(id),
                swallows_space,
            })
            .collect();
        tokens.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        SpecialTokens { tokens }
    }

    #[test]
    fn the_longest_token_wins_wherever_it_is() {
        // Leftmost-longest would see `<a` first and leave `<b>` in pieces.
        let special = tokens(&["<a<", "<<b>>"], false);
        assert_eq!(
            special.split("<a<<b>>"),
            [Fragment::Text("<a"), Fragment::Token(TokenId(1))]
        );
    }

    #[test]
    fn neighbours_leave_no_empty_text_between_them() {
        let special = tokens(&["<s>"], false);
        let token = Fragment::Token(TokenId(0));
        assert_eq!(
            special.split("<s><s> x"),
            [token, token, Fragment::Text(" x")]
        );
        assert_eq!(special.split(""), []);
    }

    #[test]
    fn phi3_s_tokens_swallow_the_space_behind_them() {
        let special = tokens(&["<|user|>"], true);
        assert_eq!(
            special.split(" <|user|>\n Hi"),
            [
                Fragment::Text(" "),
                Fragment::Token(TokenId(0)),
                Fragment::Text("Hi")
            ]
        );
    }
}
