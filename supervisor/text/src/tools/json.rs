//! Incremental JSON parser (RFC 8259): reads one character at a time and checks that the text so far begins one value.
//!
//! The parser keeps no text. Its memory is one entry per level of nesting, at most [`MAX_DEPTH`].

/// Maximum nesting depth of arguments. A deeper text is not a call.
pub(crate) const MAX_DEPTH: usize = 64;

/// Error: the text so far begins no JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// Position in the grammar: kind of the next character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Value expected. `may_close`: the list is still empty and may end here.
    Value {
        may_close: bool,
    },
    /// Key expected. `may_close`: the object is still empty and may end here.
    Key {
        may_close: bool,
    },
    /// Colon after a key expected.
    Colon,
    /// Comma or closing bracket expected, after a value in an object or list.
    Separator,
    /// Inside a string, which is a key or a value.
    Text {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// Rest of `true`, `false` or `null`.
    Word(&'static str),
    /// Value is complete.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    None,
    Begun,
    /// Number of hexadecimal digits left.
    Digits(u8),
}

/// Part of a number to which the last character belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nest {
    Object,
    List,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Json {
    place: Place,
    nests: Vec<Nest>,
}

impl Default for Json {
    fn default() -> Self {
        Self {
            place: Place::Value { may_close: false },
            nests: Vec::new(),
        }
    }
}

impl Json {
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Number of open objects and lists.
    pub(crate) fn depth(&self) -> usize {
        self.nests.len()
    }

    /// True if the text so far is a complete value. A number may still grow.
    pub(crate) fn is_whole(&self) -> bool {
        match self.place {
            Place::End => true,
            Place::Number(number) => self.nests.is_empty() && number.may_end(),
            _ => false,
        }
    }

    /// Brackets that close all open objects and lists, the innermost first.
    pub(crate) fn closing(&self) -> String {
        let close = |nest: &Nest| match nest {
            Nest::Object => '}',
            Nest::List => ']',
        };
        self.nests.iter().rev().map(close).collect()
    }

    pub(crate) fn push(&mut self, c: char) -> Result<(), Broken> {
        if let Place::Number(number) = self.place {
            match number.next(c) {
                Some(next) => {
                    self.place = Place::Number(next);
                    return Ok(());
                }
                // Only the following character shows the end of a number.
                None if number.may_end() => self.place = self.behind_value(),
                None => return Err(Broken),
            }
        }
        self.place = match self.place {
            Place::Text { is_key, escape } => self.in_text(c, is_key, escape)?,
            Place::Word(rest) => match rest.strip_prefix(c).ok_or(Broken)? {
                "" => self.behind_value(),
                rest => Place::Word(rest),
            },
            place if matches!(c, ' ' | '\t' | '\n' | '\r') => place,
            Place::Value { may_close } => self.value(c, may_close)?,
            Place::Key { may_close } => match c {
                '"' => Place::Text {
                    is_key: true,
                    escape: Escape::None,
                },
                '}' if may_close => self.close(Nest::Object)?,
                _ => return Err(Broken),
            },
            Place::Colon if c == ':' => Place::Value { may_close: false },
            Place::Separator => self.separator(c)?,
            Place::Colon | Place::End | Place::Number(_) => return Err(Broken),
        };
        Ok(())
    }

    fn value(&mut self, c: char, may_close: bool) -> Result<Place, Broken> {
        Ok(match c {
            '{' => {
                self.open(Nest::Object)?;
                Place::Key { may_close: true }
            }
            '[' => {
                self.open(Nest::List)?;
                Place::Value { may_close: true }
            }
            ']' if may_close => self.close(Nest::List)?,
            '"' => Place::Text {
                is_key: false,
                escape: Escape::None,
            },
            't' => Place::Word("rue"),
            'f' => Place::Word("alse"),
            'n' => Place::Word("ull"),
            '-' => Place::Number(Number::Minus),
            '0' => Place::Number(Number::Zero),
            '1'..='9' => Place::Number(Number::Digits),
            _ => return Err(Broken),
        })
    }

    fn in_text(&self, c: char, is_key: bool, escape: Escape) -> Result<Place, Broken> {
        let escape = match (escape, c) {
            (Escape::None, '"') if is_key => return Ok(Place::Colon),
            (Escape::None, '"') => return Ok(self.behind_value()),
            (Escape::None, '\\') => Escape::Begun,
            (Escape::None, '\0'..='\u{1f}') => return Err(Broken),
            (Escape::None, _) => Escape::None,
            (Escape::Begun, 'u') => Escape::Digits(4),
            (Escape::Begun, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Digits(1), _) if c.is_ascii_hexdigit() => Escape::None,
            (Escape::Digits(left), _) if c.is_ascii_hexdigit() => Escape::Digits(left - 1),
            (Escape::Begun | Escape::Digits(_), _) => return Err(Broken),
        };
        Ok(Place::Text { is_key, escape })
    }

    fn separator(&mut self, c: char) -> Result<Place, Broken> {
        match (self.nests.last(), c) {
            (Some(Nest::Object), ',') => Ok(Place::Key { may_close: false }),
            (Some(Nest::List), ',') => Ok(Place::Value { may_close: false }),
            (Some(Nest::Object), '}') => self.close(Nest::Object),
            (Some(Nest::List), ']') => self.close(Nest::List),
            _ => Err(Broken),
        }
    }

    fn open(&mut self, nest: Nest) -> Result<(), Broken> {
        if self.nests.len() == MAX_DEPTH {
            return Err(Broken);
        }
        self.nests.push(nest);
        Ok(())
    }

    fn close(&mut self, nest: Nest) -> Result<Place, Broken> {
        match self.nests.pop() {
            Some(open) if open == nest => Ok(self.behind_value()),
            _ => Err(Broken),
        }
    }

    fn behind_value(&self) -> Place {
        match self.nests.is_empty() {
            true => Place::End,
            false => Place::Separator,
        }
    }
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Digits, '0'..='9') => Self::Digits,
            (Self::Zero | Self::Digits, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::Sign,
            (Self::Exponent | Self::Sign | Self::Power, '0'..='9') => Self::Power,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(
            self,
            Self::Zero | Self::Digits | Self::Fraction | Self::Power
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `Some(true)`: a complete value. `Some(false)`: the beginning of one. `None`: neither.
    fn read(text: &str) -> Option<bool> {
        let mut json = Json::default();
        for c in text.chars() {
            json.push(c).ok()?;
        }
        Some(json.is_whole())
    }

    proptest! {
        /// Reference for texts that are nearly JSON: `serde_json`.
        #[test]
        fn it_is_whole_where_another_parser_reads_it(pieces in proptest::collection::vec(
            prop_oneof![
                Just("{"), Just("}"), Just("["), Just("]"), Just(","), Just(":"), Just("\"a\""), Just("\""),
                Just("\\"), Just("\\n"), Just("\\u00e9"), Just("\\u"), Just("0"), Just("-1"), Just(".5"), Just("e3"),
                Just("1E+2"), Just("true"), Just("false"), Just("null"), Just(" "), Just("\n"), Just("é"), Just("x"),
            ],
            0..7,
        )) {
            let text = pieces.concat();
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(read(&text) == Some(true), is_json, "{}", text);
        }
    }

    #[test]
    fn every_beginning_of_a_value_is_one_and_what_is_wrong_is_found_at_once() {
        let text = "{\"a\": [1, -2.5e+3, \"\\\"\\u00e9\", {}, [], true, null], \"\": {\"b\": 0}}";
        for (at, _) in text.char_indices() {
            assert_eq!(read(&text[..at]), Some(false), "{at}");
        }
        assert_eq!(read(text), Some(true));
        for wrong in [
            "{a", "{,", "[1 2", "01", "1.e", "\"\n", "\"\\x", "{}}", "[}", "tru ", "{\"a\" 1",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
            assert!(read(&wrong[..wrong.len() - 1]).is_some(), "{wrong}");
        }
    }

    #[test]
    fn nesting_has_a_bound() {
        assert_eq!(read(&"[".repeat(MAX_DEPTH)), Some(false));
        assert_eq!(read(&"[".repeat(MAX_DEPTH + 1)), None);
    }
}
