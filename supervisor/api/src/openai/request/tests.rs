//! Fields that each endpoint accepts, and the requests that they become.

use super::*;
use crate::error::Dialect;
use crate::request::Chat;
use serde_json::{Value, json};
use worker_orcd_ipc::TokenId;
use worker_orcd_text::tools::ChatTerms;

const MODEL: ModelTerms = ModelTerms {
    vocabulary: 10,
    context: 100,
    n_embd: 64,
    defaults: Sampling::DEFAULT,
    chat: ChatTerms::UNKNOWN,
};

fn read_within(limits: &RequestLimits, kind: Kind, body: &Value) -> Result<AnswerRequest, String> {
    let body = body.to_string();
    let fields = Fields::parse(&body, reader(kind).names).unwrap();
    read(fields, limits, &MODEL, kind)
        .map_err(|error| error.body(Dialect::OpenAi)["error"]["message"].to_string())
}

fn with(mut body: Value, extra: &Value) -> Value {
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}

fn chat(extra: &Value) -> Result<AnswerRequest, String> {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "seed": 1});
    read_within(&RequestLimits::NONE, Kind::Chat, &with(body, extra))
}

fn options(request: &AnswerRequest) -> OpenAiOptions {
    match request.requested.api {
        Api::OpenAi { options, .. } if request.requested.is_streamed => options,
        _ => panic!("{:?}", request.requested),
    }
}

fn completion(extra: &Value) -> Result<AnswerRequest, String> {
    read_within(
        &RequestLimits::NONE,
        Kind::Completion,
        &with(json!({"prompt": "a"}), extra),
    )
}

#[test]
fn what_clients_always_send_is_accepted() {
    let request = chat(&json!({
        "n": 1, "stream": true, "stream_options": {"include_usage": true}, "tools": [],
        "logprobs": false, "response_format": {"type": "text"}, "temperature": 0.5,
        "max_completion_tokens": 7, "stop": ["x"], "seed": 5, "user": null,
    }))
    .unwrap();
    let options = options(&request);
    assert!(options.include_usage && !options.continuous_usage);
    assert_eq!(request.generation.params.max_tokens, 7);
    assert_eq!(request.generation.params.sampling.seed, 5);
    assert!(request.generation.job_id.starts_with("chatcmpl-"));
}

#[test]
fn usage_may_be_asked_for_on_every_chunk() {
    let asked = json!({"include_usage": true, "continuous_usage_stats": true});
    let request = chat(&json!({"stream": true, "stream_options": asked})).unwrap();
    assert!(options(&request).continuous_usage);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (field, value) in [
        ("n", json!(0)),
        ("n", json!(9)),
        ("best_of", json!(2)),
        ("include_reasoning", json!(false)),
        ("request_id", json!(3)),
        ("tools", json!([{"type": "function"}])),
        ("logit_bias", json!({"5": 101})),
        ("response_format", json!({"type": "xml"})),
        ("grammar", json!(["a"])),
        ("json_schema", json!("object")),
        ("reasoning_effort", json!("lots")),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-2)),
        ("seed", json!(-2)),
        ("top_k", json!(-2)),
        ("stream_options", json!({"include_usage": true})),
        ("prompt", json!("a")),
        ("temprature", json!(1)),
    ] {
        let message = chat(&json!({ field: value })).unwrap_err();
        assert!(message.contains(field), "{field}: {message}");
    }
    let message = chat(&json!({"stream": true, "stream_options": {"x": 1}})).unwrap_err();
    assert!(message.contains("stream_options.x"), "{message}");
}

#[test]
fn what_happens_anyway_may_be_asked_for() {
    for extra in [
        json!({"best_of": 1, "request_id": "r-1", "include_reasoning": true}),
        json!({"verbosity": "low", "enable_thinking": true, "thinking": {"type": "enabled"}}),
        json!({"stop": vec!["a"; 32], "json_schema": {}, "grammar": ""}),
        json!({"continue_final_message": false, "add_generation_prompt": true}),
    ] {
        assert!(chat(&extra).is_ok(), "{extra}");
    }
    assert!(chat(&json!({"stop": vec!["a"; 33]})).is_err());
    assert!(completion(&json!({"request_id": "r-1", "best_of": 1})).is_ok());
}

#[test]
fn a_bound_beyond_the_context_is_the_context() {
    for name in ["max_tokens", "max_completion_tokens"] {
        let request = chat(&json!({ name: 16_384 })).unwrap();
        assert_eq!(request.generation.params.max_tokens, 100, "{name}");
    }
    let request = completion(&json!({"max_tokens": 16_384})).unwrap();
    assert_eq!(request.generation.params.max_tokens, 100);
}

#[test]
fn an_answer_is_begun_by_the_request_or_by_its_last_message() {
    let begun = |extra: &Value, last: &Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}, last]});
        body = with(body, extra);
        let read = read_within(&RequestLimits::NONE, Kind::Chat, &body)?;
        Ok::<_, String>(match read.generation.input {
            Input::Chat(Chat {
                conversation,
                beginning: Some(text),
                ..
            }) => {
                assert_eq!(conversation.messages.len(), 1);
                Some(text)
            }
            _ => None,
        })
    };
    let last = json!({"role": "assistant", "content": "Sure, "});
    let marked = json!({"role": "assistant", "content": "Sure, ", "prefix": true});
    let text = || Ok(Some("Sure, ".to_owned()));
    let both = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(begun(&json!({}), &last), Ok(None), "a turn of its own");
    assert_eq!(begun(&json!({}), &marked), text());
    assert_eq!(begun(&both, &last), text());
    assert_eq!(begun(&both, &marked), text());
    assert_eq!(
        begun(&json!({"continue_final_message": true}), &last),
        text()
    );
    let user = json!({"role": "user", "content": "a"});
    let thought = json!({"role": "assistant", "content": "a", "reasoning": "b"});
    let open = json!({"continue_final_message": true, "add_generation_prompt": true});
    let held = with(
        both.clone(),
        &json!({"response_format": {"type": "json_object"}}),
    );
    for (extra, last, field) in [
        (&both, &user, "continue_final_message"),
        (&both, &thought, "messages"),
        (&open, &last, "add_generation_prompt"),
        (
            &json!({"add_generation_prompt": false}),
            &last,
            "add_generation_prompt",
        ),
        (&held, &last, "messages"),
    ] {
        let message = begun(extra, last).unwrap_err();
        assert!(message.contains(field), "{extra} {last}: {message}");
    }
}

#[test]
fn minus_one_asks_for_what_happens_anyway() {
    let request = chat(&json!({"seed": -1, "top_k": -1, "max_tokens": -1})).unwrap();
    assert_eq!(request.generation.params.sampling.top_k, 0);
    assert_eq!(request.generation.params.max_tokens, 100);
    let request = completion(&json!({"max_tokens": -1})).unwrap();
    assert_eq!(request.generation.params.max_tokens, 100, "as many as fit");
}

#[test]
fn a_client_may_set_what_its_template_asks_for() {
    let set = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let Input::Chat(Chat { settings, .. }) = chat(&set).unwrap().generation.input else {
        panic!("a chat has messages");
    };
    assert_eq!(settings.len(), 1);
    let message = chat(&json!({"chat_template_kwargs": {"tools": true}})).unwrap_err();
    assert!(message.contains("chat_template_kwargs.tools"), "{message}");
}

#[test]
fn prompts_are_texts_or_token_ids_or_lists_of_either() {
    let inputs = |prompt: Value| {
        let request = completion(&json!({ "prompt": prompt, "n": 2 }))?;
        assert_eq!(request.more.n, 2);
        let mut inputs = vec![request.generation.input];
        inputs.extend(request.more.prompts);
        Ok::<_, String>(inputs)
    };
    let text = |text: &str| Input::Prompt(text.to_owned());
    let ids = |ids: &[u32]| Input::Tokens(ids.iter().copied().map(TokenId).collect());
    for (prompt, expected) in [
        (json!("a"), vec![text("a")]),
        (json!(["a"]), vec![text("a")]),
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 9]), vec![ids(&[1, 9])]),
        (json!([[1, 9]]), vec![ids(&[1, 9])]),
        (json!([[1], [2, 3]]), vec![ids(&[1]), ids(&[2, 3])]),
        (json!(["a", [2]]), vec![text("a"), ids(&[2])]),
    ] {
        assert_eq!(inputs(prompt), Ok(expected));
    }
    for wrong in [
        json!(""),
        json!([]),
        json!([""]),
        json!(["a", ""]),
        json!([[]]),
        json!([[1], []]),
        json!([[[1]]]),
        json!([10]),
        json!([[1], [10]]),
        json!([1, "a"]),
        json!(["a", 1]),
        json!([1.5]),
        json!([-1]),
        json!(3),
        json!({}),
        json!(vec!["a"; MAX_PROMPTS + 1]),
    ] {
        let message = inputs(wrong.clone()).unwrap_err();
        assert!(message.contains("prompt"), "{wrong}: {message}");
    }
    assert_eq!(
        inputs(json!(vec!["a"; MAX_PROMPTS])).map(|it| it.len()),
        Ok(MAX_PROMPTS)
    );
}

#[test]
fn every_choice_that_is_made_is_told() {
    let n = |extra: Value| completion(&extra).map(|request| request.more.n);
    assert_eq!(n(json!({})), Ok(1));
    assert_eq!(n(json!({"n": null, "best_of": 1})), Ok(1));
    assert_eq!(n(json!({"n": 8, "best_of": 8})), Ok(8));
    for wrong in [
        json!({"best_of": 2}),
        json!({"n": 2, "best_of": 3}),
        json!({"n": 2, "best_of": 1}),
    ] {
        assert!(n(wrong.clone()).unwrap_err().contains("best_of"), "{wrong}");
    }
    assert_eq!(chat(&json!({"n": 3})).unwrap().more.n, 3);
}

#[test]
fn each_endpoint_has_its_own_default_length() {
    assert_eq!(chat(&json!({})).unwrap().generation.params.max_tokens, 100);
    assert_eq!(
        completion(&json!({})).unwrap().generation.params.max_tokens,
        16
    );
    let both = json!({"max_tokens": 3, "max_completion_tokens": 4});
    assert!(chat(&both).unwrap_err().contains("contradicts"));
}

#[test]
fn what_the_operator_bounds_is_bounded_here_too() {
    let limits = RequestLimits {
        max_tokens_out: Some(50),
        max_prompt_chars: Some(5),
        ..RequestLimits::NONE
    };
    let read = |kind, body: Value| read_within(&limits, kind, &body);
    let hello = json!({"messages": [{"role": "user", "content": "hello"}]});
    let request = read(Kind::Chat, hello.clone()).unwrap();
    assert_eq!(request.generation.params.max_tokens, 50);
    let longer = read(Kind::Chat, with(hello, &json!({"max_tokens": 51}))).unwrap();
    assert_eq!(longer.generation.params.max_tokens, 50);
    let named = json!({"messages": [{"role": "user", "content": "hello", "name": "A"}]});
    assert!(read(Kind::Chat, named).unwrap_err().contains("messages"));
    for prompt in [json!("hello!"), json!(["hello!"])] {
        let body = json!({ "prompt": prompt });
        assert!(read(Kind::Completion, body).unwrap_err().contains("prompt"));
    }
}

#[test]
fn what_others_call_off_is_off_whatever_the_model_file_says() {
    let mut model = MODEL;
    model.defaults.top_k = 5;
    model.defaults.repetition_penalty = 1.5;
    let read = |extra: &Value| {
        let body = with(json!({"prompt": "a"}), extra).to_string();
        let fields = Fields::parse(&body, COMPLETION_NAMES).unwrap();
        let request = read(fields, &RequestLimits::NONE, &model, Kind::Completion).unwrap();
        let sampling = request.generation.params.sampling;
        (sampling.top_k, sampling.repetition_penalty)
    };
    assert_eq!(read(&json!({})), (5, 1.5));
    assert_eq!(read(&json!({"top_k": -1})), (0, 1.5));
    assert_eq!(read(&json!({"repeat_penalty": 1})), (5, 1.0));
    let both = json!({"repeat_penalty": 1, "repetition_penalty": 1.25});
    assert_eq!(read(&both), (5, 1.25));
}

#[test]
fn log_probabilities_are_asked_for_as_each_endpoint_has_it() {
    let of =
        |request: Result<AnswerRequest, String>| request.map(|it| it.generation.params.logprobs);
    for (extra, expected) in [
        (json!({}), Ok(None)),
        (json!({"logprobs": false, "top_logprobs": 0}), Ok(None)),
        (json!({"top_logprobs": null}), Ok(None)),
        (json!({"logprobs": true}), Ok(Some(0))),
        (json!({"logprobs": true, "top_logprobs": 20}), Ok(Some(20))),
        (
            json!({"top_logprobs": 1}),
            Err("top_logprobs needs logprobs: true"),
        ),
        (
            json!({"logprobs": true, "top_logprobs": 21}),
            Err("top_logprobs must be from 0 to 20"),
        ),
        (
            json!({"logprobs": 1}),
            Err("logprobs must be true or false"),
        ),
    ] {
        let found = of(chat(&extra));
        assert_eq!(found, expected.map_err(|it| format!("\"{it}\"")), "{extra}");
    }
    for (extra, expected) in [
        (json!({"logprobs": null}), Ok(None)),
        (json!({"logprobs": 0}), Ok(Some(0))),
        (json!({"logprobs": 20}), Ok(Some(20))),
        (
            json!({"logprobs": 21}),
            Err("logprobs must be from 0 to 20"),
        ),
    ] {
        let found = of(completion(&extra));
        assert_eq!(found, expected.map_err(|it| format!("\"{it}\"")), "{extra}");
    }
    assert!(completion(&json!({"logprobs": true})).is_err());
    assert!(completion(&json!({"top_logprobs": 1})).is_err());
}
