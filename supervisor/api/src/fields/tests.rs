//! Reading of objects, valid and invalid.

use super::*;

const NAMES: Names = &[&["a", "b", "c"], &["d", "e", "f"]];

#[test]
fn every_mistake_is_noted_and_no_value_is_echoed() {
    let text = "{\"a\": \"secret\", \"b\": 3, \"c\": -1, \"d\": 1.5, \"secret-field\": 1, \
                \"e\": \"xyz\", \"f\": null}";
    let mut fields = Fields::parse(text, NAMES).unwrap();
    assert_eq!(fields.number("a", 0.0..=1.0), None);
    assert_eq!(fields.number("b", 0.0..=2.0), None);
    assert_eq!(fields.integer("c", 0..=9), None);
    assert_eq!(fields.integer("d", 0..=9), None);
    assert_eq!(fields.text("e", &(1..=2)), None);
    let f = fields.boolean("f");
    assert_eq!(fields.required("f", f), None);
    let mistakes = fields.finish().unwrap_err();
    let found: Vec<_> = mistakes
        .listed()
        .iter()
        .map(|error| (error.field.as_str(), error.constraint))
        .collect();
    assert_eq!(
        found,
        [
            ("a", Constraint::Type),
            ("b", Constraint::Range),
            ("c", Constraint::Range),
            ("d", Constraint::Type),
            ("e", Constraint::Length),
            ("f", Constraint::Required),
            ("secret-field", Constraint::Unknown),
        ]
    );
    let mut errors = mistakes.listed().iter();
    assert!(errors.all(|error| !error.message.contains("secret")));
}

#[test]
fn whole_floats_are_integers_and_u64_is_kept_exactly() {
    let mut fields = Fields::parse("{\"a\": 2.0, \"b\": 18446744073709551615}", NAMES).unwrap();
    assert_eq!(fields.integer("a", 0..=9), Some(2));
    assert_eq!(fields.integer("b", 0..=u64::MAX), Some(u64::MAX));
}

#[test]
fn a_wrong_value_is_not_also_missing() {
    let mut fields = Fields::parse("{\"a\": 1}", NAMES).unwrap();
    let a = fields.text("a", &(1..=2));
    assert_eq!(fields.required("a", a), None);
    assert_eq!(fields.finish().unwrap_err().count(), 1);
}

#[test]
fn a_name_that_comes_twice_is_refused_however_it_is_written() {
    let mut fields = Fields::parse("{\"a\": 1, \"\\u0061\": 1, \"a\": null}", NAMES).unwrap();
    assert_eq!(fields.integer("a", 0..=9), Some(1));
    let mistakes = fields.finish().unwrap_err();
    assert_eq!(mistakes.count(), 2);
    assert_eq!(mistakes.listed()[0].constraint, Constraint::Duplicate);
}

#[test]
fn what_is_known_and_not_read_is_not_supported_unless_it_is_null() {
    let fields = Fields::parse("{\"a\": [1], \"b\": null}", NAMES).unwrap();
    let mistakes = fields.finish().unwrap_err();
    assert_eq!(mistakes.count(), 1);
    assert_eq!(mistakes.listed()[0].field, "a");
    assert_eq!(mistakes.listed()[0].constraint, Constraint::Unsupported);
}

#[test]
fn a_text_of_half_a_character_is_none() {
    let mut fields = Fields::parse("{\"a\": \"\\ud800\"}", NAMES).unwrap();
    assert_eq!(fields.text("a", &(0..=9)), None);
    let mistakes = fields.finish().unwrap_err();
    assert!(
        mistakes.listed()[0].message.contains("halves"),
        "{mistakes:?}"
    );
}
