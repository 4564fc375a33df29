//! Arithmetic, comparisons and conversions.

use super::{Lowering, NONE};
use crate::ptx::op::{
    Long, LongOp, Op, Predicate, PredicateOp, Reading, Relation, Shift, Word, WordOp,
};

impl Lowering<'_, '_> {
    pub(super) fn arithmetic(&mut self) -> Result<(), String> {
        self.expect_plain()?;
        match self.kind() {
            "pred" => self.of_predicates(),
            "b64" | "s64" | "u64" => self.of_longs(),
            "f32" => self.of_floats(),
            "f16x2" => self.of_halves(),
            _ if self.has("wide") => {
                let (to, of) = (self.long_or_word(), [self.word(1)?, self.word(2)?]);
                self.multiply_wide(to, of)
            }
            _ => self.of_words(),
        }
    }

    /// Refuses integers and predicates with a carry, saturation or another modifier of the result.
    fn expect_plain(&self) -> Result<(), String> {
        let [name, parts @ .., kind] = self.text.opcode.as_slice() else {
            return Err("not known".to_owned());
        };
        let is_plain = match *name {
            _ if matches!(*kind, "f32" | "f16x2") => true,
            "mul" | "mad" => matches!(parts, ["lo" | "hi" | "wide"]),
            "bfind" => parts == ["shiftamt"],
            _ => parts.is_empty(),
        };
        is_plain.then_some(()).ok_or_else(|| "not known".to_owned())
    }

    fn long_or_word(&self) -> Result<usize, String> {
        self.long_slot(0)
    }

    /// Product of 16-bit operands as a word, of 32-bit operands as a long.
    fn multiply_wide(&mut self, to: Result<usize, String>, of: [Word; 2]) -> Result<(), String> {
        match self.kind() {
            "u16" => {
                let to = self.word_slot(0)?;
                self.push_word(WordOp::Multiply, to, &of);
                Ok(())
            }
            kind @ ("s32" | "u32") => {
                let signed = kind == "s32";
                self.push(Op::MultiplyWide {
                    signed,
                    to: to?,
                    of,
                })
            }
            other => Err(format!("wide products of {other}")),
        }
    }

    fn of_predicates(&mut self) -> Result<(), String> {
        let op = match self.text.opcode[0] {
            "and" => PredicateOp::And,
            "or" => PredicateOp::Or,
            "xor" => PredicateOp::Xor,
            "not" => PredicateOp::Not,
            other => return Err(format!("{other} of predicates")),
        };
        let second = match op {
            PredicateOp::Not => Predicate::Same(false),
            _ => self.predicate(2)?,
        };
        let op = Op::Predicate(op, self.predicate_slot(0)?, [self.predicate(1)?, second]);
        self.push(op)
    }

    fn of_longs(&mut self) -> Result<(), String> {
        let signed = self.kind() == "s64";
        let name = self.text.opcode[0];
        let shift = match name {
            "shl" => Some(Shift::Left),
            "shr" if signed => Some(Shift::RightSigned),
            "shr" => Some(Shift::RightUnsigned),
            _ => None,
        };
        let to = self.long_slot(0)?;
        if let Some(shift) = shift {
            let op = Op::LongShift(shift, to, self.long(1)?, self.word(2)?);
            return self.push(op);
        }
        if name == "bfi" {
            let op = Op::LongInsertBits(
                to,
                [self.long(1)?, self.long(2)?],
                [self.word(3)?, self.word(4)?],
            );
            return self.push(op);
        }
        let op = match (name, signed) {
            ("add", _) => LongOp::Add,
            ("sub", _) => LongOp::Subtract,
            ("mul", _) if self.has("lo") => LongOp::Multiply,
            ("mul", false) if self.has("hi") => LongOp::MultiplyHighUnsigned,
            ("div", true) => LongOp::DivideSigned,
            ("div", false) => LongOp::DivideUnsigned,
            ("rem", true) => LongOp::RemainderSigned,
            ("rem", false) => LongOp::RemainderUnsigned,
            ("and", _) => LongOp::And,
            ("or", _) => LongOp::Or,
            ("xor", _) => LongOp::Xor,
            ("not", _) => LongOp::Not,
            ("max", true) => LongOp::MaxSigned,
            ("min", true) => LongOp::MinSigned,
            ("max", false) => LongOp::MaxUnsigned,
            ("min", false) => LongOp::MinUnsigned,
            _ => return Err("not known".to_owned()),
        };
        let second = match op {
            LongOp::Not => Long::Same(0),
            _ => self.long(2)?,
        };
        let op = Op::Long(op, to, [self.long(1)?, second]);
        self.push(op)
    }

    fn of_floats(&mut self) -> Result<(), String> {
        let op = match self.text.opcode.as_slice() {
            ["add", "rn", "ftz", "f32"] => WordOp::AddFloatFlushed,
            ["add", "f32"] | ["add", "rn", "f32"] => WordOp::AddFloat,
            ["sub", "f32"] | ["sub", "rn", "f32"] => WordOp::SubtractFloat,
            ["mul", "f32"] | ["mul", "rn", "f32"] => WordOp::MultiplyFloat,
            ["div", "rn" | "approx", "f32"] => WordOp::DivideFloat,
            ["fma", "rn", "f32"] => WordOp::FusedFloat,
            ["fma", "rm", "f32"] => WordOp::FusedFloatDown,
            ["max", "f32"] => WordOp::MaxFloat,
            ["min", "f32"] => WordOp::MinFloat,
            ["abs", "f32"] => WordOp::AbsoluteFloat,
            ["neg", "f32"] => WordOp::NegateFloat,
            ["ex2", "approx", "f32"] => WordOp::Exp2,
            ["ex2", "approx", "ftz", "f32"] => WordOp::Exp2Flushed,
            ["rsqrt", "approx", "f32"] => WordOp::ReciprocalRoot,
            ["rsqrt", "approx", "ftz", "f32"] => WordOp::ReciprocalRootFlushed,
            _ => return Err("not known".to_owned()),
        };
        self.words_to_word(op)
    }

    fn of_halves(&mut self) -> Result<(), String> {
        let op = match self.text.opcode.as_slice() {
            ["sub", "f16x2"] => WordOp::SubtractHalves,
            ["mul", "f16x2"] => WordOp::MultiplyHalves,
            ["fma", "rn", "f16x2"] => WordOp::FusedHalves,
            _ => return Err("not known".to_owned()),
        };
        self.words_to_word(op)
    }

    /// Operation on all operands but the first, which is the result.
    fn words_to_word(&mut self, op: WordOp) -> Result<(), String> {
        let to = self.word_slot(0)?;
        let mut of = [NONE; 4];
        let count = self.text.operands.len() - 1;
        for (index, word) in of.iter_mut().enumerate().take(count) {
            *word = self.word(index + 1)?;
        }
        self.push_word(op, to, &of[..count]);
        Ok(())
    }

    fn of_words(&mut self) -> Result<(), String> {
        let kind = self.kind();
        let signed = matches!(kind, "s32" | "s16");
        let is_half = matches!(kind, "b16" | "u16" | "s16");
        let op = match (self.text.opcode[0], signed) {
            ("add", _) => WordOp::Add,
            ("sub", _) => WordOp::Subtract,
            ("mul", _) if self.has("lo") => WordOp::Multiply,
            ("mul", true) if self.has("hi") && !is_half => WordOp::MultiplyHighSigned,
            ("mul", false) if self.has("hi") && !is_half => WordOp::MultiplyHighUnsigned,
            ("mad", _) if self.has("lo") => WordOp::MultiplyAdd,
            ("div", true) if !is_half => WordOp::DivideSigned,
            ("div", false) => WordOp::DivideUnsigned,
            ("rem", true) if !is_half => WordOp::RemainderSigned,
            ("rem", false) => WordOp::RemainderUnsigned,
            ("shl", _) => WordOp::ShiftLeft,
            ("shr", true) if !is_half => WordOp::ShiftRightSigned,
            ("shr", false) => WordOp::ShiftRightUnsigned,
            ("and", _) => WordOp::And,
            ("or", _) => WordOp::Or,
            ("xor", _) => WordOp::Xor,
            ("not", _) => WordOp::Not,
            ("neg", true) => WordOp::Negate,
            ("max", true) if !is_half => WordOp::MaxSigned,
            ("min", true) if !is_half => WordOp::MinSigned,
            ("max", false) => WordOp::MaxUnsigned,
            ("min", false) => WordOp::MinUnsigned,
            ("lop3", _) => return self.lop3(),
            ("prmt", _) => WordOp::Permute,
            ("bfi", _) => WordOp::InsertBits,
            ("bfind", false) if self.has("shiftamt") => WordOp::LeadingZeros,
            ("brev", _) => WordOp::ReverseBits,
            ("popc", _) => WordOp::CountBits,
            _ => return Err("not known".to_owned()),
        };
        self.words_to_word(op)?;
        if is_half {
            let to = self.word_slot(0)?;
            self.push_word(WordOp::And, to, &[Word::Slot(to), Word::Same(0xFFFF)]);
        }
        Ok(())
    }

    fn lop3(&mut self) -> Result<(), String> {
        let Word::Same(table) = self.word(4)? else {
            return Err("a table that is no number".to_owned());
        };
        let (to, of) = (
            self.word_slot(0)?,
            [self.word(1)?, self.word(2)?, self.word(3)?],
        );
        self.push_word(WordOp::Lop3(table as u8), to, &of);
        Ok(())
    }

    pub(super) fn compare(&mut self) -> Result<(), String> {
        // With a third part or a fourth operand, another predicate takes part.
        let [_, name, _] = *self.text.opcode.as_slice() else {
            return Err("not known".to_owned());
        };
        if self.text.operands.len() != 3 {
            return Err("not three operands".to_owned());
        }
        let (relation, unordered) = match name.strip_suffix('u') {
            Some(relation) if relation.len() > 1 => (relation, true),
            _ => (name, false),
        };
        let relation = match relation {
            "nan" | "eq" => Relation::Equal,
            "ne" => Relation::NotEqual,
            "lt" | "lo" => Relation::Less,
            "le" | "ls" => Relation::LessOrEqual,
            "gt" | "hi" => Relation::Greater,
            "ge" | "hs" => Relation::GreaterOrEqual,
            other => return Err(format!("relation {other}")),
        };
        let reading = match (self.kind(), unordered) {
            ("f32", _) if name == "nan" => Reading::NoNumber,
            ("f32", false) => Reading::Float,
            ("f32", true) => Reading::FloatUnordered,
            ("s32" | "s64", _) => Reading::Signed,
            ("s16", _) if !matches!(relation, Relation::Equal | Relation::NotEqual) => {
                return Err("not known".to_owned());
            }
            _ => Reading::Unsigned,
        };
        let to = self.predicate_slot(0)?;
        let op = match self.kind() {
            "s64" | "u64" | "b64" => {
                Op::CompareLongs(relation, reading, to, [self.long(1)?, self.long(2)?])
            }
            _ => Op::CompareWords(relation, reading, to, [self.word(1)?, self.word(2)?]),
        };
        self.push(op)
    }

    /// `cvt.to.from`, with a rounding in front.
    pub(super) fn convert(&mut self) -> Result<(), String> {
        let parts = &self.text.opcode[1..];
        let op = match parts {
            ["s64", "s32"] => return self.widen(true),
            ["u64", "u32"] => return self.widen(false),
            ["u32" | "s32", "u64" | "s64"] => {
                let op = Op::Narrow(self.word_slot(0)?, self.long(1)?);
                return self.push(op);
            }
            ["u16" | "s16", "u32" | "s32"] => {
                let (to, from) = (self.word_slot(0)?, self.word(1)?);
                self.push_word(WordOp::And, to, &[from, Word::Same(0xFFFF)]);
                return Ok(());
            }
            ["u32" | "s32", "u16"] => WordOp::Copy,
            ["s32", "s8"] => WordOp::SignExtend8,
            ["rn", "f16x2", "f32"] => WordOp::HalvesFromFloats,
            ["rn", "f16", "f32"] => WordOp::HalfFromFloat,
            ["f32", "f16"] => WordOp::FloatFromHalf,
            ["rn", "f32", "s32"] => WordOp::FloatFromSigned,
            ["rn", "f32", "u32" | "u16"] => WordOp::FloatFromUnsigned,
            ["sat", "f32", "f32"] => WordOp::Saturate,
            _ => return Err("not known".to_owned()),
        };
        self.words_to_word(op)
    }

    fn widen(&mut self, signed: bool) -> Result<(), String> {
        let to = self.long_slot(0)?;
        if let Ok(from) = self.long(1) {
            // The lower half of it.
            let right = if signed {
                Shift::RightSigned
            } else {
                Shift::RightUnsigned
            };
            self.push(Op::LongShift(Shift::Left, to, from, Word::Same(32)))?;
            return self.push(Op::LongShift(right, to, Long::Slot(to), Word::Same(32)));
        }
        let of = [self.word(1)?, Word::Same(1)];
        self.push(Op::MultiplyWide { signed, to, of })
    }
}
