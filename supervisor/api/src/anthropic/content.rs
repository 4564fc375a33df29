//! Content blocks of clients: text, reasoning, tool calls and their results.
//!
//! `cache_control` is a hint about caching and changes no answer. Other fields of a block that this worker does not
//! support are refused, unless they are `null`.

use crate::fields::{self, Fields, Names, among, each, element};
use crate::json::{Json, Kind};
use crate::messages::tool_calls::{NAME_CHARS, read_object};
use crate::mistakes::{Constraint, Mistakes};
use crate::schema::{self, Shape};
use serde_json::json;
use utoipa::openapi::Type;
use worker_orcd_text::ToolCall;
use worker_orcd_text::tools::ChatTerms;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    Text(String),
    Thought(String),
    /// Encrypted reasoning, which only Anthropic's servers can read.
    Hidden,
    Call(ToolCall),
    Result {
        id: String,
        text: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    System,
    User,
    Assistant,
}

const TEXT: Names = |name| among(name, &[&["type", "text", "cache_control", "citations"]]);
const THINKING: Names = |name| among(name, &[&["type", "thinking", "signature"]]);
const REDACTED: Names = |name| among(name, &[&["type", "data"]]);
const TOOL_USE: Names = |name| {
    let known: &[&str] = &["type", "id", "name", "input", "cache_control"];
    among(name, &[known, &["caller", "toolset_name"]])
};
const TOOL_RESULT: Names = |name| {
    let known: &[&str] = &["type", "tool_use_id", "content", "is_error"];
    among(name, &[known, &["cache_control", "toolset_name"]])
};

type Read<T> = fn(Fields<'_>) -> Result<T, Mistakes>;

/// Blocks of one type: its name, its fields, and their reader.
type Reader = (&'static str, Names, Read<Block>);

const OF_TEXT: Reader = ("text", TEXT, |fields| read_text(fields).map(Block::Text));
const OF_RESULT: Reader = ("tool_result", TOOL_RESULT, read_result);
const OF_CALL: Reader = ("tool_use", TOOL_USE, read_call);
const OF_THOUGHT: Reader = ("thinking", THINKING, read_thought);
const OF_HIDDEN: Reader = ("redacted_thinking", REDACTED, read_hidden);

fn readers(role: Role) -> &'static [Reader] {
    match role {
        Role::System => &[OF_TEXT],
        Role::User => &[OF_TEXT, OF_RESULT],
        Role::Assistant => &[OF_TEXT, OF_THOUGHT, OF_HIDDEN, OF_CALL],
    }
}

/// Schema of the content of a role.
pub(super) fn shape(role: Role, terms: &ChatTerms) -> Shape {
    let can_be = |reader: &&Reader| terms.shows_calls || reader.0 != OF_CALL.0;
    let blocks = readers(role).iter().filter(can_be);
    let blocks = blocks.map(|(_, names, read)| fields::shape(*names, *read));
    schema::any_of([schema::text(), schema::list_of(schema::any_of(blocks))])
}

/// Reads the blocks of a field. A text is one block. Paths of mistakes begin with the field's name.
pub(super) fn read(
    fields: &mut Fields<'_>,
    name: &'static str,
    given: Json<'_>,
    role: Role,
    terms: &ChatTerms,
) -> Vec<Block> {
    let mut blocks = Vec::new();
    match given.kind() {
        Kind::Text => {
            let text = fields.text_of(name, given, &(0..=usize::MAX));
            blocks.extend(text.map(Block::Text));
        }
        Kind::List => {
            each(fields.mistakes(), name, given, |_, item, outside| {
                blocks.push(read_block(item, role, terms, outside)?);
                Ok(())
            });
        }
        _ => {
            let rule = "must be a string or a list of blocks";
            fields.error(name, Constraint::Type, rule);
        }
    }
    blocks
}

/// Reads one block. Paths of mistakes are relative to the block: `.text`.
fn read_block(
    item: Json<'_>,
    role: Role,
    terms: &ChatTerms,
    outside: &Mistakes,
) -> Result<Block, Mistakes> {
    const NO_BLOCK: &str = "must be a block";
    if item.kind() != Kind::Object {
        return Err(outside.only("", Constraint::Type, NO_BLOCK));
    }
    let given = type_of(item);
    let readers = readers(role);
    let reader = readers
        .iter()
        .find(|(kind, ..)| given.as_deref() == Some(kind));
    let Some((kind, names, read)) = reader else {
        // Further fields of a block of unknown type are not checked.
        let known: Vec<&str> = readers.iter().map(|(kind, ..)| *kind).collect();
        let rule = format!("must be {}: no other is supported here", known.join(", "));
        return Err(outside.only(".type", Constraint::Unsupported, rule));
    };
    if *kind == OF_CALL.0 && !terms.shows_calls {
        let rule = "cannot be shown: the model's chat template does not ask for calls";
        return Err(outside.only(".type", Constraint::Unsupported, rule));
    }
    element(Fields::of(item, *names, outside), outside, NO_BLOCK, read)
}

fn type_of(item: Json<'_>) -> Option<String> {
    let mut found = None;
    item.each_member(|name, value| {
        if name == "type" {
            found = value.small();
        }
    });
    found.and_then(|kind| kind.as_str().map(str::to_owned))
}

/// Reads `type`, which is already known.
fn take_type(fields: &mut Fields<'_>, name: &'static str) {
    fields.describe("type", || schema::values([name]));
    let kind = fields.take("type");
    fields.required("type", kind);
}

pub(super) fn take_cache_control(fields: &mut Fields<'_>) {
    let is_object = |value: Json<'_>| value.kind() == Kind::Object;
    let shape = || schema::of_type(Type::Object);
    fields.only("cache_control", shape, is_object, "must be an object");
}

fn required_text(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    let text = fields.text(name, &(0..=usize::MAX));
    fields.required(name, text)
}

fn read_text(mut fields: Fields<'_>) -> Result<String, Mistakes> {
    take_type(&mut fields, OF_TEXT.0);
    let text = required_text(&mut fields, "text");
    take_cache_control(&mut fields);
    let is_empty = |value: Json<'_>| value.kind() == Kind::List && value.is_empty();
    let shape = || schema::values([json!([])]);
    let rule = "are not supported, unless there are none";
    fields.only("citations", shape, is_empty, rule);
    fields.finish().map(|()| text.unwrap_or_default())
}

fn read_thought(mut fields: Fields<'_>) -> Result<Block, Mistakes> {
    take_type(&mut fields, OF_THOUGHT.0);
    let thought = required_text(&mut fields, "thinking");
    // Signatures are accepted without a check: this worker signs no reasoning.
    fields.text("signature", &(0..=usize::MAX));
    let thought = Block::Thought(thought.unwrap_or_default());
    fields.finish().map(|()| thought)
}

fn read_hidden(mut fields: Fields<'_>) -> Result<Block, Mistakes> {
    take_type(&mut fields, OF_HIDDEN.0);
    required_text(&mut fields, "data");
    fields.finish().map(|()| Block::Hidden)
}

fn read_call(mut fields: Fields<'_>) -> Result<Block, Mistakes> {
    take_type(&mut fields, OF_CALL.0);
    let id = fields.text("id", &NAME_CHARS);
    let id = fields.required("id", id);
    let name = fields.text("name", &NAME_CHARS);
    let name = fields.required("name", name);
    let arguments = read_object(&mut fields, "input");
    take_cache_control(&mut fields);
    let direct = || json!({"type": "direct"});
    let is_direct = |value: Json<'_>| value.small() == Some(direct());
    let shape = || schema::values([direct()]);
    fields.only("caller", shape, is_direct, "may be direct only");
    fields.finish()?;
    Ok(Block::Call(ToolCall {
        id,
        name: name.unwrap_or_default(),
        arguments: arguments.unwrap_or_default(),
    }))
}

fn read_result(mut fields: Fields<'_>) -> Result<Block, Mistakes> {
    take_type(&mut fields, OF_RESULT.0);
    let id = fields.text("tool_use_id", &NAME_CHARS);
    let id = fields.required("tool_use_id", id);
    fields.describe("content", || {
        let block = fields::shape(TEXT, read_text);
        schema::any_of([schema::text(), schema::list_of(block)])
    });
    let content = fields.take("content");
    // Templates accept a text as result, and nothing else.
    let blocks = content.map(|content| {
        let terms = &ChatTerms::UNKNOWN;
        read(&mut fields, "content", content, Role::System, terms)
    });
    // Accepted without effect, for the same reason: the text describes the error.
    fields.boolean("is_error");
    take_cache_control(&mut fields);
    fields.finish()?;
    Ok(Block::Result {
        id: id.unwrap_or_default(),
        text: join(&blocks.unwrap_or_default()),
    })
}

/// Concatenated text of the text blocks.
pub(super) fn join(blocks: &[Block]) -> String {
    let text = |block: &Block| match block {
        Block::Text(text) => Some(text.clone()),
        _ => None,
    };
    blocks.iter().filter_map(text).collect()
}
