//! Fields of `/api/chat` and `/api/generate`.

use super::{Kind, options};
use crate::answer_format::{AnswerRequest, Api, RequestedFormat};
use crate::effort;
use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::json::Json;
use crate::limits::RequestLimits;
use crate::messages::{begun, length, read_messages};
use crate::mistakes::Constraint;
use crate::openai::tools;
use crate::request::{GenerationRequest, Input, Reader};
use crate::sampling::ModelTerms;
use crate::schema;
use crate::structure::formats;
use crate::thinking_budget::Budget;
use crate::tools::Tools;
use serde_json::{Value, json};
use uuid::Uuid;
use worker_orcd_ipc::GenerationParams;
use worker_orcd_text::ChatMessage;
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::tools::Parsing;

const SHARED: &[&str] = &["model", "stream", formats::FORMAT, THINK];
const OF_KINDS: &[&str] = &["messages", "tools", "prompt", "system", "raw"];

const THINK: &str = "think";
const LEVELS: [&str; 4] = ["low", "medium", "high", "max"];

/// Fields that must be empty, false or 0.
const REFUSED: &[&str] = &[
    "context",
    "images",
    "logprobs",
    "shift",
    "suffix",
    "template",
    "top_logprobs",
    TRUNCATE,
];

/// A text that does not fit is refused.
pub(super) const TRUNCATE: &str = "truncate";

const NAMES: Names = &[SHARED, OF_KINDS, options::FIELDS, REFUSED];

/// Body of an endpoint.
#[must_use]
pub fn reader(kind: Kind) -> Reader<AnswerRequest> {
    Reader::new(
        NAMES,
        match kind {
            Kind::Chat => |fields, limits, model| read(fields, limits, model, Kind::Chat),
            Kind::Generate => |fields, limits, model| read(fields, limits, model, Kind::Generate),
        },
    )
}

fn read(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
    kind: Kind,
) -> Result<AnswerRequest, ApiError> {
    // Without a limit, the body's size and the model's context bound a text.
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let (settings, budget) = read_think(&mut fields, model.chat.parsing.thinking.is_some());
    let format = formats::read_of_ollama(&mut fields);
    let options = options::read(&mut fields, limits, model);
    let (messages, tools) = match kind {
        Kind::Chat => {
            let history = read_messages(&mut fields, max_chars, &model.chat);
            let messages = fields.required("messages", history.map(|it| it.messages));
            let tools = tools::read_free(&mut fields, max_chars, &model.chat);
            (messages, tools)
        }
        Kind::Generate => (read_prompt(&mut fields, max_chars), Tools::default()),
    };
    let has_tools = tools.shown.is_some();
    let structure = formats::settle(&mut fields, formats::FORMAT, format, has_tools, tools.asked);
    let is_raw = fields.is_true("raw");
    let input = messages.map(|mut messages| match messages.pop_if(|_| is_raw) {
        Some(prompt) => Input::Prompt(prompt.content.unwrap_or_default()),
        None => begun::always(
            &mut fields,
            messages,
            tools.shown,
            settings,
            structure.is_some(),
        ),
    });
    let is_streamed = fields.boolean("stream").unwrap_or(true);
    refuse(&mut fields, REFUSED);
    fields.finish().map_err(ApiError::invalid)?;
    let params = GenerationParams {
        sampling: options.sampling,
        max_tokens: options.max_tokens,
        ..GenerationParams::default()
    };
    let job_id = format!("ollama_{}", Uuid::new_v4().simple());
    let input = input.ok_or_else(ApiError::unreadable)?;
    let parsing = match is_raw {
        true => Parsing::default(),
        false => model.chat.parsing_of(input.tools()),
    };
    let generation = GenerationRequest {
        stop: options.stop,
        thinking: budget.or(Budget::of_operator(limits)),
        structure,
        ..GenerationRequest::new(job_id, input, params)
    };
    let form = RequestedFormat {
        is_streamed,
        parsing,
        api: Api::Ollama(kind),
    };
    Ok(AnswerRequest::one(generation, form))
}

/// Variables of the template, and the bound of an answer without reasoning. `can`: the reasoning of this model is
/// separated from its answer.
fn read_think(
    fields: &mut Fields<'_>,
    can: bool,
) -> (Vec<(String, TemplateSetting)>, Option<Budget>) {
    let given = fields.given(THINK, || match can {
        true => schema::any_of([schema::boolean(), schema::values(LEVELS)]),
        false => schema::values([false]),
    });
    let flag = |is_on| ("enable_thinking".to_owned(), TemplateSetting::Flag(is_on));
    match given.map(Json::small) {
        None => {}
        Some(Some(Value::Bool(false))) => {
            let (tokens, field) = (0, THINK);
            return (vec![flag(false)], Some(Budget { tokens, field }));
        }
        Some(Some(Value::Bool(true))) if can => return (vec![flag(true)], None),
        Some(Some(Value::String(level))) if can && LEVELS.contains(&&*level) => {
            let mut settings = effort::settings_of(&level);
            settings.push(flag(true));
            return (settings, None);
        }
        Some(_) => {
            let rule = match can {
                true => "must be true, false, low, medium, high or max",
                false => "may be false only: this model does not think",
            };
            fields.error(THINK, Constraint::Range, rule);
        }
    }
    Default::default()
}

/// A prompt as a user's message, behind one of the system. A raw one is the only message.
fn read_prompt(fields: &mut Fields<'_>, max_chars: usize) -> Option<Vec<ChatMessage>> {
    let is_raw = fields.boolean("raw").unwrap_or(false);
    let mut texts = ["system", "prompt"].map(|name| {
        let least = usize::from(name == "prompt");
        fields.text(name, &(least..=max_chars))
    });
    fields.required("prompt", texts[1].as_ref())?;
    fields.describe_rule(|| {
        let not_raw = ("raw", schema::or_null(schema::values([false])));
        let system = ("system", schema::values([json!(""), Value::Null]));
        let of_raw = schema::object_with([], [system, (THINK, schema::null())]);
        schema::any_of([schema::object_with([], [not_raw]), of_raw])
    });
    texts[0].take_if(|system| system.is_empty());
    let of_template = [("system", texts[0].is_some()), (THINK, fields.has(THINK))];
    for (name, _) in of_template
        .iter()
        .filter(|(_, is_given)| is_raw && *is_given)
    {
        let rule = "cannot be given together with raw: true, which applies no template";
        fields.error(name, Constraint::Conflict, rule);
    }
    let messages = ["system", "user"].into_iter().zip(texts);
    let messages = messages.filter(|(_, content)| content.is_some());
    let message = |(role, content): (&str, _)| ChatMessage {
        role: role.to_owned(),
        content,
        ..ChatMessage::default()
    };
    let messages: Vec<_> = messages.map(message).collect();
    if messages.iter().map(length).sum::<usize>() > max_chars {
        let rule = format!("must have at most {max_chars} characters in all, with system");
        fields.error("prompt", Constraint::Length, rule);
    }
    Some(messages)
}

/// Removes fields that are not supported, and records an error for each that has an effect. Ollama's clients in Go send
/// them empty.
pub(super) fn refuse(fields: &mut Fields<'_>, names: &[&str]) {
    let nothing = || [json!(""), json!([]), json!({}), json!(false), json!(0)];
    let is_nothing = |given: Json<'_>| {
        given.is_empty() || given.boolean() == Some(false) || given.whole() == Some(0)
    };
    for name in names {
        let rule = "is not supported, unless it is empty, false or 0";
        fields.only(name, || schema::values(nothing()), is_nothing, rule);
    }
}

#[cfg(test)]
mod tests;
