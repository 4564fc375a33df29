//! Texts that a schema must accept or refuse under keywords that exclude values: `oneOf`, `not`, `if`, dependencies,
//! names and their count. Written by hand, from JSON Schema's definition of each.

mod vocabulary;

use serde_json::{Value, json};
use vocabulary::{facts, ids};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::Grammar;

fn assert_allows(schema: &Value, valid: &[&str], invalid: &[&str]) {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let allows = |text: &str| {
        let grammar = Grammar::JsonSchema(schema.to_string());
        let mut matcher = match compiler.compile(&grammar) {
            Ok(matcher) => matcher,
            Err(error) => panic!("{schema}: {error}"),
        };
        let mut tokens = ids(text).into_iter();
        let taken = tokens.try_for_each(|token| matcher.accept(token));
        taken.is_ok() && matcher.is_complete().expect("no limit is near")
    };
    for text in valid {
        assert!(allows(text), "{schema} without {text}");
    }
    for text in invalid {
        assert!(!allows(text), "{schema} with {text}");
    }
}

fn refused(schema: &Value) -> String {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let grammar = Grammar::JsonSchema(schema.to_string());
    match compiler.compile(&grammar) {
        Ok(_) => panic!("{schema} is not refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn alternatives_of_required_properties_have_one_of_them() {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c", "d"]}],
    });
    assert_allows(
        &schema,
        &[
            r#"{"a":1}"#,
            r#"{"b":1,"c":2}"#,
            r#"{"c":1,"d":1}"#,
            r#"{"a":1,"d":1}"#,
        ],
        &[
            "{}",
            r#"{"a":1,"b":1}"#,
            r#"{"c":1}"#,
            r#"{"a":1,"c":1,"d":1}"#,
        ],
    );
}

#[test]
fn alternatives_that_overlap_leave_what_is_valid_under_one() {
    let schema = json!({"type": "integer", "oneOf": [{"minimum": 1}, {"maximum": 3}]});
    assert_allows(&schema, &["0", "-7", "4", "50"], &["1", "2", "3"]);
    let schema = json!({"oneOf": [{"type": "string"}, {"enum": ["a", "b", 1]}, {"const": "é"}]});
    assert_allows(
        &schema,
        &["1", r#""ab""#, r#""""#],
        &[r#""a""#, r#""b""#, r#""é""#, "2"],
    );
    let schema = json!({
        "oneOf": [{"type": "string", "pattern": "^[a-f\\d]{2}$"}, {"enum": ["", "ab", "xy"]}],
    });
    assert_allows(
        &schema,
        &[r#""0f""#, r#""""#, r#""xy""#],
        &[r#""ab""#, r#""zz""#],
    );
    let schema = json!({"oneOf": [{"$ref": "#/$defs/small"}, {"type": ["integer", "null"], "maximum": 100}],
        "$defs": {"small": {"type": "integer", "maximum": 10}}});
    assert_allows(&schema, &["null", "11", "100"], &["10", "-4", "101"]);
}

#[test]
fn alternatives_that_are_closed_are_told_by_the_names_of_the_others() {
    let schema = json!({"type": "object", "oneOf": [
        {"properties": {"value": {"type": "string"}, "unit": {"type": "string"}}, "additionalProperties": false},
        {"properties": {"text": {"type": "string"}, "unit": {"type": "string"}}, "additionalProperties": false},
    ]});
    assert_allows(
        &schema,
        &[r#"{"value":"1"}"#, r#"{"text":"1","unit":"m"}"#],
        &["{}", r#"{"unit":"m"}"#, r#"{"value":"1","text":"1"}"#],
    );
}

#[test]
fn what_stands_beside_a_reference_tells_no_alternatives_apart() {
    // Drafts up to 7 ignore it.
    let one = |kind: &str| json!({"$ref": "#/definitions/o", "properties": {"k": {"const": kind}}, "required": ["k"]});
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "oneOf": [one("a"), one("b")],
        "definitions": {"o": {"type": "object"}},
    });
    assert!(refused(&schema).contains("oneOf"));
    // Draft 4 has no `const`.
    let schema = json!({
        "$schema": "http://json-schema.org/draft-04/schema#", "oneOf": [{"const": 1}, {"const": 2}],
    });
    assert!(refused(&schema).contains("oneOf"));
}

#[test]
fn what_a_value_must_not_be_it_is_not() {
    let schema = json!({"not": {"type": ["object", "array", "number"]}});
    assert_allows(&schema, &["null", "true", r#""a""#], &["1", "[]", "{}"]);
    let schema = json!({"type": "string", "not": {"enum": ["a", "ab"]}});
    assert_allows(
        &schema,
        &[r#""b""#, r#""""#, r#""abc""#],
        &[r#""a""#, r#""ab""#, "1"],
    );
    let schema = json!({"type": "integer", "not": {"enum": [3, 5]}});
    assert_allows(&schema, &["2", "4", "6"], &["3", "5"]);
    let schema = json!({"type": "object", "not": {"required": ["a", "b"]}});
    assert_allows(
        &schema,
        &["{}", r#"{"a":1}"#, r#"{"b":1,"c":2}"#],
        &[r#"{"a":1,"b":1}"#],
    );
    let schema =
        json!({"type": "object", "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}});
    assert_allows(
        &schema,
        &["{}", r#"{"c":1}"#],
        &[r#"{"a":1}"#, r#"{"b":1}"#],
    );
    let schema = json!({"properties": {"a": {"not": {}}, "b": {}}, "type": "object"});
    assert_allows(&schema, &["{}", r#"{"b":1}"#], &[r#"{"a":1}"#]);
    let schema = json!({"type": "string", "not": {"maxLength": 2}, "maxLength": 4});
    assert_allows(&schema, &[r#""abc""#], &[r#""ab""#, r#""abcde""#]);
    let schema = json!({"type": "array", "not": {"minItems": 2}});
    assert_allows(&schema, &["[]", "[1]"], &["[1,2]"]);
    let schema = json!({"not": {"not": {"type": "integer"}}});
    assert_allows(&schema, &["1"], &["true", "1.5"]);
}

#[test]
fn a_condition_is_met_or_what_is_otherwise_asked_for_holds() {
    let schema = json!({
        "type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
        "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
        "then": {"required": ["n"]}, "else": {"properties": {"n": {"maximum": 5}}},
    });
    assert_allows(
        &schema,
        &[
            r#"{"kind":"a","n":9}"#,
            r#"{"kind":"b"}"#,
            r#"{"kind":"b","n":5}"#,
            "{}",
        ],
        &[r#"{"kind":"a"}"#, r#"{"kind":"b","n":6}"#, r#"{"n":6}"#],
    );
}

#[test]
fn dependencies_hold_where_their_property_is_there() {
    for schema in [
        json!({"type": "object", "dependencies": {"a": ["b"], "c": {"properties": {"b": {"const": 1}}}}}),
        json!({"type": "object", "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"c": {"properties": {"b": {"const": 1}}}}}),
    ] {
        let mut schema = schema;
        schema["properties"] = json!({"a": {}, "b": {}, "c": {}});
        assert_allows(
            &schema,
            &["{}", r#"{"b":2}"#, r#"{"a":1,"b":2}"#, r#"{"b":1,"c":2}"#],
            &[r#"{"a":1}"#, r#"{"b":2,"c":2}"#, r#"{"a":1,"c":2}"#],
        );
    }
}

#[test]
fn names_of_properties_are_held_to_their_schema() {
    let schema = json!({
        "type": "object", "properties": {"ab": {"type": "integer"}, "B": {}}, "propertyNames": {"pattern": "^[a-z]+$"},
        "additionalProperties": {"type": "boolean"},
    });
    assert_allows(
        &schema,
        &["{}", r#"{"ab":1,"c":true}"#],
        &[
            r#"{"B":1}"#,
            r#"{"C":true}"#,
            r#"{"c":1}"#,
            r#"{"ab":true}"#,
        ],
    );
    let schema = json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}});
    assert_allows(&schema, &["{}", r#"{"b":1}"#], &[r#"{"c":1}"#]);
    let schema = json!({"type": "object", "propertyNames": {"maxLength": 2, "minLength": 2}});
    assert_allows(
        &schema,
        &["{}", r#"{"bé":1}"#],
        &[r#"{"c":1}"#, r#"{"abc":1}"#],
    );
    let beside = json!({"propertyNames": {"enum": ["a", "b"], "pattern": "(?=a)"}});
    assert!(refused(&beside).contains("propertyNames"));
    assert!(refused(&json!({"propertyNames": {"not": {"const": "a"}}})).contains("propertyNames"));
}

#[test]
fn properties_are_counted_beside_those_that_are_optional() {
    let some =
        json!({"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}});
    let schema = json!({"type": "object", "properties": some, "minProperties": 1});
    assert_allows(
        &schema,
        &[r#"{"b":1}"#, r#"{"x":1}"#, r#"{"a":1,"c":1,"x":1}"#],
        &["{}"],
    );
    let schema = json!({
        "type": "object", "properties": some, "required": ["a"], "minProperties": 2.0, "maxProperties": 2,
        "additionalProperties": false,
    });
    assert_allows(
        &schema,
        &[r#"{"a":1,"b":1}"#, r#"{"a":1,"c":1}"#],
        &[r#"{"a":1}"#, r#"{"a":1,"b":1,"c":1}"#, r#"{"b":1,"c":1}"#],
    );
    let schema = json!({"type": "object", "properties": some, "maxProperties": 1});
    assert_allows(
        &schema,
        &["{}", r#"{"b":1}"#, r#"{"x":1}"#],
        &[r#"{"a":1,"b":1}"#, r#"{"a":1,"x":1}"#],
    );
    let schema = json!({"properties": some, "minProperties": 2, "additionalProperties": false});
    assert_allows(
        &schema,
        &[r#"{"a":1,"c":1}"#, "null", "[]"],
        &["{}", r#"{"a":1}"#],
    );
}

#[test]
fn what_no_grammar_says_is_refused_with_its_place() {
    for (schema, words) in [
        (
            json!({"not": {"pattern": "a"}}),
            "not cannot be followed: no grammar says what pattern leaves (at #/not)",
        ),
        (
            json!({"items": {"not": {"type": "integer"}}}),
            "what type leaves (at #/items/not)",
        ),
        (
            json!({"not": {"items": {"type": "string"}}, "type": "array"}),
            "what items leaves",
        ),
        (
            json!({"if": {"multipleOf": 2}, "then": {"minimum": 1}}),
            "if cannot be followed",
        ),
    ] {
        let refused = refused(&schema);
        assert!(refused.contains(words), "{schema}: {refused}");
    }
    // Each alone is small; all together are many.
    let mut many = json!({"type": "object"});
    let all: serde_json::Map<_, _> = (0..20)
        .map(|n| (format!("p{n}"), json!([format!("q{n}")])))
        .collect();
    many["dependencies"] = Value::Object(all);
    assert!(refused(&many).contains("too many combinations"));
}
