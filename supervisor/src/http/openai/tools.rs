//! `tools`, `tool_choice` and `parallel_tool_calls`: what a model may call.
//!
//! Tools are shown to the model by its chat template, as a list of
//! `{"type": "function", "function": {"name", "description", "parameters"}}`, keys in this order whatever the
//! client's. What a client wants to be sure of (a call, one call at most, arguments under a strict schema)
//! is a [`Structure`] that the answer is held to.

use super::tool_choice::{self, Choice};
use crate::http::fields::{Fields, Names, among};
use crate::http::json::{Json, Kind};
use crate::http::mistakes::{Constraint, FieldError, Mistakes};
use crate::http::openapi::schema;
use crate::http::structure::Asked;
use crate::http::tool_calls::NUMBERS;
use crate::text::json_texts;
use crate::text::tools::{ChatTerms, Function};
use serde_json::json;

pub(in crate::http) const FIELDS: &[&str] = &["tools", tool_choice::FIELD, tool_choice::PARALLEL];

/// As the OpenAI API has it.
pub(in crate::http) const MAX_TOOLS: usize = 128;

const NAME_CHARS: std::ops::RangeInclusive<usize> = 1..=64;

const TOOL: Names = |name| among(name, &[&["type", "function", CACHE_CONTROL]]);
const FUNCTION: Names = |name| {
    let own = &["name", "description", "parameters", "strict"];
    among(name, &[own, &[CACHE_CONTROL]])
};

/// A mark of what is worth caching, which everything is. Clients set it on either object.
pub(in crate::http) const CACHE_CONTROL: &str = "cache_control";

/// What a request says of tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::http) struct Tools {
    /// The list that the template is given: `None` without tools, and where the client wants no calls.
    pub(in crate::http) shown: Option<String>,
    /// What the answer is held to.
    pub(in crate::http) asked: Option<Asked>,
    pub(in crate::http) choice: Choice,
}

/// A function as a request has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tool {
    /// As the template sees it.
    shown: String,
    function: Function,
}

pub(in crate::http) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    let given = fields.peek("tools");
    let has_none = given.is_none_or(|it| it.kind() == Kind::List && it.is_empty());
    let (shown, functions) = read_tools(fields, max_chars, terms).unzip();
    let choice = tool_choice::read(fields, why_not(terms).is_none());
    let asked = tool_choice::settle(fields, &choice, functions, has_none);
    Tools {
        shown: shown.filter(|_| choice.kind != Choice::None),
        asked,
        choice: choice.kind,
    }
}

/// Why this model can have no tools.
pub(in crate::http) fn why_not(terms: &ChatTerms) -> Option<&'static str> {
    if !terms.shows_tools {
        Some("cannot be shown: the model's chat template does not ask for tools")
    } else if terms.parsing.calls.is_none() {
        Some("cannot be called: it is not known how this model writes calls (--tool-call-parser)")
    } else {
        None
    }
}

fn read_tools(
    fields: &mut Fields<'_>,
    max_chars: usize,
    terms: &ChatTerms,
) -> Option<(String, Vec<Function>)> {
    let why_not = why_not(terms);
    fields.says("tools", || match why_not {
        Some(_) => schema::values([json!([])]),
        None => {
            let read = |fields: Fields<'_>| drop(read_tool(fields));
            schema::list(Fields::described(TOOL, read).into_shape(), &(0..=MAX_TOOLS))
        }
    });
    let list = fields.take("tools")?;
    if list.kind() == Kind::List && list.is_empty() {
        return None;
    }
    if let (Kind::List, Some(rule)) = (list.kind(), why_not) {
        fields.error("tools", Constraint::Unsupported, rule);
        return None;
    }
    let mistakes = fields.mistakes();
    let (mut tools, mut count) = (Vec::new(), 0);
    let is_list = list.each_element(|item| {
        let read = match Fields::of(item, TOOL, mistakes) {
            Some(tool) => read_tool(tool),
            None => Err(no_object(mistakes)),
        };
        match read {
            Ok(tool) if count < MAX_TOOLS => tools.extend(tool),
            Ok(_) => {}
            Err(wrong) => mistakes.extend(|| format!("tools[{count}]"), wrong),
        }
        count += 1;
    });
    let placed = |(place, tool): (usize, Tool)| {
        let function = Function {
            place,
            ..tool.function
        };
        (tool.shown, function)
    };
    let (shown, functions): (Vec<_>, Vec<_>) = tools.into_iter().enumerate().map(placed).unzip();
    let tools = format!("[{}]", shown.join(","));
    let (constraint, rule) = if !is_list {
        (Constraint::Type, "must be a list of functions".to_owned())
    } else if count > MAX_TOOLS {
        (Constraint::Length, format!("must be at most {MAX_TOOLS}"))
    } else if tools.chars().count() > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        (Constraint::Length, rule)
    } else if !json_texts::is_whole(&tools) {
        (Constraint::Json, "are nested too deep".to_owned())
    } else {
        return Some((tools, functions));
    };
    fields.error("tools", constraint, rule);
    None
}

/// The tool as the template sees it. Mistakes have their place behind the tool's: `.function.name`.
fn read_tool(mut fields: Fields<'_>) -> Result<Option<Tool>, Mistakes> {
    let mut inside = fields.mistakes().inside();
    let is_function = |value: Json<'_>| value.text().as_deref() == Some("function");
    let shape = || schema::values(["function"]);
    fields.only("type", shape, is_function, "must be function");
    fields.pass_over(CACHE_CONTROL);
    fields.says("function", || {
        let read = |fields: Fields<'_>| drop(read_function(fields));
        Fields::described(FUNCTION, read).into_shape()
    });
    let given = fields.take("function");
    let given = fields.required("function", given);
    let function = given.and_then(|given| {
        let read = match Fields::of(given, FUNCTION, &inside) {
            Some(function) => read_function(function),
            None => Err(no_object(&inside)),
        };
        let noted = read.map_err(|wrong| inside.extend(|| ".function".to_owned(), wrong));
        noted.ok().flatten()
    });
    if let Err(others) = fields.finish() {
        inside.extend(|| ".".to_owned(), others);
    }
    match inside.is_empty() {
        true => Ok(function.map(|(it, function)| Tool {
            shown: format!("{{\"type\":\"function\",\"function\":{it}}}"),
            function,
        })),
        false => Err(inside),
    }
}

/// As the template sees it, and as calls are held to it.
pub(in crate::http) fn read_function(
    mut fields: Fields<'_>,
) -> Result<Option<(String, Function)>, Mistakes> {
    let mut outside = fields.mistakes().inside();
    let name = fields.text("name", &NAME_CHARS);
    let name = fields.required("name", name);
    let description = fields.text("description", &(0..=usize::MAX));
    fields.says("parameters", || {
        schema::of_type(utoipa::openapi::Type::Object)
    });
    let parameters = fields.take("parameters").and_then(|given| {
        let object = given.object_text();
        let object = object.and_then(|it| json_texts::map_object(it, &mut str::to_owned));
        if object.is_none() {
            let rule = "must be an object, not nested too deep";
            fields.error("parameters", Constraint::Type, rule);
        }
        if object
            .as_deref()
            .is_some_and(|it| !json_texts::keeps_numbers(it))
        {
            fields.error("parameters", Constraint::Range, NUMBERS);
        }
        object
    });
    let is_strict = fields.boolean("strict").unwrap_or(false);
    fields.pass_over(CACHE_CONTROL);
    fields.finish().map_err(|others| {
        outside.extend(|| ".".to_owned(), others);
        outside
    })?;
    let Some(name) = name else {
        return Ok(None);
    };
    let mut function = format!("{{\"name\":{}", json!(name));
    if let Some(description) = description {
        function.push_str(&format!(",\"description\":{}", json!(description)));
    }
    if let Some(parameters) = &parameters {
        function.push_str(&format!(",\"parameters\":{parameters}"));
    }
    function.push('}');
    let held = Function {
        place: 0,
        name,
        parameters,
        is_strict,
    };
    Ok(Some((function, held)))
}

fn no_object(outside: &Mistakes) -> Mistakes {
    let mut mistakes = outside.inside();
    let rule = "must be an object";
    mistakes.note(|| FieldError::new("", Constraint::Type, rule));
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Structure;
    use crate::text::tools::{CallRules, Choices, Parsing};
    use serde_json::Value;

    fn read_body(body: &Value, terms: &ChatTerms) -> Result<Option<String>, Vec<String>> {
        read_all(body, terms).map(|tools| tools.shown)
    }

    fn read_all(body: &Value, terms: &ChatTerms) -> Result<Tools, Vec<String>> {
        let body = body.to_string();
        let mut fields = Fields::parse(&body, |name| among(name, &[FIELDS])).unwrap();
        let tools = read(&mut fields, 300, terms);
        fields.finish().map(|()| tools).map_err(|mistakes| {
            let listed = mistakes.listed().iter();
            listed
                .map(|error| format!("{}: {}", error.field, error.message))
                .collect()
        })
    }

    fn known(body: &Value) -> Result<Option<String>, Vec<String>> {
        read_body(body, &ChatTerms::UNKNOWN)
    }

    fn with(extra: &Value) -> Value {
        let function = json!({"name": "now", "description": null});
        let mut body = json!({"tools": [{"type": "function", "function": function}]});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    }

    fn named(body: &Value) -> Vec<String> {
        let wrong = known(body).unwrap_err();
        let name = |it: &String| it.split(':').next().unwrap_or_default().to_owned();
        wrong.iter().map(name).collect()
    }

    const NOW: &str = "[{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

    #[test]
    fn tools_are_shown_in_one_order_of_keys() {
        let body = json!({"tools": [{"function": {
            "strict": false, "parameters": {"type": "object", "properties": {"a": {"enum": [1.0, "\u{e9}"]}}},
            "description": "Adds \"1\".", "name": "add",
        }, "type": "function"}]});
        let shown = "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds \\\"1\\\".\",\
                     \"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1.0,\"é\"]}}}}}]";
        assert_eq!(known(&body).unwrap().as_deref(), Some(shown));
    }

    #[test]
    fn where_the_client_wants_no_calls_nothing_is_shown() {
        assert_eq!(known(&with(&json!({}))).unwrap().as_deref(), Some(NOW));
        let auto = json!({"tool_choice": "auto", "parallel_tool_calls": true});
        assert_eq!(known(&with(&auto)).unwrap().as_deref(), Some(NOW));
        for nothing in [
            with(&json!({"tool_choice": "none"})),
            with(&json!({"tool_choice": "none", "parallel_tool_calls": false})),
            json!({"tool_choice": "none", "parallel_tool_calls": false}),
            json!({"tools": []}),
            json!({"tools": null}),
        ] {
            assert_eq!(known(&nothing), Ok(None), "{nothing}");
        }
    }

    /// The rules that a request with a tool `now` holds its answer to.
    fn held(extra: &Value) -> Option<(&'static str, CallRules)> {
        let asked = read_all(&with(extra), &ChatTerms::UNKNOWN).unwrap().asked?;
        match asked.structure {
            Structure::Calls(rules) => Some((asked.field, rules)),
            Structure::Answer(grammar) => panic!("{grammar:?}"),
        }
    }

    #[test]
    fn what_a_client_wants_to_be_sure_of_is_what_the_answer_is_held_to() {
        let named = json!({"type": "function", "function": {"name": "now"}});
        for (extra, expected) in [
            (json!({}), None),
            (
                json!({"tool_choice": "none", "parallel_tool_calls": false}),
                None,
            ),
            (
                json!({"tool_choice": "required"}),
                Some(("tool_choice", true, true)),
            ),
            (
                json!({"tool_choice": "required", "parallel_tool_calls": false}),
                Some(("tool_choice", true, false)),
            ),
            (
                json!({"tool_choice": named}),
                Some(("tool_choice", true, false)),
            ),
            (
                json!({"parallel_tool_calls": false}),
                Some(("parallel_tool_calls", false, false)),
            ),
        ] {
            let rules = held(&extra).map(|(field, it)| (field, it.must_call, it.may_repeat));
            assert_eq!(rules, expected, "{extra}");
        }
        let strict = json!({"name": "then", "strict": true, "parameters": {"properties": {}}});
        let tools = json!([{"function": {"name": "now"}}, {"function": strict}]);
        let body = json!({"tools": tools});
        let asked = read_all(&body, &ChatTerms::UNKNOWN).unwrap().asked.unwrap();
        let Structure::Calls(rules) = asked.structure else {
            panic!("calls are held");
        };
        assert!(!rules.must_call && rules.may_repeat);
        let then = &rules.functions[1];
        assert_eq!((then.place, then.is_strict), (1, true));
        let object = "{\"type\":\"object\",\"properties\":{}}";
        assert_eq!(then.parameters.as_deref(), Some(object));
        let name = json!({"type": "function", "function": {"name": "then"}});
        let body = json!({"tools": tools, "tool_choice": name});
        let asked = read_all(&body, &ChatTerms::UNKNOWN).unwrap().asked.unwrap();
        let Structure::Calls(rules) = asked.structure else {
            panic!("calls are held");
        };
        assert_eq!(rules.functions, std::slice::from_ref(then));
    }

    fn allowed(mode: &str, names: &[&str]) -> Value {
        let named = |name: &&str| json!({"type": "function", "function": {"name": name}});
        let tools: Vec<_> = names.iter().map(named).collect();
        let allowed = json!({"mode": mode, "tools": tools});
        json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}})
    }

    #[test]
    fn all_tools_are_shown_and_those_that_are_allowed_are_held() {
        let tools = ["a", "b", "c"].map(|name| json!({"function": {"name": name}}));
        for (mode, must_call) in [("auto", false), ("required", true)] {
            let mut body = allowed(mode, &["c", "a", "c"]);
            body["tools"] = json!(tools);
            let read = read_all(&body, &ChatTerms::UNKNOWN).unwrap();
            body["tool_choice"] = json!("auto");
            assert_eq!(read.shown, known(&body).unwrap());
            let Some(Structure::Calls(rules)) = read.asked.map(|it| it.structure) else {
                panic!("calls are held");
            };
            let names: Vec<_> = rules.functions.iter().map(|it| &*it.name).collect();
            assert_eq!((names, rules.must_call), (vec!["a", "c"], must_call));
            assert!(rules.may_repeat);
        }
    }

    #[test]
    fn a_choice_of_what_is_not_there_is_refused_and_named() {
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        let list = json!({"type": "array"});
        for (body, field) in [
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": named("now")}), "tool_choice"),
            (with(&json!({"tool_choice": named("then")})), "tool_choice"),
            (with(&json!({"tool_choice": "any"})), "tool_choice"),
            (with(&json!({"tool_choice": {}})), "tool_choice.type"),
            (
                with(&json!({"tool_choice": {"type": "allowed_tools"}})),
                "tool_choice.allowed_tools",
            ),
            (
                with(&allowed("any", &["now"])),
                "tool_choice.allowed_tools.mode",
            ),
            (
                with(&allowed("auto", &[])),
                "tool_choice.allowed_tools.tools",
            ),
            (with(&allowed("auto", &["now", "then"])), "tool_choice"),
            (allowed("auto", &["now"]), "tool_choice"),
            (
                with(
                    &json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
                        "mode": "auto", "tools": [named("now"), {"type": "mcp"}],
                    }}}),
                ),
                "tool_choice.allowed_tools.tools[1].type",
            ),
            (
                with(&json!({"tool_choice": {"type": "function", "function": {"name": 3}}})),
                "tool_choice.function.name",
            ),
            (
                json!({"tools": [{"function": {"name": "a", "strict": true, "parameters": list}}]}),
                "tools[0].function.parameters",
            ),
        ] {
            let wrong = known(&body).unwrap_err();
            assert!(
                wrong[0].starts_with(&format!("{field}: ")),
                "{body} {wrong:?}"
            );
        }
    }

    #[test]
    fn numbers_that_would_change_are_refused() {
        for number in ["1e999", "123456789012345678901234"] {
            let body = format!(
                "{{\"tools\": [{{\"function\": {{\"name\": \"a\", \"parameters\": {{\"a\": {number}}}}}}}]}}"
            );
            let mut fields = Fields::parse(&body, |name| among(name, &[FIELDS])).unwrap();
            read(&mut fields, 300, &ChatTerms::UNKNOWN);
            let wrong = fields.finish().unwrap_err();
            assert_eq!(wrong.listed()[0].field, "tools[0].function.parameters");
            assert_eq!(wrong.listed()[0].constraint, Constraint::Range);
        }
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        let deep = format!("{}1{}", "[".repeat(63), "]".repeat(63));
        let deep: Value = serde_json::from_str(&deep).unwrap();
        assert_eq!(
            named(&json!({"tools": [
                3, {}, {"type": "custom", "function": {"name": "a"}},
                {"function": {"name": "", "parameters": [], "extra": 1}, "more": 1},
                {"function": {"name": "a", "parameters": {"a": {"a": deep}}}},
            ]})),
            [
                "tools[0]",
                "tools[1].function",
                "tools[2].type",
                "tools[3].function.name",
                "tools[3].function.parameters",
                "tools[3].function.extra",
                "tools[3].more",
                "tools[4].function.parameters",
            ]
        );
        // Deep enough for itself, and too deep inside of the list.
        assert_eq!(
            named(&json!({"tools": [{"function": {"name": "a", "parameters": {"a": deep}}}]})),
            ["tools"]
        );
        assert_eq!(named(&json!({"tools": "a"})), ["tools"]);
        let one = json!({"function": {"name": "a"}});
        assert_eq!(
            named(&json!({"tools": vec![one; MAX_TOOLS + 1]})),
            ["tools"]
        );
        let long = json!({"function": {"name": "a", "description": "x".repeat(300)}});
        assert_eq!(named(&json!({"tools": [long]})), ["tools"]);
    }

    #[test]
    fn a_model_that_cannot_have_tools_refuses_them_and_says_why() {
        let terms = |jinja: &str| Choices::default().resolve(jinja);
        let body = with(&json!({}));
        let unseen = read_body(&body, &terms("<tool_call>{{ messages }}")).unwrap_err();
        assert!(
            unseen[0].contains("chat template does not ask"),
            "{unseen:?}"
        );
        let unknown = read_body(&body, &terms("{{ tools }}")).unwrap_err();
        assert!(unknown[0].contains("--tool-call-parser"), "{unknown:?}");
        let none = ChatTerms {
            parsing: Parsing::default(),
            ..ChatTerms::UNKNOWN
        };
        assert_eq!(read_body(&json!({"tools": []}), &none), Ok(None));
    }
}
