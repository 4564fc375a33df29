//! Schemas, expressions and grammars that cost time, memory or stack: [fixed ones](hostile), and [any number](siege())
//! of random ones.

mod expressions;
mod rules;
mod schemas;
mod siege;

pub use siege::{Hostile, siege};

use serde_json::{Value, json};

/// Cases of [`hostile`] that are refused on a machine of any speed.
const REFUSED: [&str; 6] = [
    "nested schema",
    "groups",
    "brackets",
    "no grammar",
    "no expression",
    "no schema",
];

/// Cases of [`hostile`] that are always refused.
#[must_use]
pub fn refused() -> Vec<(&'static str, Value)> {
    let mut all = hostile();
    all.retain(|(name, _)| REFUSED.contains(name));
    all
}

/// Names, and the request fields.
#[must_use]
pub fn hostile() -> Vec<(&'static str, Value)> {
    let nested = |open: &str, close: &str, times: usize| {
        format!("{}{{}}{}", open.repeat(times), close.repeat(times))
    };
    let text = |kind: &str, text: String| json!({"structured_outputs": {kind: text}});
    let json = |schema: Value| json!({"structured_outputs": {"json": schema}});
    let many: Vec<String> = (0..20_000).map(|it| format!("v{it}")).collect();
    let rules = |count: usize| (0..count).map(|it| format!("r{it}: r{} \"a\"\n", it + 1));
    let chain: String = rules(4000).collect();
    vec![
        (
            "nested schema",
            text("json", nested("{\"items\":", "}", 10_000)),
        ),
        (
            "nested all of",
            text("json", nested("{\"allOf\":[", "]}", 120)),
        ),
        (
            "repeats of repeats",
            text("regex", "(a{1,1000}){1,1000}".to_owned()),
        ),
        (
            "many repeats",
            text("regex", "((a{1,100}b{1,100}){1,100}c?){1,100}".to_owned()),
        ),
        (
            "groups",
            text(
                "regex",
                format!("{}a{}", "(".repeat(9000), ")".repeat(9000)),
            ),
        ),
        ("far back", text("regex", "(a|b)*a(a|b){300}".to_owned())),
        (
            "intersections",
            text(
                "grammar",
                format!(
                    "start: A\nA: {}",
                    vec!["/(a|b)*a(a|b){12}/"; 40].join(" & ")
                ),
            ),
        ),
        ("itself", json(json!({"$ref": "#"}))),
        (
            "each other",
            json(json!({
                "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            })),
        ),
        (
            "itself inside",
            json(json!({"type": "array", "items": {"$ref": "#"}, "maxItems": 3})),
        ),
        ("many values", json(json!({"enum": many}))),
        (
            "many items",
            json(json!({"type": "array", "minItems": 100_000_000, "items": {}})),
        ),
        (
            "a long text",
            json(json!({"type": "string", "minLength": 100_000_000})),
        ),
        (
            "a long pattern",
            json(json!({"type": "string", "pattern": "^(([a-z]{1,99}){1,99}){1,99}$"})),
        ),
        (
            "left recursion",
            text("grammar", "start: start start | \"a\" | \"\"".to_owned()),
        ),
        (
            "a chain",
            text("grammar", format!("start: r0\n{chain}r4000: \"b\"")),
        ),
        (
            "brackets",
            text("grammar", format!("start: {}", "(".repeat(100_000))),
        ),
        ("no grammar", text("grammar", "start: nothing".to_owned())),
        ("no expression", text("regex", "(".to_owned())),
        ("no schema", json(json!({"type": "river"}))),
    ]
}
