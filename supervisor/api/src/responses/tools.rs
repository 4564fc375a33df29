//! Fields `tools`, `tool_choice` and `parallel_tool_calls`. A tool has a flat form in this API:
//! `{"type": "function", "name", "description", "parameters", "strict"}`.
//!
//! Tools of other types (`web_search`, `local_shell`, `custom`, …) are ignored, as in llama-server
//! (ggml-org/llama.cpp#23041), because Codex sends them to every server.

use crate::fields::{self, Fields, Names};
use crate::json::{Json, Kind};
use crate::mistakes::Mistakes;
use crate::no_effect::{FUNCTION_TYPE, accept};
use crate::schema::{self, Shape};
use crate::structure::Asked;
use crate::tools::choice::{self, ALLOWED_TOOLS, CallPolicy, Choice, FIELD, read_allowed};
use crate::tools::{self, CACHE_CONTROL, MAX_TOOLS, Tool, ToolFormat, read_list, settle, why_not};
use serde_json::{Value, json};
use worker_orcd_text::Structure;
use worker_orcd_text::tools::ChatTerms;

const PARALLEL: &str = "parallel_tool_calls";

pub(super) const FIELDS: &[&str] = &["tools", FIELD, PARALLEL];

const FUNCTION: Names = &[
    &["type", "name", "description", "parameters", "strict"],
    &[CACHE_CONTROL],
];
const NAMED: Names = &[&["type", "name"]];
const ALLOWED: Names = &[&["type", "mode", "tools"]];

const FORMAT: ToolFormat = ToolFormat {
    names: FUNCTION,
    read: read_function,
    parameters: "parameters",
    items: "functions",
    is_left_out: is_other,
};

/// Tools of a request.
#[derive(Debug)]
pub(super) struct Tools {
    /// List for the chat template.
    pub(super) shown: Option<String>,
    /// Constraint on the answer.
    pub(super) asked: Option<Asked>,
    /// `tool_choice`, as the client wrote it.
    pub(super) choice: Value,
    /// If false, calls after the first are dropped from the answer, unless the grammar already excludes them.
    pub(super) are_parallel: bool,
}

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    fields.describe("tools", || shape(terms));
    fields.describe(FIELD, || match why_not(terms) {
        Some(_) => schema::values(["none", "auto"]),
        None => schema::values(["none", "auto", "required"]),
    });
    let are_parallel = fields.boolean(PARALLEL).unwrap_or(true);
    let given = fields.peek(FIELD);
    let list = read_list(fields, &FORMAT, max_chars, terms);
    let wanted = CallPolicy {
        choice: choice::read(fields, read_named, read_allowed_choice),
        is_parallel: true,
    };
    let tools::Tools {
        shown,
        mut asked,
        choice,
    } = settle(fields, list, wanted, PARALLEL);
    let told = match choice {
        Choice::Allowed { names, must_call } => Some(allowed_choice(&names, must_call)),
        _ => given.and_then(Json::small),
    };
    // If a grammar constrains the calls, it also excludes those that would be dropped.
    if let Some(Structure::Calls(rules)) = asked.as_mut().map(|it| &mut it.structure) {
        rules.may_repeat &= are_parallel;
    }
    Tools {
        shown,
        asked,
        choice: told.unwrap_or_else(|| json!("auto")),
        are_parallel,
    }
}

fn shape(terms: &ChatTerms) -> Shape {
    let other = schema::pattern("^(?!function$)");
    let other = schema::object([("type", other)]);
    let tool = match why_not(terms) {
        Some(_) => other,
        None => schema::any_of([fields::shape(FUNCTION, read_function), other]),
    };
    schema::list(tool, &(0..=MAX_TOOLS))
}

fn read_function(mut fields: Fields<'_>) -> Result<Option<Tool>, Mistakes> {
    accept(&mut fields, &[FUNCTION_TYPE]);
    let tool = Tool::read(&mut fields, "parameters");
    fields.pass_over(CACHE_CONTROL);
    fields.finish().map(|()| tool)
}

/// True for a tool of a type other than `function`.
fn is_other(tool: Json<'_>) -> bool {
    let kind = tool.member("type").filter(|it| it.kind() == Kind::Text);
    kind.is_some_and(|it| it.text().as_deref() != Some("function"))
}

/// Reads `{"type": "function", "name": …}`.
fn read_named(given: Json<'_>, outside: &Mistakes) -> Result<Option<String>, Mistakes> {
    let Some(mut fields) = Fields::of(given, NAMED, outside) else {
        return Ok(None);
    };
    fields.must("type", |it, name| it.word(name, &[("function", ())]));
    let name = fields.must("name", |it, name| it.text(name, &(1..=usize::MAX)));
    fields.finish().map(|()| name)
}

/// Reads `{"type": "allowed_tools", "mode": …, "tools": […]}`.
fn read_allowed_choice(given: Json<'_>, outside: &Mistakes) -> Result<Option<Choice>, Mistakes> {
    let Some(mut fields) = Fields::of(given, ALLOWED, outside) else {
        return Ok(None);
    };
    fields.word("type", &[(ALLOWED_TOOLS, ())]);
    let choice = read_allowed(&mut fields, read_named, is_other);
    fields.finish().map(|()| choice)
}

/// `allowed_tools` choice, as the answer repeats it.
fn allowed_choice(names: &[String], must_call: bool) -> Value {
    let mode = if must_call { "required" } else { "auto" };
    let function = |name| json!({"type": "function", "name": name});
    let tools: Vec<_> = names.iter().map(function).collect();
    json!({"type": ALLOWED_TOOLS, "mode": mode, "tools": tools})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Constraint;
    use worker_orcd_text::Structure;

    fn read_body(body: &Value, terms: &ChatTerms) -> Result<Tools, Vec<String>> {
        let body = body.to_string();
        let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
        let tools = read(&mut fields, 300, terms);
        fields.finish().map(|()| tools).map_err(|mistakes| {
            let listed = mistakes.listed().iter();
            listed.map(|error| error.field.clone()).collect()
        })
    }

    fn known(body: &Value) -> Result<Tools, Vec<String>> {
        read_body(body, &ChatTerms::UNKNOWN)
    }

    const NOW: &str = "[{\"type\":\"function\",\"function\":{\"name\":\"now\",\"description\":\"The time.\",\
                       \"parameters\":{\"type\":\"object\"}}}]";

    #[test]
    fn functions_are_shown_as_chat_shows_them_and_other_types_are_left_out() {
        let now = json!({
            "type": "function", "name": "now", "description": "The time.", "strict": false,
            "parameters": {"type": "object"},
        });
        let others = [
            "local_shell",
            "web_search",
            "custom",
            "namespace",
            "functions",
        ]
        .map(|kind| json!({"type": kind, "name": 3}));
        let tools = known(&json!({"tools": [others[0], others[1], now, others[2]]})).unwrap();
        assert_eq!(tools.shown.as_deref(), Some(NOW));
        assert!(tools.are_parallel);
        let tools = known(&json!({"tools": others, "parallel_tool_calls": false})).unwrap();
        assert_eq!(tools.shown, None);
        assert!(!tools.are_parallel);
        let none = json!({"tools": [now], "tool_choice": "none"});
        let tools = known(&none).unwrap();
        assert_eq!((tools.shown, tools.choice), (None, json!("none")));
    }

    #[test]
    fn calls_that_are_held_are_held_to_one_and_others_are_free() {
        let asked = |strict: bool, choice: &str, parallel: bool| {
            let now = json!({"type": "function", "name": "now", "strict": strict});
            let tools = known(&json!({
                "tools": [now], "tool_choice": choice, "parallel_tool_calls": parallel,
            }));
            let asked = tools.unwrap().asked.map(|it| it.structure);
            asked.map(|structure| match structure {
                Structure::Calls(rules) => rules.may_repeat,
                other => panic!("{other:?}"),
            })
        };
        for parallel in [true, false] {
            assert_eq!(asked(false, "auto", parallel), None);
            assert_eq!(asked(true, "auto", parallel), Some(parallel));
            assert_eq!(asked(false, "required", parallel), Some(parallel));
        }
    }

    #[test]
    fn a_model_that_cannot_have_tools_can_have_what_is_left_out() {
        let terms = ChatTerms {
            shows_tools: false,
            ..ChatTerms::UNKNOWN
        };
        let others = json!({"tools": [{"type": "local_shell"}], "tool_choice": "auto"});
        assert_eq!(read_body(&others, &terms).unwrap().shown, None);
        let function = json!({"tools": [{"type": "function", "name": "now"}]});
        assert_eq!(read_body(&function, &terms).unwrap_err(), ["tools"]);
    }

    #[test]
    fn each_mistake_is_named_where_the_client_made_it() {
        let wrong = known(&json!({"tools": [
            {"type": "web_search"}, {"type": "function", "name": ""}, 3, {"type": 3, "name": "a"},
            {"type": "function", "name": "a", "parameters": [], "extra": 1, "strict": true},
        ]}));
        assert_eq!(
            wrong.unwrap_err(),
            [
                "tools[1].name",
                "tools[2]",
                "tools[3].type",
                "tools[4].parameters",
                "tools[4].extra",
            ]
        );
        let list = json!({"type": "function", "name": "a", "strict": true, "parameters": {"type": "array"}});
        let wrong = known(&json!({"tools": [{"type": "web_search"}, list]}));
        assert_eq!(wrong.unwrap_err(), ["tools[1].parameters"]);
        assert_eq!(known(&json!({"tools": "a"})).unwrap_err(), ["tools"]);
        let many = vec![json!({"type": "custom"}); MAX_TOOLS + 1];
        assert_eq!(known(&json!({"tools": many})).unwrap_err(), ["tools"]);
        let twice = "{\"tools\": [{\"type\": \"function\", \"name\": \"a\", \"name\": \"b\"}]}";
        let mut fields = Fields::parse(twice, &[FIELDS]).unwrap();
        read(&mut fields, 300, &ChatTerms::UNKNOWN);
        let wrong = fields.finish().unwrap_err();
        assert_eq!(wrong.listed()[0].constraint, Constraint::Duplicate);
        for choice in [json!({"type": "function", "name": "now"}), json!("any")] {
            let wrong = known(&json!({"tool_choice": choice}));
            assert_eq!(wrong.unwrap_err(), ["tool_choice"]);
        }
    }

    #[test]
    fn what_is_allowed_is_held_and_repeated_and_mistakes_have_the_client_s_places() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let allowed = |tools: Value| {
            json!({
                "tools": [{"type": "web_search"}, function("a"), function("b"), function("c")],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": tools},
            })
        };
        let other = || json!({"type": "web_search"});
        let tools = known(&allowed(json!([other(), function("c"), function("a")]))).unwrap();
        assert!(tools.shown.unwrap().contains("\"b\""), "all are shown");
        let Some(Structure::Calls(rules)) = tools.asked.map(|it| it.structure) else {
            panic!("calls are held");
        };
        let names: Vec<_> = rules.functions.iter().map(|it| &*it.name).collect();
        assert_eq!((names, rules.must_call), (vec!["a", "c"], false));
        let told = json!({"type": "allowed_tools", "mode": "auto", "tools": [function("c"), function("a")]});
        assert_eq!(tools.choice, told);
        for (list, field) in [
            (
                json!([other(), {"type": "function"}]),
                "tool_choice.tools[1].name",
            ),
            (json!([other()]), "tool_choice.tools"),
            (json!([function("d")]), "tool_choice"),
            (json!("a"), "tool_choice.tools"),
            (json!(vec![other(); MAX_TOOLS + 1]), "tool_choice.tools"),
        ] {
            assert_eq!(known(&allowed(list)).unwrap_err()[0], field);
        }
        let mut body = allowed(json!([function("a")]));
        body["tool_choice"]["mode"] = json!("none");
        assert_eq!(known(&body).unwrap_err(), ["tool_choice.mode"]);
        body["tool_choice"]["extra"] = json!(1);
        let wrong = known(&body).unwrap_err();
        assert_eq!(wrong, ["tool_choice.mode", "tool_choice.extra"]);
        let twice = "{\"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": [], \"tools\": []}}";
        let mut fields = Fields::parse(twice, &[FIELDS]).unwrap();
        read(&mut fields, 300, &ChatTerms::UNKNOWN);
        let wrong = fields.finish().unwrap_err();
        assert_eq!(wrong.listed()[0].constraint, Constraint::Duplicate);
    }
}
