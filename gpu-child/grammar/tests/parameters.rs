//! Texts that the parameters of a function may have between tags.

mod vocabulary;

use serde_json::{Value, json};
use vocabulary::{facts, ids};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::Grammar;

/// Grammar of the parameters. `types`: those of the parser of calls that are no strings.
fn grammar(schema: &Value, types: &Value, is_lenient: bool) -> Grammar {
    let types = json!({"named": types, "others": ["string"]});
    let given = json!({"schema": schema, "types": types, "lenient": is_lenient});
    Grammar::Lark(format!("start: %parameters {given} \"</function>\"\n"))
}

fn allows(compiler: &Compiler, grammar: &Grammar, text: &str) -> bool {
    let compiled = compiler.compile(grammar);
    let mut matcher = compiled.unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
    let text = format!("{text}</function>");
    let taken = ids(&text)
        .into_iter()
        .try_for_each(|token| matcher.accept(token));
    taken.is_ok() && matcher.is_complete().expect("no limit is near")
}

fn written(parameters: &[(&str, &str)]) -> String {
    let parameters = parameters.iter();
    let parameters =
        parameters.map(|(name, value)| format!("<parameter={name}>\n{value}\n</parameter>\n"));
    parameters.collect()
}

/// Checks values of the only parameter, `p`, which has these types for the parser.
fn assert_values(schema: &Value, types: &[&str], valid: &[&str], invalid: &[&str]) {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let object = json!({
        "type": "object", "properties": {"p": schema}, "required": ["p"], "additionalProperties": false,
        "$defs": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 2}},
    });
    let grammar = grammar(&object, &json!({"p": types}), false);
    for value in valid {
        let text = written(&[("p", value)]);
        assert!(
            allows(&compiler, &grammar, &text),
            "{schema} without {value:?}"
        );
    }
    for value in invalid {
        let text = written(&[("p", value)]);
        assert!(
            !allows(&compiler, &grammar, &text),
            "{schema} with {value:?}"
        );
    }
}

#[test]
fn strings_are_raw_and_hold_to_their_keywords() {
    let string = json!({"type": "string"});
    let quoting = [
        "a</parameter> b",
        "</function>\n</tool_call>",
        "</parameter>",
    ];
    let free = [
        "",
        "a",
        "12",
        "\n\"a\"\\\n",
        "</function> </tool",
        "é\n<parameter=p>\n",
    ];
    assert_values(&string, &["string"], &free, &quoting);
    let short = json!({"type": "string", "minLength": 1, "maxLength": 2});
    assert_values(&short, &["string"], &["a", "é\n"], &["", "abc"]);
    let listed = json!({"enum": ["on", "a \"b\"\n"]});
    assert_values(
        &listed,
        &["string"],
        &["on", "a \"b\"\n"],
        &["", "o", "onn", "\"on\""],
    );
    let one = json!({"const": "on"});
    assert_values(&one, &["string"], &["on"], &["off"]);
    let expression = json!({"type": "string", "pattern": "^a/\\d|x$"});
    assert_values(
        &expression,
        &["string"],
        &["a/1", "a/1b", "\nx"],
        &["a/b", "xa"],
    );
    let date = json!({"type": "string", "format": "date"});
    assert_values(
        &date,
        &["string"],
        &["2026-11-29"],
        &["2026-11-32", "today"],
    );
    let applied = json!({"allOf": [{"$ref": "#/$defs/s"}, {"pattern": "^a"}]});
    assert_values(&applied, &["string"], &["a", "ab"], &["b", "abc"]);
    let either = json!({"anyOf": [{"$ref": "#/$defs/s"}, {"const": "long"}]});
    assert_values(&either, &["string"], &["a", "long"], &["other"]);
}

#[test]
fn other_types_are_json_of_their_schemas() {
    let count = json!({"type": "integer", "minimum": 1, "maximum": 12});
    assert_values(
        &count,
        &["integer"],
        &["1", "12"],
        &["0", "13", "a", "1.5", " 1"],
    );
    let referenced = json!({"$ref": "#/$defs/n"});
    assert_values(&referenced, &["integer"], &["1"], &["a"]);
    let flag = json!({"type": "boolean"});
    assert_values(&flag, &["boolean"], &["true"], &["True", "\"true\""]);
    let list = json!({"type": "array", "items": {"type": "string"}});
    assert_values(
        &list,
        &["array"],
        &["[]", "[\"a\", \"</parameter>\"]"],
        &["[1]", "a"],
    );
    let object = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": false});
    assert_values(
        &object,
        &["object"],
        &["{}", "{\"n\": 1}"],
        &["{\"n\": \"a\"}"],
    );
}

/// Otherwise the parser would read another value than the schema has.
#[test]
fn a_text_that_is_read_as_json_is_no_string() {
    let nullable = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    assert_values(
        &nullable,
        &["null", "string"],
        &["null", "nullify", "5", "{", " n"],
        &["None", " null"],
    );
    let other = json!({"type": ["string", "boolean"], "maxLength": 4});
    assert_values(
        &other,
        &["boolean", "string"],
        &["true", "false", "yes"],
        &["True", "maybe"],
    );
    let count = json!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 1}]});
    assert_values(
        &count,
        &["integer", "string"],
        &["1", "a1"],
        &["0", "1a", " 0"],
    );
    let tree = json!({"anyOf": [{"type": "string"}, {"type": "object", "properties": {"n": {"type": "integer"}}}]});
    assert_values(
        &tree,
        &["object", "string"],
        &["{\"n\": 1}", "n"],
        &["{\"n\": \"a\"}", "{", " {"],
    );
    let listed = json!({"enum": ["a", null, 5]});
    assert_values(
        &listed,
        &["null", "integer", "string"],
        &["a", "null", "5"],
        &["b", "6"],
    );
    let any = ["null", "boolean", "number", "string", "array", "object"];
    assert_values(
        &json!({}),
        &any,
        &["", "a", "null", "5", "[1]", "{\"a\": \"b\"}"],
        &["[a]", "5a"],
    );
}

#[test]
fn parameters_are_those_of_the_schema_in_its_order() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let properties =
        json!({"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "string"}});
    let object = |more: Value| {
        let mut schema = json!({"type": "object", "properties": properties, "required": ["b"]});
        let keywords = schema.as_object_mut().expect("an object");
        keywords.extend(more.as_object().expect("an object").clone());
        schema
    };
    let (a, b, c, d) = (("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"));
    let plain = grammar(&object(json!({})), &json!({}), false);
    for (parameters, is_valid) in [
        (&[b][..], true),
        (&[a, b, c], true),
        (&[b, c], true),
        (&[a, c], false),
        (&[b, a], false),
        (&[b, b], false),
        (&[b, d], false),
    ] {
        let text = written(parameters);
        assert_eq!(allows(&compiler, &plain, &text), is_valid, "{text}");
    }
    let others = json!({"additionalProperties": {"type": "string", "maxLength": 1}});
    let more = grammar(&object(others), &json!({}), false);
    assert!(allows(&compiler, &more, &written(&[b, d, ("e", "5")])));
    for wrong in [
        &[b, ("d", "44")][..],
        &[b, d, c],
        &[b, ("c", "3"), ("b", "2")],
    ] {
        assert!(!allows(&compiler, &more, &written(wrong)), "{wrong:?}");
    }
    let unnamed = json!({"type": "object", "required": ["x"]});
    let unnamed = grammar(&unnamed, &json!({}), false);
    assert!(allows(&compiler, &unnamed, &written(&[("x", "1")])));
    assert!(!allows(&compiler, &unnamed, ""));
    let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let nothing = grammar(&nothing, &json!({}), false);
    assert!(allows(&compiler, &nothing, "") && !allows(&compiler, &nothing, &written(&[a])));
    let referenced =
        json!({"type": "object", "$ref": "#/$defs/o", "$defs": {"o": object(json!({}))}});
    let referenced = grammar(&referenced, &json!({}), false);
    assert!(allows(&compiler, &referenced, &written(&[b])) && !allows(&compiler, &referenced, ""));
}

#[test]
fn what_tags_cannot_express_is_refused_by_name_or_ignored() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let s = json!({"type": "string"});
    for (schema, why) in [
        (
            json!({"type": "object", "properties": {"a>b": s}}),
            "properties/a>b",
        ),
        (
            json!({"type": "object", "properties": {"a": s}, "minProperties": 1}),
            "minProperties",
        ),
        (
            json!({"type": "object", "anyOf": [{"required": ["a"]}]}),
            "anyOf",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "(^a|b)c"}}}),
            "anchor",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}),
            "contains",
        ),
        (
            json!({"type": "object", "required": ["a"], "$ref": "#/$defs/o", "$defs": {"o": {"type": "object", "properties": {"a": s}}}}),
            "required beside $ref",
        ),
    ] {
        let is_list = schema["properties"]["a"]["type"] == "array";
        let types = if is_list {
            json!({"a": ["array"]})
        } else {
            json!({})
        };
        let strict = compiler.compile(&grammar(&schema, &types, false));
        let error = strict.expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
        let lenient = compiler.compile(&grammar(&schema, &types, true));
        assert!(lenient.is_ok(), "{schema}: {lenient:?}");
    }
    let required = json!({"type": "object", "properties": {"a>b": s}, "required": ["a>b"]});
    let refused = compiler.compile(&grammar(&required, &json!({}), true));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn only_parameters_with_references_have_definitions_and_these_are_bounded() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let values: Vec<u32> = (10_000..18_000).collect();
    let long = json!({"o": {"enum": values}});
    let schema = |of: &Value, count: u32| {
        let properties = (0..count).map(|n| {
            // A rule of its own for each.
            (format!("p{n}"), json!({"anyOf": [of, {"const": n}]}))
        });
        let properties: serde_json::Map<_, _> = properties.collect();
        json!({"type": "object", "properties": properties, "$defs": long})
    };
    let types: serde_json::Map<_, _> = (0..100)
        .map(|n| (format!("p{n}"), json!(["integer"])))
        .collect();
    let compiled =
        |of: &Value, count| compiler.compile(&grammar(&schema(of, count), &json!(types), false));
    let plain = compiled(&json!({"type": "integer"}), 100);
    assert!(plain.is_ok(), "{plain:?}");
    let refers = json!({"$ref": "#/$defs/o"});
    assert!(compiled(&refers, 2).is_ok());
    let refused = compiled(&refers, 100).expect_err("too many").to_string();
    assert!(refused.contains("bytes"), "{refused}");
}

#[test]
fn references_without_an_end_are_an_error_and_not_a_loop() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let definitions = json!({
        "endless": {"$ref": "#/$defs/endless"},
        "wide": {"anyOf": [{"$ref": "#/$defs/wide"}, {"$ref": "#/$defs/wide"}]},
    });
    for name in ["endless", "wide"] {
        let property = json!({"$ref": format!("#/$defs/{name}")});
        let schema = json!({"type": "object", "properties": {"p": property}, "$defs": definitions});
        let refused = compiler.compile(&grammar(&schema, &json!({}), false));
        assert!(refused.is_err(), "{name}");
        let root = json!({"$ref": format!("#/$defs/{name}"), "$defs": definitions});
        let refused = compiler.compile(&grammar(&root, &json!({}), false));
        assert!(refused.is_err(), "{name}");
    }
}
