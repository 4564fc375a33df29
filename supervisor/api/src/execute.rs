//! `/execute` and `/cancel`: readers of requests. [`events`]: writer of answers.

pub mod events;

use crate::answer_format::{AnswerRequest, Api, RequestedFormat};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::RequestLimits;
use crate::messages::{begun, read_messages};
use crate::request::{GenerationRequest, Input, Reader};
use crate::sampling::{self, ModelTerms, read_params, read_sampling, read_stop};
use worker_orcd_ipc::GenerationParams;
use worker_orcd_requests::OnFault;
use worker_orcd_text::tools::{ChatTerms, Parsing};

const MAX_JOB_ID_CHARS: usize = 128;

/// Default of this API in all versions.
const DEFAULT_MAX_TOKENS: u32 = 2048;
const DEFAULT_PROMPT_CHARS: usize = 32_768;

const NAMES: &[&str] = &[
    "job_id",
    "prompt",
    "messages",
    "max_tokens",
    "ignore_eos",
    "on_fault",
    "metrics",
];

/// Body of `/execute`.
pub const EXECUTE: Reader<AnswerRequest> = Reader::new(&[NAMES, sampling::NAMES], read_request);

/// Body of `/cancel`: the job id.
pub const CANCEL: Reader<Option<String>> = Reader::new(&[&["job_id"]], |mut fields, _, _| {
    let job_id = read_job_id(&mut fields);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(job_id)
});

fn read_request(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<AnswerRequest, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(DEFAULT_PROMPT_CHARS);
    let most_tokens = limits.max_tokens_out.unwrap_or(DEFAULT_MAX_TOKENS);
    let job_id = read_job_id(&mut fields);
    let input = read_input(&mut fields, max_chars, &model.chat);
    let max_tokens = fields.integer("max_tokens", 1..=u64::from(most_tokens));
    let sampling = read_sampling(&mut fields, model);
    let params = read_params(&mut fields, model, sampling);
    let stop = read_stop(&mut fields);
    let ignore_eos = fields.boolean("ignore_eos").unwrap_or(false);
    let on_fault = fields.word(
        "on_fault",
        &[("resume", OnFault::Resume), ("fail", OnFault::Fail)],
    );
    let metrics = fields.boolean("metrics").unwrap_or(false);
    fields.finish().map_err(ApiError::invalid)?;
    let (Some(job_id), Some(input)) = (job_id, input) else {
        return Err(ApiError::unreadable());
    };
    let params = GenerationParams {
        max_tokens: max_tokens.map_or(most_tokens, |tokens| tokens as u32),
        ignore_eos,
        ..params
    };
    let seed = params.sampling.seed;
    let form = RequestedFormat {
        is_streamed: true,
        parsing: Parsing::default(),
        api: Api::Execute { seed, metrics },
    };
    let generation = GenerationRequest {
        stop,
        on_fault,
        ..GenerationRequest::new(job_id, input, params)
    };
    Ok(AnswerRequest::one(generation, form))
}

fn read_input(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Option<Input> {
    let prompt = fields.text("prompt", &(1..=max_chars)).map(Input::Prompt);
    let history = read_messages(fields, max_chars, terms);
    let messages = history.map(|it| begun::input(fields, it, None, Vec::new(), false));
    fields.either("prompt", "messages", prompt.or(messages))
}

fn read_job_id(fields: &mut Fields<'_>) -> Option<String> {
    fields.must("job_id", |it, name| it.text(name, &(1..=MAX_JOB_ID_CHARS)))
}
