//! Log probabilities in the OpenAI API's form: `logprobs` and `top_logprobs` of a request, `logprobs` of a choice.
//!
//! They are the model's own: natural logarithms of the softmax of the raw logits, before penalties, temperature and
//! truncation, as vLLM's `raw_logprobs`. A probability of 0 is written as -9999.0.
//!
//! | | chat | completion |
//! |---|---|---|
//! | requested by | `logprobs: true`, `top_logprobs: 0..=20` | `logprobs: 0..=20` |
//! | token | its text, or `\xe2\x82` for bytes that are not text; always `bytes` | its text, or `bytes:\xe2\x82` for bytes that are not text |
//! | most likely tokens | list, the most likely first | object by token, which always contains the chosen token |
//!
//! [`PROMPT_FIELD`] lists the prompt in vLLM's form: at each position an object, which has the token of the prompt and
//! the most likely tokens by their ids.
//!
//! With `echo: true`, a completion's lists begin with the prompt. The first token of the prompt has no probability:
//! `null`. `text_offset` counts characters of the answer. [`requests::logprobs`](worker_orcd_requests::logprobs)
//! specifies which tokens are listed, and at which piece.

use super::Kind;
use crate::fields::Fields;
use crate::mistakes::Constraint;
use crate::render::write_json;
use crate::schema;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::iter::once;
use worker_orcd_ipc::{Logprobs, MAX_TOP_LOGPROBS, TokenId};
use worker_orcd_requests::progress::ScoredPrompt;
use worker_orcd_requests::{Listed, ListedToken};
use worker_orcd_text::Text;

pub(super) const FIELD: &str = "logprobs";
pub(super) const TOP_FIELD: &str = "top_logprobs";
/// vLLM's field for log probabilities of the prompt.
pub(super) const PROMPT_FIELD: &str = "prompt_logprobs";

/// Logarithm of a probability of 0, as OpenAI and vLLM write it.
pub const IMPOSSIBLE: f32 = -9999.0;

/// Number of most likely tokens to list for each token. `None` if no log probabilities are requested.
pub(super) fn read(fields: &mut Fields<'_>, kind: Kind) -> Option<u8> {
    let range = 0..=u64::from(MAX_TOP_LOGPROBS);
    if kind == Kind::Completion {
        // The schema requires `n` to be 1: it cannot express the bound on prompts times choices.
        fields.describe_rule(|| {
            let one = schema::or_null(schema::values([1]));
            let lists = [FIELD, PROMPT_FIELD].map(|name| (name, schema::null()));
            schema::any_of([
                schema::object_with([], lists),
                schema::object_with([], [("n", one)]),
            ])
        });
        return fields.integer(FIELD, range).map(|top| top as u8);
    }
    let wanted = fields.boolean(FIELD).unwrap_or(false);
    fields.describe_rule(|| {
        let wanted = schema::object([(FIELD, schema::values([true]))]);
        let none = schema::or_null(schema::values([0]));
        schema::any_of([wanted, schema::object_with([], [(TOP_FIELD, none)])])
    });
    let top = fields.integer(TOP_FIELD, range).unwrap_or(0);
    if top > 0 && !wanted {
        fields.error(TOP_FIELD, Constraint::Conflict, "needs logprobs: true");
    }
    wanted.then_some(top as u8)
}

/// Number of most likely tokens to list for each token of the prompt. `None` if its log probabilities are not requested.
pub(super) fn read_of_prompt(fields: &mut Fields<'_>, is_streamed: bool) -> Option<u8> {
    let range = 0..=u64::from(MAX_TOP_LOGPROBS);
    let top = fields.integer(PROMPT_FIELD, range).map(|top| top as u8);
    if top.is_some() && is_streamed {
        let rule = "is not available with stream: true";
        fields.error(PROMPT_FIELD, Constraint::Conflict, rule);
    }
    top
}

/// Value between 0 and the logarithm of a probability of 0.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Logprob(#[schemars(range(min = IMPOSSIBLE, max = 0.0))] f32);

/// `logprobs` of a choice: JSON lists that grow with each piece of the answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum List {
    Chat(ChatLogprobs),
    Text(TextLogprobs),
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    #[schemars(with = "Vec<ChatToken<'static>>")]
    content: Column,
    refusal: (),
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct TextLogprobs {
    #[schemars(with = "Vec<String>")]
    tokens: Column,
    #[schemars(with = "Vec<Option<Logprob>>")]
    token_logprobs: Column,
    #[schemars(with = "Vec<Option<TopLogprobs>>")]
    top_logprobs: Column,
    #[schemars(with = "Vec<usize>")]
    text_offset: Column,
}

impl List {
    /// List without tokens.
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Chat => Self::Chat(ChatLogprobs::default()),
            Kind::Completion => Self::Text(TextLogprobs::default()),
        }
    }

    /// List of one piece.
    pub(super) fn of(kind: Kind, listed: &Listed) -> Self {
        let mut list = Self::new(kind);
        list.add(listed);
        list
    }

    pub(super) fn add(&mut self, listed: &Listed) {
        for token in &listed.tokens {
            match self {
                // A chat's list never contains the prompt.
                Self::Chat(list) => list.content.add_chat_token(listed, token),
                Self::Text(list) => {
                    list.tokens.add(&completion_text(listed, token.token));
                    let of_token = token.logprobs.as_ref().map(|it| written(it.of_token));
                    list.token_logprobs.add(&of_token);
                    list.top_logprobs.add(&TopLogprobs::of(listed, token));
                    list.text_offset.add(&token.offset);
                }
            }
        }
    }

    /// Takes all columns, in their order, and leaves a [`GAP`] in place of each.
    pub(super) fn take(&mut self) -> Vec<Column> {
        let columns = match self {
            Self::Chat(list) => vec![&mut list.content],
            Self::Text(list) => vec![
                &mut list.tokens,
                &mut list.token_logprobs,
                &mut list.top_logprobs,
                &mut list.text_offset,
            ],
        };
        let columns = columns.into_iter();
        columns
            .map(|it| std::mem::replace(it, Column::gap()))
            .collect()
    }
}

/// List in place of a column that is missing. Strings of JSON do not contain it, because they escape quotes.
pub(super) const GAP: &str = "[\"\"]";

/// Puts the columns into the gaps of an answer. Each part is freed after it is copied, because the columns of a long
/// answer are large.
pub(super) fn fill(json: &str, columns: Vec<Column>) -> Vec<u8> {
    let items: usize = columns.iter().map(|column| column.bytes() + 2).sum();
    let gaps = columns.len() * GAP.len();
    let mut out = Vec::with_capacity(json.len() + items - gaps);
    let mut columns = columns.into_iter();
    for part in json.split_inclusive(GAP) {
        let before = part.strip_suffix(GAP);
        out.extend_from_slice(before.unwrap_or(part).as_bytes());
        if let (Some(_), Some(column)) = (before, columns.next()) {
            out.push(b'[');
            for part in column.parts {
                out.extend_from_slice(&part);
            }
            out.push(b']');
        }
    }
    out
}

/// Items of a JSON list, separated by commas, in parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    parts: Vec<Vec<u8>>,
}

/// Size at which a part of a column is full, in bytes.
const PART_BYTES: usize = 1 << 20;

impl Column {
    /// `prompt_logprobs` of an answer: `null` for the first token, and an object for each other one.
    pub(super) fn of_prompt(prompt: &ScoredPrompt, ids: &[TokenId], top: u8) -> Self {
        let mut column = Self::default();
        column.add(&());
        for (token, logprobs) in ids.iter().skip(1).zip(&*prompt.logprobs) {
            column.add(&PromptTokens::of(
                &prompt.text,
                *token,
                logprobs,
                top.into(),
            ));
        }
        column
    }

    /// Adds a piece's tokens in chat form.
    pub fn add_chat(&mut self, listed: &Listed) {
        for token in &listed.tokens {
            self.add_chat_token(listed, token);
        }
    }

    /// Adds a token in chat form, if it has a probability.
    fn add_chat_token(&mut self, listed: &Listed, token: &ListedToken) {
        if let Some(logprobs) = &token.logprobs {
            self.add(&ChatToken::of(listed, token.token, logprobs));
        }
    }

    /// Appends the items of another column.
    pub fn append(&mut self, other: &Self) {
        if other.bytes() > 0 {
            let out = self.next_item();
            out.extend(other.parts.iter().flatten());
        }
    }

    /// Column that is written as a [`GAP`].
    pub(super) fn gap() -> Self {
        Self {
            parts: vec![b"\"\"".to_vec()],
        }
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    fn add(&mut self, item: &impl Serialize) {
        write_json(self.next_item(), item);
    }

    /// Buffer for the next item, after its separator.
    fn next_item(&mut self) -> &mut Vec<u8> {
        let is_first = self.parts.is_empty();
        if self.parts.last().is_none_or(|it| it.len() >= PART_BYTES) {
            self.parts.push(Vec::new());
        }
        let last = self.parts.len() - 1;
        let out = &mut self.parts[last];
        if !is_first {
            out.push(b',');
        }
        out
    }
}

/// List of the items.
impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let items = self.parts.concat();
        let text = String::from_utf8_lossy(&items);
        // The items were written as JSON.
        let list = RawValue::from_string(format!("[{text}]")).unwrap_or_default();
        list.serialize(serializer)
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatToken<'a> {
    #[serde(flatten)]
    token: ChatName<'a>,
    #[schemars(length(max = MAX_TOP_LOGPROBS))]
    top_logprobs: Vec<ChatName<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ChatName<'a> {
    token: String,
    logprob: Logprob,
    bytes: &'a [u8],
}

/// Logarithms by the text of the token, in the order of the list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(extend("maxProperties" = MAX_TOP_LOGPROBS + 1))]
struct TopLogprobs(
    #[serde(serialize_with = "in_order")]
    #[schemars(with = "BTreeMap<String, Logprob>")]
    Vec<(String, Logprob)>,
);

fn in_order<S: Serializer>(pairs: &[(String, Logprob)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, logprob)| (name, logprob)))
}

impl<'a> ChatToken<'a> {
    fn of(listed: &'a Listed, token: TokenId, logprobs: &Logprobs) -> Self {
        let name = |(token, logprob): (TokenId, f32)| {
            let bytes = listed.text.vocabulary().name(token);
            ChatName {
                token: text_of(bytes, ""),
                logprob: written(logprob),
                bytes,
            }
        };
        Self {
            token: name((token, logprobs.of_token)),
            top_logprobs: logprobs.top.iter().copied().map(name).collect(),
        }
    }
}

/// Tokens at a position of the prompt, by their ids: its own, then the most likely ones.
#[derive(Debug, Serialize)]
struct PromptTokens(#[serde(serialize_with = "by_id")] Vec<(TokenId, PromptToken)>);

/// Type of [`PromptTokens`] in the description.
pub(super) type PromptTokensById = BTreeMap<String, PromptToken>;

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PromptToken {
    logprob: Logprob,
    /// Position among all tokens of the vocabulary, by descending probability and then by ascending id.
    #[schemars(range(min = 1))]
    rank: u32,
    /// Text of the token alone. Bytes that are not text are replacement characters.
    decoded_token: String,
}

fn by_id<S: Serializer>(
    tokens: &[(TokenId, PromptToken)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tokens.iter().map(|(id, token)| (id.0, token)))
}

impl PromptTokens {
    fn of(text: &Text, token: TokenId, logprobs: &Logprobs, top: usize) -> Self {
        let of = |token: TokenId, rank, logprob| {
            let bytes = text.vocabulary().name(token);
            let token_of_prompt = PromptToken {
                logprob: written(logprob),
                rank,
                decoded_token: String::from_utf8_lossy(bytes).into_owned(),
            };
            (token, token_of_prompt)
        };
        let itself = of(token, logprobs.rank, logprobs.of_token);
        let likely = (1..).zip(&logprobs.top).take(top);
        let others = likely.filter(|(_, (other, _))| *other != token);
        let others = others.map(|(rank, (other, logprob))| of(*other, rank, *logprob));
        Self(once(itself).chain(others).collect())
    }
}

fn completion_text(listed: &Listed, token: TokenId) -> String {
    text_of(listed.text.vocabulary().name(token), "bytes:")
}

impl TopLogprobs {
    /// Most likely tokens and the chosen token. `None` for the first token of a prompt. Of two tokens with the same
    /// text, the more likely one is kept.
    fn of(listed: &Listed, token: &ListedToken) -> Option<Self> {
        let logprobs = token.logprobs.as_ref()?;
        let itself = (token.token, logprobs.of_token);
        let mut all: Vec<(String, Logprob)> = Vec::new();
        for &(token, logprob) in logprobs.top.iter().chain([&itself]) {
            let name = completion_text(listed, token);
            if all.iter().all(|(known, _)| *known != name) {
                all.push((name, written(logprob)));
            }
        }
        Some(Self(all))
    }
}

fn written(logprob: f32) -> Logprob {
    Logprob(logprob.max(IMPOSSIBLE))
}

/// Text of a token. Bytes that are not text are written as hexadecimal escapes after `mark`.
fn text_of(bytes: &[u8], mark: &str) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let mut text = mark.to_owned();
            for byte in bytes {
                // Writing to a string does not fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use worker_orcd_requests::testing::{EOS, text};

    /// Tokens `b` and an incomplete character. The most likely token is the end of generation.
    fn listed() -> Listed {
        let token = |token, offset, of_token, second| ListedToken {
            token: TokenId(token),
            offset,
            logprobs: Some(Logprobs {
                of_token,
                rank: 1,
                top: vec![(EOS, -0.25), (TokenId(second), -1.5)],
            }),
        };
        Listed {
            tokens: vec![token(1, 0, -1.5, 1), token(2, 1, f32::NEG_INFINITY, 0)],
            text: text(),
        }
    }

    fn written_as(kind: Kind, listed: &[Listed]) -> Value {
        let mut list = List::new(kind);
        listed.iter().for_each(|listed| list.add(listed));
        let whole = json!(list);
        let columns = list.take();
        let json = fill(&json!(list).to_string(), columns);
        assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), whole);
        whole
    }

    #[test]
    fn a_chat_lists_tokens_with_their_bytes_and_the_most_likely_in_order() {
        let eos = json!({"token": "<eos>", "logprob": -0.25, "bytes": b"<eos>"});
        let b = json!({"token": "b", "logprob": -1.5, "bytes": b"b"});
        let a = json!({"token": "a", "logprob": -1.5, "bytes": b"a"});
        assert_eq!(
            written_as(Kind::Chat, &[listed()]),
            json!({
                "content": [
                    {"token": "b", "logprob": -1.5, "bytes": b"b", "top_logprobs": [eos, b]},
                    {"token": "\\xc3", "logprob": -9999.0, "bytes": [0xc3],
                     "top_logprobs": [eos, a]},
                ],
                "refusal": null,
            })
        );
    }

    #[test]
    fn a_completion_has_four_lists_and_the_token_itself_among_the_most_likely() {
        assert_eq!(
            written_as(Kind::Completion, &[listed()]),
            json!({
                "tokens": ["b", "bytes:\\xc3"],
                "token_logprobs": [-1.5, -9999.0],
                "top_logprobs": [
                    {"<eos>": -0.25, "b": -1.5},
                    {"<eos>": -0.25, "a": -1.5, "bytes:\\xc3": -9999.0},
                ],
                "text_offset": [0, 1],
            })
        );
    }

    #[test]
    fn nothing_is_said_of_the_first_token_of_a_prompt() {
        let mut listed = listed();
        listed.tokens[0].logprobs = None;
        let written = written_as(Kind::Completion, &[listed]);
        assert_eq!(written["tokens"][0], "b");
        assert_eq!(written["token_logprobs"], json!([null, -9999.0]));
        assert_eq!(written["top_logprobs"][0], Value::Null);
    }

    #[test]
    fn pieces_one_by_one_are_the_whole() {
        let twice = [listed(), listed()];
        for (kind, column) in [(Kind::Chat, "content"), (Kind::Completion, "top_logprobs")] {
            let whole = written_as(kind, &twice);
            let once = written_as(kind, &twice[..1])[column].clone();
            let (first, second) = whole[column].as_array().unwrap().split_at(2);
            assert_eq!((json!(first), json!(second)), (once.clone(), once));
        }
        assert_eq!(
            written_as(Kind::Chat, &[]),
            json!({"content": [], "refusal": null})
        );
    }
}
