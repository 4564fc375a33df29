//! Text of a model file, a child, a client or a server, for a terminal or a log line.
//!
//! Such a text cannot end its line, begin another or control a terminal: control characters, line separators and marks
//! of writing direction are escaped.

/// Escapes hazardous characters by their numbers, as Rust does.
#[must_use]
pub fn printable(text: &str) -> String {
    escape(text, |c| c.escape_unicode().to_string())
}

/// Replaces each hazardous character.
pub fn escape(text: &str, escaped: impl Fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hazard(c) {
            out.push_str(&escaped(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a character is escaped. All of these are in the first plane, so four digits suffice.
#[must_use]
pub fn is_hazard(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{61c}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_is_shown_has_no_control_characters() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\u{a}b");
    }
}
