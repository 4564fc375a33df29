//! Texts that a schema must accept or refuse, written by hand from JSON Schema's definitions.

mod vocabulary;

use serde_json::{Value, json};
use vocabulary::{facts, ids};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::Grammar;

fn compiler() -> Compiler {
    Compiler::new(&facts()).expect("a vocabulary")
}

/// True if the text is a complete text of the schema.
fn allows(compiler: &Compiler, schema: &Value, text: &str) -> bool {
    let grammar = Grammar::JsonSchema(schema.to_string());
    let mut matcher = match compiler.compile(&grammar) {
        Ok(matcher) => matcher,
        Err(error) => panic!("{schema}: {error}"),
    };
    let taken = ids(text)
        .into_iter()
        .try_for_each(|token| matcher.accept(token));
    taken.is_ok() && matcher.is_complete().expect("no limit is near")
}

fn assert_allows(schema: &Value, valid: &[&str], invalid: &[&str]) {
    let compiler = compiler();
    for text in valid {
        assert!(allows(&compiler, schema, text), "{schema} without {text}");
    }
    for text in invalid {
        assert!(!allows(&compiler, schema, text), "{schema} with {text}");
    }
}

#[test]
fn a_name_is_written_in_one_way_only() {
    let schema = json!({"properties": {"a": {"type": "integer"}}, "type": "object"});
    let twice = r#"{"a":1,"\u0061":"x"}"#;
    assert_allows(
        &schema,
        &[r#"{"a":1,"b":"x\n"}"#],
        &[twice, r#"{"\u0061":"x"}"#],
    );
}

#[test]
fn a_name_that_only_some_readers_find_an_expression_in_is_held_to_its_schema_or_not_written() {
    let names = json!({"^\\d+$": {"type": "integer"}, "^a\\W$": {"type": "integer"}});
    let free = json!({"type": "object", "patternProperties": names});
    let valid = [r#"{"1":2}"#, r#"{"b":"x"}"#, r#"{"٣":1}"#, r#"{"1\n":1}"#];
    let invalid = [
        r#"{"1":"x"}"#,
        r#"{"٣":"x"}"#,
        r#"{"1\n":"x"}"#,
        r#"{"aé":"x"}"#,
    ];
    assert_allows(&free, &valid, &invalid);
    let closed = json!({
        "type": "object", "patternProperties": names, "additionalProperties": false,
    });
    assert_allows(
        &closed,
        &[r#"{"1":2}"#],
        &[r#"{"٣":1}"#, r#"{"1\n":1}"#, r#"{"b":1}"#],
    );
    let others = json!({
        "type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": {"type": "null"},
    });
    assert_allows(&others, &[r#"{"x-a":1,"b":null}"#], &[r#"{"b":1}"#]);
}

#[test]
fn a_class_that_excludes_a_mark_excludes_its_escape() {
    let texts = |pattern: &str| json!({"type": "string", "pattern": pattern});
    for pattern in [
        r#"^[^,"]+$"#,
        "^[^\\x22]+$",
        "^[\\0-!#-~]+$",
        r#"^[^\n"]+$"#,
    ] {
        assert_allows(&texts(pattern), &[r#""a\\""#], &[r#""a\"""#, r#""\"""#]);
    }
    let path = texts("^[^\\\\]*$");
    assert_allows(&path, &[r#""a\"\n""#], &[r#""a\\""#, r#""\\n""#]);
    let not = json!({"type": "string", "not": {"const": "\""}});
    assert_allows(&not, &[r#""\"a""#, r#""\\""#], &[r#""\"""#]);
    let names = json!({"type": "object", "properties": {"\"": {"type": "integer"}}});
    assert_allows(&names, &[r#"{"\"":1,"\\":"x"}"#], &[r#"{"\"":"x"}"#]);
    let names = json!({"patternProperties": {"^[^\"]+$": {}}, "additionalProperties": false, "type": "object"});
    assert_allows(&names, &[r#"{"a":1}"#], &[r#"{"a\"":1}"#]);
}

#[test]
fn items_of_older_drafts_are_held_to_what_stands_beside_them() {
    let schema = json!({
        "type": "array", "items": [{"type": "integer"}], "anyOf": [{"minItems": 1}],
        "additionalItems": false,
    });
    assert_allows(&schema, &["[1]"], &["[]", "[1,2]", "[true]"]);
    let schema = json!({
        "type": "array", "prefixItems": [{"type": "integer"}], "additionalItems": false,
    });
    assert_allows(&schema, &["[1]", "[1,null]"], &["[true]"]);
}

#[test]
fn bounds_hold_where_numbers_are_large_or_close() {
    let schema = json!({"type": "integer", "maximum": 9_007_199_254_740_995_i64, "minimum": 0});
    assert_allows(&schema, &["9007199254740994"], &["9007199254740996"]);
    let schema = json!({"type": "number", "exclusiveMaximum": 1, "exclusiveMinimum": 0});
    assert_allows(&schema, &["0.9", "0.25"], &["1", "1.0", "0", "0.0"]);
    let free = json!({"type": ["number", "null"]});
    assert_allows(&free, &["-0.5", "12345678901", "null"], &["8E657", "1e999"]);
    let any = json!({"anyOf": [{"type": "object"}, {"title": "any"}]});
    let invalid = [
        "8E657",
        "[1e999]",
        r#"{"a":{"b":1e309}}"#,
        "1000000000000000000000",
    ];
    assert_allows(&any, &["8e65", "-1.5E-7", r#"{"a":[0.1]}"#], &invalid);
    let digits = format!("1{}", "0".repeat(400));
    for without_bounds in [
        json!({"type": "integer"}),
        json!({"minimum": 0}),
        json!({"type": ["integer", "null"], "maximum": 7}),
        json!({"minLength": 1}),
        json!({"not": {"type": "string"}}),
        json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    ] {
        let (above, below) = (digits.as_str(), format!("-{digits}"));
        assert_allows(&without_bounds, &[], &[above, &below, "1e999", "8E657"]);
    }
    let close = json!({"type": "number", "exclusiveMinimum": 1});
    assert_allows(&close, &["1.5", "2"], &["1", "1.00000000000000000001"]);
    let schema = json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX});
    assert_allows(
        &schema,
        &["-5", "0", "9007199254740993"],
        &["9223372036854775808"],
    );
}

#[test]
fn an_expression_that_is_no_schemas_keeps_its_numbers() {
    let any = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";
    let mut matcher = compiler()
        .compile(&Grammar::Regex(any.to_owned()))
        .expect("an expression");
    for token in ids("8E657") {
        matcher.accept(token).expect("it is nobody's number");
    }
    assert!(matcher.is_complete().expect("no limit is near"));
}

#[test]
fn formats_are_those_of_the_calendar() {
    let schema = json!({"type": "string", "format": "date"});
    let invalid = [
        r#""2023-02-29""#,
        r#""1900-02-29""#,
        r#""0000-01-01""#,
        r#""2024-04-31""#,
    ];
    assert_allows(
        &schema,
        &[r#""2024-02-29""#, r#""2000-02-29""#, r#""1999-12-31""#],
        &invalid,
    );
    let schema = json!({"type": "string", "format": "date-time"});
    let valid = [
        r#""2024-02-29T23:59:59.123456+02:00""#,
        r#""2024-01-01T00:00:00Z""#,
    ];
    assert_allows(
        &schema,
        &valid,
        &[
            r#""2024-01-01T12:00:60Z""#,
            r#""2024-01-01T00:00:00""#,
            r#""2024-01-01T00:00:00.1234567Z""#,
        ],
    );
    for (format, valid, invalid) in [
        ("time", "12:00:00.123456Z", "12:00:00.1234567Z"),
        ("email", "a.b@example.org", "a..b@example.org"),
        ("hostname", "xn.example-host.org", "a--b.org"),
        ("ipv4", "127.0.0.1", "256.0.0.1"),
        ("ipv6", "fe80::1:2", "1::2::3"),
        ("uri", "https://example.org:80/a?b#c", "//example.org"),
        ("uri-reference", "../a?b", "a b"),
        ("json-pointer", "/a~1b/0", "/a~2"),
        ("duration", "P1Y2M3DT4H", "P1S"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("regex", "^[a-z_]+$", "(a"),
    ] {
        let quoted = [valid, invalid].map(|text| format!("\"{text}\""));
        assert_allows(
            &json!({"type": "string", "format": format}),
            &[&quoted[0]],
            &[&quoted[1]],
        );
    }
    let encoded = json!({"type": "string", "contentEncoding": "base64", "minLength": 1});
    assert_allows(
        &encoded,
        &[r#""YWI=""#, r#""YWJj""#],
        &[r#""YWI""#, r#""YWJ=""#, r#""""#],
    );
    // Constraints on numbers do not apply.
    assert_allows(
        &json!({"type": "integer", "format": "date"}),
        &["5"],
        &["\"5\""],
    );
    let both = json!({"type": "string", "format": "date", "pattern": "^2024"});
    assert_allows(&both, &[r#""2024-05-01""#], &[r#""2023-05-01""#]);
}

#[test]
fn references_are_followed_with_their_escapes_anchors_and_documents() {
    let schema = json!({
        "$id": "https://example.org/a", "type": "array",
        "prefixItems": [
            {"$ref": "#/$defs/x~1y%20z"}, {"$ref": "#there"}, {"$ref": "https://example.org/a#/$defs/n"},
            {"$ref": "inner"},
        ],
        "items": false, "minItems": 4,
        "$defs": {
            "x/y z": {"const": 1}, "t": {"$anchor": "there", "const": 2}, "n": {"const": 3},
            "i": {"$id": "inner", "$ref": "#/$defs/n", "$defs": {"n": {"const": 4}}},
        },
    });
    assert_allows(&schema, &["[1,2,3,4]"], &["[1,2,3,3]", "[2,2,3,4]"]);
}

#[test]
fn alternatives_that_exclude_each_other_are_followed() {
    let kind = |name: &str| {
        json!({
            "type": "object", "properties": {"kind": {"const": name}, name: {"type": "integer"}},
            "required": ["kind"], "additionalProperties": false,
        })
    };
    // As pydantic writes a union with a discriminator.
    let schema = json!({
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {"cat": kind("cat"), "dog": kind("dog")},
    });
    let valid = [r#"{"kind":"cat","cat":1}"#, r#"{"kind":"dog"}"#];
    assert_allows(
        &schema,
        &valid,
        &[r#"{"kind":"cow"}"#, r#"{"kind":"cat","dog":1}"#],
    );
    for overlapping in [
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"oneOf": [{"const": 1}, {"const": 1.0}]}),
        json!({"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string"}),
        json!({"oneOf": [{"format": "date"}, {"format": "time"}], "type": "string"}),
        json!({"oneOf": [kind("cat"), kind("cat")]}),
    ] {
        let grammar = Grammar::JsonSchema(overlapping.to_string());
        let refused = compiler()
            .compile(&grammar)
            .expect_err("they overlap")
            .to_string();
        assert!(refused.contains("oneOf"), "{overlapping}: {refused}");
    }
}

#[test]
fn multiples_of_a_decimal_fraction_are_those_that_the_schema_states() {
    let price = json!({"type": "number", "multipleOf": 0.01, "minimum": 0});
    assert_allows(
        &price,
        &["19.99", "0.07", "1100.1", "3"],
        &["19.999", "0.001", "-0.01"],
    );
    let coins = json!({"type": "number", "multipleOf": 0.05});
    assert_allows(&coins, &["19.95", "-0.1", "2"], &["19.99", "0.01"]);
    let both = json!({"allOf": [{"multipleOf": 0.1}, {"multipleOf": 0.15}], "type": "number"});
    assert_allows(&both, &["0.3", "-0.6"], &["0.1", "0.15"]);
    let whole = json!({"type": "integer", "multipleOf": 2.5});
    assert_allows(&whole, &["5", "-10"], &["2", "3"]);
}

#[test]
fn what_cannot_be_followed_is_refused_with_its_place() {
    for (schema, words) in [
        (
            json!({"properties": {"a/b": {"items": {"contains": {}}}}}),
            "contains cannot be followed (at #/properties/a~1b/items/contains)",
        ),
        (json!({"uniqueItems": true}), "uniqueItems"),
        (json!({"pattern": "(?=a)"}), "lookaround"),
        (
            json!({"patternProperties": {"^a$": {}}, "additionalProperties": {"type": "null"}}),
            "readers differ",
        ),
        (json!({"multipleOf": 0.000_01}), "multipleOf"),
        (
            json!({"enum": [1, 9_007_199_254_740_993_i64]}),
            "not held exactly",
        ),
        (json!({"minProperties": 2}), "minProperties"),
        (
            json!({"$schema": "http://json-schema.org/draft-03/schema#"}),
            "drafts before 4",
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": []}),
            "prefixItems",
        ),
    ] {
        let grammar = Grammar::JsonSchema(schema.to_string());
        let refused = compiler()
            .compile(&grammar)
            .expect_err("refused")
            .to_string();
        assert!(refused.contains(words), "{schema}: {refused}");
        // The same after reasoning and in tool calls.
        let inline = Grammar::Lark(format!("start: \"x\" %json {schema}"));
        let refused = compiler()
            .compile(&inline)
            .expect_err("refused")
            .to_string();
        assert!(refused.contains(words), "{schema}: {refused}");
    }
    for nothing in [
        json!({"uniqueItems": false}),
        json!({"format": "int64"}),
        json!({"format": "topic"}),
        json!({"x-nullable": true}),
    ] {
        assert!(allows(&compiler(), &nothing, "null"), "{nothing}");
    }
}

#[test]
fn a_tool_that_is_not_strict_passes_over_what_cannot_be_followed() {
    let schema = json!({
        "type": "array", "uniqueItems": true, "items": {"type": "string", "pattern": "(?=a)", "format": "x"},
        "x-guidance": {"lenient": true},
    });
    let grammar = Grammar::Lark(format!("start: %json {schema}"));
    let mut matcher = compiler().compile(&grammar).expect("passed over");
    for token in ids(r#"["b","b"]"#) {
        matcher.accept(token).expect("nothing holds it");
    }
}
