//! Tools, calls and reasoning of chat answers. The scripted model repeats its prompt, so a message determines the
//! model's output.

use serde_json::{Value, json};
use worker_orcd_tests::chat::{anonymous, stream, streamed, whole};
use worker_orcd_tests::{Act, Moment, Script, Worker};

/// Template with tools that renders only contents, calls and an end mark. It names the markup of Hermes and Qwen.
const HERMES: &str = "{% if false %}{{ tools }}<tool_call><think>{% endif %}{% for message in messages %}\
                      {{ message.content }}{% endfor %}<|end|>";

/// The same with the markup of gpt-oss.
const CHANNELS: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<|channel|><|message|>{% endif %}\
                        {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

const IN_CHANNELS: &str = "<|channel|>analysis<|message|>Two of \"them\".<|end|><|start|>assistant<|channel|>commentary\
                           <|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.add \
                           <|constrain|>json<|message|>{\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}<|call|>";

/// The same with the tags of Qwen3-Coder.
const FUNCTIONS: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}<tool_call><function=><parameter=>{% endif %}\
                         {% for message in messages %}{{ message.content }}{% endfor %}<|end|>";

const IN_TAGS: &str = "I look.\n<tool_call>\n<function=add>\n<parameter=a>\n1.0\n</parameter>\n<parameter=b>\n\
                       12 \"\u{e9}\"\n</parameter>\n</parameter>\n</function>\n</tool_call>";

/// Template with a mark that is a control token.
const MISTRAL: &str = "{% if false %}{{ tools }}{{ message.tool_calls }}{% endif %}[TOOL_CALLS]\
                       {{ messages[0].content }}<|end|>";

/// Template that renders every field of a message.
const SHOWING: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}<{{ message.role }}>\
                       {{ message.content or '' }}{{ message.reasoning_content }}{% for call in message.tool_calls %}\
                       <tool_call>{{ call.function | tojson }}{% endfor %}{{ message.tool_call_id }}{% endfor %}<|end|>";

const ANSWER: &str = "<think>\nTwo of \"them\".\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
                      {\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \
                      \"arguments\": {}}\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}},
    }}])
}

fn asking(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "tools": tools(), "max_tokens": 2000})
}

fn scripted(template: &str) -> Script {
    Script::behave().chat_template(template.to_owned())
}

#[test]
fn thoughts_text_and_calls_are_told_apart_streamed_and_whole() {
    let worker = Worker::scripted(scripted(HERMES)).start();
    let client = worker.client();
    let ready = worker.log.wait_for("ready");
    assert_eq!(ready["tool_call_parser"], "hermes");
    assert_eq!(ready["reasoning_parser"], "think");
    let choice = whole(&client, &asking(ANSWER));
    assert_eq!(
        anonymous(&choice),
        json!({
            "index": 0, "logprobs": null, "finish_reason": "tool_calls",
            "message": {
                "role": "assistant", "refusal": null, "content": "I look.",
                "reasoning_content": "Two of \"them\".",
                "reasoning": "Two of \"them\".",
                "tool_calls": [
                    {"type": "function", "function": {
                        "name": "add", "arguments": "{\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}",
                    }},
                    {"type": "function", "function": {"name": "now", "arguments": "{}"}},
                ],
            },
        })
    );
    let told = stream(&client, &asking(ANSWER));
    assert_eq!(anonymous(&told), anonymous(&choice));

    // Cut by length, in the middle of the arguments.
    let mut cut = asking(ANSWER);
    cut["max_tokens"] = json!(ANSWER.find("1.0").expect("it is there") + 1);
    let choice = whole(&client, &cut);
    assert_eq!(choice["finish_reason"], "length");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], "{\"a\": 1");
    assert_eq!(anonymous(&stream(&client, &cut)), anonymous(&choice));

    // Stop strings apply to the text as the model writes it.
    let mut stopped = asking(ANSWER);
    stopped["stop"] = json!(["</tool_call>"]);
    let choice = whole(&client, &stopped);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(
        choice["message"]["tool_calls"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn channels_are_told_apart_in_every_api_and_a_death_changes_no_byte() {
    let worker = Worker::scripted(scripted(CHANNELS)).start();
    let client = worker.client();
    let ready = worker.log.wait_for("ready");
    assert_eq!(ready["tool_call_parser"], "harmony");
    assert_eq!(ready["reasoning_parser"], "harmony");
    let choice = anonymous(&whole(&client, &asking(IN_CHANNELS)));
    let arguments = "{\"a\": 1.0, \"b\": [\"\\u00e9\", {}]}";
    assert_eq!(
        choice["message"],
        json!({
            "role": "assistant", "refusal": null, "content": "I look.",
            "reasoning_content": "Two of \"them\".",
            "reasoning": "Two of \"them\".",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": arguments}}],
        })
    );
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(anonymous(&stream(&client, &asking(IN_CHANNELS))), choice);
    for said in [3, 60, 130, 250] {
        let script = Script::once(Moment::MidStream(said), Act::Signal(9));
        let script = script.chat_template(CHANNELS.to_owned());
        let worker = Worker::scripted(script).start();
        let told = anonymous(&stream(&worker.client(), &asking(IN_CHANNELS)));
        assert_eq!(told, choice, "{said}");
    }

    let of_types = |list: &Value| {
        let list = list.as_array().expect("a list").iter();
        list.map(|it| it["type"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let function = json!({"type": "function", "name": "add", "parameters": {"type": "object"}});
    let body = json!({"input": IN_CHANNELS, "max_output_tokens": 2000, "tools": [function]});
    let response = client.post("/v1/responses", &body).json();
    let types = of_types(&response["output"]);
    assert_eq!(
        types,
        ["reasoning", "message", "function_call"],
        "{response}"
    );
    assert_eq!(response["output"][2]["arguments"], arguments);
    let tool = json!({"name": "add", "input_schema": {"type": "object"}});
    let mut body = asking(IN_CHANNELS);
    body["tools"] = json!([tool]);
    let message = client.post("/v1/messages", &body).json();
    let types = of_types(&message["content"]);
    assert_eq!(types, ["thinking", "text", "tool_use"], "{message}");
    assert_eq!(message["stop_reason"], "tool_use");
}

/// Parameters of two types.
fn typed() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}})
}

/// Parts of an answer in another API, by type.
fn types_of(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|it| it["type"].as_str().unwrap_or_default())
        .collect()
}

#[test]
fn tags_of_parameters_become_json_in_every_api_and_a_death_changes_no_byte() {
    let worker = Worker::scripted(scripted(FUNCTIONS)).start();
    let client = worker.client();
    let ready = worker.log.wait_for("ready");
    assert_eq!(ready["tool_call_parser"], "qwen3_coder");
    let mut body = asking(IN_TAGS);
    body["tools"] =
        json!([{"type": "function", "function": {"name": "add", "parameters": typed()}}]);
    let choice = anonymous(&whole(&client, &body));
    let arguments = "{\"a\": 1.0, \"b\": \"12 \\\"\u{e9}\\\"\\n</parameter>\"}";
    let call = json!({"type": "function", "function": {"name": "add", "arguments": arguments}});
    let message =
        json!({"role": "assistant", "refusal": null, "content": "I look.", "tool_calls": [call]});
    assert_eq!(choice["message"], message);
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(anonymous(&stream(&client, &body)), choice);
    for said in [3, 60, 90, 110, 150] {
        let script = Script::once(Moment::MidStream(said), Act::Signal(9));
        let worker = Worker::scripted(script.chat_template(FUNCTIONS.to_owned())).start();
        let told = anonymous(&stream(&worker.client(), &body));
        assert_eq!(told, choice, "{said}");
    }
    let slow = Worker::scripted(scripted(FUNCTIONS).token_interval_ms(10)).start();
    let slow_client = slow.client();
    let mut streamed_body = body.clone();
    streamed_body["stream"] = json!(true);
    let mut events = slow_client.stream("/v1/chat/completions", &streamed_body);
    let mut told = Vec::new();
    for upgrade_at in [50, 100] {
        while told.len() < upgrade_at {
            told.push(events.next().expect("it goes on").data);
        }
        slow.upgrade();
    }
    told.extend(events.map(|event| event.data));
    assert_eq!(anonymous(&streamed(told.into_iter())), choice);

    let function = json!({"type": "function", "name": "add", "parameters": typed()});
    let asked = json!({"input": IN_TAGS, "max_output_tokens": 2000, "tools": [function]});
    let response = client.post("/v1/responses", &asked).json();
    assert_eq!(types_of(&response["output"]), ["message", "function_call"]);
    assert_eq!(response["output"][1]["arguments"], arguments);
    let read: Value = serde_json::from_str(arguments).expect("JSON");
    let mut asked = body.clone();
    asked["tools"] = json!([{"name": "add", "input_schema": typed()}]);
    let message = client.post("/v1/messages", &asked).json();
    assert_eq!(types_of(&message["content"]), ["text", "tool_use"]);
    assert_eq!(message["content"][1]["input"], read);
    let mut asked = body;
    asked["stream"] = json!(false);
    asked["options"] = json!({"num_predict": 2000});
    asked
        .as_object_mut()
        .expect("an object")
        .remove("max_tokens");
    let message = client.post("/api/chat", &asked).json();
    let call = &message["message"]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], read, "{message}");
}

#[test]
fn tools_that_tags_cannot_express_are_refused_by_name() {
    let worker = Worker::scripted(scripted(FUNCTIONS)).start();
    let refused = |function: Value, choice: &str, field: &str, why: &str| {
        let mut body = asking("hi");
        body["tools"] = json!([{"type": "function", "function": function}]);
        body["tool_choice"] = json!(choice);
        let answer = worker.client().post("/v1/chat/completions", &body);
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(field)),
            "{error}"
        );
        let message = error["message"].as_str().expect("words");
        assert!(message.contains(why), "{message}");
    };
    let name = "tools[0].function.name";
    refused(json!({"name": "a>b"}), "auto", name, "no escapes");
    let schema = "tools[0].function.parameters";
    let long = json!({"type": "object", "description": "x".repeat(256 << 10)});
    refused(
        json!({"name": "a", "parameters": long}),
        "auto",
        schema,
        "262144 bytes",
    );
    let odd = json!({"type": "object", "properties": {"a>b": {}}, "required": ["a>b"]});
    refused(
        json!({"name": "a", "parameters": odd}),
        "required",
        schema,
        "name of a parameter",
    );
    let any = json!({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let strict = json!({"name": "a", "strict": true, "parameters": any});
    refused(strict, "auto", schema, "anyOf cannot be followed");
}

#[test]
fn without_tools_and_where_none_are_wanted_calls_are_text() {
    let worker = Worker::scripted(scripted(HERMES)).start();
    let text = ANSWER.split("</think>\n\n").nth(1).expect("it is there");
    for (key, value) in [("tools", json!([])), ("tool_choice", json!("none"))] {
        let mut body = asking(ANSWER);
        body[key] = value;
        let choice = whole(&worker.client(), &body);
        assert_eq!(choice["message"]["content"], text);
        assert_eq!(choice["message"]["reasoning_content"], "Two of \"them\".");
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(
            anonymous(&stream(&worker.client(), &body)),
            anonymous(&choice)
        );
    }
    // The older endpoint returns the raw text.
    let body = json!({"prompt": format!("{ANSWER}<|end|>"), "max_tokens": 2000});
    let answer = worker.client().post("/v1/completions", &body).json();
    assert_eq!(answer["choices"][0]["text"], ANSWER);

    let raw = Worker::scripted(scripted(HERMES))
        .arg("--reasoning-parser", "none")
        .start();
    let mut body = asking(ANSWER);
    body["tools"] = json!([]);
    assert_eq!(whole(&raw.client(), &body)["message"]["content"], ANSWER);
}

#[test]
fn marks_that_are_control_tokens_reach_the_parser_and_no_other_answer() {
    let script = scripted(MISTRAL).controls(&["[TOOL_CALLS]", "[ARGS]"]);
    let worker = Worker::scripted(script).start();
    let client = worker.client();
    let list = "[{\"name\": \"add\", \"arguments\": {\"a\": 1}}]";
    let choice = whole(&client, &asking(list));
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        call["function"],
        json!({"name": "add", "arguments": "{\"a\": 1}"})
    );
    assert_eq!(
        call["id"].as_str().map(str::len),
        Some(9),
        "as its templates want"
    );
    assert_eq!(
        anonymous(&stream(&client, &asking(list))),
        anonymous(&choice)
    );
    let mut body = asking(list);
    body["tools"] = json!([]);
    assert_eq!(whole(&client, &body)["message"]["content"], list);
}

#[test]
fn a_death_and_an_upgrade_in_the_middle_change_no_byte() {
    let calm = Worker::scripted(scripted(HERMES)).start();
    let expected = anonymous(&whole(&calm.client(), &asking(ANSWER)));
    for said in [3, 60, 130, 200] {
        let script = Script::once(Moment::MidStream(said), Act::Signal(9));
        let script = script.chat_template(HERMES.to_owned());
        let worker = Worker::scripted(script).start();
        assert_eq!(
            anonymous(&stream(&worker.client(), &asking(ANSWER))),
            expected,
            "{said}"
        );
    }
    let script = scripted(HERMES).token_interval_ms(10);
    let worker = Worker::scripted(script).start();
    let client = worker.client();
    let mut body = asking(ANSWER);
    body["stream"] = json!(true);
    let mut events = client.stream("/v1/chat/completions", &body);
    let mut told = Vec::new();
    for upgrade_at in [20, 90, 150] {
        while told.len() < upgrade_at {
            told.push(events.next().expect("it goes on").data);
        }
        worker.upgrade();
    }
    told.extend(events.map(|event| event.data));
    assert_eq!(anonymous(&streamed(told.into_iter())), expected);
}

#[test]
fn an_effort_is_told_to_a_template_that_asks_for_it_and_changes_nothing_else() {
    let told = |template: &str, effort: Value| {
        let worker = Worker::scripted(scripted(template)).start();
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({"messages": messages, "max_tokens": 2000, "reasoning_effort": effort});
        let answer = whole(&worker.client(), &body);
        answer["message"]["content"].clone()
    };
    let asks = "[{{ reasoning_effort }}, {{ enable_thinking }}]<|end|>";
    assert_eq!(told(asks, json!(null)), "[, ]");
    assert_eq!(told(asks, json!("high")), "[high, ]");
    assert_eq!(told(asks, json!("none")), "[none, False]");
    let silent = "{{ messages[0].content }}<|end|>";
    assert_eq!(told(silent, json!("high")), "hi");
}

#[test]
fn tools_calls_and_results_are_shown_to_the_model() {
    let worker = Worker::scripted(scripted(SHOWING)).start();
    let client = worker.client();
    let body = json!({
        "messages": [
            {"role": "user", "content": "1+1 <|end|>"},
            {"role": "assistant", "content": null, "reasoning_content": "Hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"b\": 1, \"a\": [1.0]}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "2 <|end|>"},
        ],
        "tools": tools(), "tool_choice": "none", "max_tokens": 2000,
    });
    let content = |body: &Value| {
        let choice = whole(&client, body);
        let content = choice["message"]["content"].as_str();
        content.expect("text").to_owned()
    };
    // A client's text ends no prompt, and the model sees the end token only at the end.
    let conversation = "<user>1+1 <|end|><assistant>Hm<tool_call>{\"name\": \"add\", \"arguments\": {\"b\": 1, \
                        \"a\": [1.0]}}<tool>2 <|end|>c1";
    assert_eq!(content(&body), conversation);
    let mut with_tools = body.clone();
    with_tools["tool_choice"] = json!("auto");
    let usage = |body: &Value| {
        client.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"].clone()
    };
    let shown = "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds.\", \
                 \"parameters\": {\"properties\": {}, \"type\": \"object\"}}}]";
    let (without, with) = (usage(&body).as_u64(), usage(&with_tools).as_u64());
    assert_eq!(
        with.zip(without).map(|(with, without)| with - without),
        Some(shown.len() as u64)
    );
}

#[test]
fn what_this_model_or_this_worker_cannot_do_is_refused_by_name() {
    let plain = Worker::scripted(Script::behave()).start();
    let calling = Worker::scripted(scripted(HERMES)).start();
    let shows = Worker::scripted(scripted(SHOWING))
        .arg("--tool-call-parser", "none")
        .start();
    let refused = |worker: &Worker, extra: &Value, field: &str, why: &str| {
        let mut body = asking("hi");
        body.as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("one").clone());
        let answer = worker.client().post("/v1/chat/completions", &body);
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 400, "{error}");
        assert_eq!(error["param"], field, "{error}");
        let message = error["message"].as_str().expect("words");
        assert!(message.contains(why), "{message}");
    };
    refused(
        &plain,
        &json!({}),
        "tools",
        "chat template does not ask for tools",
    );
    refused(&shows, &json!({}), "tools", "--tool-call-parser");
    for (extra, field, why) in [
        (json!({"tool_choice": "any"}), "tool_choice", "required"),
        (
            json!({"tool_choice": "required", "tools": null}),
            "tool_choice",
            "needs tools",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
            "tools that may be called",
        ),
        (json!({"functions": [{"name": "a"}]}), "functions", "tools"),
        (
            json!({"function_call": "a"}),
            "function_call",
            "tool_choice",
        ),
    ] {
        refused(&calling, &extra, field, why);
    }
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "[]"}});
    let messages = json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    refused(
        &shows,
        &json!({"messages": messages["messages"], "tools": []}),
        "messages[0].tool_calls[0].function.arguments",
        "JSON object",
    );
    let call = json!({"id": "c", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "assistant", "tool_calls": [call]}]);
    refused(
        &plain,
        &json!({"messages": messages, "tools": []}),
        "messages[0].tool_calls",
        "chat template",
    );
}
