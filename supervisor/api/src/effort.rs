//! Reasoning effort and verbosity, for chat templates that support them.
//!
//! | field of chat | origin | template variables |
//! |---|---|---|
//! | `reasoning_effort`; `effort` of `reasoning` | OpenAI; OpenRouter, and the Responses API | `reasoning_effort`, and with `none` also `enable_thinking: false` |
//! | `enable_thinking` | Qwen's hosts | `enable_thinking` |
//! | `thinking: {"type": "enabled"}`, or `disabled` | DeepSeek, GLM | `enable_thinking`, `thinking` |
//! | `enabled` of `reasoning` | OpenRouter | `enable_thinking` |
//! | `verbosity` | OpenAI; `text.verbosity` of the Responses API | `verbosity` |
//!
//! They have no effect on a template without these variables: they are hints, and no limits
//! ([`thinking_budget`](crate::thinking_budget) has those).

use crate::fields::{Fields, Names, nested};
use crate::mistakes::{Constraint, Mistakes};
use crate::no_effect::{accept, values};
use worker_orcd_text::template::TemplateSetting;

/// Fields of chat.
pub(crate) const FIELDS: &[&str] = &[EFFORT, THINKS, THINKING, REASONING, VERBOSITY];

const EFFORT: &str = "reasoning_effort";
const THINKS: &str = "enable_thinking";
const THINKING: &str = "thinking";
const REASONING: &str = "reasoning";
pub(crate) const VERBOSITY: &str = "verbosity";

const OF_THINKING: Names = &[&["type"]];
const OF_REASONING: Names = &[&["effort", "enabled", "exclude"]];

pub(crate) const VERBOSITIES: &[(&str, &str)] =
    &[("low", "low"), ("medium", "medium"), ("high", "high")];

type Setting = (String, TemplateSetting);

/// Values of the OpenAI API.
pub(crate) const EFFORTS: &[(&str, &str)] = &[
    ("none", "none"),
    ("minimal", "minimal"),
    ("low", "low"),
    ("medium", "medium"),
    ("high", "high"),
    ("xhigh", "xhigh"),
    ("max", "max"),
];

/// Template variables of an effort.
#[must_use]
pub(crate) fn settings_of(effort: &str) -> Vec<Setting> {
    let mut settings = vec![word(EFFORT, effort)];
    if effort == "none" {
        settings.push(flag(THINKS, false));
    }
    settings
}

/// Template variable of a verbosity.
#[must_use]
pub(crate) fn verbosity(word_of_it: &str) -> Setting {
    word(VERBOSITY, word_of_it)
}

/// Reads the fields of chat. `settings`: template variables from the client.
pub(crate) fn read(fields: &mut Fields<'_>, settings: &mut Vec<Setting>) {
    let effort = fields.word(EFFORT, EFFORTS);
    let of_effort = effort.map(settings_of);
    let thinks = fields.boolean(THINKS);
    let of_flag = thinks.map(|thinks| vec![flag(THINKS, thinks)]);
    let of_thinking = nested(fields, THINKING, OF_THINKING, |mut inside| {
        let kinds = [("enabled", true), ("disabled", false)];
        let thinks = inside.must("type", |it, name| it.word(name, &kinds));
        inside.finish().map(|()| thinks)
    });
    let both = |thinks| vec![flag(THINKS, thinks), flag(THINKING, thinks)];
    let of_thinking = of_thinking.flatten().map(both);
    let of_reasoning = nested(fields, REASONING, OF_REASONING, read_reasoning);
    let verbosity = fields.word(VERBOSITY, VERBOSITIES);
    let of_verbosity = verbosity.map(|it| vec![word(VERBOSITY, it)]);
    for (field, told) in [
        (EFFORT, of_effort),
        (THINKS, of_flag),
        (THINKING, of_thinking),
        (REASONING, of_reasoning),
        (VERBOSITY, of_verbosity),
    ] {
        add(fields, field, told.unwrap_or_default(), settings);
    }
}

fn read_reasoning(mut inside: Fields<'_>) -> Result<Vec<Setting>, Mistakes> {
    let effort = inside.word("effort", EFFORTS);
    let thinks = inside.boolean("enabled");
    let rule = "may be false only: thinking is returned beside the answer";
    accept(&mut inside, &[values("exclude", &["false"], rule)]);
    let mut settings = effort.map(settings_of).unwrap_or_default();
    if let Some(thinks) = thinks {
        let told = vec![flag(THINKS, thinks)];
        add(&mut inside, "enabled", told, &mut settings);
    }
    inside.finish().map(|()| settings)
}

/// Adds the variables of a field. Notes a conflict with earlier ones.
fn add(fields: &mut Fields<'_>, field: &str, told: Vec<Setting>, settings: &mut Vec<Setting>) {
    for (name, setting) in told {
        match settings.iter().find(|(known, _)| *known == name) {
            None => settings.push((name, setting)),
            Some((_, given)) if *given == setting => {}
            Some(_) => {
                let rule = format!("says something else of {name} than another field");
                fields.error(field, Constraint::Conflict, rule);
            }
        }
    }
}

fn flag(name: &str, flag: bool) -> Setting {
    (name.to_owned(), TemplateSetting::Flag(flag))
}

fn word(name: &str, word: &str) -> Setting {
    (name.to_owned(), TemplateSetting::Word(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Template variables of a body. `given`: variables set by the client.
    fn read_body(body: &str, given: &[(&str, TemplateSetting)]) -> Result<Vec<String>, String> {
        let mut fields = Fields::parse(body, &[FIELDS]).unwrap();
        let own = |(name, setting): &(&str, TemplateSetting)| ((*name).to_owned(), setting.clone());
        let mut settings = given.iter().map(own).collect();
        read(&mut fields, &mut settings);
        let told = |wrong: Mistakes| wrong.listed()[0].field.clone();
        fields.finish().map_err(told)?;
        Ok(settings
            .into_iter()
            .map(|(name, it)| format!("{name}: {it:?}"))
            .collect())
    }

    fn settings(effort: &str, given: &[(&str, TemplateSetting)]) -> Result<Vec<String>, String> {
        read_body(&format!("{{\"{EFFORT}\": {effort}}}"), given)
    }

    #[test]
    fn switches_of_other_hosts_become_what_templates_ask_for() {
        let (on, off) = (
            "enable_thinking: Flag(true)",
            "enable_thinking: Flag(false)",
        );
        let low = "reasoning_effort: Word(\"low\")";
        for (body, told) in [
            ("{\"enable_thinking\": false}", vec![off]),
            (
                "{\"thinking\": {\"type\": \"enabled\"}}",
                vec![on, "thinking: Flag(true)"],
            ),
            (
                "{\"thinking\": {\"type\": \"disabled\"}}",
                vec![off, "thinking: Flag(false)"],
            ),
            (
                "{\"reasoning\": {\"effort\": \"low\", \"exclude\": false}}",
                vec![low],
            ),
            ("{\"reasoning\": {\"enabled\": true}}", vec![on]),
            ("{\"reasoning\": {}, \"thinking\": null}", vec![]),
            (
                "{\"verbosity\": \"high\"}",
                vec!["verbosity: Word(\"high\")"],
            ),
            (
                "{\"reasoning_effort\": \"low\", \"reasoning\": {\"effort\": \"low\"}}",
                vec![low],
            ),
        ] {
            assert_eq!(read_body(body, &[]).unwrap(), told, "{body}");
        }
    }

    #[test]
    fn other_words_and_contradictions_are_refused_by_name() {
        for (body, field) in [
            ("{\"enable_thinking\": \"no\"}", "enable_thinking"),
            ("{\"thinking\": true}", "thinking"),
            ("{\"thinking\": {}}", "thinking.type"),
            (
                "{\"thinking\": {\"type\": \"enabled\", \"budget\": 5}}",
                "thinking.budget",
            ),
            (
                "{\"reasoning\": {\"max_tokens\": 5}}",
                "reasoning.max_tokens",
            ),
            ("{\"reasoning\": {\"exclude\": true}}", "reasoning.exclude"),
            (
                "{\"reasoning\": {\"effort\": \"none\", \"enabled\": true}}",
                "reasoning.enabled",
            ),
            ("{\"verbosity\": \"loud\"}", "verbosity"),
            (
                "{\"enable_thinking\": true, \"thinking\": {\"type\": \"disabled\"}}",
                "thinking",
            ),
            (
                "{\"reasoning_effort\": \"low\", \"reasoning\": {\"effort\": \"high\"}}",
                "reasoning",
            ),
        ] {
            assert_eq!(read_body(body, &[]).unwrap_err(), field, "{body}");
        }
    }

    #[test]
    fn an_effort_is_told_in_the_words_that_templates_ask_for() {
        assert_eq!(settings("null", &[]).unwrap(), [""; 0]);
        let high = ["reasoning_effort: Word(\"high\")"];
        assert_eq!(settings("\"high\"", &[]).unwrap(), high);
        let none = [
            "reasoning_effort: Word(\"none\")",
            "enable_thinking: Flag(false)",
        ];
        assert_eq!(settings("\"none\"", &[]).unwrap(), none);
        for wrong in ["\"much\"", "3", "true"] {
            assert_eq!(settings(wrong, &[]).unwrap_err(), EFFORT, "{wrong}");
        }
    }

    #[test]
    fn what_is_set_by_the_template_s_own_name_may_not_say_something_else() {
        let thinks = |flag| [("enable_thinking", TemplateSetting::Flag(flag))];
        assert_eq!(settings("\"none\"", &thinks(false)).unwrap().len(), 2);
        assert_eq!(settings("\"low\"", &thinks(false)).unwrap().len(), 2);
        assert_eq!(settings("\"none\"", &thinks(true)).unwrap_err(), EFFORT);
        let word = [(EFFORT, TemplateSetting::Word("low".to_owned()))];
        assert_eq!(settings("\"low\"", &word).unwrap().len(), 1);
        assert_eq!(settings("\"high\"", &word).unwrap_err(), EFFORT);
    }
}
