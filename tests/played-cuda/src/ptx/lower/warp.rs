//! Collective instructions of the threads of a block or the lanes of a warp.

use super::Lowering;
use crate::ptx::op::{Address, Op, ReduceOp, ShuffleMode, Slot, Source, Space, Word};
use crate::ptx::reader::Operand;

impl Lowering<'_, '_> {
    pub(super) fn warp(&mut self) -> Result<(), String> {
        let op = match self.text.opcode.as_slice() {
            ["bar", "warp", "sync"] => Op::SyncWarp(self.word(0)?),
            ["bar", "sync"] => match self.text.operands.as_slice() {
                [Operand::Number(0)] => Op::Barrier(None),
                [_, _] => Op::Barrier(Some([self.word(0)?, self.word(1)?])),
                _ => return Err("not known".to_owned()),
            },
            ["bar", "red", "and", "pred"] if matches!(self.operand(1)?, Operand::Number(0)) => {
                Op::BarrierAnd(self.predicate_slot(0)?, self.predicate(2)?)
            }
            ["shfl", "sync", mode, "b32"] => self.shuffle(mode)?,
            ["redux", "sync", "max", "u32"] => self.reduce(ReduceOp::MaxUnsigned)?,
            ["redux", "sync", "min", "s32"] => self.reduce(ReduceOp::MinSigned)?,
            ["match", "any", "sync", "b32"] => {
                Op::MatchAny(self.word_slot(0)?, self.word(1)?, self.word(2)?)
            }
            ["vote", "sync", "any", "pred"] => {
                Op::VoteAny(self.predicate_slot(0)?, self.predicate(1)?, self.word(2)?)
            }
            ["activemask", _] => Op::ActiveMask(self.word_slot(0)?),
            ["ldmatrix", "sync", "aligned", "m8n8", "x4", "shared", "b16"] => {
                let Operand::Place(name, offset) = self.operand(1)? else {
                    return Err("no place".to_owned());
                };
                let base = Source::Word(self.names.word(&Operand::Name(name))?);
                let address = Address {
                    space: Space::Shared,
                    base,
                    offset: *offset,
                };
                Op::LoadMatrix(self.slots(0)?, address)
            }
            [
                "mma",
                "sync",
                "aligned",
                "m16n8k16",
                "row",
                "col",
                "f32",
                "f16",
                "f16",
                "f32",
            ] => Op::MatrixProduct {
                to: self.slots(0)?,
                a: self.words(1)?,
                b: self.words(2)?,
                c: self.words(3)?,
            },
            _ => return Err("not known".to_owned()),
        };
        self.push(op)
    }

    fn reduce(&self, op: ReduceOp) -> Result<Op, String> {
        Ok(Op::Reduce(
            op,
            self.word_slot(0)?,
            self.word(1)?,
            self.word(2)?,
        ))
    }

    fn shuffle(&self, mode: &str) -> Result<Op, String> {
        let mode = match mode {
            "bfly" => ShuffleMode::Butterfly,
            "up" => ShuffleMode::Up,
            "down" => ShuffleMode::Down,
            "idx" => ShuffleMode::Index,
            other => return Err(format!("mode {other}")),
        };
        let (to, valid) = match self.operand(0)? {
            Operand::Pair(to, valid) => {
                let valid = self.names.predicate_slot(valid)?;
                (self.names.word_slot(&Operand::Name(to))?, Some(valid))
            }
            alone => (self.names.word_slot(alone)?, None),
        };
        Ok(Op::Shuffle {
            mode,
            to,
            valid,
            value: self.word(1)?,
            by: self.word(2)?,
            clamp: self.word(3)?,
            mask: self.word(4)?,
        })
    }

    fn vector<const N: usize>(&self, at: usize) -> Result<[&Operand<'_>; N], String> {
        let Operand::Vector(all) = self.operand(at)? else {
            return Err("no vector".to_owned());
        };
        let all: Vec<_> = all.iter().collect();
        all.try_into()
            .map_err(|_| format!("a vector of other than {N}"))
    }

    fn words<const N: usize>(&self, at: usize) -> Result<[Word; N], String> {
        let mut words = [Word::Same(0); N];
        for (word, operand) in words.iter_mut().zip(self.vector::<N>(at)?) {
            *word = self.names.word(operand)?;
        }
        Ok(words)
    }

    fn slots<const N: usize>(&self, at: usize) -> Result<[Slot; N], String> {
        let mut slots = [0; N];
        for (slot, operand) in slots.iter_mut().zip(self.vector::<N>(at)?) {
            *slot = self.names.word_slot(operand)?;
        }
        Ok(slots)
    }
}
