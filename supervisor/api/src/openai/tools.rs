//! Field `tools` of chat: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`.

use super::tool_choice;
use crate::fields::{Fields, Names, nested};
use crate::mistakes::Mistakes;
use crate::no_effect::{FUNCTION_TYPE, accept};
use crate::tools::{
    CACHE_CONTROL, Tool, ToolFormat, Tools, choice, read_functions, settle, why_not,
};
use worker_orcd_text::tools::ChatTerms;

pub(super) const FIELDS: &[&str] = &["tools", choice::FIELD, tool_choice::PARALLEL];

const TOOL: Names = &[&["type", "function", CACHE_CONTROL]];
const FUNCTION: Names = &[
    &["name", "description", "parameters", "strict"],
    &[CACHE_CONTROL],
];

const FORMAT: ToolFormat = ToolFormat {
    names: TOOL,
    read: read_tool,
    parameters: "function.parameters",
    items: "functions",
    is_left_out: |_| false,
};

pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    let list = read_functions(fields, &FORMAT, max_chars, terms);
    let wanted = tool_choice::read(fields, why_not(terms).is_none());
    settle(fields, list, wanted, tool_choice::PARALLEL)
}

/// Reads `tools` of an API without a choice among them: the model may call each, any number of times.
pub(crate) fn read_free(fields: &mut Fields<'_>, max_chars: usize, terms: &ChatTerms) -> Tools {
    let list = read_functions(fields, &FORMAT, max_chars, terms);
    settle(fields, list, choice::CallPolicy::FREE, "")
}

fn read_tool(mut fields: Fields<'_>) -> Result<Option<Tool>, Mistakes> {
    accept(&mut fields, &[FUNCTION_TYPE]);
    fields.pass_over(CACHE_CONTROL);
    let function = nested(&mut fields, "function", FUNCTION, |mut inside| {
        let tool = Tool::read(&mut inside, "parameters");
        inside.pass_over(CACHE_CONTROL);
        inside.finish().map(|()| tool)
    });
    let function = fields.required("function", function);
    fields.finish().map(|()| function.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Constraint;
    use crate::tools::MAX_TOOLS;
    use serde_json::Value;
    use serde_json::json;
    use worker_orcd_text::Structure;
    use worker_orcd_text::tools::{CallRules, Choices, Parsing};

    fn read_body(body: &Value, terms: &ChatTerms) -> Result<Option<String>, Vec<String>> {
        read_all(body, terms).map(|tools| tools.shown)
    }

    fn read_all(body: &Value, terms: &ChatTerms) -> Result<Tools, Vec<String>> {
        let body = body.to_string();
        let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
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

    /// Constraint on the answer of a request with a tool `now`, and the field that causes it.
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
        assert_eq!(
            (&*then.path, then.is_strict),
            ("tools[1].function.parameters", true)
        );
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
            let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
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
        // The nesting is within the limit alone, and beyond it inside the list.
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
