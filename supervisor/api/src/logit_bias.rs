//! `logit_bias`: biases added to the logits of single tokens, as in the OpenAI API. The names of the object are token
//! ids, and its values are numbers from -100 to 100.
//!
//! `gpu-child/sampler` defines their effect.

use crate::fields::Fields;
use crate::json::{Json, Kind};
use crate::mistakes::{Constraint, FieldError, shortened};
use crate::schema::{self, Shape};
use std::collections::BTreeMap;
use worker_orcd_ipc::{MAX_LOGIT_BIASES, Sampling, TokenId};

pub(super) const FIELD: &str = "logit_bias";

type Wrong = (Constraint, String);

/// Sorted by id; empty if absent.
pub(super) fn read(fields: &mut Fields<'_>, vocabulary: u32) -> Vec<(TokenId, f32)> {
    let Some(given) = fields.given(FIELD, || shape(vocabulary)) else {
        return Vec::new();
    };
    let mut biases = BTreeMap::new();
    let mistakes = fields.mistakes();
    let is_object = given.each_member(|name, value| {
        let read = match biases.len() {
            MAX_LOGIT_BIASES => Err((Constraint::Length, "is one too many".to_owned())),
            _ => read_bias(name, value, vocabulary),
        };
        let noted = read.and_then(|(token, bias)| match biases.insert(token, bias) {
            None => Ok(()),
            Some(_) => Err((Constraint::Duplicate, "is given more than once".to_owned())),
        });
        if let Err((constraint, rule)) = noted {
            mistakes.note(|| {
                let field = format!("{FIELD}.{}", shortened(name));
                FieldError::new(field, constraint, rule)
            });
        }
    });
    // Other servers also accept lists; an empty one has no effect.
    let is_nothing = given.kind() == Kind::List && given.is_empty();
    if !is_object && !is_nothing {
        let rule = "must be an object of numbers, by token id";
        fields.error(FIELD, Constraint::Type, rule);
    }
    biases.into_iter().collect()
}

fn read_bias(name: &str, value: Json<'_>, vocabulary: u32) -> Result<(TokenId, f32), Wrong> {
    let token = id(name).filter(|id| *id < vocabulary);
    let token = token.ok_or_else(|| {
        let rule = "is no id of the vocabulary";
        (Constraint::Range, rule.to_owned())
    })?;
    let bias = value.float();
    let bias = bias.ok_or_else(|| (Constraint::Type, "must be a number".to_owned()))?;
    let range = Sampling::LOGIT_BIAS;
    if !range.contains(&bias) {
        let rule = format!("must be from {} to {}", range.start(), range.end());
        return Err((Constraint::Range, rule));
    }
    Ok((TokenId(token), bias as f32))
}

/// Parses a canonical decimal number: digits without leading zeros.
fn id(name: &str) -> Option<u32> {
    let is_usual =
        name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    is_usual.then(|| name.parse().ok()).flatten()
}

fn shape(vocabulary: u32) -> Shape {
    let ids = schema::pattern(&pattern_up_to(vocabulary.saturating_sub(1)));
    let biases = schema::number(&Sampling::LOGIT_BIAS);
    let biases = schema::map(ids, biases, MAX_LOGIT_BIASES, &[]);
    schema::any_of([biases, schema::list(schema::anything(), &(0..=0))])
}

/// Regular expression of the canonical numbers from 0 to `last`.
fn pattern_up_to(last: u32) -> String {
    let digits = last.to_string();
    let more = digits.len() - 1;
    let mut alternatives = vec!["0".to_owned()];
    if more > 0 {
        // Numbers with fewer digits.
        alternatives.push(format!("[1-9][0-9]{{0,{}}}", more - 1));
    }
    for (place, digit) in digits.bytes().enumerate() {
        // Numbers with an equal prefix and then a smaller digit.
        let least = if place == 0 { b'1' } else { b'0' };
        if digit > least {
            let (before, least, most) = (&digits[..place], least as char, (digit - 1) as char);
            let rest = more - place;
            alternatives.push(format!("{before}[{least}-{most}][0-9]{{{rest}}}"));
        }
    }
    alternatives.push(digits);
    format!("^({})$", alternatives.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;
    use proptest::prelude::*;

    fn read_text(given: &str) -> Result<Vec<(TokenId, f32)>, Mistakes> {
        let body = format!("{{\"{FIELD}\": {given}}}");
        let mut fields = Fields::parse(&body, &[&[FIELD]]).unwrap();
        let biases = read(&mut fields, 50);
        fields.finish().map(|()| biases)
    }

    #[test]
    fn biases_are_in_the_order_of_their_ids() {
        let given = "{\"49\": -100, \"7\": 0.5, \"0\": 100}";
        let expected = [(0, 100.0), (7, 0.5), (49, -100.0)];
        let expected = expected.map(|(id, bias)| (TokenId(id), bias));
        assert_eq!(read_text(given).unwrap(), expected);
        for nothing in ["{}", "[]", "null"] {
            assert_eq!(read_text(nothing).unwrap(), [], "{nothing}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_id() {
        for (name, value) in [
            ("50", "1"),
            ("05", "1"),
            ("+5", "1"),
            ("5.0", "1"),
            ("", "1"),
            ("99999999999", "1"),
            ("word", "1"),
            ("5", "100.5"),
            ("5", "-101"),
            ("5", "null"),
            ("5", "\"1\""),
            ("5", "1, \"5\": 2"),
        ] {
            let mistakes = read_text(&format!("{{\"{name}\": {value}}}")).unwrap_err();
            let field = &mistakes.listed()[0].field;
            assert_eq!(*field, format!("{FIELD}.{name}"), "{value}");
        }
        for wrong in ["3", "[[5, 1]]", "\"5\""] {
            let mistakes = read_text(wrong).unwrap_err();
            assert_eq!(mistakes.listed()[0].field, FIELD, "{wrong}");
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let read = |count: u32| {
            let biases: Vec<_> = (0..count).map(|id| format!("\"{id}\": 1")).collect();
            let body = format!("{{\"{FIELD}\": {{{}}}}}", biases.join(","));
            let mut fields = Fields::parse(&body, &[&[FIELD]]).unwrap();
            let biases = super::read(&mut fields, u32::MAX);
            fields.finish().map(|()| biases.len())
        };
        let most = MAX_LOGIT_BIASES as u32;
        assert_eq!(read(most).unwrap(), MAX_LOGIT_BIASES);
        assert!(read(most + 1).is_err());
    }

    proptest! {
        /// The schema's pattern matches exactly the ids that the reader accepts.
        #[test]
        fn the_pattern_is_that_of_the_numbers_up_to_the_last(
            last in prop_oneof![0_u32..2000, any::<u32>()],
            number in prop_oneof![0_u64..3000, 0..=u64::from(u32::MAX) + 10],
        ) {
            let pattern = regex::Regex::new(&pattern_up_to(last)).unwrap();
            for near in [number, u64::from(last), u64::from(last) + 1] {
                let matches = pattern.is_match(&near.to_string());
                prop_assert_eq!(matches, near <= u64::from(last), "{} up to {}", near, last);
            }
            prop_assert!(!pattern.is_match("00") && !pattern.is_match(""));
        }
    }
}
