//! JSON (RFC 8259) read one character at a time: is what came so far the beginning of one value?
//!
//! It keeps no text. Memory is one bit of meaning for each level of nesting, and those are bounded.

/// Levels of nesting. What is deeper is no call that a client could read.
pub(crate) const MAX_DEPTH: usize = 64;

/// The text so far is the beginning of no JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// What the next character belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Before a value. `may_close`: a list may end here, for it is empty.
    Value {
        may_close: bool,
    },
    /// Before a key. `may_close`: an object may end here, for it is empty.
    Key {
        may_close: bool,
    },
    /// Between a key and its value.
    Colon,
    /// Behind a value inside of something.
    Separator,
    /// Inside of a text.
    Text {
        is_key: bool,
        escape: Escape,
    },
    Number(Number),
    /// `true`, `false` or `null`: what is still to come.
    Word(&'static str),
    /// Behind the value.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    None,
    Begun,
    /// Hexadecimal digits that are still to come.
    Digits(u8),
}

/// The part of a number that the last character belonged to.
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

    /// Objects and lists that are open.
    pub(crate) fn depth(&self) -> usize {
        self.nests.len()
    }

    /// What closes all that is open, the innermost first.
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
                // Only what follows tells where a number ends.
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

    /// `Some(true)`: a whole value; `Some(false)`: a beginning of one; `None`: neither.
    fn read(text: &str) -> Option<bool> {
        let mut json = Json::default();
        for c in text.chars() {
            json.push(c).ok()?;
        }
        let is_number_that_may_end = matches!(json.place(), Place::Number(it) if it.may_end());
        Some(json.place() == Place::End || (json.depth() == 0 && is_number_that_may_end))
    }

    proptest! {
        /// serde_json is the judge of texts that are nearly JSON.
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
