//! Special tokens inside a prompt.
//!
//! A prompt is split at every control, unknown and user-defined token before the rest is tokenized. The longest token
//! is searched first, over the whole text, as in llama.cpp. This differs from leftmost-longest if special tokens
//! overlap.
//!
//! Phi-3's special tokens swallow the following white space. GGUF has no field for this. llama.cpp goes by the model's
//! name, this module by a token that only Phi-3's vocabulary has.

use std::collections::HashMap;
use std::ops::Range;
use worker_orcd_ipc::vocabulary::effective_kind;
use worker_orcd_ipc::{TokenId, TokenKind, TokenizerFacts};

/// Piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    Text(&'a str),
    Token(TokenId),
}

#[derive(Debug)]
pub(super) struct SpecialTokens {
    /// Sorted by length, longest first.
    tokens: Vec<SpecialToken>,
    /// Index of a token in `tokens`.
    places: HashMap<TokenId, usize>,
}

#[derive(Debug)]
struct SpecialToken {
    text: String,
    token: TokenId,
    /// Control or unknown token: it decodes to no text.
    is_control: bool,
    swallows_space: bool,
}

/// Occurrence of a special token's text in another text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) range: Range<usize>,
    pub(super) token: TokenId,
    is_control: bool,
    swallows_space: bool,
}

/// White space of C's `isspace`.
const SPACE: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];
const ONLY_IN_PHI3: &str = "<|placeholder1|>";
const NEVER_SWALLOW: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

impl SpecialTokens {
    pub(super) fn from_facts(facts: &TokenizerFacts) -> Self {
        let phi3 = facts.tokens.iter().any(|text| text == ONLY_IN_PHI3);
        let tokens = (0_u32..)
            .zip(&facts.tokens)
            .filter(|(id, text)| !text.is_empty() && is_special(facts, *id as usize))
            .map(|(id, text)| SpecialToken {
                text: text.clone(),
                token: TokenId(id),
                is_control: is_control(effective_kind(facts, id as usize)),
                swallows_space: phi3 && !NEVER_SWALLOW.contains(&text.as_str()),
            })
            .collect();
        Self::new(tokens)
    }

    fn new(mut tokens: Vec<SpecialToken>) -> Self {
        tokens.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let places = tokens.iter().enumerate();
        let places = places.map(|(at, special)| (special.token, at)).collect();
        Self { tokens, places }
    }

    /// Splits a prompt. A control token's text stays text if its entry in `clients_own` is true, counted in order.
    /// Missing entries are false.
    pub(super) fn split<'a>(&self, prompt: &'a str, clients_own: &[bool]) -> Vec<Fragment<'a>> {
        let mut own = clients_own.iter();
        let mut fragments = Vec::new();
        let mut at = 0;
        for found in self.find(prompt) {
            if found.is_control && own.next() == Some(&true) {
                continue;
            }
            fragments.push(Fragment::Text(
                &prompt[at.min(found.range.start)..found.range.start],
            ));
            fragments.push(Fragment::Token(found.token));
            at = found.range.end;
            if found.swallows_space {
                let rest = &prompt[at..];
                at += rest.len() - rest.trim_start_matches(SPACE).len();
            }
        }
        fragments.push(Fragment::Text(&prompt[at..]));
        fragments.retain(|part| *part != Fragment::Text(""));
        fragments
    }

    /// Occurrences of control tokens' texts, in order.
    pub(super) fn find_control(&self, text: &str) -> impl Iterator<Item = Found> {
        self.find(text).into_iter().filter(|found| found.is_control)
    }

    pub(super) fn is_control(&self, token: TokenId) -> bool {
        let place = self.places.get(&token);
        place.is_some_and(|place| self.tokens[*place].is_control)
    }

    /// Control tokens with one of these texts.
    pub(super) fn control_of<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Vec<TokenId> {
        let control = |text: &'t str| {
            let mut tokens = self.tokens.iter().filter(|it| it.is_control);
            tokens.find(|it| it.text == text).map(|it| it.token)
        };
        texts.filter_map(control).collect()
    }

    /// Text of a special token, including control tokens, which decode to no text.
    pub(super) fn text(&self, token: TokenId) -> Option<&str> {
        let place = *self.places.get(&token)?;
        Some(&self.tokens[place].text)
    }

    /// True if a special token and the white space that it swallows may be any number of bytes.
    pub(super) fn swallow_space(&self) -> bool {
        self.tokens.iter().any(|special| special.swallows_space)
    }

    /// Occurrences without overlap, in order. Of overlapping ones, the longest token's stays.
    fn find(&self, text: &str) -> Vec<Found> {
        let mut all: Vec<Found> = Vec::new();
        for special in self.tokens.iter().filter(|it| text.contains(&it.text)) {
            let mut new = Vec::new();
            for gap in gaps(&all, text.len()) {
                let start = gap.start;
                new.extend(text[gap].match_indices(&special.text).map(|(at, _)| Found {
                    range: start + at..start + at + special.text.len(),
                    token: special.token,
                    is_control: special.is_control,
                    swallows_space: special.swallows_space,
                }));
            }
            all.extend(new);
            all.sort_by_key(|found| found.range.start);
        }
        all
    }
}

/// Ranges before, between and after the occurrences.
fn gaps(found: &[Found], end: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(found.iter().map(|it| it.range.end));
    let ends = found.iter().map(|it| it.range.start).chain([end]);
    starts.zip(ends).map(|(start, end)| start..end)
}

fn is_control(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Control | TokenKind::Unknown)
}

fn is_special(facts: &TokenizerFacts, index: usize) -> bool {
    let kind = effective_kind(facts, index);
    is_control(kind) || kind == TokenKind::UserDefined
}

#[cfg(test)]
impl SpecialTokens {
    /// Tokens with ids from 0 in this order.
    pub(super) fn of(tokens: &[(&str, TokenKind)]) -> Self {
        let tokens = (0..)
            .zip(tokens)
            .map(|(id, (text, kind))| SpecialToken {
                text: (*text).to_owned(),
                token: TokenId(id),
                is_control: is_control(*kind),
                swallows_space: false,
            })
            .collect();
        Self::new(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(texts: &[&str], swallows_space: bool) -> SpecialTokens {
        let texts: Vec<_> = texts.iter().map(|it| (*it, TokenKind::Control)).collect();
        let mut special = SpecialTokens::of(&texts);
        for token in &mut special.tokens {
            token.swallows_space = swallows_space;
        }
        special
    }

    #[test]
    fn the_longest_token_wins_wherever_it_is() {
        // Leftmost-longest would see `<a` first and leave `<b>` in pieces.
        let special = tokens(&["<a<", "<<b>>"], false);
        assert_eq!(
            special.split("<a<<b>>", &[]),
            [Fragment::Text("<a"), Fragment::Token(TokenId(1))]
        );
    }

    #[test]
    fn control_tokens_are_found_by_their_text() {
        let special = SpecialTokens::of(&[
            ("<think>", TokenKind::UserDefined),
            ("[ARGS]", TokenKind::Control),
        ]);
        let found = special.control_of(["<think>", "[ARGS]", "[CALL_ID]"].into_iter());
        assert_eq!(found, [TokenId(1)], "<think> is no control token");
        assert_eq!(special.text(TokenId(1)), Some("[ARGS]"));
        assert_eq!(special.text(TokenId(2)), None);
    }

    #[test]
    fn neighbours_leave_no_empty_text_between_them() {
        let special = tokens(&["<s>"], false);
        let token = Fragment::Token(TokenId(0));
        assert_eq!(
            special.split("<s><s> x", &[]),
            [token, token, Fragment::Text(" x")]
        );
        assert_eq!(special.split("", &[]), []);
    }

    #[test]
    fn phi3_s_tokens_swallow_the_space_behind_them() {
        let special = tokens(&["<|user|>"], true);
        assert_eq!(
            special.split(" <|user|>\n Hi", &[]),
            [
                Fragment::Text(" "),
                Fragment::Token(TokenId(0)),
                Fragment::Text("Hi")
            ]
        );
    }

    #[test]
    fn what_a_client_wrote_stays_in_its_text() {
        let special = SpecialTokens::of(&[
            ("<s>", TokenKind::Control),
            ("<tool>", TokenKind::UserDefined),
        ]);
        let (start, tool) = (Fragment::Token(TokenId(0)), Fragment::Token(TokenId(1)));
        assert_eq!(
            special.split("<s>a <s> b<tool><s>c", &[false, true, true]),
            [
                start,
                Fragment::Text("a <s> b"),
                tool,
                Fragment::Text("<s>c")
            ]
        );
    }
}
