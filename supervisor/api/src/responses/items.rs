//! Items of `input`, by type: `message` (the default), `function_call`, `function_call_output` or `reasoning`.
//!
//! Clients send back items of earlier answers, with `id` and `status`, which have no effect. An item of another type is
//! refused, because the conversation would be incomplete without it.

use crate::fields::{Fields, Names, each, element, history_shape};
use crate::json::{Json, Kind as JsonKind};
use crate::messages::tool_calls::{NAME_CHARS, NUMBERS};
use crate::messages::{LOGPROBS, PASSED_OVER, read_part};
use crate::mistakes::{Constraint, Mistakes};
use crate::schema::{self, Shape};
use worker_orcd_text::tools::ChatTerms;
use worker_orcd_text::{ToolCall, json_texts};

/// Contribution of one item to the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Turn {
    Said { role: &'static str, text: String },
    Thought(String),
    Called(ToolCall),
    Returned { call_id: String, text: String },
}

type Turned = Result<Option<Turn>, Mistakes>;

struct Kind {
    name: &'static str,
    names: Names,
    read: fn(Fields<'_>, &ChatTerms) -> Turned,
}

const MESSAGE: &[&str] = &["role", "content", "phase", "end_turn"];
const CALL: &[&str] = &["call_id", "name", "arguments"];
const OUTPUT: &[&str] = &["call_id", "output"];
const REASONING: &[&str] = &["summary", "content", "encrypted_content"];

const KINDS: [Kind; 4] = [
    Kind {
        name: "message",
        names: &[LABELS, MESSAGE, PASSED_OVER],
        read: read_message,
    },
    Kind {
        name: "function_call",
        names: &[LABELS, CALL, PASSED_OVER],
        read: read_call,
    },
    Kind {
        name: "function_call_output",
        names: &[LABELS, OUTPUT, PASSED_OVER],
        read: read_output,
    },
    Kind {
        name: "reasoning",
        names: &[LABELS, REASONING, PASSED_OVER],
        read: read_reasoning,
    },
];

/// Fields of every item.
const LABELS: &[&str] = &["type", "status"];

const ROLES: &[(&str, &str)] = &[
    ("user", "user"),
    ("assistant", "assistant"),
    ("system", "system"),
    // OpenAI's developer role is the system role of templates.
    ("developer", "system"),
];

const STATUSES: &[(&str, ())] = &[("in_progress", ()), ("completed", ()), ("incomplete", ())];
const PHASES: &[(&str, ())] = &[("commentary", ()), ("final_answer", ())];

const PART: Names = &[&["type", "text", LOGPROBS], PASSED_OVER];
const PLAIN_PART: Names = &[&["type", "text"], PASSED_OVER];

pub(super) fn shape(terms: &ChatTerms) -> Shape {
    let kinds = KINDS.iter();
    // A template that does not show calls cannot receive them.
    let kinds = kinds.filter(|kind| terms.shows_calls || kind.name != "function_call");
    schema::any_of(kinds.map(|kind| history_shape(kind.names, |it| (kind.read)(it, terms))))
}

/// Reads one item. Paths of mistakes are relative to the item: `.content[0].text`.
pub(super) fn read(item: Json<'_>, outside: &Mistakes, terms: &ChatTerms) -> Turned {
    let name = match item.member("type").filter(|it| !it.is_null()) {
        Some(name) => name.text().unwrap_or_default(),
        None => "message".into(),
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        let rule = "must be message, function_call, function_call_output or reasoning: other items \
                    are not supported";
        return Err(outside.only(".type", Constraint::Unsupported, rule));
    };
    let fields = Fields::of_history(item, kind.names, outside);
    let no_object = || outside.only("", Constraint::Type, "must be an object");
    let fields = fields.ok_or_else(no_object)?;
    (kind.read)(fields, terms).map_err(|wrong| {
        wrong.renamed(|field| match field.is_empty() {
            true => String::new(),
            false => format!(".{field}"),
        })
    })
}

/// Reads the fields of every item.
fn read_labels(fields: &mut Fields<'_>, kind: &'static str) {
    let given = fields.given("type", || schema::values([kind]));
    // An item without a type is a message.
    if kind != "message" {
        fields.required("type", given);
    }
    fields.word("status", STATUSES);
    for name in PASSED_OVER {
        fields.pass_over(name);
    }
}

fn read_message(mut fields: Fields<'_>, _: &ChatTerms) -> Turned {
    read_labels(&mut fields, "message");
    fields.word("phase", PHASES);
    fields.boolean("end_turn");
    let role = fields.must("role", |it, name| it.word(name, ROLES));
    let text = read_texts(&mut fields, "content");
    fields.finish()?;
    let said = |(role, text)| Turn::Said { role, text };
    Ok(role.zip(text).map(said))
}

fn read_call(mut fields: Fields<'_>, terms: &ChatTerms) -> Turned {
    read_labels(&mut fields, "function_call");
    if !terms.shows_calls {
        let rule = "cannot be shown: the model's chat template does not ask for calls";
        fields.error("", Constraint::Unsupported, rule);
    }
    let id = fields.must("call_id", |it, name| it.text(name, &NAME_CHARS));
    let name = fields.must("name", |it, name| it.text(name, &NAME_CHARS));
    let text = fields.must("arguments", |it, name| it.text(name, &(0..=usize::MAX)));
    let arguments = text.as_deref().and_then(json_texts::arguments);
    if text.is_some() && arguments.is_none() {
        let rule = "must be the text of a JSON object, not nested too deep";
        fields.error("arguments", Constraint::Json, rule);
    }
    if arguments
        .as_deref()
        .is_some_and(|it| !json_texts::keeps_numbers(it))
    {
        fields.error("arguments", Constraint::Range, NUMBERS);
    }
    fields.finish()?;
    let called = |(name, arguments)| {
        Turn::Called(ToolCall {
            id,
            name,
            arguments,
        })
    };
    Ok(name.zip(arguments).map(called))
}

fn read_output(mut fields: Fields<'_>, _: &ChatTerms) -> Turned {
    read_labels(&mut fields, "function_call_output");
    let call_id = fields.must("call_id", |it, name| it.text(name, &NAME_CHARS));
    let text = read_texts(&mut fields, "output");
    fields.finish()?;
    let returned = |(call_id, text)| Turn::Returned { call_id, text };
    Ok(call_id.zip(text).map(returned))
}

fn read_reasoning(mut fields: Fields<'_>, _: &ChatTerms) -> Turned {
    read_labels(&mut fields, "reasoning");
    fields.text("encrypted_content", &(0..=usize::MAX));
    read_parts(&mut fields, "summary", PLAIN_PART, &["summary_text"]);
    let text = read_parts(&mut fields, "content", PLAIN_PART, &["reasoning_text"]);
    fields.finish()?;
    Ok(text.filter(|it| !it.is_empty()).map(Turn::Thought))
}

/// Text, or a list of parts.
fn read_texts(fields: &mut Fields<'_>, name: &'static str) -> Option<String> {
    const KINDS: &[&str] = &["input_text", "output_text"];
    fields.describe(name, schema::text);
    let text = match fields.peek(name).map(Json::kind) {
        Some(JsonKind::Text) => {
            let given = fields.take(name)?;
            fields.text_of(name, given, &(0..=usize::MAX))
        }
        _ => read_parts(fields, name, PART, KINDS),
    };
    fields.required(name, text)
}

/// Concatenated text of the parts.
fn read_parts(
    fields: &mut Fields<'_>,
    name: &'static str,
    names: Names,
    kinds: &'static [&'static str],
) -> Option<String> {
    let read = |fields: Fields<'_>| read_part(fields, kinds);
    let list = fields.given(name, || schema::list_of(history_shape(names, read)))?;
    let mut text = String::new();
    let count = each(fields.mistakes(), name, list, |_, part, outside| {
        let object = Fields::of_history(part, names, outside);
        text += &element(object, outside, "must be a part of a text", read)?;
        Ok(())
    });
    if count.is_none() {
        let rule = "must be a text or a list of its parts";
        fields.error(name, Constraint::Type, rule);
    }
    count.map(|_| text)
}
