//! How much a model is to think, as far as its chat template has words for it: `reasoning_effort` of chat, and
//! `reasoning.effort` of the Responses API.
//!
//! Templates ask for `reasoning_effort` (gpt-oss) or `enable_thinking` (Qwen). One that asks for neither is not changed:
//! an effort is advice, and no bound ([`thinking_budget`](super::thinking_budget) has those).

use super::fields::Fields;
use super::mistakes::Constraint;
use crate::text::template::TemplateSetting;

/// Chat's field, and what templates call it.
pub const FIELD: &str = "reasoning_effort";

/// As the OpenAI API has it.
pub const EFFORTS: &[(&str, &str)] = &[
    ("none", "none"),
    ("minimal", "minimal"),
    ("low", "low"),
    ("medium", "medium"),
    ("high", "high"),
    ("xhigh", "xhigh"),
    ("max", "max"),
];

/// What the template is told of it.
#[must_use]
pub fn settings_of(effort: &str) -> Vec<(String, TemplateSetting)> {
    let word = TemplateSetting::Word(effort.to_owned());
    let mut settings = vec![(FIELD.to_owned(), word)];
    if effort == "none" {
        let off = TemplateSetting::Flag(false);
        settings.push(("enable_thinking".to_owned(), off));
    }
    settings
}

/// Reads chat's field. `settings`: what the client has set for the template by its names.
pub fn read(fields: &mut Fields<'_>, settings: &mut Vec<(String, TemplateSetting)>) {
    let Some(effort) = fields.word(FIELD, EFFORTS) else {
        return;
    };
    for (name, setting) in settings_of(effort) {
        match settings.iter().find(|(known, _)| *known == name) {
            None => settings.push((name, setting)),
            Some((_, given)) if *given == setting => {}
            Some(_) => {
                let rule = format!("says something else than chat_template_kwargs.{name}");
                fields.error(FIELD, Constraint::Conflict, rule);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::fields::among;

    fn settings(effort: &str, given: &[(&str, TemplateSetting)]) -> Result<Vec<String>, String> {
        let body = format!("{{\"{FIELD}\": {effort}}}");
        let mut fields = Fields::parse(&body, |name| among(name, &[&[FIELD]])).unwrap();
        let own = |(name, setting): &(&str, TemplateSetting)| ((*name).to_owned(), setting.clone());
        let mut settings = given.iter().map(own).collect();
        read(&mut fields, &mut settings);
        let told = |wrong: crate::http::mistakes::Mistakes| wrong.listed()[0].field.clone();
        fields.finish().map_err(told)?;
        Ok(settings
            .into_iter()
            .map(|(name, it)| format!("{name}: {it:?}"))
            .collect())
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
            assert_eq!(settings(wrong, &[]).unwrap_err(), FIELD, "{wrong}");
        }
    }

    #[test]
    fn what_is_set_by_the_template_s_own_name_may_not_say_something_else() {
        let thinks = |flag| [("enable_thinking", TemplateSetting::Flag(flag))];
        assert_eq!(settings("\"none\"", &thinks(false)).unwrap().len(), 2);
        assert_eq!(settings("\"low\"", &thinks(false)).unwrap().len(), 2);
        assert_eq!(settings("\"none\"", &thinks(true)).unwrap_err(), FIELD);
        let word = [(FIELD, TemplateSetting::Word("low".to_owned()))];
        assert_eq!(settings("\"low\"", &word).unwrap().len(), 1);
        assert_eq!(settings("\"high\"", &word).unwrap_err(), FIELD);
    }
}
