//! Fields of the three routes.

use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::limits::RequestLimits;
use crate::mistakes::Constraint;
use crate::no_effect::{accept, values};
use crate::openai::request::{CONVERSATION, read_conversation};
use crate::request::{Input, Reader};
use crate::sampling::ModelTerms;
use crate::schema;
use crate::token_ids;
use worker_orcd_ipc::TokenId;

#[derive(Debug, Clone, PartialEq)]
pub struct Tokenize {
    pub input: Input,
    /// Name of the field in the request.
    pub field: &'static str,
    /// Add the special tokens of a prompt.
    pub adds_special: bool,
    /// Include the text of each token (llama-server).
    pub with_pieces: bool,
    /// Include a separate list of token texts (vLLM).
    pub with_texts: bool,
}

const INPUTS: [&str; 3] = ["content", "prompt", "messages"];

const TOKENIZE_FIELDS: &[&str] = &[
    "model",
    "content",
    "prompt",
    "messages",
    "add_special",
    "add_special_tokens",
    "parse_special",
    "with_pieces",
    "return_token_strs",
];

const TOKENIZE_NAMES: Names = &{
    let [tools, settings, effort, begun] = CONVERSATION;
    [TOKENIZE_FIELDS, tools, settings, effort, begun]
};

const TEMPLATE_NAMES: Names = &{
    let [tools, settings, effort, begun] = CONVERSATION;
    [&["model", "messages"], tools, settings, effort, begun]
};

/// Body of `/tokenize`.
pub const TOKENIZE: Reader<Tokenize> = Reader::new(TOKENIZE_NAMES, read_tokenize);

/// Body of `/detokenize`.
pub const TOKENS: Reader<Vec<TokenId>> = Reader::new(&[&["model", "tokens"]], read_tokens);

/// Body of `/apply-template`.
pub const TEMPLATE: Reader<Input> = Reader::new(TEMPLATE_NAMES, |mut fields, limits, model| {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let read = |it: &mut Fields<'_>, _: &str| read_conversation(it, max_chars, model);
    let input = fields.must("messages", read);
    fields.finish().map_err(ApiError::invalid)?;
    input.ok_or_else(ApiError::unreadable)
});

fn read_tokenize(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<Tokenize, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let field = check_one_input(&mut fields);
    check_conversation(&mut fields);
    let (is_content, is_messages) = (fields.has("content"), fields.has("messages"));
    let mut text = |name: &str| fields.text(name, &(0..=max_chars)).map(Input::Prompt);
    let (content, prompt) = (text("content"), text("prompt"));
    let messages = read_conversation(&mut fields, max_chars, model);
    let input = content.or(prompt).or(messages);
    let adds_special = read_adds_special(&mut fields, !is_content, is_messages);
    let special = values("parse_special", &["true"], "may be true only");
    accept(&mut fields, &[special]);
    let with_pieces = fields.boolean("with_pieces").unwrap_or(false);
    let with_texts = fields.boolean("return_token_strs").unwrap_or(false);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(Tokenize {
        input: input.ok_or_else(ApiError::unreadable)?,
        field,
        adds_special,
        with_pieces,
        with_texts,
    })
}

/// First of the input fields that is present. Notes a mistake for none and for two.
fn check_one_input(fields: &mut Fields<'_>) -> &'static str {
    fields.describe_rule(|| {
        schema::any_of(INPUTS.map(|name| {
            let others = INPUTS.into_iter().filter(|other| *other != name);
            schema::with(name, others.map(|other| (other, schema::null())))
        }))
    });
    let mut given = INPUTS.into_iter().filter(|name| fields.has(name));
    let (first, second) = (given.next(), given.next());
    match (first, second) {
        (None, _) => {
            let rule = "or prompt, or messages, is required";
            fields.error("content", Constraint::Required, rule);
        }
        (Some(first), Some(second)) => {
            let rule = format!("cannot be given together with {first}");
            fields.error(second, Constraint::Conflict, rule);
        }
        (Some(_), None) => {}
    }
    first.unwrap_or(INPUTS[0])
}

/// Refuses template fields beside a text, and `parse_special` beside a conversation, in which special tokens of the
/// client are always text.
fn check_conversation(fields: &mut Fields<'_>) {
    let of_messages = || CONVERSATION.into_iter().flatten().copied();
    fields.describe_rule(|| {
        let nulls = of_messages().map(|name| (name, schema::null()));
        schema::any_of([schema::object_with([], nulls), schema::with("messages", [])])
    });
    fields.describe_rule(|| schema::any_of(["messages", "parse_special"].map(schema::without)));
    let is_messages = fields.has("messages");
    for name in of_messages().filter(|_| !is_messages) {
        if fields.has(name) {
            let rule = "is for messages, and there are none";
            fields.error(name, Constraint::Conflict, rule);
        }
    }
    if is_messages && fields.has("parse_special") {
        let rule = "cannot be given together with messages: special tokens in them are text";
        fields.error("parse_special", Constraint::Conflict, rule);
    }
}

/// Reads both names of the option. A template writes all special tokens itself.
fn read_adds_special(fields: &mut Fields<'_>, default: bool, is_messages: bool) -> bool {
    fields.describe_rule(|| {
        let none = ["add_special", "add_special_tokens"].map(|name| {
            let off = schema::values([serde_json::json!(false), serde_json::Value::Null]);
            schema::object_with([], [(name, off)])
        });
        let one = ["add_special", "add_special_tokens"].map(schema::without);
        let no_messages = schema::object_with([], [("messages", schema::null())]);
        schema::all_of([
            schema::any_of(one),
            schema::any_of([no_messages, schema::all_of(none)]),
        ])
    });
    let older = fields.boolean("add_special");
    let newer = fields.boolean("add_special_tokens");
    if older.is_some() && newer.is_some() {
        let rule = "cannot be given together with add_special";
        fields.error("add_special_tokens", Constraint::Conflict, rule);
    }
    let wanted = newer.or(older);
    if is_messages && wanted == Some(true) {
        let name = if newer.is_some() {
            "add_special_tokens"
        } else {
            "add_special"
        };
        let rule = "may be false only beside messages: the template writes them";
        fields.error(name, Constraint::Conflict, rule);
    }
    wanted.unwrap_or(default)
}

fn read_tokens(
    mut fields: Fields<'_>,
    _: &RequestLimits,
    model: &ModelTerms,
) -> Result<Vec<TokenId>, ApiError> {
    let shape = || schema::list_of(token_ids::shape(model.vocabulary));
    let given = fields.given("tokens", shape);
    let tokens = given.and_then(|given| token_ids::read_list(given, model.vocabulary));
    if tokens.is_none() && fields.has("tokens") {
        let rule = "must be a list of ids of the vocabulary";
        fields.error("tokens", Constraint::Type, rule);
    }
    let tokens = fields.required("tokens", tokens);
    fields.finish().map_err(ApiError::invalid)?;
    tokens.ok_or_else(ApiError::unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Dialect;

    fn tokenize(body: &str) -> Result<Tokenize, String> {
        let fields = Fields::parse(body, TOKENIZE_NAMES).unwrap();
        read_tokenize(fields, &RequestLimits::NONE, &ModelTerms::UNKNOWN)
            .map_err(|error| error.body(Dialect::Native).to_string())
    }

    #[test]
    fn each_server_s_names_mean_what_they_mean_there() {
        assert!(!tokenize("{\"content\": \"a\"}").unwrap().adds_special);
        assert!(
            tokenize("{\"content\": \"a\", \"add_special\": true}")
                .unwrap()
                .adds_special
        );
        assert!(tokenize("{\"prompt\": \"a\"}").unwrap().adds_special);
        let off = "{\"prompt\": \"\", \"add_special_tokens\": false, \"return_token_strs\": true}";
        let off = tokenize(off).unwrap();
        assert_eq!(
            (off.adds_special, off.with_texts, off.with_pieces),
            (false, true, false)
        );
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name() {
        for (body, field) in [
            ("{}", "content"),
            ("{\"content\": \"a\", \"prompt\": \"a\"}", "prompt"),
            (
                "{\"prompt\": \"a\", \"add_special\": true, \"add_special_tokens\": true}",
                "add_special_tokens",
            ),
            (
                "{\"content\": \"a\", \"parse_special\": false}",
                "parse_special",
            ),
            (
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"add_special\": true}",
                "add_special",
            ),
            (
                "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"parse_special\": true}",
                "parse_special",
            ),
            ("{\"content\": \"a\", \"tools\": []}", "tools"),
            (
                "{\"prompt\": \"a\", \"tool_choice\": \"none\"}",
                "tool_choice",
            ),
            (
                "{\"content\": \"a\", \"parallel_tool_calls\": true}",
                "parallel_tool_calls",
            ),
            (
                "{\"content\": \"a\", \"chat_template_kwargs\": {}}",
                "chat_template_kwargs",
            ),
            (
                "{\"content\": \"a\", \"add_generation_prompt\": true}",
                "add_generation_prompt",
            ),
        ] {
            let error = tokenize(body).unwrap_err();
            assert!(
                error.contains(&format!("\"field\":\"{field}\"")),
                "{body}: {error}"
            );
        }
    }

    #[test]
    fn tokens_are_ids_and_nothing_else() {
        let model = ModelTerms {
            vocabulary: 10,
            ..ModelTerms::UNKNOWN
        };
        let read = |body: &str| {
            let fields = Fields::parse(body, TOKENS.names).unwrap();
            read_tokens(fields, &RequestLimits::NONE, &model).ok()
        };
        assert_eq!(
            read("{\"tokens\": [0, 9]}"),
            Some(vec![TokenId(0), TokenId(9)])
        );
        assert_eq!(read("{\"tokens\": []}"), Some(Vec::new()));
        for wrong in [
            "{}",
            "{\"tokens\": [10]}",
            "{\"tokens\": [\"a\"]}",
            "{\"tokens\": 1}",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
