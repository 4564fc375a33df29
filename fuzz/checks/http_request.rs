//! Check of the `http_request` fuzz target. The tests that replay its seeds run it too.

use serde_json::Value;
use worker_orcd_api::anthropic::request as messages;
use worker_orcd_api::body::parse;
use worker_orcd_api::embeddings::read as embeddings;
use worker_orcd_api::error::{ApiError, Dialect};
use worker_orcd_api::limits::RequestLimits;
use worker_orcd_api::ollama;
use worker_orcd_api::openai::{Kind, request};
use worker_orcd_api::request::{Chat, GenerationRequest, Input, Reader};
use worker_orcd_api::rerank::read as rerank;
use worker_orcd_api::sampling::ModelTerms;
use worker_orcd_api::texts::read as texts;
use worker_orcd_api::{execute, responses};
use worker_orcd_ipc::Sampling;
use worker_orcd_text::tools::ChatTerms;

const LIMITS: RequestLimits = RequestLimits {
    max_tokens_out: Some(1000),
    max_prompt_chars: Some(200),
    ..RequestLimits::NONE
};

const MODEL: ModelTerms = ModelTerms {
    vocabulary: 500,
    context: 600,
    n_embd: 64,
    defaults: Sampling::DEFAULT,
    chat: ChatTerms::UNKNOWN,
};

/// Reader of an endpoint's body.
#[derive(Debug)]
pub enum Asked {
    Generation(Box<GenerationRequest>),
    Inputs(Vec<Input>),
    Other,
}

pub type Endpoint = (Dialect, fn(&[u8]) -> Result<Asked, ApiError>);

/// Every endpoint that takes a body. Seeds contain positions in this list.
pub const ENDPOINTS: &[Endpoint] = &[
    (Dialect::Native, |body| {
        let read = read(body, execute::EXECUTE)?;
        Ok(generation(read.generation))
    }),
    (Dialect::OpenAi, |body| openai(body, Kind::Chat)),
    (Dialect::OpenAi, |body| openai(body, Kind::Completion)),
    (Dialect::OpenAi, |body| {
        let read = read(body, responses::request::RESPONSE)?;
        Ok(generation(read.generation))
    }),
    (Dialect::Anthropic, |body| {
        let read = read(body, messages::MESSAGES)?;
        Ok(generation(read.generation))
    }),
    (Dialect::Anthropic, |body| {
        let read = read(body, messages::COUNTED)?;
        Ok(Asked::Inputs(vec![read]))
    }),
    (Dialect::OpenAi, |body| {
        let read = read(body, embeddings::EMBEDDINGS)?;
        assert!((1..=256).contains(&read.inputs.len()));
        let numbers = read.dimensions.unwrap_or(1);
        assert!((1..=MODEL.n_embd as usize).contains(&numbers));
        Ok(Asked::Inputs(read.inputs))
    }),
    (Dialect::Native, |body| {
        let read = read(body, texts::TOKENIZE)?;
        assert!(["content", "prompt", "messages"].contains(&read.field));
        Ok(Asked::Inputs(vec![read.input]))
    }),
    (Dialect::Native, |body| {
        let read = read(body, texts::TOKENS)?;
        assert!(read.iter().all(|id| id.0 < MODEL.vocabulary));
        Ok(Asked::Other)
    }),
    (Dialect::Native, |body| {
        let read = read(body, texts::TEMPLATE)?;
        Ok(Asked::Inputs(vec![read]))
    }),
    (Dialect::Native, |body| {
        let id = read(body, execute::CANCEL)?;
        assert!(id.is_some_and(|id| (1..=128).contains(&id.chars().count())));
        Ok(Asked::Other)
    }),
    (Dialect::OpenAi, |body| {
        let read = read(body, rerank::RERANK)?;
        assert!((1..=1024).contains(&read.documents.len()));
        let documents = read.documents.into_iter().chain([read.query]);
        Ok(Asked::Inputs(documents.map(Input::Prompt).collect()))
    }),
    (Dialect::Ollama, |body| of_ollama(body, ollama::Kind::Chat)),
    (Dialect::Ollama, |body| {
        of_ollama(body, ollama::Kind::Generate)
    }),
    (Dialect::Ollama, |body| {
        let read = read(body, ollama::embed::EMBED)?;
        Ok(Asked::Inputs(read.inputs))
    }),
    (Dialect::Ollama, |body| {
        read(body, ollama::embed::SHOW)?;
        Ok(Asked::Other)
    }),
];

/// Reads a body. The first byte selects the endpoint, the rest is the body. True when it was accepted.
pub fn check(data: &[u8]) -> bool {
    let Some((endpoint, body)) = data.split_first() else {
        return false;
    };
    let (dialect, read) = &ENDPOINTS[usize::from(*endpoint) % ENDPOINTS.len()];
    match read(body) {
        Ok(asked) => {
            is_json_without_repeats(body);
            match &asked {
                Asked::Generation(request) => is_within_bounds(request),
                Asked::Inputs(inputs) => inputs.iter().for_each(is_short),
                Asked::Other => {}
            }
            true
        }
        Err(error) => {
            is_a_short_refusal(&error, *dialect);
            false
        }
    }
}

/// Reads the body as a worker with a model does.
fn read<T>(body: &[u8], reader: Reader<T>) -> Result<T, ApiError> {
    parse(body, reader.names, |mut fields| {
        if fields.knows("model") {
            fields.take("model");
        }
        (reader.read)(fields, &LIMITS, &MODEL)
    })
}

fn openai(body: &[u8], kind: Kind) -> Result<Asked, ApiError> {
    let read = read(body, request::reader(kind))?;
    Ok(generation(read.generation))
}

fn of_ollama(body: &[u8], kind: ollama::Kind) -> Result<Asked, ApiError> {
    let read = read(body, ollama::request::reader(kind))?;
    Ok(generation(read.generation))
}

fn generation(request: GenerationRequest) -> Asked {
    Asked::Generation(Box::new(request))
}

/// Asserts that a reader that builds a tree finds the same as the reader without one.
fn is_json_without_repeats(body: &[u8]) {
    let tree: Value = match serde_json::from_slice(body) {
        Ok(tree) => tree,
        // The error is in a label, and labels are not read: nesting, or half a character.
        Err(error) => {
            assert!(error.is_syntax(), "{error}");
            return;
        }
    };
    assert!(tree.is_object());
}

fn is_within_bounds(request: &GenerationRequest) {
    assert!((1..=128).contains(&request.job_id.chars().count()));
    assert!((1..=1000).contains(&request.params.max_tokens));
    assert!(request.stop.len() <= 32);
    for stop in &request.stop {
        assert!((1..=256).contains(&stop.chars().count()));
    }
    is_short(&request.input);
    if let Input::Prompt(text) = &request.input {
        assert!(!text.is_empty());
    }
    let sampling = &request.params.sampling;
    assert!((0.0..=2.0).contains(&sampling.temperature));
    assert!((0.0..=1.0).contains(&sampling.top_p) && (0.0..=1.0).contains(&sampling.min_p));
    assert!(sampling.top_k <= MODEL.vocabulary);
    assert!(sampling.repetition_penalty >= 0.0 && sampling.repetition_penalty <= 2.0);
    assert!((-2.0..=2.0).contains(&sampling.frequency_penalty));
    assert!((-2.0..=2.0).contains(&sampling.presence_penalty));
    assert!(
        request
            .truncate
            .is_none_or(|tokens| (1..=MODEL.context).contains(&tokens))
    );
    assert!(request.params.min_tokens <= request.params.max_tokens);
    for ids in [
        &request.params.stop_token_ids,
        &request.params.allowed_token_ids,
    ] {
        assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| id.0 < MODEL.vocabulary));
    }
}

fn is_short(input: &Input) {
    match input {
        Input::Prompt(text) => assert!(text.chars().count() <= 200),
        Input::Tokens(ids) => {
            assert!(!ids.is_empty() && ids.iter().all(|id| id.0 < MODEL.vocabulary));
        }
        Input::Chat(Chat {
            conversation,
            settings,
            ..
        }) => {
            let messages = &conversation.messages;
            // Settings from `chat_template_kwargs`, and those that other fields set.
            assert!(settings.len() <= 20);
            let contents = messages.iter().filter_map(|it| it.content.as_ref());
            let chars = contents.map(|content| content.chars().count());
            assert!(!messages.is_empty() && chars.sum::<usize>() <= 200);
            let tools = conversation.tools.as_ref();
            assert!(tools.is_none_or(|it| it.chars().count() <= 200));
            let roles = ["system", "user", "assistant", "tool"];
            assert!(messages.iter().all(|it| roles.contains(&it.role.as_str())));
        }
    }
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
        Dialect::Ollama => assert!(body["error"].is_string(), "{body}"),
    }
}
