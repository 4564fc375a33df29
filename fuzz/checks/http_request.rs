//! Used by the fuzz target and by the tests that replay its seeds.

use serde_json::Value;
use worker_orcd::config::RequestLimits;
use worker_orcd::engine::SamplingDefaults;
use worker_orcd::http::body::parse;
use worker_orcd::http::error::{ApiError, Dialect};
use worker_orcd::http::execute;
use worker_orcd::http::fields::Fields;
use worker_orcd::http::generation::{GenerationRequest, Input};
use worker_orcd::http::openai::{Kind, request};
use worker_orcd::http::reading::ModelTerms;
use worker_orcd::requests::OnFault;
use worker_orcd::text::tools::ChatTerms;

const LIMITS: RequestLimits = RequestLimits {
    max_tokens_in: None,
    max_tokens_out: Some(1000),
    max_prompt_chars: Some(200),
    inference_timeout: None,
    on_fault: OnFault::Resume,
};

const MODEL: ModelTerms = ModelTerms {
    vocabulary: 500,
    context: 600,
    n_embd: 64,
    defaults: SamplingDefaults::OWN,
    chat: ChatTerms::UNKNOWN,
};

/// The first byte says which endpoint, the rest is the body. True when it was accepted.
pub fn check(data: &[u8]) -> bool {
    let Some((endpoint, body)) = data.split_first() else {
        return false;
    };
    let (read, dialect) = match endpoint % 3 {
        0 => {
            let read = |fields: Fields<'_>| execute::read_request(fields, &LIMITS, &MODEL);
            let read = parse(body, execute::NAMES, read).map(|(request, _)| request);
            (read, Dialect::Native)
        }
        1 => (openai(body, Kind::Chat), Dialect::OpenAi),
        _ => (openai(body, Kind::Completion), Dialect::OpenAi),
    };
    match read {
        Ok(request) => {
            is_json_without_repeats(body);
            is_within_bounds(&request);
            true
        }
        Err(error) => {
            is_a_short_refusal(&error, dialect);
            false
        }
    }
}

fn openai(body: &[u8], kind: Kind) -> Result<GenerationRequest, ApiError> {
    let read = |fields: Fields<'_>| request::read(fields, &LIMITS, &MODEL, kind);
    parse(body, request::names(kind), read).map(|request| request.generation)
}

/// What was read without a tree is what a reader with a tree finds as well.
fn is_json_without_repeats(body: &[u8]) {
    let tree: Value = match serde_json::from_slice(body) {
        Ok(tree) => tree,
        // In a label, which nobody looks into: nesting, or half a character.
        Err(error) => {
            assert!(error.is_syntax(), "{error}");
            return;
        }
    };
    assert!(tree.is_object());
}

fn is_within_bounds(request: &GenerationRequest) {
    assert!((1..=128).contains(&request.job_id.chars().count()));
    assert!((1..=1000).contains(&request.max_tokens));
    assert!(request.stop.len() <= 4);
    for stop in &request.stop {
        assert!((1..=256).contains(&stop.chars().count()));
    }
    match &request.input {
        Input::Prompt(text) => assert!((1..=200).contains(&text.chars().count())),
        Input::Tokens(ids) => {
            assert!(!ids.is_empty() && ids.iter().all(|id| id.0 < MODEL.vocabulary));
        }
        Input::Messages(conversation, settings) | Input::Begun(conversation, settings, _) => {
            let messages = &conversation.messages;
            assert!(settings.len() <= 16);
            let contents = messages.iter().filter_map(|it| it.content.as_ref());
            let chars = contents.map(|content| content.chars().count());
            assert!(!messages.is_empty() && chars.sum::<usize>() <= 200);
            let tools = conversation.tools.as_ref();
            assert!(tools.is_none_or(|it| it.chars().count() <= 200));
            let roles = ["system", "user", "assistant", "tool"];
            assert!(messages.iter().all(|it| roles.contains(&it.role.as_str())));
        }
    }
    let sampling = &request.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature));
    assert!((0.0..=1.0).contains(&sampling.top_p) && (0.0..=1.0).contains(&sampling.min_p));
    assert!(sampling.top_k <= MODEL.vocabulary);
    assert!(sampling.repetition_penalty >= 0.0 && sampling.repetition_penalty <= 2.0);
    assert!((-2.0..=2.0).contains(&sampling.frequency_penalty));
    assert!((-2.0..=2.0).contains(&sampling.presence_penalty));
}

fn is_a_short_refusal(error: &ApiError, dialect: Dialect) {
    assert_eq!(error.status().as_u16(), 400, "{error:?}");
    let body = error.body(dialect);
    assert!(body.to_string().len() <= 32 << 10, "{body}");
    match dialect {
        Dialect::Native => {
            let listed = body["errors"].as_array().expect("what is wrong").len();
            assert!((1..=32).contains(&listed));
        }
        Dialect::OpenAi => assert!(body["error"]["param"].is_string(), "{body}"),
        Dialect::Anthropic => assert_eq!(body["error"]["type"], "invalid_request_error"),
    }
}
