//! Request fields of the OpenAI API, parsed to a request of the worker.

use super::{Kind, harmless, logprobs, prediction, template_settings, token_rules, tools};
use crate::answer_format::{AnswerRequest, Api, OpenAiOptions, RequestedFormat};
use crate::choices::{MAX_N, MAX_PROMPTS, More};
use crate::effort;
use crate::error::ApiError;
use crate::fields::{Fields, Names, nested};
use crate::json::{Json, Kind as JsonKind};
use crate::limits::RequestLimits;
use crate::messages::{begun, read_messages};
use crate::mistakes::{Constraint, Mistakes};
use crate::no_effect;
use crate::request::{GenerationRequest, Input, Reader};
use crate::sampling::{self, ModelTerms, read_params, read_sampling, read_stop};
use crate::schema;
use crate::structure::{self, Asked};
use crate::thinking_budget;
use crate::token_ids;
use uuid::Uuid;
use worker_orcd_ipc::{GenerationParams, Sampling};
use worker_orcd_text::tools::Parsing;

/// Default `max_tokens` of `/v1/completions`. The OpenAI API's.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

const SHARED: &[&str] = &[
    "model",
    "max_tokens",
    "stream",
    "stream_options",
    "ignore_eos",
    "n",
    TRUNCATION,
    TOKEN_IDS,
    logprobs::PROMPT_FIELD,
];
/// vLLM's field for the number of prompt tokens that are kept.
const TRUNCATION: &str = "truncate_prompt_tokens";
/// vLLM's field for the ids of all tokens in the answer.
pub const TOKEN_IDS: &str = "return_token_ids";
const CHAT: &[&str] = &[
    "messages",
    "max_completion_tokens",
    logprobs::FIELD,
    logprobs::TOP_FIELD,
];
const COMPLETION: &[&str] = &["prompt", "best_of", "echo", logprobs::FIELD];
/// Fields that [`read_conversation`] reads in addition to `messages`.
pub const CONVERSATION: [&[&str]; 4] = [
    tools::FIELDS,
    &[template_settings::FIELD],
    effort::FIELDS,
    begun::FIELDS,
];
const STREAM_OPTIONS: Names = &[&[
    "include_usage",
    "continuous_usage_stats",
    "include_obfuscation",
]];

const CHAT_NAMES: Names = &{
    let [tools, settings, effort, begun] = CONVERSATION;
    [
        sampling::NAMES,
        SHARED,
        token_rules::FIELDS,
        prediction::FIELDS,
        structure::FIELDS,
        CHAT,
        thinking_budget::FIELDS,
        tools,
        settings,
        effort,
        begun,
        &no_effect::names(&harmless::EVERYWHERE),
        &no_effect::names(&harmless::CHAT),
        &no_effect::names(&harmless::LABELS),
        harmless::REFUSED,
    ]
};

const COMPLETION_NAMES: Names = &[
    sampling::NAMES,
    SHARED,
    token_rules::FIELDS,
    prediction::FIELDS,
    structure::FIELDS,
    COMPLETION,
    &no_effect::names(&harmless::EVERYWHERE),
    &no_effect::names(&harmless::COMPLETION),
    &no_effect::names(&harmless::LABELS),
    harmless::REFUSED,
];

/// Body of an endpoint.
#[must_use]
pub fn reader(kind: Kind) -> Reader<AnswerRequest> {
    match kind {
        Kind::Chat => Reader::new(CHAT_NAMES, |fields, limits, model| {
            read(fields, limits, model, Kind::Chat)
        }),
        Kind::Completion => Reader::new(COMPLETION_NAMES, |fields, limits, model| {
            read(fields, limits, model, Kind::Completion)
        }),
    }
}

fn read(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
    kind: Kind,
) -> Result<AnswerRequest, ApiError> {
    // Without a limit, the body's size and the model's context bound a text.
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let mut parsing = Parsing::default();
    let mut calls = None;
    let prompts = match kind {
        Kind::Chat => {
            let (input, asked) = read_chat(&mut fields, max_chars, model);
            calls = asked;
            parsing = model.chat.parsing_of(input.as_ref().and_then(Input::tools));
            fields.required("messages", input.map(|it| vec![it]))
        }
        Kind::Completion => {
            let prompts = read_prompts(&mut fields, max_chars, model.vocabulary);
            fields.required("prompt", prompts)
        }
    };
    let n = read_n(&mut fields, kind);
    let max_tokens = read_max_tokens(&mut fields, limits, model.context, kind);
    let sampling = read_sampling_of_others(&mut fields, model);
    let params = read_params(&mut fields, model, sampling);
    let stop = read_stop(&mut fields);
    let (is_streamed, options) = read_options(&mut fields);
    let first = prompts.as_ref().and_then(|it| it.first());
    let has_tools = first.is_some_and(|it| it.tools().is_some());
    let structure = structure::read(&mut fields, has_tools).or(calls);
    if structure.is_some() && first.is_some_and(Input::is_begun) {
        begun::refuse_held(&mut fields);
    }
    let thinking = match kind {
        Kind::Chat => thinking_budget::read(&mut fields, limits, &parsing, structure.as_ref()),
        Kind::Completion => None,
    };
    let ignore_eos = fields.boolean("ignore_eos").unwrap_or(false);
    let logprobs = logprobs::read(&mut fields, kind);
    let echo = kind == Kind::Completion && fields.boolean("echo").unwrap_or(false);
    let params = GenerationParams {
        max_tokens,
        ignore_eos,
        logprobs,
        ..params
    };
    let params = token_rules::read(&mut fields, model.vocabulary, params);
    let prediction = prediction::read(&mut fields, max_chars);
    let truncate = read_truncation(&mut fields, limits, model.context, max_tokens);
    harmless::accept(&mut fields, kind);
    fields.finish().map_err(ApiError::invalid)?;
    let mut prompts = prompts.into_iter().flatten();
    let input = prompts.next().ok_or_else(ApiError::unreadable)?;
    let more = More {
        prompts: prompts.collect(),
        n,
    };
    let requested = requested_format(kind, (is_streamed, options), parsing, structure.as_ref());
    let job_id = format!("{}{}", kind.id_prefix(), Uuid::new_v4().simple());
    let generation = GenerationRequest {
        stop,
        truncate,
        prediction,
        echo,
        prompt_logprobs: options.prompt_logprobs,
        thinking,
        structure,
        ..GenerationRequest::new(job_id, input, params)
    };
    Ok(AnswerRequest {
        generation,
        more,
        requested,
    })
}

fn requested_format(
    kind: Kind,
    (is_streamed, options): (bool, OpenAiOptions),
    parsing: Parsing,
    structure: Option<&Asked>,
) -> RequestedFormat {
    RequestedFormat {
        is_streamed,
        parsing,
        api: Api::OpenAi {
            kind,
            options,
            must_call: structure.is_some_and(|it| it.structure.must_call()),
        },
    }
}

/// Reads messages, tools, and template variables. `None` without messages.
pub fn read_conversation(
    fields: &mut Fields<'_>,
    max_chars: usize,
    model: &ModelTerms,
) -> Option<Input> {
    read_chat(fields, max_chars, model).0
}

/// Reads as [`read_conversation`], and returns the tools' constraint on the answer too.
fn read_chat(
    fields: &mut Fields<'_>,
    max_chars: usize,
    model: &ModelTerms,
) -> (Option<Input>, Option<Asked>) {
    let mut settings = template_settings::read(fields);
    effort::read(fields, &mut settings);
    let continues = begun::read(fields);
    let history = read_messages(fields, max_chars, &model.chat);
    let tools = tools::read(fields, max_chars, &model.chat);
    let input = history.map(|it| begun::input(fields, it, tools.shown, settings, continues));
    (input, tools.asked)
}

/// Reads sampling parameters. Other servers' values for "off" override the model file's defaults. Their values for
/// "default" are accepted.
fn read_sampling_of_others(fields: &mut Fields<'_>, model: &ModelTerms) -> Sampling {
    let mut model = model.clone();
    if fields.take_number("top_k", -1.0) {
        model.defaults.top_k = Sampling::DEFAULT.top_k;
    }
    if fields.take_number("repeat_penalty", 1.0) {
        model.defaults.repetition_penalty = Sampling::DEFAULT.repetition_penalty;
    }
    fields.take_number("seed", -1.0);
    read_sampling(fields, &model)
}

/// Choices per prompt. `best_of` must equal `n`: every choice is generated and returned.
fn read_n(fields: &mut Fields<'_>, kind: Kind) -> u32 {
    let range = 1..=u64::from(MAX_N);
    let n = fields.integer("n", range.clone()).unwrap_or(1);
    if kind == Kind::Completion {
        // The schema allows only 1: a rule for any `n` is too complex for Schemathesis in combination with the others.
        fields.describe_rule(|| {
            let only_one = schema::with("best_of", [("best_of", schema::values([1]))]);
            let one = schema::all_of([schema::without("n"), only_one]);
            schema::any_of([schema::without("best_of"), one])
        });
        let best_of = fields.integer("best_of", range);
        if best_of.is_some_and(|best_of| best_of != n) {
            let message = "must equal n: every generated choice is returned";
            fields.error("best_of", Constraint::Unsupported, message);
        }
    }
    n as u32
}

/// Text or token ids, or a list of either.
fn read_prompts(fields: &mut Fields<'_>, max_chars: usize, vocabulary: u32) -> Option<Vec<Input>> {
    let shape = || token_ids::inputs_shape(max_chars, vocabulary, MAX_PROMPTS);
    let prompt = fields.given("prompt", shape)?;
    let (first, count) = prompt.first(MAX_PROMPTS);
    let kind = first.first().map(|it| it.kind());
    if !matches!(kind, Some(JsonKind::Text | JsonKind::List)) {
        return read_prompt(fields, prompt, max_chars, vocabulary).map(|it| vec![it]);
    }
    let prompts = first.into_iter();
    let prompts = prompts.filter_map(|it| read_prompt(fields, it, max_chars, vocabulary));
    let prompts: Vec<_> = prompts.collect();
    if count > MAX_PROMPTS {
        let rule = format!("may be {MAX_PROMPTS} prompts at most");
        fields.error("prompt", Constraint::Length, rule);
    }
    (prompts.len() == count).then_some(prompts)
}

fn read_prompt(
    fields: &mut Fields<'_>,
    prompt: Json<'_>,
    max_chars: usize,
    vocabulary: u32,
) -> Option<Input> {
    match prompt.kind() {
        JsonKind::Text => fields
            .text_of("prompt", prompt, &(1..=max_chars))
            .map(Input::Prompt),
        JsonKind::List => read_ids(fields, prompt, vocabulary),
        _ => {
            let rule = "must be a non-empty string, or token ids, or a list of either";
            fields.error("prompt", Constraint::Type, rule);
            None
        }
    }
}

fn read_ids(fields: &mut Fields<'_>, list: Json<'_>, vocabulary: u32) -> Option<Input> {
    let ids = token_ids::read_list(list, vocabulary).filter(|ids| !ids.is_empty());
    if ids.is_none() {
        let rule = "must hold ids of the vocabulary";
        fields.error("prompt", Constraint::Range, rule);
    }
    ids.map(Input::Tokens)
}

/// Reads the bound on generated tokens, from its newer and its older name. A bound beyond the context is accepted,
/// because clients send such values. The answer ends earlier if the context is full, or at the operator's limit.
fn read_max_tokens(
    fields: &mut Fields<'_>,
    limits: &RequestLimits,
    context: u32,
    kind: Kind,
) -> u32 {
    let most = limits.max_tokens_out.unwrap_or(context).min(context);
    // A completion may request 0 tokens, to process the prompt alone.
    let least = u64::from(kind == Kind::Chat);
    let range = least..=u64::from(u32::MAX);
    let mut read = |name: &str| match fields.take_number(name, -1.0) {
        // llama-server's value for "as many as fit".
        true => Some(u64::from(most)),
        false => fields.integer(name, range.clone()),
    };
    let newer = match kind {
        Kind::Chat => read("max_completion_tokens"),
        Kind::Completion => None,
    };
    let older = read("max_tokens");
    // The schema omits this rule: it cannot express equality. tests/oracle/schemathesis_run.py excuses the refusal.
    if newer.is_some() && older.is_some() && newer != older {
        let message = "contradicts max_completion_tokens";
        fields.error("max_tokens", Constraint::Conflict, message);
    }
    let default = match kind {
        Kind::Chat => most,
        Kind::Completion => most.min(DEFAULT_COMPLETION_TOKENS),
    };
    let wanted = newer.or(older).map(|tokens| tokens as u32);
    wanted.map_or(default, |tokens| tokens.min(most))
}

/// Number of prompt tokens to keep. -1: as many as leave room for `max_tokens`.
fn read_truncation(
    fields: &mut Fields<'_>,
    limits: &RequestLimits,
    context: u32,
    max_tokens: u32,
) -> Option<u32> {
    if !fields.take_number(TRUNCATION, -1.0) {
        let tokens = fields.integer(TRUNCATION, 1..=u64::from(context));
        return tokens.map(|tokens| tokens as u32);
    }
    // A bound that the context never reaches needs no room of that length.
    let room = if max_tokens < context { max_tokens } else { 1 };
    let fits = context.saturating_sub(room.max(1)).max(1);
    Some(fits.min(limits.max_tokens_in.unwrap_or(u32::MAX)))
}

/// Whether the answer is streamed, and its options.
fn read_options(fields: &mut Fields<'_>) -> (bool, OpenAiOptions) {
    let stream = read_stream(fields);
    let options = OpenAiOptions {
        token_ids: fields.boolean(TOKEN_IDS).unwrap_or(false),
        prompt_logprobs: logprobs::read_of_prompt(fields, stream.is_some()),
        ..stream.unwrap_or_default()
    };
    (stream.is_some(), options)
}

/// Options of a streamed answer.
fn read_stream(fields: &mut Fields<'_>) -> Option<OpenAiOptions> {
    let streams = fields.boolean("stream").unwrap_or(false);
    fields.describe_rule(|| {
        let streams = [("stream", schema::values([true]))];
        let no_prompt = [(logprobs::PROMPT_FIELD, schema::null())];
        let whole = [
            ("stream", schema::or_null(schema::values([false]))),
            ("stream_options", schema::null()),
        ];
        schema::any_of([
            schema::object_with(streams, no_prompt),
            schema::object_with([], whole),
        ])
    });
    if fields.has("stream_options") && !streams {
        fields.error("stream_options", Constraint::Conflict, "needs stream: true");
    }
    let options = nested(
        fields,
        "stream_options",
        STREAM_OPTIONS,
        read_stream_options,
    );
    streams.then_some(options.unwrap_or_default())
}

fn read_stream_options(mut options: Fields<'_>) -> Result<OpenAiOptions, Mistakes> {
    let read = OpenAiOptions {
        include_usage: options.boolean("include_usage").unwrap_or(false),
        continuous_usage: options.boolean("continuous_usage_stats").unwrap_or(false),
        ..OpenAiOptions::default()
    };
    let rule = "is not supported: chunks are not padded";
    let padded = no_effect::values("include_obfuscation", &["false"], rule);
    no_effect::accept(&mut options, &[padded]);
    options.finish().map(|()| read)
}

#[cfg(test)]
mod tests;
