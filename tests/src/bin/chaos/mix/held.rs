//! Formats of constrained answers, and checks of texts.
//!
//! The worker constrains an answer by llguidance. These checks parse by hand, so that they do not repeat its mistakes.

use super::super::api::{Call, Outcome};
use serde_json::{Value, json};

/// Format in `structured_outputs`, and its check.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// `json`, `regex`, `choice` or `grammar`.
    pub name: &'static str,
    pub value: fn() -> Value,
    pub is_met: fn(&Outcome) -> bool,
}

const fn form(name: &'static str, value: fn() -> Value, is_met: fn(&Outcome) -> bool) -> Form {
    Form {
        name,
        value,
        is_met,
    }
}

pub const SCHEMAS: [Form; 2] = [
    form("json", place, |it| it.is_text(is_place)),
    form("json", journey, |it| it.is_text(is_journey)),
];

pub const EXPRESSIONS: [Form; 2] = [
    form(
        "regex",
        || json!("no\\. [0-9]{4}(, [a-z]{3,8}){4}"),
        |it| it.is_text(is_number),
    ),
    form(
        "regex",
        || json!("([a-z]{2,7} ){20}end"),
        |it| it.is_text(is_words),
    ),
];

pub const CHOICE: Form = form(
    "choice",
    || json!(RIVERS),
    |it| it.is_text(|text| RIVERS.contains(&text)),
);

const RIVERS: [&str; 3] = ["the river Seine", "Loire \u{e9}", "no river at all"];

pub const GRAMMAR: Form = form(
    "grammar",
    || json!("start: sum\nsum: term | sum \"+\" term\nterm: \"1\" | \"22\" | \"(\" sum \")\""),
    |it| it.is_cut || it.is_text(is_sum),
);

fn place() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"$ref": "#/$defs/kind"},
            "length": {"type": "integer", "minimum": 1, "maximum": 9999},
            "deep": {"type": "boolean"},
        },
        "required": ["name", "kind", "length", "deep"],
        "additionalProperties": false,
        "$defs": {"kind": {"enum": ["river", "lake"]}},
    })
}

fn is_place(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let length = value["length"].as_u64().unwrap_or(0);
    let name = value["name"].as_str();
    value.as_object().is_some_and(|it| it.len() == 4)
        && name.is_some_and(|it| it.chars().count() <= 12)
        && [json!("river"), json!("lake")].contains(&value["kind"])
        && (1..=9999).contains(&length)
        && value["deep"].is_boolean()
}

fn journey() -> Value {
    json!({
        "type": "object",
        "properties": {
            "stops": {"type": "array", "minItems": 2, "maxItems": 3, "items": {
                "type": "object",
                "properties": {
                    "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
                    "wait": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 5, "maximum": 90}]},
                },
                "required": ["code", "wait"],
                "additionalProperties": false,
            }},
            "by": {"const": "train"},
        },
        "required": ["stops", "by"],
        "additionalProperties": false,
    })
}

fn is_journey(text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let is_stop = |stop: &Value| {
        let code = stop["code"].as_str().unwrap_or_default();
        let wait = &stop["wait"];
        stop.as_object().is_some_and(|it| it.len() == 2)
            && code.len() == 3
            && code.bytes().all(|it| it.is_ascii_uppercase())
            && (wait.is_null() && stop.get("wait").is_some()
                || wait.as_u64().is_some_and(|it| (5..=90).contains(&it)))
    };
    let stops = value["stops"].as_array();
    value.as_object().is_some_and(|it| it.len() == 2)
        && value["by"] == "train"
        && stops.is_some_and(|it| (2..=3).contains(&it.len()) && it.iter().all(is_stop))
}

fn is_number(text: &str) -> bool {
    let mut parts = text.split(", ");
    let number = parts.next().and_then(|it| it.strip_prefix("no. "));
    let words: Vec<_> = parts.collect();
    number.is_some_and(|it| it.len() == 4 && it.bytes().all(|it| it.is_ascii_digit()))
        && words.len() == 4
        && words.iter().all(|it| is_word(it, 3, 8))
}

fn is_words(text: &str) -> bool {
    let words: Vec<_> = text.split(' ').collect();
    words.len() == 21 && words[20] == "end" && words[..20].iter().all(|it| is_word(it, 2, 7))
}

fn is_word(text: &str, least: usize, most: usize) -> bool {
    (least..=most).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_lowercase())
}

/// Checks a sum by replacing innermost brackets by a term.
fn is_sum(text: &str) -> bool {
    let is_flat = |text: &str| text.split('+').all(|it| matches!(it, "1" | "22"));
    let mut text = text.to_owned();
    while let Some(close) = text.find(')') {
        let Some(open) = text[..close].rfind('(') else {
            return false;
        };
        if !is_flat(&text[open + 1..close]) {
            return false;
        }
        text.replace_range(open..=close, "1");
        // A digit beside the brackets would become part of a number.
        if text[open + 1..].starts_with(['1', '2']) || text[..open].ends_with(['1', '2']) {
            return false;
        }
    }
    is_flat(&text)
}

/// Name and parameters of each tool.
pub fn tools() -> [(&'static str, Value); 2] {
    let wait = json!({
        "type": "object", "properties": {"s": {"enum": [1, 2]}}, "required": ["s"],
        "additionalProperties": false,
    });
    [("place", place()), ("wait", wait)]
}

fn is_call(call: &Call) -> bool {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    match call.name.as_str() {
        "place" => is_place(&call.arguments),
        "wait" => [json!({"s": 1}), json!({"s": 2})].contains(&arguments),
        _ => false,
    }
}

/// Whether the output is one tool call only.
pub fn is_one_call(outcome: &Outcome) -> bool {
    !outcome.is_cut
        && outcome.text.is_empty()
        && outcome.calls.len() == 1
        && is_call(&outcome.calls[0])
}

/// Whether texts and calls are complete; only the last call of an answer that was cut may be partial.
pub fn calls_are_whole(outcome: &Outcome) -> bool {
    let whole = match outcome.is_cut {
        true => outcome.calls.len().saturating_sub(1),
        false => outcome.calls.len(),
    };
    outcome.calls[..whole].iter().all(is_call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str, calls: &[(&str, &str)]) -> Outcome {
        let call = |(name, arguments): &(&str, &str)| Call {
            name: (*name).to_owned(),
            arguments: (*arguments).to_owned(),
        };
        Outcome {
            text: text.to_owned(),
            calls: calls.iter().map(call).collect(),
            is_cut: false,
        }
    }

    #[test]
    fn texts_of_a_form_are_told_from_others() {
        let place = |length: u32| {
            json!({"name": "Seine", "kind": "river", "length": length, "deep": true}).to_string()
        };
        let journey = |code: &str, wait: Value| {
            let stop = json!({"code": code, "wait": wait});
            json!({"stops": [stop, stop], "by": "train"}).to_string()
        };
        let words = |count| "ab ".repeat(count) + "end";
        let cases = [
            (SCHEMAS[0], place(1), place(0)),
            (SCHEMAS[0], place(9999), place(1)[1..].to_owned()),
            (
                SCHEMAS[1],
                journey("ABC", json!(5)),
                journey("ABC", json!(4)),
            ),
            (
                SCHEMAS[1],
                journey("ABC", json!(null)),
                journey("ABc", json!(5)),
            ),
            (
                EXPRESSIONS[0],
                "no. 1234, abc, abc, abc, abcdefgh".to_owned(),
                "no. 1234, abc, abc, abc, ab".to_owned(),
            ),
            (EXPRESSIONS[1], words(20), words(19)),
            (CHOICE, "no river at all".to_owned(), "no river".to_owned()),
            (
                GRAMMAR,
                "1+(22+(1))+22".to_owned(),
                "1+(22+(1)+22".to_owned(),
            ),
            (GRAMMAR, "((1))".to_owned(), "2(1)".to_owned()),
        ];
        for (form, right, wrong) in cases {
            assert!((form.is_met)(&outcome(&right, &[])), "{right}");
            assert!(!(form.is_met)(&outcome(&wrong, &[])), "{wrong}");
        }
    }

    #[test]
    fn calls_of_tools_are_told_from_others() {
        let wait = ("wait", "{\"s\": 1}");
        assert!(is_one_call(&outcome("", &[wait])));
        assert!(!is_one_call(&outcome("", &[wait, wait])));
        assert!(!is_one_call(&outcome("I wait.", &[wait])));
        assert!(!is_one_call(&outcome("", &[("wait", "{\"s\": 3}")])));
        let mut cut = outcome("I wait.", &[wait, ("place", "{\"na")]);
        assert!(!calls_are_whole(&cut));
        cut.is_cut = true;
        assert!(calls_are_whole(&cut));
        assert!(calls_are_whole(&outcome("No call.", &[])));
    }
}
