//! `prediction`: a text that the answer is expected to resemble, as in the OpenAI API.
//!
//! Its tokens become drafts (`gpu-child/src/scheduler/prediction.rs`), so it changes no answer.

use crate::fields::{Fields, Names, nested};
use crate::messages::read_text;
use crate::mistakes::Constraint;

const FIELD: &str = "prediction";
pub(super) const FIELDS: &[&str] = &[FIELD];
const NAMES: Names = &[&["type", "content"]];

/// `None` without a text.
pub(super) fn read(fields: &mut Fields<'_>, max_chars: usize) -> Option<String> {
    let text = nested(fields, FIELD, NAMES, |mut inside| {
        inside.must("type", |it, name| it.word(name, &[("content", ())]));
        let text = inside.must("content", |it, _| read_text(it));
        inside.finish().map(|()| text)
    });
    let text = text.flatten().filter(|text| !text.is_empty())?;
    if text.chars().count() > max_chars {
        let rule = format!("must have at most {max_chars} characters in all");
        fields.error("prediction.content", Constraint::Length, rule);
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_body(prediction: &str) -> Result<Option<String>, Vec<String>> {
        let body = format!("{{\"prediction\": {prediction}}}");
        let mut fields = Fields::parse(&body, &[FIELDS]).unwrap();
        let text = read(&mut fields, 5);
        let named = |it: crate::mistakes::Mistakes| {
            let listed = it.listed().iter();
            listed.map(|it| it.field.clone()).collect()
        };
        fields.finish().map(|()| text).map_err(named)
    }

    #[test]
    fn it_is_a_text_or_parts_of_one() {
        for (content, expected) in [
            (r#""abc""#, Some("abc")),
            (
                r#"[{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]"#,
                Some("abc"),
            ),
            (r#""""#, None),
            ("[]", None),
        ] {
            let text = read_body(&format!(r#"{{"type": "content", "content": {content}}}"#));
            assert_eq!(text.unwrap().as_deref(), expected, "{content}");
        }
        assert_eq!(read_body("null"), Ok(None));
    }

    #[test]
    fn a_malformed_prediction_is_refused_by_name() {
        for (wrong, field) in [
            ("\"abc\"", "prediction"),
            ("{}", "prediction.type"),
            (r#"{"type": "text", "content": "a"}"#, "prediction.type"),
            (r#"{"type": "content"}"#, "prediction.content"),
            (r#"{"type": "content", "content": 7}"#, "prediction.content"),
            (
                r#"{"type": "content", "content": "abcdef"}"#,
                "prediction.content",
            ),
            (
                r#"{"type": "content", "content": [{"type": "image_url"}]}"#,
                "prediction.content[0].type",
            ),
            (
                r#"{"type": "content", "content": "a", "x": 1}"#,
                "prediction.x",
            ),
        ] {
            let mistakes = read_body(wrong).unwrap_err();
            assert_eq!(mistakes.first().map(String::as_str), Some(field), "{wrong}");
        }
    }
}
