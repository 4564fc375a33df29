//! Names of a kernel and their meanings.

use super::op::{Long, Predicate, Slot, Source, Special, Target, Word};
use super::reader::Operand;
use std::collections::HashMap;

#[derive(Debug, Clone, Copy)]
pub enum Register {
    Word(Slot),
    Long(Slot),
    Predicate(Slot),
}

/// Registers of each file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub words: usize,
    pub longs: usize,
    pub predicates: usize,
}

/// `%r<5>` is five registers, numbered from the first.
#[derive(Debug, Clone, Copy)]
struct Declared {
    first: Register,
    count: usize,
}

#[derive(Debug, Default)]
pub struct Names<'a> {
    /// Innermost last.
    scopes: Vec<HashMap<&'a str, Declared>>,
    /// Offset of each variable in its space.
    pub variables: HashMap<&'a str, u64>,
    pub counts: Counts,
}

impl<'a> Names<'a> {
    pub fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub fn close(&mut self) {
        self.scopes.pop();
    }

    /// `.b32 %r<5>` or `.b16 low,high`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn declare_registers(&mut self, text: &'a str) -> Result<(), String> {
        let (kind, names) = text
            .trim()
            .split_once(char::is_whitespace)
            .ok_or("registers without names")?;
        for name in names.split(',').map(str::trim) {
            let (name, count) = match name.strip_suffix('>').and_then(|it| it.split_once('<')) {
                Some((name, count)) => (
                    name,
                    count.parse().map_err(|_| format!("{count} registers"))?,
                ),
                None => (name, 1),
            };
            let counts = &mut self.counts;
            let (count_of, register): (_, fn(Slot) -> Register) = match kind {
                ".pred" => (&mut counts.predicates, Register::Predicate),
                ".b16" | ".u16" | ".s16" | ".f16" | ".b32" | ".u32" | ".s32" | ".f32" => {
                    (&mut counts.words, Register::Word)
                }
                ".b64" | ".u64" | ".s64" => (&mut counts.longs, Register::Long),
                other => return Err(format!("registers of {other}")),
            };
            let first = register(*count_of);
            *count_of += count;
            let scope = self
                .scopes
                .last_mut()
                .ok_or("registers outside of a kernel")?;
            scope.insert(name, Declared { first, count });
        }
        Ok(())
    }

    fn declared(&self, name: &str) -> Option<Declared> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.get(name))
            .copied()
    }

    pub fn register(&self, name: &str) -> Option<Register> {
        if let Some(declared) = self.declared(name) {
            return Some(declared.first);
        }
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let (declared, number) = (self.declared(prefix)?, number.parse::<usize>().ok()?);
        (number < declared.count).then_some(match declared.first {
            Register::Word(slot) => Register::Word(slot + number),
            Register::Long(slot) => Register::Long(slot + number),
            Register::Predicate(slot) => Register::Predicate(slot + number),
        })
    }

    /// # Errors
    /// The operand is no word.
    pub fn word(&self, operand: &Operand<'_>) -> Result<Word, String> {
        match operand {
            Operand::Number(number) => Ok(Word::Same(*number as u32)),
            Operand::Name(name) => match (self.register(name), self.variables.get(name)) {
                (Some(Register::Word(slot)), _) => Ok(Word::Slot(slot)),
                (None, Some(variable)) => Ok(Word::Same(*variable as u32)),
                _ => Err(format!("{name} is no word")),
            },
            other => Err(format!("{other:?} is no word")),
        }
    }

    /// # Errors
    /// The operand is no long.
    pub fn long(&self, operand: &Operand<'_>) -> Result<Long, String> {
        match operand {
            Operand::Number(number) => Ok(Long::Same(*number)),
            Operand::Name(name) => match (self.register(name), self.variables.get(name)) {
                (Some(Register::Long(slot)), _) => Ok(Long::Slot(slot)),
                (None, Some(variable)) => Ok(Long::Same(*variable)),
                _ => Err(format!("{name} is no long")),
            },
            other => Err(format!("{other:?} is no long")),
        }
    }

    /// # Errors
    /// The operand is no predicate.
    pub fn predicate(&self, operand: &Operand<'_>) -> Result<Predicate, String> {
        match operand {
            Operand::Number(number) => Ok(Predicate::Same(*number != 0)),
            Operand::Name(name) => self.predicate_slot(name).map(Predicate::Slot),
            other => Err(format!("{other:?} is no predicate")),
        }
    }

    /// # Errors
    /// It is no register of this file.
    pub fn predicate_slot(&self, name: &str) -> Result<Slot, String> {
        match self.register(name) {
            Some(Register::Predicate(slot)) => Ok(slot),
            _ => Err(format!("{name} is no predicate")),
        }
    }

    /// # Errors
    /// It is no register of this file.
    pub fn word_slot(&self, operand: &Operand<'_>) -> Result<Slot, String> {
        match self.word(operand)? {
            Word::Slot(slot) => Ok(slot),
            Word::Same(_) => Err(format!("{operand:?} cannot be written")),
        }
    }

    /// # Errors
    /// It is no register of this file.
    pub fn long_slot(&self, operand: &Operand<'_>) -> Result<Slot, String> {
        match self.long(operand)? {
            Long::Slot(slot) => Ok(slot),
            Long::Same(_) => Err(format!("{operand:?} cannot be written")),
        }
    }

    /// Word or long, by the register; the width of a constant is `bytes`.
    ///
    /// # Errors
    /// The operand is neither.
    pub fn source(&self, operand: &Operand<'_>, bytes: usize) -> Result<Source, String> {
        match operand {
            Operand::Number(number) if bytes == 8 => Ok(Source::Long(Long::Same(*number))),
            Operand::Name(name) if matches!(self.register(name), Some(Register::Long(_))) => {
                self.long(operand).map(Source::Long)
            }
            _ => self.word(operand).map(Source::Word),
        }
    }

    /// # Errors
    /// The operand is neither a word nor a long.
    pub fn target(&self, operand: &Operand<'_>) -> Result<Target, String> {
        match operand {
            Operand::Name(name) => match self.register(name) {
                Some(Register::Word(slot)) => Ok(Target::Word(slot)),
                Some(Register::Long(slot)) => Ok(Target::Long(slot)),
                _ => Err(format!("{name} cannot be loaded")),
            },
            other => Err(format!("{other:?} cannot be loaded")),
        }
    }
}

/// Special register, such as `%tid.x`.
pub fn special(name: &str) -> Option<Special> {
    if name == "%laneid" {
        return Some(Special::Lane);
    }
    let (of, dimension) = name.split_once('.')?;
    let dimension = ["x", "y", "z"].iter().position(|it| *it == dimension)?;
    match of {
        "%tid" => Some(Special::Thread(dimension)),
        "%ntid" => Some(Special::Threads(dimension)),
        "%ctaid" => Some(Special::Block(dimension)),
        "%nctaid" => Some(Special::Blocks(dimension)),
        _ => None,
    }
}
