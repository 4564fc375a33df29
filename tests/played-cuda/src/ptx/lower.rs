//! Lowering of a statement to instructions.

mod arithmetic;
mod memory;
mod warp;

use super::names::{Names, Register, special};
use super::op::{Guard, Instruction, Long, LongOp, Op, Predicate, PredicateOp, Slot, Word, WordOp};
use super::reader::{Operand, Text};

const NONE: Word = Word::Same(0);

/// Statement that is being lowered.
struct Lowering<'a, 't> {
    text: &'t Text<'a>,
    names: &'t Names<'a>,
    ops: Vec<Op>,
}

/// Appends the instructions of a statement. Targets of branches are resolved later.
///
/// # Errors
/// The unsupported construct.
pub fn lower<'a>(
    text: &Text<'a>,
    names: &Names<'a>,
    all: &mut Vec<Instruction>,
) -> Result<(), String> {
    let ops = Vec::with_capacity(2);
    let mut lowering = Lowering { text, names, ops };
    lowering.run()?;
    let guard = match text.guard {
        Some((name, negated)) => {
            let predicate = names.predicate_slot(name)?;
            Some(Guard { predicate, negated })
        }
        None => None,
    };
    all.extend(lowering.ops.into_iter().map(|op| Instruction { guard, op }));
    Ok(())
}

impl<'a, 't> Lowering<'a, 't> {
    fn run(&mut self) -> Result<(), String> {
        match self.text.opcode[0] {
            "mov" | "cvta" => self.copy(),
            "cvt" => self.convert(),
            "setp" => self.compare(),
            "selp" => self.choose(),
            "ld" | "st" | "atom" | "red" | "cp" => self.memory(),
            "mbarrier" => self.barrier(),
            "bar" | "shfl" | "redux" | "match" | "vote" | "activemask" | "ldmatrix" | "mma" => {
                self.warp()
            }
            "bra" => self.push(Op::Branch(0)),
            "ret" | "exit" => self.push(Op::Exit),
            "trap" => self.push(Op::Trap),
            // Registers are as many as a kernel has.
            "membar" | "fence" | "setmaxnreg" => self.push(Op::Fence),
            _ => self.arithmetic(),
        }
    }

    fn push(&mut self, op: Op) -> Result<(), String> {
        self.ops.push(op);
        Ok(())
    }

    fn operand(&self, at: usize) -> Result<&'t Operand<'a>, String> {
        self.text
            .operands
            .get(at)
            .ok_or_else(|| format!("no operand {at}"))
    }

    fn word(&self, at: usize) -> Result<Word, String> {
        self.names.word(self.operand(at)?)
    }

    fn long(&self, at: usize) -> Result<Long, String> {
        self.names.long(self.operand(at)?)
    }

    fn predicate(&self, at: usize) -> Result<Predicate, String> {
        self.names.predicate(self.operand(at)?)
    }

    fn word_slot(&self, at: usize) -> Result<Slot, String> {
        self.names.word_slot(self.operand(at)?)
    }

    fn long_slot(&self, at: usize) -> Result<Slot, String> {
        self.names.long_slot(self.operand(at)?)
    }

    fn predicate_slot(&self, at: usize) -> Result<Slot, String> {
        match self.operand(at)? {
            Operand::Name(name) => self.names.predicate_slot(name),
            other => Err(format!("{other:?} is no predicate")),
        }
    }

    /// Last part of the opcode: the operands' type.
    fn kind(&self) -> &'a str {
        self.text.opcode.last().copied().unwrap_or_default()
    }

    fn has(&self, part: &str) -> bool {
        self.text.opcode.contains(&part)
    }

    fn push_word(&mut self, op: WordOp, to: Slot, of: &[Word]) {
        let mut all = [NONE; 4];
        all[..of.len()].copy_from_slice(of);
        self.ops.push(Op::Word(op, to, all));
    }

    /// `mov` and `cvta`. All spaces share their addresses here, except that local addresses are marked.
    fn copy(&mut self) -> Result<(), String> {
        let (to, from) = (self.operand(0)?, self.operand(1)?);
        if let Operand::Vector(parts) = to {
            return self.take_apart(parts);
        }
        if let Operand::Vector(parts) = from {
            return self.put_together(parts);
        }
        let Operand::Name(name) = to else {
            return Err(format!("{to:?} cannot be written"));
        };
        match self
            .names
            .register(name)
            .ok_or_else(|| format!("{name} is not declared"))?
        {
            Register::Predicate(to) => {
                let of = [self.predicate(1)?, Predicate::Same(false)];
                self.push(Op::Predicate(PredicateOp::Copy, to, of))
            }
            Register::Long(to) if self.text.opcode == ["cvta", "local", "u64"] => {
                let of = [self.long(1)?, Long::Same(super::op::LOCAL_ADDRESSES)];
                self.push(Op::Long(LongOp::Add, to, of))
            }
            Register::Long(to) => {
                let of = [self.long(1)?, Long::Same(0)];
                self.push(Op::Long(LongOp::Copy, to, of))
            }
            Register::Word(to) => {
                if let Operand::Name(from) = from
                    && let Some(special) = special(from)
                {
                    return self.push(Op::Special(to, special));
                }
                let from = self.word(1)?;
                self.push_word(WordOp::Copy, to, &[from]);
                Ok(())
            }
        }
    }

    /// `mov.b32 {low, high}, r` and `mov.b64 {low, high}, rd`.
    fn take_apart(&mut self, parts: &[Operand<'_>]) -> Result<(), String> {
        let [low, high] = parts else {
            return Err("not two parts".to_owned());
        };
        let (low, high) = (self.names.word_slot(low)?, self.names.word_slot(high)?);
        if self.kind() == "b64" {
            let from = self.long(1)?;
            return self.push(Op::Split([low, high], from));
        }
        let from = self.word(1)?;
        self.push_word(WordOp::And, low, &[from, Word::Same(0xFFFF)]);
        self.push_word(WordOp::ShiftRightUnsigned, high, &[from, Word::Same(16)]);
        Ok(())
    }

    fn put_together(&mut self, parts: &[Operand<'_>]) -> Result<(), String> {
        let [low, high] = parts else {
            return Err("not two parts".to_owned());
        };
        let parts = [self.names.word(low)?, self.names.word(high)?];
        if self.kind() == "b64" {
            let to = self.long_slot(0)?;
            return self.push(Op::Join(to, parts));
        }
        let to = self.word_slot(0)?;
        self.push_word(WordOp::JoinHalves, to, &parts);
        Ok(())
    }

    fn choose(&mut self) -> Result<(), String> {
        let by = self.predicate(3)?;
        let op = match self.kind() {
            "b64" | "u64" | "s64" => {
                Op::ChooseLong(self.long_slot(0)?, [self.long(1)?, self.long(2)?], by)
            }
            _ => Op::ChooseWord(self.word_slot(0)?, [self.word(1)?, self.word(2)?], by),
        };
        self.push(op)
    }
}
