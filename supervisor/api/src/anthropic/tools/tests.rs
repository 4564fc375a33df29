use super::*;
use crate::tools::MAX_TOOLS;
use serde_json::Value;
use serde_json::json;
use worker_orcd_text::tools::Choices;

fn read_with(body: &Value, terms: &ChatTerms) -> Result<Option<String>, Vec<String>> {
    let body = body.to_string();
    let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
    let tools = read(&mut fields, 500, terms);
    fields.finish().map(|()| tools.shown).map_err(|mistakes| {
        let listed = mistakes.listed().iter();
        listed
            .map(|error| format!("{} {}", error.field, error.message))
            .collect()
    })
}

fn read_body(body: &Value) -> Result<Option<String>, Vec<String>> {
    read_with(body, &ChatTerms::UNKNOWN)
}

fn held(body: &Value) -> Option<&'static str> {
    let body = body.to_string();
    let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
    let tools = read(&mut fields, 500, &ChatTerms::UNKNOWN);
    fields.finish().unwrap();
    tools.asked.map(|asked| asked.field)
}

fn named(body: &Value) -> Vec<String> {
    let wrong = read_body(body).unwrap_err();
    let name = |it: &String| it.split(' ').next().unwrap_or_default().to_owned();
    wrong.iter().map(name).collect()
}

fn with_choice(choice: &Value) -> Value {
    json!({"tools": [{"name": "now", "input_schema": {"type": "object"}}], "tool_choice": choice})
}

#[test]
fn tools_are_shown_as_chat_shows_them() {
    let body = json!({"tools": [{
        "type": "custom", "name": "add", "description": "Adds \"1\".", "strict": false,
        "input_schema": {"type": "object", "properties": {"a": {"enum": [1.0]}}},
        "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true, "defer_loading": false,
        "input_examples": [], "allowed_callers": ["direct"],
    }]});
    let shown = "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds \\\"1\\\".\",\
                 \"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1.0]}}}}}]";
    assert_eq!(read_body(&body).unwrap().as_deref(), Some(shown));
    let auto = with_choice(&json!({"type": "auto", "disable_parallel_tool_use": false}));
    assert!(read_body(&auto).unwrap().is_some());
    for nothing in [
        with_choice(&json!({"type": "none"})),
        json!({"tools": []}),
        json!({"tool_choice": {"type": "auto"}}),
        json!({}),
    ] {
        assert_eq!(read_body(&nothing), Ok(None), "{nothing}");
    }
}

#[test]
fn mistakes_that_chat_s_reader_finds_have_the_client_s_names() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(70), "]".repeat(70));
    let deep: Value = serde_json::from_str(&deep).unwrap();
    assert_eq!(
        named(&json!({"tools": [{"name": "a", "input_schema": deep}]})),
        ["tools[0].input_schema"]
    );
    let list = json!({"name": "a", "input_schema": {"type": "array"}, "strict": true});
    assert_eq!(named(&json!({"tools": [list]})), ["tools[0].input_schema"]);
    let one = json!({"name": "a", "input_schema": {}});
    let many = json!({"tools": vec![one; MAX_TOOLS + 1]});
    assert!(named(&many).contains(&"tools".to_owned()));
    let unknown = with_choice(&json!({"type": "tool", "name": "later"}));
    assert_eq!(named(&unknown), ["tool_choice"]);
}

#[test]
fn what_must_be_called_holds_the_answer() {
    let strict =
        json!({"tools": [{"name": "now", "input_schema": {"type": "object"}, "strict": true}]});
    for (body, field) in [
        (with_choice(&json!({"type": "any"})), "tool_choice"),
        (
            with_choice(&json!({"type": "tool", "name": "now"})),
            "tool_choice",
        ),
        (
            with_choice(&json!({"type": "auto", "disable_parallel_tool_use": true})),
            "tool_choice.disable_parallel_tool_use",
        ),
        (strict, "tools"),
    ] {
        assert_eq!(held(&body), Some(field), "{body}");
    }
    assert_eq!(held(&with_choice(&json!({"type": "auto"}))), None);
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let tools = json!([
        3,
        {"name": "a"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"name": "", "input_schema": [], "strict": true, "defer_loading": true},
        {"name": "a", "input_schema": {}},
    ]);
    assert_eq!(
        named(&json!({"tools": tools})),
        [
            "tools[0]",
            "tools[1].input_schema",
            "tools[2].type",
            "tools[2].input_schema",
            "tools[2].max_uses",
            "tools[3].name",
            "tools[3].input_schema",
            "tools[3].defer_loading",
        ]
    );
    assert_eq!(named(&json!({"tools": "a"})), ["tools"]);
    for (choice, field) in [
        (json!("auto"), "tool_choice"),
        (json!({}), "tool_choice.type"),
        (json!({"type": "required"}), "tool_choice.type"),
        (json!({"type": "tool"}), "tool_choice.name"),
        (json!({"type": "auto", "name": "now"}), "tool_choice.name"),
    ] {
        assert_eq!(named(&json!({"tool_choice": choice}))[0], field, "{choice}");
    }
}

#[test]
fn a_model_that_cannot_have_tools_refuses_them_and_says_why() {
    let terms = Choices::default().resolve("{{ messages }}");
    let wrong = read_with(&with_choice(&json!(null)), &terms).unwrap_err();
    assert!(wrong[0].contains("chat template does not ask"), "{wrong:?}");
}
