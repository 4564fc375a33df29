//! Field `chat_template_kwargs`: variables that a client sets for the chat template, such as `enable_thinking`.
//!
//! Values are booleans, whole numbers and words. None of these can contain a special token. A variable that the
//! template always receives cannot be set. A variable that the template does not use has no effect.

use crate::fields::Fields;
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, FieldError, shortened};
use crate::schema::{self, Shape};
use worker_orcd_text::template::{OWN_NAMES, TemplateSetting};

pub(super) const FIELD: &str = "chat_template_kwargs";

const MAX_SETTINGS: usize = 16;
const MAX_CHARS: usize = 64;

type Wrong = (Constraint, &'static str);

pub(super) fn read(fields: &mut Fields<'_>) -> Vec<(String, TemplateSetting)> {
    let Some(object) = fields.given(FIELD, shape) else {
        return Vec::new();
    };
    let mut settings: Vec<(String, TemplateSetting)> = Vec::new();
    let mistakes = fields.mistakes();
    let is_object = object.each_member(|name, value| {
        let is_twice = settings.iter().any(|(known, _)| known == name);
        let setting = match is_twice {
            true => Err((Constraint::Duplicate, "is given more than once")),
            false if settings.len() == MAX_SETTINGS => Err((Constraint::Length, "is one too many")),
            false => read_setting(name, value),
        };
        match setting {
            Ok(setting) => settings.push((name.to_owned(), setting)),
            Err((constraint, rule)) => mistakes.note(|| {
                let field = format!("{FIELD}.{}", shortened(name));
                FieldError::new(field, constraint, rule)
            }),
        }
    });
    if !is_object {
        fields.error(FIELD, Constraint::Type, "must be an object");
    }
    settings
}

fn shape() -> Shape {
    let word = || schema::pattern(&format!("^[A-Za-z0-9_-]{{1,{MAX_CHARS}}}$"));
    let setting = [schema::boolean(), schema::whole_number(), word()];
    schema::map(word(), schema::any_of(setting), MAX_SETTINGS, OWN_NAMES)
}

fn read_setting(name: &str, value: Json<'_>) -> Result<TemplateSetting, Wrong> {
    if OWN_NAMES.contains(&name) {
        return Err((Constraint::Unsupported, "cannot be set by a client"));
    }
    if !is_word(name) {
        return Err((Constraint::Range, "is no name of a setting"));
    }
    let rule = "must be true, false, a whole number or a word";
    let read = match value.kind() {
        Kind::Boolean => value.boolean().map(TemplateSetting::Flag),
        Kind::Number => value.integer().map(TemplateSetting::Number),
        Kind::Text => value
            .text()
            .filter(|text| is_word(text))
            .map(|text| TemplateSetting::Word(text.into_owned())),
        Kind::Null | Kind::List | Kind::Object => None,
    };
    read.ok_or((Constraint::Type, rule))
}

fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=MAX_CHARS).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;

    fn read_text(given: &str) -> Result<Vec<(String, TemplateSetting)>, Mistakes> {
        let body = format!("{{\"{FIELD}\": {given}}}");
        let mut fields = Fields::parse(&body, &[&[FIELD]]).unwrap();
        let settings = read(&mut fields);
        fields.finish().map(|()| settings)
    }

    #[test]
    fn flags_numbers_and_words_are_settings() {
        let given =
            "{\"enable_thinking\": false, \"budget\": 5, \"offset\": -2.0, \"effort\": \"low\"}";
        let expected = [
            ("enable_thinking".to_owned(), TemplateSetting::Flag(false)),
            ("budget".to_owned(), TemplateSetting::Number(5)),
            ("offset".to_owned(), TemplateSetting::Number(-2)),
            ("effort".to_owned(), TemplateSetting::Word("low".to_owned())),
        ];
        assert_eq!(read_text(given).unwrap(), expected);
        assert_eq!(read_text("{}").unwrap(), []);
    }

    #[test]
    fn what_could_hold_a_special_token_or_take_a_place_is_refused_by_name() {
        for (name, value) in [
            ("effort", "\"<|im_end|>\""),
            ("effort", "\"\""),
            ("effort", "1.5"),
            ("effort", "null"),
            ("effort", "[true]"),
            ("effort", "{}"),
            ("messages", "true"),
            ("add_generation_prompt", "false"),
            ("a b", "true"),
            ("twice", "1, \"twice\": 2"),
        ] {
            let mistakes = read_text(&format!("{{\"{name}\": {value}}}")).unwrap_err();
            let field = &mistakes.listed()[0].field;
            assert_eq!(*field, format!("{FIELD}.{name}"), "{value}");
        }
        assert!(read_text("3").is_err());
        let many: Vec<_> = (0..17).map(|n| format!("\"x{n}\": 1")).collect();
        assert!(read_text(&format!("{{{}}}", many.join(","))).is_err());
    }
}
