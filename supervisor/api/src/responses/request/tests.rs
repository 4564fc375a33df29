//! Requests of clients, and fields that are refused.

use super::*;
use crate::error::Dialect;
use serde_json::{Value, json};
use worker_orcd_ipc::Grammar;
use worker_orcd_ipc::Sampling;
use worker_orcd_text::Structure;
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::tools::ChatTerms;

const MODEL: ModelTerms = ModelTerms {
    n_embd: 64,
    vocabulary: 10,
    context: 100,
    defaults: Sampling::DEFAULT,
    chat: ChatTerms::UNKNOWN,
};

fn read_body(body: &Value) -> Result<AnswerRequest, Value> {
    let body = body.to_string();
    let fields = Fields::parse(&body, NAMES).unwrap();
    let read = read(fields, &RequestLimits::NONE, &MODEL);
    read.map_err(|error| error.body(Dialect::OpenAi)["error"].clone())
}

fn echo_of(request: &AnswerRequest) -> &Echo {
    match &request.requested.api {
        Api::Responses { echo, .. } => echo,
        other => panic!("{other:?}"),
    }
}

fn with(extra: &Value) -> Value {
    let mut body = json!({"input": "Hi"});
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}

/// Request of Codex, according to the types in its sources.
fn codex() -> Value {
    json!({
        "model": "m", "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ls"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}],
             "encrypted_content": null},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
        ],
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs.", "strict": false,
             "parameters": {"type": "object", "properties": {}}},
            {"type": "local_shell"}, {"type": "web_search", "external_web_access": false},
            {"type": "custom", "name": "apply_patch", "description": "x", "format": {"type": "grammar"}},
        ],
        "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": {"effort": "medium", "summary": "auto"},
        "store": false, "stream": true, "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0190", "text": {"verbosity": "low"}, "client_metadata": {"a": "b"},
    })
}

#[test]
fn codex_is_served() {
    let mut body = codex();
    body.as_object_mut().unwrap().remove("model");
    let request = read_body(&body).unwrap();
    assert!(request.requested.is_streamed && !echo_of(&request).parallel_tool_calls);
    let Input::Chat(Chat {
        field: "input",
        conversation,
        settings,
        beginning: None,
    }) = request.generation.input
    else {
        panic!("no messages");
    };
    let roles: Vec<_> = conversation
        .messages
        .iter()
        .map(|it| it.role.as_str())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    let tools = conversation.tools.unwrap();
    assert!(
        tools.contains("\"name\":\"shell\"") && !tools.contains("apply_patch"),
        "{tools}"
    );
    let effort = TemplateSetting::Word("medium".to_owned());
    let low = TemplateSetting::Word("low".to_owned());
    let told = [
        ("reasoning_effort".to_owned(), effort),
        ("verbosity".to_owned(), low),
    ];
    assert_eq!(settings, told);
    assert_eq!(request.generation.params.max_tokens, 100);
    assert!(request.generation.job_id.starts_with("resp_"));
}

#[test]
fn settings_are_read_and_repeated() {
    let request = read_body(&with(&json!({
        "temperature": 0.8, "top_p": 0.3, "seed": 7, "max_output_tokens": 9, "metadata": {"a": "b"},
        "tool_choice": "none", "text": {"format": {"type": "text"}, "verbosity": "high"},
        "reasoning": {"effort": "none", "context": "auto", "mode": "standard"}, "store": true, "background": false, "truncation": "disabled",
        "service_tier": "auto", "top_logprobs": 0, "stream_options": {"include_obfuscation": false},
        "user": "me", "previous_response_id": null, "max_tool_calls": 3,
    })))
    .unwrap();
    let echo = serde_json::to_value(echo_of(&request)).unwrap();
    let expected = json!({
        "temperature": 0.8, "top_p": 0.3, "max_output_tokens": 9, "tool_choice": "none",
        "parallel_tool_calls": true, "effort": "none", "format": null, "verbosity": "high", "top_logprobs": 0, "metadata": {"a": "b"},
    });
    assert_eq!(echo, expected);
    assert_eq!(request.generation.params.max_tokens, 9);
    assert_eq!(request.generation.params.sampling.seed, 7);
    let Input::Chat(Chat { settings, .. }) = request.generation.input else {
        panic!("no messages");
    };
    let off = ("enable_thinking".to_owned(), TemplateSetting::Flag(false));
    let loud = TemplateSetting::Word("high".to_owned());
    assert_eq!(settings[1..], [off, ("verbosity".to_owned(), loud)]);
}

#[test]
fn log_probabilities_are_included_or_counted() {
    let included = json!([
        "message.output_text.logprobs",
        "reasoning.encrypted_content"
    ]);
    for (extra, wanted) in [
        (json!({}), None),
        (json!({"top_logprobs": 0}), None),
        (json!({"include": included}), Some(0)),
        (json!({"include": included, "top_logprobs": 3}), Some(3)),
        (json!({"top_logprobs": 20}), Some(20)),
    ] {
        let request = read_body(&with(&extra)).unwrap();
        assert_eq!(request.generation.params.logprobs, wanted, "{extra}");
        assert_eq!(echo_of(&request).top_logprobs, wanted.unwrap_or(0));
    }
}

#[test]
fn a_bound_beyond_the_context_is_the_context() {
    let request = read_body(&with(&json!({"max_output_tokens": 16_384}))).unwrap();
    assert_eq!(request.generation.params.max_tokens, 100);
    assert_eq!(echo_of(&request).max_output_tokens, 100);
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let format = json!({"type": "xml"});
    for (extra, field) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"background": true}), "background"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"service_tier": "flex"}), "service_tier"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"include": ["a"]}), "include"),
        (json!({"include": "a"}), "include"),
        (json!({"text": {"format": format}}), "text.format.type"),
        (json!({"text": {"format": {}}}), "text.format.type"),
        (json!({"text": 3}), "text"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"reasoning": {"budget": 3}}), "reasoning.budget"),
        (
            json!({"reasoning": {"context": "all_turns"}}),
            "reasoning.context",
        ),
        (json!({"reasoning": {"mode": "pro"}}), "reasoning.mode"),
        (
            json!({"stream_options": {"include_obfuscation": true}}),
            "stream_options.include_obfuscation",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "a"}}}),
            "text.format.schema",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"metadata": {"a": 3}}), "metadata"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (json!({"metadata": {"x".repeat(65): "a"}}), "metadata"),
        (json!({"client_metadata": "a"}), "client_metadata"),
        (json!({"user": 3}), "user"),
        (json!({"messages": []}), "messages"),
        (json!({"input": null}), "input"),
    ] {
        let error = read_body(&with(&extra)).unwrap_err();
        assert_eq!(error["param"], field, "{extra}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[test]
fn a_format_holds_the_answer_and_is_repeated() {
    let schema =
        json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": true});
    let object = json!({"type": "json_object"});
    for (format, told) in [
        (
            schema,
            json!({"type": "json_schema", "name": "a", "schema": {"type": "object"}}),
        ),
        (object.clone(), object),
    ] {
        let body = json!({"text": {"format": format}});
        let request = read_body(&with(&body)).unwrap();
        assert_eq!(echo_of(&request).format.as_ref(), Some(&told));
        let asked = request.generation.structure.expect("what holds it");
        let schema = Grammar::JsonSchema("{\"type\":\"object\"}".to_owned());
        assert_eq!(asked.field, "text.format");
        assert_eq!(asked.structure, Structure::Answer(schema));
    }
    let text = json!({"text": {"format": {"type": "text"}}});
    let request = read_body(&with(&text)).unwrap();
    assert_eq!(echo_of(&request).format, None);
    assert_eq!(request.generation.structure, None);
}
