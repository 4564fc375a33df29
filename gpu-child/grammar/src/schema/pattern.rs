//! Translation of a regular expression of ECMA 262, JSON Schema's dialect, to the compiler's engine.
//!
//! Validators disagree on some syntax (`.`, `\W`, `$` …): some follow ECMA, some Python. Each is translated to the
//! intersection, so that a generated text is valid for every validator. Syntax without an equivalent in the engine is
//! refused by name.

use std::iter::Peekable;
use std::str::Chars;

/// A character that ends no line in any dialect.
const ANY: &str = r"[^\n\r\x{2028}\x{2029}]";
const EVERY: &str = r"[\x00-\x{10FFFF}]";

/// White space of both ECMA and Python, and of either.
const SPACE: &str = r" \t\n\r\f\v";
const ANY_SPACE: &str = r" \t\n\r\f\v\x1C-\x1F\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";

/// The same for digits and for word characters.
const DIGIT: &str = "0-9";
const ANY_DIGIT: &str = r"\p{Nd}";
const WORD: &str = "0-9a-zA-Z_";
const ANY_WORD: &str = r"\p{L}\p{N}_";

/// Special characters of the engine, inside a class or outside.
const MARKS: &str = r"\.+*?()|[]{}^$#&-~";

/// Excluded by each negated class. No text has it, because it has no short escape. llguidance writes a class with all
/// control characters as all short escapes, including those of `"` and `\`, though the class may exclude them.
pub(super) const NUL: &str = r"\x00";

/// Element at one position.
enum Atom {
    Char(char),
    /// The inside of a class.
    Set(String),
}

/// Translates an expression to the intersection of all dialects.
///
/// # Errors
/// The unsupported syntax.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    written_as(pattern, false)
}

/// Translates an expression to the union of all dialects.
///
/// # Errors
/// Those of [`translated`].
pub(super) fn widest(pattern: &str) -> Result<String, String> {
    written_as(pattern, true)
}

fn written_as(pattern: &str, is_widest: bool) -> Result<String, String> {
    Translation {
        rest: pattern.chars().peekable(),
        out: String::with_capacity(pattern.len() * 2),
        is_widest,
    }
    .run()
}

/// A character in the engine's syntax, inside a class or outside.
pub(super) fn written(c: char) -> String {
    match MARKS.contains(c) {
        true => format!("\\{c}"),
        false => c.to_string(),
    }
}

struct Translation<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    is_widest: bool,
}

impl Translation<'_> {
    fn run(mut self) -> Result<String, String> {
        // A quantifier is legal here.
        let mut is_repeatable = false;
        while let Some(c) = self.rest.next() {
            let was_repeatable = std::mem::replace(&mut is_repeatable, true);
            match c {
                '\\' => match self.escape(false)? {
                    Atom::Char(c) => self.literal(c),
                    Atom::Set(set) => self.out += &format!("[{set}]"),
                },
                '[' => self.class()?,
                '(' => {
                    self.group()?;
                    is_repeatable = false;
                }
                '.' => self.out += if self.is_widest { EVERY } else { ANY },
                // Python's end is also before a line end.
                '$' if self.is_widest => {
                    self.out += "\\n?$";
                    is_repeatable = false;
                }
                '^' | '$' | '|' => {
                    self.out.push(c);
                    is_repeatable = false;
                }
                ')' => self.out.push(c),
                '*' | '+' | '?' | '{' => {
                    let Some(quantifier) = self.quantifier(c)? else {
                        self.literal(c);
                        continue;
                    };
                    if !was_repeatable {
                        return Err(format!("{quantifier:?} with nothing before it to repeat"));
                    }
                    self.out += &quantifier;
                    // The choice among several matches does not change the language.
                    self.rest.next_if_eq(&'?');
                    is_repeatable = false;
                }
                c => self.literal(c),
            }
        }
        Ok(self.out)
    }

    fn literal(&mut self, c: char) {
        self.out += &written(c);
    }

    /// A group, after `(`. Names of groups have no effect on matching.
    fn group(&mut self) -> Result<(), String> {
        if self.rest.next_if_eq(&'?').is_some() {
            self.rest.next_if_eq(&'P');
            match self.rest.next() {
                Some(':') => {}
                Some('<')
                    if self
                        .rest
                        .peek()
                        .is_some_and(|c| c.is_alphabetic() || *c == '_') =>
                {
                    if !self.rest.by_ref().any(|c| c == '>') {
                        return Err("a group whose name has no end".to_owned());
                    }
                }
                Some('=' | '!' | '<') => return Err("a lookaround, \"(?…\"".to_owned()),
                _ => return Err("flags, \"(?…\"".to_owned()),
            }
        }
        self.out += "(?:";
        Ok(())
    }

    /// A quantifier; `None`: a literal brace.
    fn quantifier(&mut self, first: char) -> Result<Option<String>, String> {
        if first != '{' {
            return Ok(Some(first.to_string()));
        }
        let ahead: String = self.rest.clone().take_while(|c| *c != '}').collect();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (least, most) = ahead.split_once(',').unwrap_or((&ahead, "0"));
        if least.is_empty() && is_number(most) {
            return Err(format!("{{{ahead}}}, which says no least number"));
        }
        if !is_number(least) || !(is_number(most) || most.is_empty()) {
            return Ok(None);
        }
        // The digits and the brace.
        self.rest.nth(ahead.len());
        Ok(Some(format!("{{{ahead}}}")))
    }

    /// A class, after `[`.
    fn class(&mut self) -> Result<(), String> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.peek() == Some(&']') {
            return Err("a class that begins with \"]\"".to_owned());
        }
        self.out.push('[');
        if is_negated {
            self.out.push('^');
            self.out += NUL;
        }
        loop {
            let first = match self.member(is_negated)? {
                None => break,
                Some(Atom::Set(set)) => {
                    self.out += &set;
                    continue;
                }
                Some(Atom::Char(c)) => c,
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.next() != Some(']');
            if !is_range {
                self.literal(first);
            } else {
                self.rest.next();
                match self.member(is_negated)? {
                    Some(Atom::Char(last)) if first <= last => {
                        // See `NUL`.
                        self.literal(first.max('\u{1}').min(last));
                        self.out.push('-');
                        self.literal(last);
                    }
                    _ => return Err(format!("a range from {first:?} without an end")),
                }
            }
        }
        self.out.push(']');
        Ok(())
    }

    /// A member of a class; `None`: the end of the class.
    fn member(&mut self, is_negated: bool) -> Result<Option<Atom>, String> {
        match self.rest.next() {
            None => Err("a class without an end".to_owned()),
            Some(']') => Ok(None),
            Some('\\') if self.rest.next_if_eq(&'b').is_some() => Ok(Some(Atom::Char('\u{8}'))),
            Some('\\') => self.escape(is_negated).map(Some),
            Some(c) => Ok(Some(Atom::Char(c))),
        }
    }

    /// An escape, after `\`. In a negated class it must be the union of all dialects, so that the rest is the
    /// intersection.
    fn escape(&mut self, is_negated: bool) -> Result<Atom, String> {
        let is_negated = is_negated != self.is_widest;
        let set =
            |all: &str, any: &str| Ok(Atom::Set(if is_negated { any } else { all }.to_owned()));
        let other = |all: &str, any: &str| {
            Ok(Atom::Set(format!(
                "[^{}]",
                if is_negated { all } else { any }
            )))
        };
        let c = self.rest.next().ok_or("a \"\\\" at its end")?;
        match c {
            'd' => set(DIGIT, ANY_DIGIT),
            'w' => set(WORD, ANY_WORD),
            's' => set(SPACE, ANY_SPACE),
            'D' => other(DIGIT, ANY_DIGIT),
            'W' => other(WORD, ANY_WORD),
            'S' => other(SPACE, ANY_SPACE),
            'n' => Ok(Atom::Char('\n')),
            'r' => Ok(Atom::Char('\r')),
            't' => Ok(Atom::Char('\t')),
            'f' => Ok(Atom::Char('\u{c}')),
            'v' => Ok(Atom::Char('\u{b}')),
            'x' => self.code(2),
            'u' => self.code(4),
            'p' | 'P' => self.property(c),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Ok(Atom::Char('\0')),
            c if c.is_ascii_alphanumeric() => Err(format!("\\{c}")),
            c => Ok(Atom::Char(c)),
        }
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let code: String = self.rest.by_ref().take(digits).collect();
        let is_whole = code.len() == digits && code.bytes().all(|b| b.is_ascii_hexdigit());
        is_whole.then(|| u32::from_str_radix(&code, 16).ok())?
    }

    /// A code, after `\x` or `\u`; a character above the first plane has two codes.
    fn code(&mut self, digits: usize) -> Result<Atom, String> {
        let wrong = "an escape that names no character";
        // The engine's notation, in a translated expression.
        if self.is_widest && self.rest.next_if_eq(&'{').is_some() {
            let code: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
            let c = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
            return c.map(Atom::Char).ok_or_else(|| wrong.to_owned());
        }
        let first = self.hex(digits).ok_or(wrong)?;
        let mut units = vec![first as u16];
        if (0xD800..0xDC00).contains(&first) {
            let is_pair = self.rest.next() == Some('\\') && self.rest.next() == Some('u');
            let second = self.hex(4).filter(|_| is_pair);
            units.push(second.ok_or(wrong)? as u16);
        }
        let c = char::decode_utf16(units).next();
        c.and_then(Result::ok)
            .map(Atom::Char)
            .ok_or_else(|| wrong.to_owned())
    }

    /// A Unicode property, after `\p`.
    fn property(&mut self, p: char) -> Result<Atom, String> {
        let wrong = || format!("\\{p}");
        self.rest.next_if_eq(&'{').ok_or_else(wrong)?;
        let name: String = self.rest.by_ref().take_while(|c| *c != '}').collect();
        let is_name = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_=".contains(&b));
        if name.is_empty() || !is_name {
            return Err(wrong());
        }
        Ok(Atom::Set(format!("\\{p}{{{name}}}")))
    }
}

#[cfg(test)]
mod tests {
    use super::translated;

    #[test]
    fn words_are_written_as_what_every_validator_matches() {
        for (pattern, expected) in [
            (r"^a/b\/c-[x-z-]$", r"^a/b/c\-[x-z\-]$"),
            (r"\d{2,}x*?", r"[0-9]{2,}x*"),
            (r"[^\d]\W", r"[^\x00\p{Nd}][[^\p{L}\p{N}_]]"),
            (r"[^\W_]", r"[^\x00[^0-9a-zA-Z_]_]"),
            (r"[\0-!]", "[\u{1}-!]"),
            (r"(?<year>a)|(b)|(?:c)", r"(?:a)|(?:b)|(?:c)"),
            (r"(?P<stop>a)", r"(?:a)"),
            (r"{a}[[&&~]", r"\{a\}[\[\&\&\~]"),
            (r"\u00e9\x41\uD83D\uDE00\.", "éA😀\\."),
            (r"[\b]\p{Lu}", "[\u{8}][\\p{Lu}]"),
            ("a.b", r"a[^\n\r\x{2028}\x{2029}]b"),
        ] {
            assert_eq!(translated(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_means_another_thing_elsewhere_is_refused() {
        for pattern in [
            "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?i)a", r"(a)\1", r"\bword", r"a\Z", r"\k<a>",
            "a**", "a{2}+", "*a", "a{,3}", "[]a]", "[^]", "[a", "[z-a]", r"\ud800", r"\xg0", "a\\",
            "(?<a", r"\p{", r"\01",
        ] {
            assert!(translated(pattern).is_err(), "{pattern}");
        }
    }
}
