use super::*;
use crate::{ChatMessage, ToolCall};

fn compile(template: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::compile(TemplateSource {
        jinja: template.to_owned(),
        begin: "<s>".to_owned(),
        end: "</s>".to_owned(),
    })
}

fn render_within(max_bytes: usize, template: &str) -> Result<String, TemplateError> {
    let message = |role: &str, content: &str, name: Option<&str>| ChatMessage {
        role: role.to_owned(),
        content: Some(content.to_owned()),
        name: name.map(str::to_owned),
        ..ChatMessage::default()
    };
    let messages = vec![
        message("system", " Be <brief>. ", None),
        message("user", "\"Hi\"\n", Some("Ann")),
    ];
    compile(template)?.render(&Rendering {
        conversation: Conversation {
            messages,
            tools: None,
        },
        settings: vec![("enable_thinking".to_owned(), TemplateSetting::Flag(false))],
        max_bytes,
    })
}

fn render(template: &str) -> Result<String, TemplateError> {
    render_within(1 << 20, template)
}

#[test]
fn what_a_client_sets_is_there_and_nothing_of_the_template_s_own_is_lost() {
    let template = "{% if enable_thinking is defined and enable_thinking is false %}off\
                    {% endif %}{{ messages | length }}{{ add_generation_prompt }}{{ other }}";
    assert_eq!(render(template).unwrap(), "off2True");
}

#[test]
fn chatml_as_models_bring_it() {
    let template = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' \
                    + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
                    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    assert_eq!(
        render(template).unwrap(),
        "<|im_start|>system\n Be <brief>. <|im_end|>\n<|im_start|>user\n\"Hi\"\n<|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn python_s_methods_and_begin_and_end_tokens_work() {
    let template = "{{ bos_token }}{% set ns = namespace(n=0) %}\n\
                    {% for m in messages %}\n{% set ns.n = ns.n + 1 %}\n\
                    {{ m.content.strip().upper() }}{{ m.get('name', '-') }}\n\
                    {% endfor %}\n{{ ns.n }}{{ messages[-1].role }}{{ eos_token }}";
    assert_eq!(
        render(template).unwrap(),
        "<s>BE <BRIEF>.-\n\"HI\"Ann\n2user</s>"
    );
}

#[test]
fn json_is_python_s() {
    assert_eq!(
        render("{{ messages | tojson }}").unwrap(),
        "[{\"role\": \"system\", \"content\": \" Be <brief>. \"}, \
         {\"role\": \"user\", \"content\": \"\\\"Hi\\\"\\n\", \"name\": \"Ann\"}]"
    );
    assert_eq!(
        render("{{ {'a': [1, 2.5, true, none]} | tojson(indent=2) }}").unwrap(),
        "{\n  \"a\": [\n    1,\n    2.5,\n    true,\n    null\n  ]\n}"
    );
}

#[test]
fn arguments_and_tools_are_values_in_the_order_in_which_they_were_written() {
    let call = ToolCall {
        id: Some("c1".to_owned()),
        name: "add".to_owned(),
        arguments: "{\"b\":1.0,\"a\":{\"é\":[]}}".to_owned(),
    };
    let message = |tool_calls, tool_call_id: Option<&str>| ChatMessage {
        role: "assistant".to_owned(),
        tool_calls,
        tool_call_id: tool_call_id.map(str::to_owned),
        reasoning: tool_call_id.map(|_| "Hm".to_owned()),
        ..ChatMessage::default()
    };
    let conversation = Conversation {
        messages: vec![message(vec![call], None), message(vec![], Some("c1"))],
        tools: Some("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]".to_owned()),
    };
    let template = "{{ tools[0].function.name }} {{ messages | tojson }} {{ \
                    messages[0].tool_calls[0].function.arguments.b }}";
    let rendering = Rendering {
        conversation,
        settings: vec![],
        max_bytes: 1 << 20,
    };
    assert_eq!(
        compile(template).unwrap().render(&rendering).unwrap(),
        "add [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"c1\", \
         \"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"b\": 1.0, \
         \"a\": {\"é\": []}}}}]}, {\"role\": \"assistant\", \"reasoning_content\": \
         \"Hm\", \"tool_call_id\": \"c1\"}] 1.0"
    );
}

#[test]
fn numbers_are_python_s_however_they_are_written() {
    let tools = "[1,1.0,0.00001,1e22,-0,18446744073709551615,-2.50]";
    let tools = crate::json_texts::map(tools, &mut str::to_owned);
    let conversation = Conversation {
        messages: vec![],
        tools,
    };
    let rendering = Rendering {
        conversation,
        settings: vec![],
        max_bytes: 1 << 20,
    };
    let template = "{{ tools | tojson }} {{ tools[2] }} {{ tools[3] | string }} {{ tools[0] }}";
    assert_eq!(
        compile(template).unwrap().render(&rendering).unwrap(),
        "[1, 1.0, 1e-05, 1e+22, 0, 18446744073709551615, -2.5] 1e-05 1e+22 1"
    );
}

fn render_silent(template: &str) -> Result<String, TemplateError> {
    let conversation = Conversation {
        messages: vec![ChatMessage::default()],
        tools: None,
    };
    compile(template)?.render(&Rendering {
        conversation,
        settings: vec![],
        max_bytes: 1 << 20,
    })
}

#[test]
fn a_message_without_content_is_none_or_an_empty_text_where_that_fails() {
    let none = "{% if messages[0].content is none %}none{% endif %}";
    assert_eq!(render_silent(none).unwrap(), "none");
    for text in [
        "<{{ messages[0]['content'] + '>' }}",
        "<{{ messages[0].content.strip() }}>",
        "<{% if 'a' not in messages[0].content %}>{% endif %}",
    ] {
        assert_eq!(render_silent(text).unwrap(), "<>", "{text}");
    }
    let refuses = "{% if messages[0].content is none %}{{ raise_exception('no') }}{% endif %}";
    assert!(matches!(
        render_silent(refuses),
        Err(TemplateError::Refused(_))
    ));
    let fails = "{{ messages[0].content.no_such() }}";
    assert!(matches!(
        render_silent(fails),
        Err(TemplateError::Failed(_))
    ));
}

#[test]
fn a_function_without_a_description_has_an_empty_one_where_that_fails() {
    let tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"b\":1.0,\"a\":1e22}}}]";
    let rendering = Rendering {
        conversation: Conversation {
            messages: vec![],
            tools: Some(tools.to_owned()),
        },
        settings: vec![],
        max_bytes: 1 << 20,
    };
    let render = |template: &str| compile(template).unwrap().render(&rendering).unwrap();
    let text =
        "// {{ tools[0].function.description + '.' }} {{ tools[0].function.parameters | tojson }}";
    assert_eq!(render(text), "// . {\"b\": 1.0, \"a\": 1e+22}");
    assert_eq!(
        render("{{ tools[0].function.description is defined }}"),
        "False"
    );
}

/// Output of `json.dumps` in Python 3.
#[test]
fn separators_and_sorted_keys_are_python_s() {
    let value = "{'b': [1, 2], 'a': {}, 'B': 'é'}";
    for (options, text) in [
        ("separators=(',', ':')", r#"{"b":[1,2],"a":{},"B":"é"}"#),
        ("sort_keys=true", r#"{"B": "é", "a": {}, "b": [1, 2]}"#),
        (
            "sort_keys=True, indent=1, separators=(' ;', ' = ')",
            "{\n \"B\" = \"é\" ;\n \"a\" = {} ;\n \"b\" = [\n  1 ;\n  2\n ]\n}",
        ),
    ] {
        let template = format!("{{{{ {value} | tojson({options}) }}}}");
        assert_eq!(render(&template).unwrap(), text, "{options}");
    }
    let wrong = render("{{ 1 | tojson(separators=[',']) }}");
    assert!(matches!(wrong, Err(TemplateError::Failed(_))), "{wrong:?}");
}

#[test]
fn a_content_that_is_absent_has_no_key_unless_a_template_asks_whether_it_is_none() {
    let call = ToolCall {
        id: None,
        name: "now".to_owned(),
        arguments: "{}".to_owned(),
    };
    let message = ChatMessage {
        role: "assistant".to_owned(),
        tool_calls: vec![call],
        ..ChatMessage::default()
    };
    let rendering = Rendering {
        conversation: Conversation {
            messages: vec![message],
            tools: None,
        },
        settings: vec![],
        max_bytes: 1 << 20,
    };
    let body = "{{ m.content }}|{{ 'content' in m }}|{{ m.content is string }}";
    for (asked, rendered) in [
        ("", "|False|False"),
        // Rendering fails without a content, so the content is an empty text.
        ("{% set x = m.content + 'x' %}", "|True|True"),
        (
            "{% if m.content is none %}called {% endif %}",
            "called None|True|False",
        ),
        (
            "{% if m['content'] is  not none %}{% endif %}",
            "None|True|False",
        ),
        (
            "{% if m[\"content\"] is none %}{% endif %}",
            "None|True|False",
        ),
        (
            "{% if m.content is not string %}{% endif %}",
            "|False|False",
        ),
    ] {
        let template = format!("{{% set m = messages[0] %}}{asked}{body}");
        let template = compile(&template).unwrap();
        assert_eq!(template.render(&rendering).unwrap(), rendered, "{asked}");
    }
}

#[test]
fn tags_for_those_who_train_change_nothing() {
    let template = "{% for m in messages %}\n{%- generation -%}\n{% set x = m.role %}{{ x }}\n\
                    {% endgeneration %}\n{{ x }}.\n{% endfor %}";
    assert_eq!(render(template).unwrap(), "system\n.\nuser\n.\n");
}

#[test]
fn ascii_is_there_for_those_who_want_it() {
    let template = "{{ 'é😀' | tojson(ensure_ascii=true) }}{{ 'é' | tojson(ensure_ascii=false) }}";
    assert_eq!(render(template).unwrap(), "\"\\u00e9\\ud83d\\ude00\"\"é\"");
}

#[test]
fn none_is_nothing_to_go_through() {
    let template = "{% for it in [tools, messages, 'ab', {'a': 1}, missing, 5] %}\
                    {{ '1' if it is iterable else '0' }}{% endfor %}";
    assert_eq!(render(template).unwrap(), "011110");
}

#[test]
fn a_refusal_is_told_apart_from_a_failure() {
    assert_eq!(
        render("{{ raise_exception('roles must alternate') }}"),
        Err(TemplateError::Refused("roles must alternate".to_owned()))
    );
    assert!(matches!(
        render("{{ missing.field }}"),
        Err(TemplateError::Failed(_))
    ));
    assert!(matches!(render("{% if %}"), Err(TemplateError::Broken(_))));
}

#[test]
fn what_a_template_says_of_itself_is_short_and_harmless() {
    let refused = render("{{ raise_exception('\u{1b}[2J' ~ 'x' * 100000) }}").unwrap_err();
    let TemplateError::Refused(said) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(said.len(), MAX_SAID_CHARS);
    assert!(said.starts_with(" [2Jxx"), "{said}");
}

#[test]
fn a_template_that_never_ends_is_ended() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}\
                   {% endfor %}{% endfor %}";
    assert!(matches!(render(endless), Err(TemplateError::Failed(_))));
}

#[test]
fn a_prompt_is_written_up_to_its_bound() {
    let ten = "{% for a in range(5) %}ab{% endfor %}";
    assert_eq!(render_within(10, ten).unwrap(), "ababababab");
    assert_eq!(render_within(9, ten), Err(TemplateError::TooLong(9)));
}

#[test]
fn a_template_that_writes_arguments_behind_other_text_is_given_them_as_text() {
    let rendered = |arguments: &str| {
        let call = ToolCall {
            id: None,
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        };
        let message = ChatMessage {
            tool_calls: vec![call],
            ..ChatMessage::default()
        };
        let template = "{{ 'a: ' + messages[0].tool_calls[0].function.ARGUMENTS }}";
        let conversation = Conversation {
            messages: vec![message],
            tools: None,
        };
        let rendering = Rendering {
            conversation,
            settings: vec![],
            max_bytes: 100,
        };
        let render = |name| compile(&template.replace("ARGUMENTS", name))?.render(&rendering);
        [render("arguments"), render("parameters")]
    };
    let [written, missing] = rendered("{\"b\": 1.0}");
    assert_eq!(written.unwrap(), "a: {\"b\": 1.0}");
    assert!(
        matches!(missing, Err(TemplateError::Failed(_))),
        "{missing:?}"
    );
}
