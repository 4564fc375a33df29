//! Reading of both fields, valid and invalid.

use super::*;
use serde_json::{Value, json};

const ALL: Names = &[FIELDS, &["ignore_eos"]];

fn read_body(body: &Value, has_tools: bool) -> Result<Option<(&'static str, Grammar)>, String> {
    let body = body.to_string();
    let mut fields = Fields::parse(&body, ALL).unwrap();
    let asked = read(&mut fields, has_tools);
    let _ = fields.boolean("ignore_eos");
    fields
        .finish()
        .map_err(|mistakes| mistakes.listed()[0].field.clone())?;
    Ok(asked.map(|asked| match asked.structure {
        Structure::Answer(grammar) => (asked.field, grammar),
        Structure::Calls(calls) => panic!("{calls:?}"),
    }))
}

fn named(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {
        "name": "point", "description": "A place.", "strict": true, "schema": schema,
    }}})
}

#[test]
fn each_way_to_hold_an_answer_is_read() {
    let schema = json!({"type": "object"});
    let text = schema.to_string();
    let of_schema = || Grammar::JsonSchema(text.clone());
    for (body, field, grammar) in [
        (named(&schema), FORMAT, of_schema()),
        (
            json!({"response_format": {"type": "json_object"}}),
            FORMAT,
            of_schema(),
        ),
        (
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            FORMAT,
            of_schema(),
        ),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            FORMAT,
            of_schema(),
        ),
        (json!({"json_schema": schema}), SCHEMA, of_schema()),
        (
            json!({"grammar": "root ::= \"a\"", "json_schema": {}}),
            GBNF,
            Grammar::Gbnf("root ::= \"a\"".to_owned()),
        ),
        (
            json!({"json_schema": {}, "structured_outputs": {"json": schema}}),
            OUTPUTS,
            of_schema(),
        ),
        (
            json!({"response_format": {"type": "text"}, "structured_outputs": {"json": schema}}),
            OUTPUTS,
            of_schema(),
        ),
        (
            json!({"structured_outputs": {"json": text}}),
            OUTPUTS,
            of_schema(),
        ),
        (
            json!({"structured_outputs": {"json_object": true, "regex": null}}),
            OUTPUTS,
            of_schema(),
        ),
        (
            json!({"structured_outputs": {"regex": "a+"}}),
            OUTPUTS,
            Grammar::Regex("a+".to_owned()),
        ),
        (
            json!({"structured_outputs": {"choice": ["a", "b"]}}),
            OUTPUTS,
            Grammar::Choice(vec!["a".to_owned(), "b".to_owned()]),
        ),
        (
            json!({"structured_outputs": {"grammar": "start: \"a\""}}),
            OUTPUTS,
            Grammar::Lark("start: \"a\"".to_owned()),
        ),
    ] {
        let asked = read_body(&body, false);
        assert_eq!(asked, Ok(Some((field, grammar))), "{body}");
        let field = Err(field.to_owned());
        assert_eq!(read_body(&body, true), field, "{body} beside tools");
        let mut endless = body.clone();
        endless["ignore_eos"] = json!(true);
        assert_eq!(read_body(&endless, false), Err("ignore_eos".to_owned()));
    }
    for text in [
        json!({}),
        json!({"response_format": null, "structured_outputs": null}),
        json!({"json_schema": {}, "grammar": ""}),
        json!({"response_format": {"type": "text"}, "ignore_eos": true}),
    ] {
        assert_eq!(read_body(&text, true), Ok(None), "{text}");
    }
}

#[test]
fn each_mistake_is_named_with_its_place() {
    let long = "x".repeat(MAX_GRAMMAR_BYTES + 1);
    let format = |format: Value| json!({"response_format": format});
    let outputs = |outputs: Value| json!({"structured_outputs": outputs});
    let schema = |schema: Value| format(json!({"type": "json_schema", "json_schema": schema}));
    for (body, field) in [
        (
            outputs(json!({"grammar": "start: %parameters {}"})),
            "structured_outputs.grammar",
        ),
        (format(json!("json")), "response_format"),
        (format(json!({})), "response_format.type"),
        (format(json!({"type": "xml"})), "response_format.type"),
        (
            format(json!({"type": "json_schema"})),
            "response_format.json_schema",
        ),
        (
            format(json!({"type": "json_object", "json_schema": {}})),
            "response_format.json_schema",
        ),
        (
            format(json!({"type": "json_object", "schema": "a"})),
            "response_format.schema",
        ),
        (
            format(json!({"type": "text", "schema": {}})),
            "response_format.schema",
        ),
        (json!({"json_schema": []}), "json_schema"),
        (json!({"grammar": 3}), "grammar"),
        (json!({"grammar": long}), "grammar"),
        (json!({"grammar": "a", "json_schema": {"a": 1}}), "grammar"),
        (
            json!({"json_schema": {"a": 1}, "structured_outputs": {"json": {}}}),
            "structured_outputs",
        ),
        (
            json!({"json_schema": {"a": 1}, "response_format": {"type": "json_object"}}),
            "json_schema",
        ),
        (
            schema(json!({"name": "a"})),
            "response_format.json_schema.schema",
        ),
        (
            schema(json!({"name": "a", "schema": true})),
            "response_format.json_schema.schema",
        ),
        (
            schema(json!({"name": "a", "schema": {"title": long}})),
            "response_format.json_schema.schema",
        ),
        (
            schema(json!({"name": "a", "schema": {}, "x": 1})),
            "response_format.json_schema.x",
        ),
        (outputs(json!([])), "structured_outputs"),
        (outputs(json!({})), "structured_outputs.json"),
        (
            outputs(json!({"regex": "a", "choice": ["a"]})),
            "structured_outputs.regex",
        ),
        (outputs(json!({"regex": ""})), "structured_outputs.regex"),
        (outputs(json!({"regex": long})), "structured_outputs.regex"),
        (outputs(json!({"choice": []})), "structured_outputs.choice"),
        (
            outputs(json!({"choice": ["a", ""]})),
            "structured_outputs.choice",
        ),
        (
            outputs(json!({"choice": ["a", long]})),
            "structured_outputs.choice",
        ),
        (outputs(json!({"json": 3})), "structured_outputs.json"),
        (
            outputs(json!({"json_object": false})),
            "structured_outputs.json_object",
        ),
        (
            outputs(json!({"json": {}, "whitespace_pattern": " "})),
            "structured_outputs.whitespace_pattern",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"json": {}}}),
            "structured_outputs",
        ),
    ] {
        assert_eq!(read_body(&body, false), Err(field.to_owned()), "{body}");
    }
}
