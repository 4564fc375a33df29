use super::*;
use crate::error::Dialect;
use crate::request::Chat;
use serde_json::{Value, json};
use worker_orcd_text::template::TemplateSetting;
use worker_orcd_text::tools::{ChatTerms, Parsing, ReasoningFormat, Syntax};

fn limits(max_tokens_out: Option<u32>) -> RequestLimits {
    RequestLimits {
        max_tokens_out,
        ..RequestLimits::NONE
    }
}

fn terms() -> ModelTerms {
    let parsing = Parsing {
        calls: Some(Syntax::Hermes),
        thinking: Some(ReasoningFormat::Tagged),
        ..Parsing::default()
    };
    ModelTerms {
        vocabulary: 100,
        context: 50,
        chat: ChatTerms {
            parsing,
            ..ChatTerms::UNKNOWN
        },
        ..ModelTerms::UNKNOWN
    }
}

fn body(extra: &Value) -> String {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = json!({"max_tokens": 20, "messages": messages});
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body.to_string()
}

fn message_of(error: &ApiError) -> String {
    error.body(Dialect::Anthropic)["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn read_with(extra: &Value) -> Result<AnswerRequest, String> {
    let body = body(extra);
    let mut fields = Fields::parse(&body, NAMES).unwrap();
    // The worker reads `model` earlier.
    fields.take("model");
    read(fields, &limits(None), &terms()).map_err(|error| message_of(&error))
}

fn settings(extra: &Value) -> Vec<(String, TemplateSetting)> {
    match read_with(extra).unwrap().generation.input {
        Input::Chat(chat) => chat.settings,
        other => panic!("{other:?}"),
    }
}

/// Request of Claude Code, shortened.
fn claude_code() -> Value {
    json!({
        "model": "m", "max_tokens": 32000, "stream": true, "temperature": 1,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.101; cch=a5145;"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
            "properties": {"command": {"type": "string"}}, "required": ["command"],
            "additionalProperties": false,
        }}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}, "diagnostics": {"previous_message_id": null},
    })
}

#[test]
fn what_claude_code_sends_is_taken() {
    let request = read_with(&claude_code()).unwrap();
    let generation = request.generation;
    assert!(request.requested.is_streamed && generation.job_id.starts_with("msg_"));
    assert_eq!(request.requested.parsing, terms().chat.parsing);
    // More than the context has room for. It is cut later, when the prompt's length is known.
    assert_eq!(generation.params.max_tokens, 32000);
    assert_eq!(generation.thinking.unwrap().tokens, 31999);
    let Input::Chat(Chat {
        conversation,
        settings,
        ..
    }) = generation.input
    else {
        panic!("messages");
    };
    assert_eq!(
        conversation.messages[0].content.as_deref(),
        Some("You help.")
    );
    assert!(conversation.tools.is_some());
    let expected = [
        ("enable_thinking".to_owned(), TemplateSetting::Flag(true)),
        (
            "reasoning_effort".to_owned(),
            TemplateSetting::Word("high".to_owned()),
        ),
    ];
    assert_eq!(settings, expected);
}

#[test]
fn thoughts_are_bounded_by_what_is_said_of_them_or_by_the_operator() {
    let bound = |thinking: Value| {
        let body = body(&json!({"thinking": thinking}));
        let fields = Fields::parse(&body, NAMES).unwrap();
        let limits = RequestLimits {
            reasoning_budget: Some(7),
            ..limits(None)
        };
        let request = read(fields, &limits, &terms()).unwrap();
        request.generation.thinking.unwrap().tokens
    };
    assert_eq!(bound(json!({"type": "enabled", "budget_tokens": 5})), 5);
    assert_eq!(bound(json!({"type": "disabled", "budget_tokens": 5})), 0);
    assert_eq!(bound(json!({"type": "adaptive"})), 7);
    assert_eq!(bound(Value::Null), 7);
}

#[test]
fn a_request_that_only_counts_has_the_same_prompt() {
    let mut counted = claude_code();
    for answers in ["max_tokens", "stream", "temperature"] {
        counted.as_object_mut().unwrap().remove(answers);
    }
    let counted = body(&counted).replacen("\"max_tokens\":20,", "", 1);
    let mut fields = Fields::parse(&counted, COUNTED.names).unwrap();
    fields.take("model");
    let input = (COUNTED.read)(fields, &limits(None), &terms()).unwrap();
    assert_eq!(input, read_with(&claude_code()).unwrap().generation.input);
    let more = body(&json!({}));
    let fields = Fields::parse(&more, COUNTED.names).unwrap();
    let wrong = (COUNTED.read)(fields, &limits(None), &terms()).unwrap_err();
    assert_eq!(message_of(&wrong), "max_tokens is no field of this request");
}

#[test]
fn what_is_absent_is_as_the_model_has_it() {
    let request = read_with(&json!({})).unwrap();
    assert!(!request.requested.is_streamed);
    // A request without tools needs no parser of calls.
    assert_eq!(request.requested.parsing.calls, None);
    assert_eq!(request.generation.stop, Vec::<String>::new());
    let expected = Sampling {
        seed: request.generation.params.sampling.seed,
        ..terms().defaults
    };
    assert_eq!(request.generation.params.sampling, expected);
    assert_eq!(settings(&json!({})), []);
    let off = settings(&json!({"thinking": {"type": "disabled"}}));
    assert_eq!(
        off,
        [("enable_thinking".to_owned(), TemplateSetting::Flag(false))]
    );
}

#[test]
fn how_tokens_are_drawn_and_where_to_stop() {
    let given = json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "stop_sequences": ["a", "b"],
    });
    let generation = read_with(&given).unwrap().generation;
    let sampling = generation.params.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (0.5, 0.9, 5)
    );
    assert_eq!(
        (sampling.seed, generation.stop),
        (7, vec!["a".to_owned(), "b".to_owned()])
    );
    let body = body(&json!({}));
    let fields = Fields::parse(&body, NAMES).unwrap();
    let operators = read(fields, &limits(Some(7)), &terms()).unwrap();
    assert_eq!(operators.generation.params.max_tokens, 7);
}

#[test]
fn what_changes_an_answer_and_is_not_done_is_refused_by_name() {
    for (extra, why) in [
        (json!({"max_tokens": null}), "max_tokens is required"),
        (json!({"max_tokens": 0}), "max_tokens must be"),
        (
            json!({"temperature": 1.5}),
            "temperature must be from 0 to 1",
        ),
        (
            json!({"stop_sequences": "a"}),
            "stop_sequences must be a list",
        ),
        (
            json!({"stop_sequences": ["a", ""]}),
            "stop_sequences[1] must have",
        ),
        (
            json!({"stop_sequences": vec!["a"; 33]}),
            "stop_sequences must have at most",
        ),
        (json!({"stop": ["a"]}), "stop is not supported"),
        (
            json!({"thinking": {"type": "between_tools"}}),
            "thinking.type must be one of",
        ),
        (json!({"thinking": {}}), "thinking.type is required"),
        (json!({"thinking": true}), "thinking must be an object"),
        (
            json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
            "thinking.display may be summarized or updates only",
        ),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "output_config.format.schema is required",
        ),
        (
            json!({"output_config": {"effort": "most"}}),
            "output_config.effort must be",
        ),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            "context_management may keep",
        ),
        (json!({"service_tier": "priority"}), "service_tier may be"),
        (json!({"speed": "fast"}), "speed may be standard only"),
        (json!({"metadata": "a"}), "metadata must be an object"),
        (json!({"diagnostics": "a"}), "diagnostics must be an object"),
        (
            json!({"mcp_servers": [{}]}),
            "mcp_servers are not supported",
        ),
        (
            json!({"container": "a"}),
            "container is not supported by this worker",
        ),
        (
            json!({"thread": {"type": "create"}}),
            "thread is not supported by this worker",
        ),
        (json!({"no_such": 1}), "no_such is no field of this request"),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "tool_use", "id": "a", "name": "f", "input": {}},
            ]}]}),
            "messages may end with an assistant's text",
        ),
    ] {
        let wrong = read_with(&extra).unwrap_err();
        assert!(wrong.starts_with(why), "{extra}: {wrong}");
    }
}

#[test]
fn the_text_of_an_answer_that_was_begun_is_told_from_the_conversation() {
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "I "}, {"type": "text", "text": "am"}]},
    ]);
    let input = read_with(&json!({"messages": messages}))
        .unwrap()
        .generation
        .input;
    let Input::Chat(chat) = input else {
        panic!("{input:?}");
    };
    assert_eq!(
        (chat.conversation.messages.len(), chat.beginning.as_deref()),
        (1, Some("I am"))
    );
}

#[test]
fn an_answer_that_nobody_asked_for_follows_an_empty_text() {
    let alone = json!([{"role": "assistant", "content": "Once"}]);
    for system in [json!(null), json!(""), json!([])] {
        let body = json!({"system": system, "messages": alone});
        let input = read_with(&body).unwrap().generation.input;
        let Input::Chat(chat) = input else {
            panic!("{input:?}");
        };
        let turns = chat.conversation.messages.iter();
        let turns = turns.map(|it| (it.role.as_str(), it.content.as_deref()));
        assert_eq!(turns.collect::<Vec<_>>(), [("user", Some(""))]);
        assert_eq!(chat.beginning.as_deref(), Some("Once"));
    }
}

#[test]
fn an_empty_message_of_the_system_is_the_last_one_where_it_is_last() {
    let messages = json!([
        {"role": "assistant", "content": "Once"}, {"role": "system", "content": ""},
    ]);
    let body = json!({"messages": messages});
    let input = read_with(&body).unwrap().generation.input;
    let Input::Chat(chat) = input else {
        panic!("{input:?}");
    };
    assert_eq!(chat.beginning, None);
    let roles = chat.conversation.messages.iter().map(|it| it.role.as_str());
    assert_eq!(roles.collect::<Vec<_>>(), ["assistant", "system"]);
}

#[test]
fn a_format_holds_the_answer_and_goes_with_no_tools() {
    let format = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
    let held = json!({"output_config": format});
    let asked = read_with(&held).unwrap().generation.structure.unwrap();
    assert_eq!(asked.field, "output_config.format");
    let tools = json!([{"name": "now", "input_schema": {"type": "object"}}]);
    let both = json!({"output_config": format, "tools": tools});
    let wrong = read_with(&both).unwrap_err();
    assert!(
        wrong.contains("output_config.format cannot be given together with tools"),
        "{wrong}"
    );
}

#[test]
fn what_must_be_called_needs_tools_and_no_answer_that_has_begun() {
    for choice in [
        json!({"type": "any"}),
        json!({"type": "tool", "name": "now"}),
    ] {
        let wrong = read_with(&json!({"tool_choice": choice})).unwrap_err();
        assert!(wrong.contains("tool_choice needs tools"), "{wrong}");
    }
    let begun = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}]);
    let format = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
    let held = json!({"messages": begun, "output_config": format});
    let wrong = read_with(&held).unwrap_err();
    assert!(wrong.contains("where the answer is held"), "{wrong}");
    assert!(read_with(&json!({"messages": begun})).is_ok());
}
