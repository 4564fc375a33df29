//! Tool calls of an assistant that clients send back: `tool_calls` of a message.

use crate::fields::{Fields, Names, each, element, history_shape};
use crate::json::{Json, Kind};
use crate::messages::PASSED_OVER;
use crate::mistakes::{Constraint, FieldError, Mistakes};
use crate::no_effect::{FUNCTION_TYPE, accept};
use crate::schema::{self, Shape};
use worker_orcd_text::ToolCall;
use worker_orcd_text::json_texts;

/// Largest number of calls in a turn.
const MAX_CALLS: usize = 128;

/// Length of names and ids of calls.
pub(crate) const NAME_CHARS: std::ops::RangeInclusive<usize> = 1..=128;

/// Rule for numbers, which otherwise would reach the template with another value.
pub(crate) const NUMBERS: &str =
    "must have no integer beyond 64 bits and no number that is not finite";

const CALL: Names = &[&["id", "type", "function", "index"], PASSED_OVER];
const FUNCTION: Names = &[&["name", "arguments", PARSED], PASSED_OVER];

/// Parsed `arguments` that OpenAI's client packages add, and send back.
const PARSED: &str = "parsed_arguments";

pub(super) fn shape() -> Shape {
    schema::list(history_shape(CALL, read_call), &(0..=MAX_CALLS))
}

/// Notes all mistakes in `mistakes`, by path relative to the list: `[0].function.name`.
pub(super) fn read(list: Json<'_>, mistakes: &mut Mistakes) -> Vec<ToolCall> {
    let mut calls = Vec::new();
    let count = each(mistakes, "", list, |index, item, outside| {
        let object = Fields::of_history(item, CALL, outside);
        let rule = "must be an object with id and function";
        let call = element(object, outside, rule, read_call)?;
        calls.extend(call.filter(|_| index < MAX_CALLS));
        Ok(())
    });
    if count.is_none() {
        mistakes.note(|| FieldError::new("", Constraint::Type, "must be a list of calls"));
    } else if count > Some(MAX_CALLS) {
        let rule = format!("must be at most {MAX_CALLS}");
        mistakes.note(|| FieldError::new("", Constraint::Length, rule));
    }
    calls
}

fn read_call(mut fields: Fields<'_>) -> Result<Option<ToolCall>, Mistakes> {
    // Mistakes in the function precede those beside it.
    let function = fields.given("function", || history_shape(FUNCTION, read_function));
    let function = function.and_then(|given| {
        let object = Fields::of_history(given, FUNCTION, fields.mistakes());
        let rule = "must be an object with name and arguments";
        let read = element(object, fields.mistakes(), rule, read_function);
        read.map_err(|wrong| fields.mistakes().extend(|| "function".to_owned(), wrong))
            .ok()
            .flatten()
    });
    let id = fields.text("id", &NAME_CHARS);
    accept(&mut fields, &[FUNCTION_TYPE]);
    for name in PASSED_OVER.iter().filter(|name| **name != "id") {
        fields.pass_over(name);
    }
    let function = fields.required("function", function);
    fields.finish()?;
    Ok(function.map(|(name, arguments)| ToolCall {
        id,
        name,
        arguments,
    }))
}

fn read_function(mut fields: Fields<'_>) -> Result<Option<(String, String)>, Mistakes> {
    let name = fields.must("name", |it, name| it.text(name, &NAME_CHARS));
    fields.describe("arguments", schema::any_object);
    let given = fields.peek("arguments").map(Json::kind);
    let arguments = match given {
        Some(Kind::Object) => read_object(&mut fields, "arguments"),
        _ => read_text(&mut fields),
    };
    for name in [PARSED].iter().chain(PASSED_OVER) {
        fields.pass_over(name);
    }
    fields.finish().map(|()| name.zip(arguments))
}

/// Arguments of a call as the text of an object.
fn read_text(fields: &mut Fields<'_>) -> Option<String> {
    let text = fields.must("arguments", |it, name| it.text(name, &(0..=usize::MAX)))?;
    let arguments = json_texts::arguments(&text);
    let Some(arguments) = arguments else {
        let rule = "must be an object or the text of a JSON object, not nested too deep";
        fields.error("arguments", Constraint::Json, rule);
        return None;
    };
    kept(fields, "arguments", arguments)
}

/// Required arguments of a call that are an object, and no text.
pub(crate) fn read_object(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    let given = fields.must(name, |it, name| it.given(name, schema::any_object));
    let text = given?.object_text();
    let arguments = text.and_then(|text| json_texts::map_object(text, &mut str::to_owned));
    let Some(arguments) = arguments else {
        let rule = "must be an object, not nested too deep";
        fields.error(name, Constraint::Type, rule);
        return None;
    };
    kept(fields, name, arguments)
}

/// Arguments whose numbers reach the template unchanged.
fn kept(fields: &mut Fields<'_>, name: &str, arguments: String) -> Option<String> {
    if !json_texts::keeps_numbers(&arguments) {
        fields.error(name, Constraint::Range, NUMBERS);
    }
    Some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read_list(list: &Value) -> Result<Vec<ToolCall>, Vec<String>> {
        let body = json!({"tool_calls": list}).to_string();
        let mut fields = Fields::parse(&body, &[&["tool_calls"]]).unwrap();
        let mut mistakes = Mistakes::default();
        let calls = read(fields.take("tool_calls").unwrap(), &mut mistakes);
        let wrong = mistakes.listed().iter().map(|error| error.field.clone());
        match mistakes.is_empty() {
            true => Ok(calls),
            false => Err(wrong.collect()),
        }
    }

    #[test]
    fn calls_are_read_as_streams_and_whole_answers_tell_them() {
        let function = json!({"name": "add", "arguments": "{ \"a\": 1.0 }"});
        let calls = read_list(&json!([
            {"id": "c1", "type": "function", "function": function},
            {"index": 1, "function": {"name": "now", "arguments": {}, "parsed_arguments": {}}},
        ]));
        let call = |id: Option<&str>, name: &str, arguments: &str| ToolCall {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let expected = [
            call(Some("c1"), "add", "{\"a\":1.0}"),
            call(None, "now", "{}"),
        ];
        assert_eq!(calls.unwrap(), expected);
    }

    #[test]
    fn calls_without_arguments_and_calls_that_were_cut_are_read() {
        let with = |arguments: &str| {
            let function =
                json!({"name": "f", "arguments": arguments, "provider_specific_fields": {"a": 1}});
            json!({"function": function, "cache_control": {"type": "ephemeral"}, "extra": null})
        };
        let calls = read_list(&json!([with(""), with("{\"a\": \"b")])).unwrap();
        let arguments: Vec<_> = calls.iter().map(|call| &*call.arguments).collect();
        assert_eq!(arguments, ["{}", "{\"a\":\"b\"}"]);
    }

    #[test]
    fn numbers_that_would_change_are_refused() {
        let with = |arguments: &str| json!({"function": {"name": "f", "arguments": arguments}});
        let wrong = read_list(&json!([
            with("{\"a\": 1e999}"),
            with("{\"a\": [18446744073709551615, 1e300]}"),
            with("{\"a\": [18446744073709551616]}"),
        ]));
        let named = ["[0].function.arguments", "[2].function.arguments"];
        assert_eq!(wrong.unwrap_err(), named);
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        let with =
            |arguments: &str| json!({"id": "a", "function": {"name": "f", "arguments": arguments}});
        let wrong = read_list(&json!([
            with("1"), with("[]"), with("{\"a\": }"), with(&"{\"a\":".repeat(70)), 3,
            {"id": "a", "type": "custom", "function": {"name": "f", "arguments": "{}"}},
            {"id": "a"},
            {"id": "a", "function": 3},
            {"id": "a", "function": {"name": "", "arguments": 3, "strict": true}, "extra": 1},
        ]));
        assert_eq!(
            wrong.unwrap_err(),
            [
                "[0].function.arguments",
                "[1].function.arguments",
                "[2].function.arguments",
                "[3].function.arguments",
                "[4]",
                "[5].type",
                "[6].function",
                "[7].function",
                "[8].function.name",
                "[8].function.arguments",
                "[8].function.strict",
                "[8].extra",
            ]
        );
        assert_eq!(read_list(&json!("x")).unwrap_err(), [""]);
        let many: Vec<Value> = vec![with("{}"); MAX_CALLS + 1];
        assert_eq!(read_list(&json!(many)).unwrap_err(), [""]);
    }
}
