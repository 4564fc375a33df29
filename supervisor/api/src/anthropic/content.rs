//! Content blocks of clients: text, reasoning, tool calls and their results.
//!
//! `cache_control` is a hint about caching and changes no answer. Other fields of a block that this worker does not
//! support are refused, unless they are `null`.

use crate::fields::{self, Fields, Names, each, element};
use crate::json::{Json, Kind};
use crate::messages::tool_calls::{NAME_CHARS, read_object};
use crate::mistakes::{Constraint, Mistakes};
use crate::no_effect::{NoEffect, accept, object, values};
use crate::schema::{self, Shape};
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

const TEXT: Names = &[&["type", "text", "cache_control", "citations"]];
const THINKING: Names = &[&["type", "thinking", "signature"]];
const REDACTED: Names = &[&["type", "data"]];
const TOOL_USE: Names = &[
    &["type", "id", "name", "input", "cache_control"],
    &["caller", "toolset_name"],
];
const TOOL_RESULT: Names = &[
    &["type", "tool_use_id", "content", "is_error"],
    &["cache_control", "toolset_name"],
];

pub(super) const CACHE_CONTROL: NoEffect = object("cache_control");
const CITATIONS: NoEffect = values(
    "citations",
    &["[]"],
    "are not supported, unless there are none",
);
const CALLER: NoEffect = values("caller", &[r#"{"type": "direct"}"#], "may be direct only");

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
    let blocks = blocks.map(|(_, names, read)| fields::shape(names, *read));
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
    let given = item.member("type").and_then(Json::text);
    let readers = readers(role);
    let mut all = readers.iter();
    let reader = all.find(|(kind, ..)| given.as_deref() == Some(kind));
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
    element(Fields::of(item, names, outside), outside, NO_BLOCK, read)
}

/// Reads `type`, which is already known.
fn take_type(fields: &mut Fields<'_>, name: &'static str) {
    fields.must("type", |it, kind| it.given(kind, || schema::values([name])));
}

fn required_text(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    fields.must(name, |it, name| it.text(name, &(0..=usize::MAX)))
}

fn required_name(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    fields.must(name, |it, name| it.text(name, &NAME_CHARS))
}

fn read_text(mut fields: Fields<'_>) -> Result<String, Mistakes> {
    take_type(&mut fields, OF_TEXT.0);
    let text = required_text(&mut fields, "text");
    accept(&mut fields, &[CACHE_CONTROL, CITATIONS]);
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
    let id = required_name(&mut fields, "id");
    let name = required_name(&mut fields, "name");
    let arguments = read_object(&mut fields, "input");
    accept(&mut fields, &[CACHE_CONTROL, CALLER]);
    fields.finish()?;
    Ok(Block::Call(ToolCall {
        id,
        name: name.unwrap_or_default(),
        arguments: arguments.unwrap_or_default(),
    }))
}

fn read_result(mut fields: Fields<'_>) -> Result<Block, Mistakes> {
    take_type(&mut fields, OF_RESULT.0);
    let id = required_name(&mut fields, "tool_use_id");
    let content = fields.given("content", || {
        let block = fields::shape(TEXT, read_text);
        schema::any_of([schema::text(), schema::list_of(block)])
    });
    // Templates accept a text as result, and nothing else.
    let blocks = content.map(|content| {
        let terms = &ChatTerms::UNKNOWN;
        read(&mut fields, "content", content, Role::System, terms)
    });
    // Accepted without effect, for the same reason: the text describes the error.
    fields.boolean("is_error");
    accept(&mut fields, &[CACHE_CONTROL]);
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
