//! Fields of `POST /v1/responses`. `docs/guide/responses.md` documents the effect of each.

use super::settings::{self, Reasoning};
use super::{ID_PREFIX, input, tools};
use crate::answer_format::{AnswerRequest, Api, Echo, RequestedFormat};
use crate::effort;
use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::limits::RequestLimits;
use crate::no_effect::names;
use crate::request::{Chat, GenerationRequest, Input, Reader};
use crate::sampling::{self, ModelTerms, read_params, read_sampling, read_stop};
use crate::structure::{TEXT_FORMAT, formats};
use crate::thinking_budget::Budget;
use serde_json::Number;
use uuid::Uuid;
use worker_orcd_ipc::GenerationParams;
use worker_orcd_text::Conversation;

const OWN: &[&str] = &["model", "max_output_tokens", "stream"];

const NAMES: Names = &[
    OWN,
    input::FIELDS,
    tools::FIELDS,
    settings::FIELDS,
    sampling::NAMES,
    &names(&settings::HARMLESS),
    &names(&settings::LABELS),
    settings::REFUSED,
];

/// Body of `/v1/responses`.
pub const RESPONSE: Reader<AnswerRequest> = Reader::new(NAMES, read);

fn read(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<AnswerRequest, ApiError> {
    // Without a limit, the body's size and the model's context bound a text.
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let messages = input::read(&mut fields, max_chars, &model.chat);
    let tools = tools::read(&mut fields, max_chars, &model.chat);
    let parsing = model.chat.parsing_of(tools.shown.as_deref());
    let most = limits.max_tokens_out.unwrap_or(model.context);
    let most = u64::from(most.min(model.context));
    // Upper bound, like `max_tokens` of chat.
    let max_tokens = fields.integer("max_output_tokens", 1..=u64::from(u32::MAX));
    let max_tokens = max_tokens.unwrap_or(most).min(most) as u32;
    let sampling = read_sampling(&mut fields, model);
    let params = read_params(&mut fields, model, sampling);
    let stop = read_stop(&mut fields);
    let is_streamed = fields.boolean("stream").unwrap_or(false);
    let Reasoning {
        effort,
        mut settings,
    } = settings::read_reasoning(&mut fields);
    let text = settings::read_text(&mut fields);
    settings.extend(text.verbosity.as_deref().map(effort::verbosity));
    let (format, told_format) = text.format.unzip();
    let has_tools = tools.shown.is_some();
    let structure = formats::settle(&mut fields, TEXT_FORMAT, format, has_tools, tools.asked);
    let logprobs = settings::read_logprobs(&mut fields);
    let metadata = settings::read_metadata(&mut fields);
    settings::accept_harmless(&mut fields);
    fields.finish().map_err(ApiError::invalid)?;
    let messages = messages.ok_or_else(ApiError::unreadable)?;
    let echo = Echo {
        temperature: as_written(sampling.temperature),
        top_p: as_written(sampling.top_p),
        max_output_tokens: max_tokens,
        tool_choice: tools.choice,
        parallel_tool_calls: tools.are_parallel,
        effort,
        format: told_format,
        verbosity: text.verbosity,
        top_logprobs: logprobs.unwrap_or(0),
        metadata,
    };
    let conversation = Conversation {
        messages,
        tools: tools.shown,
    };
    let params = GenerationParams {
        max_tokens,
        logprobs,
        ..params
    };
    let job_id = format!("{ID_PREFIX}{}", Uuid::new_v4().simple());
    let input = Input::Chat(Chat {
        field: "input",
        conversation,
        settings,
        beginning: None,
    });
    let generation = GenerationRequest {
        stop,
        thinking: Budget::of_operator(limits),
        structure,
        ..GenerationRequest::new(job_id, input, params)
    };
    let form = RequestedFormat {
        is_streamed,
        parsing,
        api: Api::Responses {
            echo: Box::new(echo),
            from: 0,
        },
    };
    Ok(AnswerRequest::one(generation, form))
}

/// Shortest decimal of the number: 0.8, and not the nearest `f32` in 64 bits.
fn as_written(number: f32) -> Option<Number> {
    number.to_string().parse().ok().and_then(Number::from_f64)
}

#[cfg(test)]
mod tests;
