//! `tools`, `tool_choice` and `parallel_tool_calls`, which this API writes flat: a tool is
//! `{"type": "function", "name", "description", "parameters", "strict"}`.
//!
//! They are written as chat has them and read by [its reader](crate::http::openai::tools), so what a model may
//! call is decided in one place. Mistakes are told by the place where the client wrote them.
//!
//! Tools of other types (`web_search`, `local_shell`, `custom`, …) are left out, as llama-server does
//! (ggml-org/llama.cpp#23041): Codex offers them to every server.

use crate::http::fields::{Fields, Names, among};
use crate::http::json::{Json, Kind};
use crate::http::mistakes::Constraint;
use crate::http::openai::tool_choice::{self, Choice};
use crate::http::openai::tools as chat;
use crate::http::openapi::schema::{self, Shape};
use crate::http::structure::Asked;
use crate::text::Structure;
use crate::text::tools::ChatTerms;
use serde_json::{Value, json};
use std::fmt::Write as _;

pub(super) const FIELDS: &[&str] = &["tools", "tool_choice", "parallel_tool_calls"];

const FUNCTION: Names = |name| {
    let own = &["type", "name", "description", "parameters", "strict"];
    among(name, &[own, &[chat::CACHE_CONTROL]])
};

/// What the model may call.
#[derive(Debug)]
pub(super) struct Tools {
    /// The list that the template is given.
    pub(super) shown: Option<String>,
    /// What the answer is held to.
    pub(super) asked: Option<Asked>,
    /// `tool_choice`, as the client wrote it.
    pub(super) choice: Value,
    /// False: calls behind the first are left out of the answer, where the model may write them.
    pub(super) are_parallel: bool,
    pub(super) names: OwnNames,
}

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    fields.says("tools", || shape(terms));
    fields.says("tool_choice", || match chat::why_not(terms) {
        Some(_) => schema::values(["none", "auto"]),
        None => schema::values(["none", "auto", "required"]),
    });
    let are_parallel = fields.boolean("parallel_tool_calls").unwrap_or(true);
    let (list, choice) = (fields.take("tools"), fields.take("tool_choice"));
    let mut written = Written::default();
    if let Some(list) = list {
        written.add_tools(list);
    }
    if written.count > chat::MAX_TOOLS {
        let rule = format!("must be at most {}", chat::MAX_TOOLS);
        fields.error("tools", Constraint::Length, rule);
        written.tools.clear();
    }
    let (chosen, allowed) = choice.map(write_choice).unzip();
    let allowed = allowed.unwrap_or_default();
    if allowed.count > chat::MAX_TOOLS {
        let rule = format!("must be at most {}", chat::MAX_TOOLS);
        fields.error("tool_choice.tools", Constraint::Length, rule);
    }
    let text = written.text(chosen.as_deref());
    let names = OwnNames {
        places: written.places,
        allowed: allowed.places,
    };
    let chat::Tools {
        shown,
        mut asked,
        choice: read,
    } = read_as_chat(fields, &text, &names, max_chars, terms);
    let told = match read {
        Choice::Allowed { names, must_call } => Some(told_allowed(&names, must_call)),
        _ => choice.and_then(Json::small),
    };
    // Where calls are held anyway, the model is not let write those that would be left out.
    if let Some(Structure::Calls(rules)) = asked.as_mut().map(|it| &mut it.structure) {
        rules.may_repeat &= are_parallel;
    }
    Tools {
        shown,
        asked,
        choice: told.unwrap_or_else(|| json!("auto")),
        are_parallel,
        names,
    }
}

fn shape(terms: &ChatTerms) -> Shape {
    let other = schema::pattern("^(?!function$)");
    let other = schema::object([("type", other)]);
    let tool = match chat::why_not(terms) {
        Some(_) => other,
        None => schema::any_of([Fields::described(FUNCTION, describe).into_shape(), other]),
    };
    schema::list(tool, &(0..=chat::MAX_TOOLS))
}

fn describe(mut fields: Fields<'_>) {
    let shape = || schema::values(["function"]);
    fields.only("type", shape, |_| true, "");
    drop(chat::read_function(fields));
}

fn read_as_chat(
    fields: &mut Fields<'_>,
    text: &str,
    own: &OwnNames,
    max_chars: usize,
    terms: &ChatTerms,
) -> chat::Tools {
    let names: Names = |name| among(name, &[chat::FIELDS]);
    let Ok(mut inside) = Fields::parse(text, names) else {
        return chat::Tools::default();
    };
    let tools = chat::read(&mut inside, max_chars, terms);
    match inside.finish() {
        Ok(()) => tools,
        Err(wrong) => {
            let wrong = wrong.renamed(|field| own.of(field));
            fields.mistakes().extend(String::new, wrong);
            chat::Tools::default()
        }
    }
}

/// Names of this API for fields of chat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnNames {
    /// Where each function is in the client's list, which holds others, too.
    places: Vec<usize>,
    /// The same of those that may be called.
    allowed: Vec<usize>,
}

impl OwnNames {
    /// Where a client of this API wrote what chat calls `tools[0].function.name`, or `messages`.
    pub(super) fn of(&self, field: &str) -> String {
        if field == "messages" {
            return "input".to_owned();
        }
        if let Some(rest) = field.strip_prefix("tool_choice.function") {
            return format!("tool_choice{rest}");
        }
        if let Some(rest) = field.strip_prefix("tool_choice.allowed_tools.") {
            return format!("tool_choice.{}", of_tool(rest, &self.allowed));
        }
        of_tool(field, &self.places)
    }
}

/// `tools[1].name` for `tools[0].function.name`, where `places` begins with 1.
fn of_tool(field: &str, places: &[usize]) -> String {
    let tool = field.strip_prefix("tools[");
    let Some((index, rest)) = tool.and_then(|it| it.split_once(']')) else {
        return field.to_owned();
    };
    let index = index.parse().ok().and_then(|at: usize| places.get(at));
    let rest = rest.strip_prefix(".function").unwrap_or(rest);
    format!("tools[{}]{rest}", index.copied().unwrap_or_default())
}

/// Tools of a list as chat has them.
#[derive(Debug, Default)]
struct Written {
    tools: String,
    /// Where each of them is in the client's list.
    places: Vec<usize>,
    /// Length of the client's list.
    count: usize,
}

impl Written {
    fn add_tools(&mut self, list: Json<'_>) {
        let is_list = list.each_element(|tool| {
            // Of a list that is too long, no more is written.
            if self.count < chat::MAX_TOOLS && !is_other(tool) {
                if !self.places.is_empty() {
                    self.tools.push(',');
                }
                self.places.push(self.count);
                write_tool(tool, &mut self.tools);
            }
            self.count += 1;
        });
        self.tools = match is_list {
            true => format!("[{}]", self.tools),
            // Not a list, which chat's reader says.
            false => list.raw().to_owned(),
        };
    }

    fn text(&self, choice: Option<&str>) -> String {
        let mut members = Vec::new();
        if !self.tools.is_empty() {
            members.push(format!("\"tools\":{}", self.tools));
        }
        if let Some(choice) = choice {
            members.push(format!("\"tool_choice\":{choice}"));
        }
        format!("{{{}}}", members.join(","))
    }
}

/// A tool of another type than functions.
fn is_other(tool: Json<'_>) -> bool {
    let mut is_other = false;
    tool.each_member(|name, value| {
        if name == "type" && value.kind() == Kind::Text {
            is_other = value.text().is_none_or(|kind| kind != "function");
        }
    });
    is_other
}

fn write_tool(tool: Json<'_>, out: &mut String) {
    let (mut outside, mut function) = (String::new(), String::new());
    let is_object = tool.each_member(|name, value| {
        let (to, before) = match name {
            "type" => (&mut outside, ""),
            _ if function.is_empty() => (&mut function, ""),
            _ => (&mut function, ","),
        };
        let after = if name == "type" { "," } else { "" };
        // Writing into a text cannot fail.
        let _ = write!(to, "{before}{}:{}{after}", json!(name), value.raw());
    });
    match is_object {
        true => {
            let _ = write!(out, "{{{outside}\"function\":{{{function}}}}}");
        }
        false => out.push_str(tool.raw()),
    }
}

/// `tool_choice` as chat has it, and the functions that may be called, where it says that.
fn write_choice(choice: Json<'_>) -> (String, Written) {
    match tool_choice::is_of_allowed(choice) {
        true => allowed_choice(choice),
        false => {
            let text = named_choice(choice).unwrap_or_else(|| choice.raw().to_owned());
            (text, Written::default())
        }
    }
}

/// `{"type": "allowed_tools", "mode": …, "tools": […]}`, which chat writes with an object around all but its type.
/// Tools of other types than functions are left out, as they are left out of `tools`.
fn allowed_choice(choice: Json<'_>) -> (String, Written) {
    let (mut outside, mut inside, mut written) = (Vec::new(), Vec::new(), Written::default());
    choice.each_member(|name, value| match name {
        "type" => outside.push(format!("\"type\":{}", value.raw())),
        "tools"
            if inside
                .iter()
                .all(|it: &String| !it.starts_with("\"tools\":")) =>
        {
            written.add_tools(value);
            inside.push(format!("\"tools\":{}", written.tools));
        }
        name => inside.push(format!("{}:{}", json!(name), value.raw())),
    });
    let allowed = format!("\"allowed_tools\":{{{}}}", inside.join(","));
    outside.push(allowed);
    (format!("{{{}}}", outside.join(",")), written)
}

/// As the answer repeats it.
fn told_allowed(names: &[String], must_call: bool) -> Value {
    let mode = if must_call { "required" } else { "auto" };
    let function = |name| json!({"type": "function", "name": name});
    let tools: Vec<_> = names.iter().map(function).collect();
    json!({"type": tool_choice::ALLOWED_TOOLS, "mode": mode, "tools": tools})
}

/// `{"type": "function", "name": …}`, which chat writes with a `function` inside. What else is there stays, and is
/// refused there.
fn named_choice(choice: Json<'_>) -> Option<String> {
    let (mut function, mut outside) = (None, String::new());
    let is_object = choice.each_member(|key, value| match key {
        "name" => function = Some(format!("\"function\":{{\"name\":{}}}", value.raw())),
        // Writing into a text cannot fail.
        key => drop(write!(outside, "{}:{},", json!(key), value.raw())),
    });
    let function = function.filter(|_| is_object)?;
    Some(format!("{{{outside}{function}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_body(body: &Value, terms: &ChatTerms) -> Result<Tools, Vec<String>> {
        let body = body.to_string();
        let mut fields = Fields::parse(&body, |name| among(name, &[FIELDS])).unwrap();
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
        assert_eq!(known(&json!({"tools": "a"})).unwrap_err(), ["tools"]);
        let many = vec![json!({"type": "custom"}); chat::MAX_TOOLS + 1];
        assert_eq!(known(&json!({"tools": many})).unwrap_err(), ["tools"]);
        let twice = "{\"tools\": [{\"type\": \"function\", \"name\": \"a\", \"name\": \"b\"}]}";
        let mut fields = Fields::parse(twice, |name| among(name, &[FIELDS])).unwrap();
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
            (
                json!(vec![other(); chat::MAX_TOOLS + 1]),
                "tool_choice.tools",
            ),
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
        let mut fields = Fields::parse(twice, |name| among(name, &[FIELDS])).unwrap();
        read(&mut fields, 300, &ChatTerms::UNKNOWN);
        let wrong = fields.finish().unwrap_err();
        assert_eq!(wrong.listed()[0].constraint, Constraint::Duplicate);
    }

    #[test]
    fn a_choice_by_name_is_written_as_chat_has_it() {
        let choice = "{\"type\": \"function\", \"name\": \"n\\u0061\"}";
        let body = format!("{{\"tool_choice\": {choice}}}");
        let mut fields = Fields::parse(&body, |name| among(name, &[FIELDS])).unwrap();
        let choice = fields.take("tool_choice").unwrap();
        let expected = "{\"type\":\"function\",\"function\":{\"name\":\"n\\u0061\"}}";
        assert_eq!(named_choice(choice).as_deref(), Some(expected));
    }
}
