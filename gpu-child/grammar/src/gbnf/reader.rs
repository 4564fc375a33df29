//! Parser of a grammar's text, compatible with llama.cpp's.

use super::class::Class;
use super::{MAX_NESTING, MAX_REPETITIONS, MAX_RULES, Rules, Tree};
use std::collections::HashMap;

/// Parses the rules.
///
/// # Errors
/// A message with line and column.
pub(super) fn rules(text: &str) -> Result<Rules<Tree>, String> {
    let mut reader = Reader {
        text,
        at: 0,
        depth: 0,
        ids: HashMap::new(),
        found: Vec::new(),
    };
    reader.id("root", 0);
    reader.skip(true);
    while reader.peek().is_some() {
        reader.rule()?;
    }
    reader.finished()
}

struct Reader<'a> {
    text: &'a str,
    /// Position in bytes.
    at: usize,
    depth: usize,
    ids: HashMap<&'a str, usize>,
    found: Vec<Found<'a>>,
}

/// A referenced or defined rule.
struct Found<'a> {
    name: &'a str,
    /// Position of its first occurrence.
    at: usize,
    body: Option<Tree>,
}

impl<'a> Reader<'a> {
    fn finished(self) -> Result<Rules<Tree>, String> {
        if self.found[0].body.is_none() {
            return Err("it has no rule root".to_owned());
        }
        let missing = self.found.iter().find(|found| found.body.is_none());
        if let Some(Found { name, at, .. }) = missing {
            return Err(self.error(*at, &format!("no rule has the name {name}")));
        }
        let names = self.found.iter().map(|found| found.name.to_owned());
        Ok(Rules {
            names: names.collect(),
            bodies: self.found.into_iter().filter_map(|it| it.body).collect(),
        })
    }

    fn rule(&mut self) -> Result<(), String> {
        let at = self.at;
        let name = self.name();
        if name.is_empty() {
            return Err(self.error(at, "the name of a rule must stand here"));
        }
        self.skip(false);
        if !self.text[self.at..].starts_with("::=") {
            return Err(self.error(self.at, "::= must follow the name of a rule"));
        }
        self.at += 3;
        self.skip(true);
        let body = self.alternatives(false)?;
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return Err(self.error(self.at, "a rule cannot go on like this"));
        }
        self.skip(true);
        let id = self.id(name, at);
        self.found[id].body = Some(body);
        if self.found.len() > MAX_RULES {
            let why = format!("it has more than {MAX_RULES} rules");
            return Err(self.error(at, &why));
        }
        Ok(())
    }

    fn alternatives(&mut self, nested: bool) -> Result<Tree, String> {
        let mut trees = vec![self.sequence(nested)?];
        while self.peek() == Some('|') {
            self.at += 1;
            self.skip(true);
            trees.push(self.sequence(nested)?);
        }
        Ok(match trees.len() {
            1 => trees.remove(0),
            _ => Tree::Either(trees),
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Tree, String> {
        let mut trees: Vec<Tree> = Vec::new();
        while let Some(next) = self.peek() {
            let at = self.at;
            match next {
                '"' => trees.push(self.literal()?),
                '[' => trees.push(self.class()?),
                '(' => trees.push(self.group()?),
                '.' => {
                    self.at += 1;
                    trees.push(Tree::Class(Class::every()));
                }
                '<' | '!' => {
                    let why = "references to tokens are not implemented; write the text of the token as a literal";
                    return Err(self.error(at, why));
                }
                '*' | '+' | '?' | '{' => {
                    let (min, max) = self.times(nested)?;
                    let Some(last) = trees.pop() else {
                        return Err(self.error(at, &format!("{next} has nothing to repeat")));
                    };
                    trees.push(Tree::Repeat(Box::new(last), min, max));
                }
                _ if is_of_name(next) => {
                    let name = self.name();
                    trees.push(Tree::Rule(self.id(name, at)));
                }
                _ => break,
            }
            self.skip(nested);
        }
        Ok(match trees.len() {
            0 => Tree::Empty,
            1 => trees.remove(0),
            _ => Tree::Sequence(trees),
        })
    }

    fn group(&mut self) -> Result<Tree, String> {
        let at = self.at;
        if self.depth == MAX_NESTING {
            let why = format!("brackets nest deeper than {MAX_NESTING}");
            return Err(self.error(at, &why));
        }
        self.depth += 1;
        self.at += 1;
        self.skip(true);
        let tree = self.alternatives(true)?;
        if self.peek() != Some(')') {
            return Err(self.error(self.at, &format!("{} is not closed", self.place(at))));
        }
        self.at += 1;
        self.depth -= 1;
        Ok(tree)
    }

    fn literal(&mut self) -> Result<Tree, String> {
        self.at += 1;
        let mut trees = Vec::new();
        while self.peek() != Some('"') {
            trees.push(Tree::Class(Class::one(self.char()?)));
        }
        self.at += 1;
        Ok(match trees.len() {
            0 => Tree::Empty,
            1 => trees.remove(0),
            _ => Tree::Sequence(trees),
        })
    }

    fn class(&mut self) -> Result<Tree, String> {
        let at = self.at;
        self.at += 1;
        let negated = self.peek() == Some('^');
        self.at += usize::from(negated);
        let mut ranges = Vec::new();
        while self.peek() != Some(']') {
            let at = self.at;
            let first = self.char()?;
            let mut last = first;
            let rest = &self.text[self.at..];
            if rest.starts_with('-') && !rest.starts_with("-]") {
                self.at += 1;
                last = self.char()?;
            }
            if last < first {
                return Err(self.error(at, "the range ends before it begins"));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        if ranges.is_empty() {
            return Err(self.error(at, "the class is empty"));
        }
        let class = Class::new(ranges, negated);
        let class = class.ok_or_else(|| self.error(at, "no character is of this class"))?;
        Ok(Tree::Class(class))
    }

    /// A character of a literal or a class.
    fn char(&mut self) -> Result<char, String> {
        let at = self.at;
        let Some(first) = self.next() else {
            return Err(self.error(at, "the text ends inside a literal or a class"));
        };
        if first != '\\' {
            return Ok(first);
        }
        let digits = match self.next() {
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some(it @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(it),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => {
                let why = r#"\ must be followed by one of t r n \ " [ ] - x u U"#;
                return Err(self.error(at, why));
            }
        };
        let hex = self.text.get(self.at..self.at + digits);
        let hex = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(value) = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()) else {
            let why = format!("the escape must have {digits} hexadecimal digits");
            return Err(self.error(at, &why));
        };
        self.at += digits;
        char::from_u32(value).ok_or_else(|| self.error(at, "no character has this number"))
    }

    fn times(&mut self, nested: bool) -> Result<(u32, Option<u32>), String> {
        let at = self.at;
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.skip(nested);
        let min = self.number()?;
        self.skip(nested);
        let mut max = Some(min);
        if self.peek() == Some(',') {
            self.at += 1;
            self.skip(nested);
            max = match self.peek() {
                Some('0'..='9') => Some(self.number()?),
                _ => None,
            };
            self.skip(nested);
        }
        if self.next() != Some('}') {
            return Err(self.error(at, "a repetition is {m}, {m,} or {m,n}"));
        }
        if min > MAX_REPETITIONS || max.is_some_and(|max| max < min) {
            let why =
                format!("a repetition begins at {MAX_REPETITIONS} or less and ends behind it");
            return Err(self.error(at, &why));
        }
        Ok((min, max.filter(|max| *max <= MAX_REPETITIONS)))
    }

    fn number(&mut self) -> Result<u32, String> {
        let at = self.at;
        let digits = self.while_so(|next| next.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.error(at, "a number must stand here"));
        }
        // A longer one is above each limit.
        Ok(digits.parse().unwrap_or(u32::MAX))
    }

    fn name(&mut self) -> &'a str {
        self.while_so(is_of_name)
    }

    fn id(&mut self, name: &'a str, at: usize) -> usize {
        *self.ids.entry(name).or_insert_with(|| {
            let body = None;
            self.found.push(Found { name, at, body });
            self.found.len() - 1
        })
    }

    /// Skips spaces and comments.
    fn skip(&mut self, lines: bool) {
        loop {
            self.while_so(|next| {
                matches!(next, ' ' | '\t') || lines && matches!(next, '\r' | '\n')
            });
            if self.peek() != Some('#') {
                return;
            }
            self.while_so(|next| !matches!(next, '\r' | '\n'));
        }
    }

    fn while_so(&mut self, so: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|next| !so(next)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn error(&self, at: usize, why: &str) -> String {
        format!("{}: {why}", self.place(at))
    }

    fn place(&self, at: usize) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|it| *it != '\n').count() + 1;
        format!("line {line}, column {column}")
    }
}

fn is_of_name(next: char) -> bool {
    next.is_ascii_alphanumeric() || matches!(next, '-' | '_')
}
