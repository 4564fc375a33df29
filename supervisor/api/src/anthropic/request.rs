//! Fields of a request, and of a request that only counts tokens.

use super::settings::{self, Settings};
use super::{conversation, tools};
use crate::answer_format::{AnswerRequest, Api, RequestedFormat};
use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::json::Kind;
use crate::limits::RequestLimits;
use crate::messages::begun;
use crate::mistakes::Constraint;
use crate::no_effect::{accept, names};
use crate::request::{GenerationRequest, Input, Reader};
use crate::sampling::{self, MAX_STOP_CHARS, MAX_STOPS, ModelTerms, read_params, read_sampling};
use crate::schema;
use crate::structure::{Asked, OUTPUT_FORMAT, formats};
use crate::thinking_budget::Budget;
use uuid::Uuid;
use worker_orcd_ipc::{GenerationParams, Sampling};

/// Fields that make the prompt, fields without effect, and refused ones.
const OF_PROMPT: [&[&str]; 6] = [
    &["model"],
    conversation::FIELDS,
    tools::FIELDS,
    settings::FIELDS,
    &names(&settings::HARMLESS),
    settings::REFUSED,
];
const OF_ANSWER: &[&str] = &["max_tokens", "stop_sequences", "stream"];

/// Known fields of `/v1/messages`.
const NAMES: Names = &{
    let [a, b, c, d, e, f] = OF_PROMPT;
    [a, b, c, d, e, f, OF_ANSWER, sampling::NAMES]
};

/// Body of `/v1/messages`.
pub const MESSAGES: Reader<AnswerRequest> = Reader::new(NAMES, read);

/// Body of `/v1/messages/count_tokens`.
pub const COUNTED: Reader<Input> = Reader::new(&OF_PROMPT, |mut fields, limits, model| {
    let (input, ..) = read_prompt(&mut fields, limits, model);
    fields.finish().map_err(ApiError::invalid)?;
    input.ok_or_else(ApiError::unreadable)
});

fn read(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<AnswerRequest, ApiError> {
    let (input, structure, budget) = read_prompt(&mut fields, limits, model);
    let max_tokens = read_max_tokens(&mut fields, limits);
    let sampling = read_drawing(&mut fields, model);
    let params = read_params(&mut fields, model, sampling);
    let stop = read_stop_sequences(&mut fields);
    let is_streamed = fields.boolean("stream").unwrap_or(false);
    fields.finish().map_err(ApiError::invalid)?;
    let input = input.ok_or_else(ApiError::unreadable)?;
    let form = RequestedFormat {
        is_streamed,
        parsing: model.chat.parsing_of(input.tools()),
        api: Api::Messages,
    };
    let params = GenerationParams {
        max_tokens,
        ..params
    };
    let job_id = format!("msg_{}", Uuid::new_v4().simple());
    let generation = GenerationRequest {
        stop,
        thinking: budget.or(Budget::of_operator(limits)),
        structure,
        ..GenerationRequest::new(job_id, input, params)
    };
    Ok(AnswerRequest::one(generation, form))
}

fn read_prompt(
    fields: &mut Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> (Option<Input>, Option<Asked>, Option<Budget>) {
    // Without a limit, the body's size and the model's context bound a text.
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let Settings {
        of_template,
        budget,
        format,
    } = settings::read(fields);
    let messages = conversation::read(fields, max_chars, &model.chat);
    let tools = tools::read(fields, max_chars, &model.chat);
    accept(fields, &settings::HARMLESS);
    let has_tools = tools.shown.is_some();
    let structure = formats::settle(fields, OUTPUT_FORMAT, format, has_tools, tools.asked);
    let is_held = structure.is_some();
    let input = messages.map(|it| begun::always(fields, it, tools.shown, of_template, is_held));
    (input, structure, budget)
}

/// Reads the bound on generated tokens. A bound beyond the context is accepted, because clients send such values. The
/// answer ends earlier if the context is full, or at the operator's limit.
fn read_max_tokens(fields: &mut Fields<'_>, limits: &RequestLimits) -> u32 {
    let range = 1..=u64::from(u32::MAX);
    let tokens = fields.must("max_tokens", |it, name| it.integer(name, range));
    let most = limits.max_tokens_out.unwrap_or(u32::MAX);
    (tokens.unwrap_or(1) as u32).min(most)
}

/// Reads sampling parameters as chat does, except that the temperature's range is 0 to 1 in Anthropic's API.
fn read_drawing(fields: &mut Fields<'_>, model: &ModelTerms) -> Sampling {
    let range = 0.0..=1.0;
    fields.describe_rule(|| {
        let temperature = schema::or_null(schema::number(&range));
        schema::object_with([], [("temperature", temperature)])
    });
    let is_given = fields.has("temperature");
    let sampling = read_sampling(fields, model);
    if is_given && f64::from(sampling.temperature) > *range.end() {
        let rule = "must be from 0 to 1";
        fields.error("temperature", Constraint::Range, rule);
    }
    sampling
}

fn read_stop_sequences(fields: &mut Fields<'_>) -> Vec<String> {
    const NAME: &str = "stop_sequences";
    let length = 1..=MAX_STOP_CHARS;
    let shape = || schema::list(schema::text_of(&length), &(0..=MAX_STOPS));
    let Some(list) = fields.given(NAME, shape) else {
        return Vec::new();
    };
    let (first, count) = list.first(MAX_STOPS);
    if list.kind() != Kind::List {
        fields.error(NAME, Constraint::Type, "must be a list of strings");
    } else if count > MAX_STOPS {
        let rule = format!("must have at most {MAX_STOPS} strings");
        fields.error(NAME, Constraint::Length, rule);
    }
    let items = first.into_iter().enumerate();
    items
        .filter_map(|(index, item)| fields.text_of(&format!("{NAME}[{index}]"), item, &length))
        .collect()
}

#[cfg(test)]
mod tests;
