//! Texts that the arguments of a call may have as a dictionary.

mod vocabulary;

use serde_json::{Value, json};
use vocabulary::{NAMED, facts, ids};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::Grammar;

fn grammar(schema: &Value, is_lenient: bool) -> Grammar {
    let given = json!({"schema": schema, "quote": null, "lenient": is_lenient});
    Grammar::Lark(format!("start: %dict {given} \"<tool_call|>\"\n"))
}

fn allows(compiler: &Compiler, grammar: &Grammar, text: &str) -> bool {
    let compiled = compiler.compile(grammar);
    let mut matcher = compiled.unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
    let text = format!("{text}<tool_call|>");
    let taken = ids(&text)
        .into_iter()
        .try_for_each(|token| matcher.accept(token));
    taken.is_ok() && matcher.is_complete().expect("no limit is near")
}

/// Checks whole dictionaries.
fn assert_dicts<T: AsRef<str>>(schema: &Value, is_lenient: bool, valid: &[T], invalid: &[T]) {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let grammar = grammar(schema, is_lenient);
    for text in valid.iter().map(AsRef::as_ref) {
        assert!(allows(&compiler, &grammar, text), "{schema} without {text}");
    }
    for text in invalid.iter().map(AsRef::as_ref) {
        assert!(!allows(&compiler, &grammar, text), "{schema} with {text}");
    }
}

/// Checks values of the only parameter, `p`.
fn assert_values(schema: &Value, valid: &[&str], invalid: &[&str]) {
    let object = json!({
        "type": "object", "properties": {"p": schema}, "required": ["p"], "additionalProperties": false,
        "$defs": {"n": {"type": "integer"}, "tree": {"type": "object", "additionalProperties": false,
            "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}},
    });
    let whole = |values: &[&str]| -> Vec<String> {
        values.iter().map(|it| format!("{{p:{it}}}")).collect()
    };
    assert_dicts(&object, false, &whole(valid), &whole(invalid));
}

#[test]
fn strings_are_between_marks() {
    let string = json!({"type": "string"});
    let free = [
        "<|\"|><|\"|>",
        "<|\"|>a \"b\"\\\n{,}<|\"|>",
        "<|\"|><|\"<<|\"|>",
    ];
    let wrong = ["a", "\"a\"", "1", "<|\"|>a", "<|\"|>a<|\"|>b<|\"|>"];
    assert_values(&string, &free, &wrong);
    let short = json!({"type": "string", "minLength": 1, "maxLength": 2});
    assert_values(
        &short,
        &["<|\"|>ab<|\"|>"],
        &["<|\"|><|\"|>", "<|\"|>abc<|\"|>"],
    );
    let expression = json!({"type": "string", "pattern": "^a\\d$"});
    assert_values(&expression, &["<|\"|>a1<|\"|>"], &["<|\"|>ab<|\"|>"]);
    let listed = json!({"enum": ["on", "o\"f\nf", 1, null, [true, "x"], {"k": 2}]});
    let typed = json!({"type": "integer", "enum": [1, 2, "x"]});
    assert_values(&typed, &["1", "2"], &["3", "<|\"|>x<|\"|>"]);
    let valid = [
        "<|\"|>on<|\"|>",
        "<|\"|>o\"f\nf<|\"|>",
        "1",
        "null",
        "[true,<|\"|>x<|\"|>]",
        "{k:2}",
    ];
    assert_values(&listed, &valid, &["<|\"|>o<|\"|>", "on", "2", "true"]);
}

#[test]
fn other_values_are_those_of_their_schemas() {
    let count = json!({"type": "integer", "minimum": 1, "maximum": 12});
    assert_values(&count, &["1", "12"], &["0", "13", "1.5", "a", " 1"]);
    assert_values(&json!({"type": "number"}), &["1", "-2.5"], &["+1", "true"]);
    assert_values(
        &json!({"type": ["boolean", "null"]}),
        &["true", "false", "null"],
        &["True", "1"],
    );
    assert_values(&json!({"$ref": "#/$defs/n"}), &["1"], &["a"]);
    let either = json!({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string"}]});
    assert_values(&either, &["1", "<|\"|>a<|\"|>"], &["true"]);
    assert_values(
        &json!({"oneOf": [{"type": "integer"}, {"type": "null"}]}),
        &["1", "null"],
        &["true"],
    );
    assert_values(
        &json!({"allOf": [{"$ref": "#/$defs/n"}]}),
        &["1"],
        &["true"],
    );
    let list = json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2});
    assert_values(
        &list,
        &["[1]", "[1,2]"],
        &["[]", "[1,2,3]", "[1,]", "[true]", "1"],
    );
    assert_values(
        &json!({"type": "array"}),
        &["[]", "[1,<|\"|>a<|\"|>,[{b:null}]]"],
        &["[", "[a]"],
    );
    let typed = json!({"type": "string", "anyOf": [{"type": "integer"}, {"type": "string"}]});
    assert_values(&typed, &["<|\"|>a<|\"|>"], &["1"]);
    let bounded =
        json!({"type": ["integer", "null"], "anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]});
    assert_values(&bounded, &["1", "null"], &["1.5"]);
    let tree = json!({"$ref": "#/$defs/tree"});
    assert_values(
        &tree,
        &["{}", "{sub:[{},{sub:[{}]}]}"],
        &["{sub:{}}", "{sub:[1]}"],
    );
    assert_values(&json!({}), &["1", "{a:1,b:{c:[]}}"], &["{a}", "x"]);
}

#[test]
fn members_have_the_order_of_the_template() {
    let schema = json!({
        "type": "object",
        "properties": {"Z": {"type": "null"}, "b": {"type": "integer"}, "a": {"type": "integer"}, "c": {"type": "integer"}},
        "required": ["b"],
    });
    let valid = ["{b:1}", "{a:1,b:2}", "{b:1,c:2}", "{a:1,b:2,c:3,Z:null}"];
    let invalid = [
        "{}",
        "{a:1}",
        "{b:1,a:2}",
        "{b:1,}",
        "{,b:1}",
        "{b:1,d:2}",
        "{b:1 ,c:2}",
        "{b:1,b:1}",
    ];
    assert_dicts(&schema, true, &valid, &invalid);
    let others = json!({
        "type": "object", "properties": {"b": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    });
    let valid = ["{}", "{b:1}", "{x:true}", "{b:1,x:true,y:false}"];
    assert_dicts(
        &others,
        false,
        &valid,
        &["{b:true}", "{x:1}", "{x:true,b:1}"],
    );
}

#[test]
fn a_keyword_that_is_not_followed_is_refused_or_ignored() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let refusal = |schema: Value| {
        let whole = json!({"type": "object", "properties": {"p": schema}});
        let refused = compiler.compile(&grammar(&whole, false));
        let lenient = compiler.compile(&grammar(&whole, true));
        assert!(lenient.is_ok(), "{schema}: {lenient:?}");
        refused
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    for (schema, name) in [
        (
            json!({"allOf": [{"type": "integer"}, {"minimum": 1}]}),
            "allOf",
        ),
        (
            json!({"type": "object", "minProperties": 1}),
            "minProperties",
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "integer"}]}),
            "prefixItems",
        ),
        (
            json!({"enum": ["a"], "minLength": 1}),
            "minLength beside enum",
        ),
    ] {
        assert!(refusal(schema).contains(name), "{name}");
    }
    let unwritable = json!({"type": "object", "properties": {"a b": {"type": "integer"}}});
    let refused = compiler.compile(&grammar(&unwritable, false)).err();
    assert!(refused.is_some_and(|it| it.to_string().contains("name of a parameter")));
    assert_dicts(&unwritable, true, &["{}"], &["{a b:1}"]);
}

#[test]
fn a_lenient_schema_follows_its_members() {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "l": {"items": [{}, {}], "additionalItems": false, "type": "array", "minItems": 2}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    });
    let valid = ["{}", "{a:1}", "{a:1,l:[1,2]}"];
    assert_dicts(&schema, true, &valid, &["{a:true}", "{b:1}", "{l:[1]}"]);
    // Arguments are an object, whatever a reference allows.
    let referred =
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"type": "null"}}}}});
    assert_dicts(&referred, false, &["{}", "{x:null}"], &["1", "[]", "{x:1}"]);
}

#[test]
fn a_call_has_a_bounded_number_of_rules() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let of = |count: u32| {
        let members = (0..count).map(|n| (format!("p{n}"), json!({"type": "null"})));
        let members: serde_json::Map<_, _> = members.collect();
        compiler.compile(&grammar(
            &json!({"type": "object", "properties": members}),
            false,
        ))
    };
    assert!(of(300).is_ok());
    let refused = of(5000).expect_err("too many").to_string();
    assert!(refused.contains("rules"), "{refused}");
    let values: Vec<u32> = (0..5000).collect();
    let listed = json!({"type": "object", "properties": {"a": {"enum": values}}});
    let refused = compiler
        .compile(&grammar(&listed, true))
        .expect_err("too many");
    assert!(refused.to_string().contains("5000 values"), "{refused}");
    let mut nested = json!({"type": "null"});
    for _ in 0..30 {
        nested = json!({"type": "object", "required": ["a", "b"], "additionalProperties": nested});
    }
    assert!(
        compiler.compile(&grammar(&nested, false)).is_ok(),
        "each schema is written once"
    );
}

/// With a control token as mark.
#[test]
fn strings_are_between_control_tokens_where_the_vocabulary_has_them() {
    let given = json!({"schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "quote": format!("<[{}]>", NAMED.0), "lenient": false});
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let grammar = Grammar::Lark(format!("start: %dict {given}\n"));
    let mut matcher = compiler.compile(&grammar).expect("a grammar");
    for token in ids("{a:") {
        matcher.accept(token).expect("a key");
    }
    assert!(!matcher.mask().expect("a mask").allows(ids("x")[0]));
    matcher.accept(NAMED).expect("a mark");
    for token in ids("x y") {
        matcher.accept(token).expect("text");
    }
    matcher.accept(NAMED).expect("a mark");
    matcher.accept(ids("}")[0]).expect("the end");
    assert!(matcher.is_complete().expect("no limit is near"));
}

/// Its rules would be exponentially many if each reference were written out.
#[test]
fn references_are_written_once() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let own = json!({"$ref": "#"});
    let wide = json!({"type": "object", "properties": {"a": {"anyOf": [own, own, own, own, own, own, own, own]}}});
    assert!(compiler.compile(&grammar(&wide, true)).is_ok());
}
