use super::*;
use crate::error::Dialect;
use crate::request::Chat;
use worker_orcd_ipc::{Grammar, Sampling};
use worker_orcd_text::tools::ChatTerms;
use worker_orcd_text::{Structure, ToolCall};

const MODEL: ModelTerms = ModelTerms {
    vocabulary: 500,
    context: 600,
    n_embd: 64,
    defaults: Sampling::DEFAULT,
    chat: ChatTerms::UNKNOWN,
};

fn read_with(kind: Kind, body: &Value, model: &ModelTerms) -> Result<AnswerRequest, String> {
    let body = body.to_string();
    let limits = RequestLimits {
        max_tokens_out: Some(300),
        max_prompt_chars: Some(100),
        ..RequestLimits::NONE
    };
    let mut fields = Fields::parse(&body, NAMES).unwrap();
    fields.take("model");
    let read = (reader(kind).read)(fields, &limits, model);
    read.map_err(|error| {
        error.body(Dialect::Ollama)["error"]
            .as_str()
            .unwrap()
            .to_owned()
    })
}

/// `body` with a conversation.
fn chat(body: Value) -> Result<AnswerRequest, String> {
    let mut whole = json!({"messages": [{"role": "user", "content": "Hi"}]});
    whole
        .as_object_mut()
        .unwrap()
        .extend(body.as_object().unwrap().clone());
    read_with(Kind::Chat, &whole, &MODEL)
}

fn generate(body: Value) -> Result<AnswerRequest, String> {
    let mut whole = json!({"prompt": "Hi"});
    whole
        .as_object_mut()
        .unwrap()
        .extend(body.as_object().unwrap().clone());
    read_with(Kind::Generate, &whole, &MODEL)
}

#[test]
fn options_are_sampling_and_the_length_of_the_answer() {
    let nothing = chat(json!({})).unwrap();
    assert!(nothing.requested.is_streamed);
    assert_eq!(nothing.generation.params.max_tokens, 300);
    let given = chat(json!({"stream": false, "options": {
        "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 7, "repeat_penalty": 1.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "stop": ["a", "b"], "num_predict": 20,
        "num_ctx": 600, "use_mmap": null, "mirostat": null,
    }}));
    let given = given.unwrap();
    assert!(!given.requested.is_streamed);
    let expected = Sampling {
        temperature: 0.5,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.1,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        presence_penalty: 0.1,
        seed: 7,
    };
    assert_eq!(given.generation.params.sampling, expected);
    assert_eq!(given.generation.stop, ["a", "b"]);
    assert_eq!(given.generation.params.max_tokens, 20);
    for (tokens, max_tokens) in [(-1, 300), (-2, 300), (1000, 300)] {
        let given = chat(json!({"options": {"num_predict": tokens, "seed": -1}})).unwrap();
        assert_eq!(given.generation.params.max_tokens, max_tokens, "{tokens}");
    }
}

#[test]
fn what_has_no_effect_here_is_refused_by_name() {
    for (body, field) in [
        (json!({"options": {"num_ctx": 601}}), "options.num_ctx"),
        (json!({"options": {"num_gpu": 20}}), "options.num_gpu"),
        (json!({"options": {"num_thread": 0}}), "options.num_thread"),
        (json!({"options": {"num_batch": 512}}), "options.num_batch"),
        (json!({"options": {"use_mmap": true}}), "options.use_mmap"),
        (json!({"options": {"mirostat": 2}}), "options.mirostat"),
        (
            json!({"options": {"mirostat_tau": 5.0}}),
            "options.mirostat_tau",
        ),
        (
            json!({"options": {"repeat_last_n": 64}}),
            "options.repeat_last_n",
        ),
        (
            json!({"options": {"num_predict": 0}}),
            "options.num_predict",
        ),
        (json!({"options": {"temprature": 0}}), "options.temprature"),
        (json!({"keep_alive": 0}), "keep_alive"),
        (json!({"keep_alive": "0s"}), "keep_alive"),
        (json!({"options": {"num_keep": 4}}), "options.num_keep"),
        (json!({"truncate": true}), "truncate"),
        (json!({"shift": true}), "shift"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"format": "yaml"}), "format"),
        (json!({"think": "much"}), "think"),
    ] {
        for wrong in [chat(body.clone()), generate(body.clone())] {
            let wrong = wrong.unwrap_err();
            assert!(wrong.starts_with(&format!("{field} ")), "{wrong}");
        }
    }
    for (body, field) in [
        (json!({"images": ["AAAA"]}), "images"),
        (json!({"suffix": "a"}), "suffix"),
        (json!({"template": "{{ .Prompt }}"}), "template"),
        (json!({"context": [1]}), "context"),
        (json!({"raw": true, "system": "a"}), "system"),
        (json!({"raw": true, "think": false}), "think"),
        (json!({"system": "a".repeat(99)}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
    ] {
        let wrong = generate(body).unwrap_err();
        assert!(wrong.starts_with(&format!("{field} ")), "{wrong}");
    }
    let empty = json!({"images": [], "suffix": "", "template": "", "context": [], "keep_alive": -1, "truncate": false});
    assert!(generate(empty).is_ok());
}

#[test]
fn a_prompt_is_a_message_unless_it_is_raw() {
    let asked = generate(json!({"system": "Be short."})).unwrap();
    let Input::Chat(Chat { conversation, .. }) = asked.generation.input else {
        panic!("a conversation");
    };
    let messages = conversation.messages.iter();
    let messages: Vec<_> = messages
        .map(|it| (&*it.role, it.content.as_deref()))
        .collect();
    assert_eq!(
        messages,
        [("system", Some("Be short.")), ("user", Some("Hi"))]
    );
    let raw = generate(json!({"raw": true})).unwrap();
    assert_eq!(raw.generation.input, Input::Prompt("Hi".to_owned()));
    assert_eq!(raw.requested.parsing, Parsing::default());
}

#[test]
fn a_conversation_has_calls_and_their_results() {
    let body = json!({
        "messages": [
            {"role": "user", "content": "Hi", "images": []},
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [
                {"function": {"index": 0, "name": "add", "arguments": {"a": 1.0}}},
            ]},
            {"role": "tool", "content": "3", "tool_name": "add"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    });
    let asked = chat(body).unwrap();
    assert_eq!(asked.requested.parsing, MODEL.chat.parsing_of(Some("[]")));
    let Input::Chat(Chat { conversation, .. }) = asked.generation.input else {
        panic!("a conversation");
    };
    assert!(conversation.tools.is_some());
    let [_, call, result] = &conversation.messages[..] else {
        panic!("{conversation:?}");
    };
    let expected = ToolCall {
        id: None,
        name: "add".to_owned(),
        arguments: "{\"a\":1.0}".to_owned(),
    };
    assert_eq!(
        (&call.content, &call.reasoning),
        (&Some(String::new()), &Some("Hm".to_owned()))
    );
    assert_eq!(call.tool_calls, [expected]);
    assert_eq!(result.name.as_deref(), Some("add"));
}

#[test]
fn each_mistake_of_a_message_is_named_with_its_place() {
    let call =
        |function: Value| json!({"role": "assistant", "tool_calls": [{"function": function}]});
    for (message, field) in [
        (json!({"role": "someone", "content": "a"}), ".role"),
        (json!(3), ""),
        (json!({"role": "user", "content": 3}), ".content"),
        (
            json!({"role": "user", "content": "a", "images": ["AAAA"]}),
            ".images",
        ),
        (
            json!({"role": "user", "content": "a", "thinking": "b"}),
            ".thinking",
        ),
        (
            call(json!({"name": "a", "arguments": []})),
            ".tool_calls[0].function.arguments",
        ),
        (
            call(json!({"arguments": {}})),
            ".tool_calls[0].function.name",
        ),
    ] {
        let wrong = chat(json!({"messages": [message]})).unwrap_err();
        assert!(
            wrong.starts_with(&format!("messages[0]{field} ")),
            "{wrong}"
        );
    }
    assert!(chat(json!({"messages": []})).is_err());
}

#[test]
fn the_assistant_s_last_message_is_continued() {
    let mut messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "In a"}]);
    let asked = chat(json!({"messages": messages})).unwrap();
    let Input::Chat(Chat { beginning, .. }) = asked.generation.input else {
        panic!("a conversation");
    };
    assert_eq!(beginning.as_deref(), Some("In a"));
    let held = chat(json!({"messages": messages, "format": "json"}));
    assert!(held.unwrap_err().starts_with("messages may not end"));
    messages[1]["thinking"] = json!("Hm");
    assert!(chat(json!({"messages": messages})).is_err());
}

#[test]
fn think_sets_the_template_and_false_bounds_the_reasoning() {
    let settings = |body: Value| {
        let asked = chat(body).unwrap().generation;
        let Input::Chat(Chat { settings, .. }) = asked.input else {
            panic!("a conversation");
        };
        (settings, asked.thinking.map(|budget| budget.tokens))
    };
    let flag = |is_on| ("enable_thinking".to_owned(), TemplateSetting::Flag(is_on));
    let effort = TemplateSetting::Word("low".to_owned());
    let effort = ("reasoning_effort".to_owned(), effort);
    assert_eq!(settings(json!({})), (vec![], None));
    assert_eq!(settings(json!({"think": true})), (vec![flag(true)], None));
    assert_eq!(
        settings(json!({"think": "low"})),
        (vec![effort, flag(true)], None)
    );
    assert_eq!(
        settings(json!({"think": false})),
        (vec![flag(false)], Some(0))
    );
    let mut model = MODEL;
    model.chat.parsing.thinking = None;
    let body = |think: Value| json!({"prompt": "Hi", "think": think});
    assert!(read_with(Kind::Generate, &body(json!(false)), &model).is_ok());
    for think in [json!(true), json!("high")] {
        let wrong = read_with(Kind::Generate, &body(think), &model).unwrap_err();
        assert_eq!(wrong, "think may be false only: this model does not think");
    }
}

#[test]
fn a_format_is_a_grammar_and_excludes_tools() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    for (format, text) in [
        (json!("json"), "{\"type\":\"object\"}".to_owned()),
        (schema.clone(), schema.to_string()),
    ] {
        for asked in [
            chat(json!({"format": format})),
            generate(json!({"format": format})),
        ] {
            let structure = asked.unwrap().generation.structure.unwrap();
            assert_eq!(structure.field, "format");
            assert_eq!(
                structure.structure,
                Structure::Answer(Grammar::JsonSchema(text.clone()))
            );
        }
    }
    assert_eq!(
        chat(json!({"format": ""})).unwrap().generation.structure,
        None
    );
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let wrong = chat(json!({"format": "json", "tools": tools})).unwrap_err();
    assert!(
        wrong.starts_with("format cannot be given together with tools"),
        "{wrong}"
    );
}
