//! One instruction of some lanes.

use super::Trouble;
use super::arithmetic;
use super::memory::Memory;
use super::registers::{LANES, Mask, each_lane, mapped};
use super::warp::Warp;
use crate::ptx::op::{Op, PredicateOp, Special};

impl Warp<'_> {
    /// # Errors
    /// The instruction fails.
    pub(super) fn execute(
        &mut self,
        op: &Op,
        active: Mask,
        memory: &mut Memory<'_>,
    ) -> Result<(), Trouble> {
        match op {
            Op::Word(op, to, of) => {
                let result = arithmetic::of_words(*op, of, &self.registers);
                self.registers.set_word(*to, active, result);
            }
            Op::Load(element, to, address) => self.load(memory, active, *element, to, address)?,
            Op::Store(element, from, address) => {
                self.store(memory, active, *element, from, address)?
            }
            Op::Atomic(atomic) => self.atomic(memory, active, atomic)?,
            Op::CopyAsync {
                to,
                from,
                bytes,
                read,
            } => {
                self.copy_async(memory, active, to, from, *bytes, *read)?;
            }
            Op::CopyBulk {
                to,
                from,
                bytes,
                at,
            } => self.copy_bulk(memory, active, [to, from, at], *bytes)?,
            Op::StartBarrier(at, count) => self.start_barrier(memory, active, at, *count)?,
            Op::Arrive {
                at,
                count,
                are_bytes,
            } => self.arrive(memory, active, at, (*count, *are_bytes))?,
            Op::TryWait(to, at, parity) => self.try_wait(memory, active, (*to, at), *parity)?,
            Op::CommitCopies => self.copies.commit(active),
            Op::WaitCopies { but } => self.wait_copies(memory, active, *but)?,
            Op::Trap => return Err(Trouble::Trap),
            Op::LoadMatrix(to, address) => self.load_matrix(memory, active, *to, address)?,
            Op::MatrixProduct { to, a, b, c } => self.matrix_product(active, *to, *a, *b, *c),
            Op::Shuffle {
                mode,
                to,
                valid,
                value,
                by,
                clamp,
                ..
            } => {
                self.shuffle(active, *mode, (*to, *valid), [*value, *by, *clamp]);
            }
            Op::Reduce(op, to, value, mask) => self.reduce(active, *op, *to, *value, *mask),
            Op::MatchAny(to, value, mask) => self.match_any(active, *to, *value, *mask),
            Op::VoteAny(to, holds, mask) => {
                let mask = self.first_of(*mask, active) & active;
                let any = self.registers.predicate(*holds) & mask != 0;
                self.registers
                    .set_predicate(*to, active, if any { Mask::MAX } else { 0 });
            }
            Op::ActiveMask(to) => self.registers.set_word(*to, active, [active; LANES]),
            Op::Special(to, special) => self.special(active, *to, *special),
            Op::SyncWarp(_) | Op::Fence => {}
            // The warp handles these itself.
            Op::Branch(_) | Op::Exit | Op::Barrier(_) | Op::BarrierAnd(..) => {}
            rest => self.move_registers(rest, active),
        }
        Ok(())
    }

    /// Operations on registers that are neither memory access nor arithmetic on words.
    fn move_registers(&mut self, op: &Op, active: Mask) {
        let registers = &mut self.registers;
        match op {
            Op::Long(op, to, of) => {
                let result = arithmetic::of_longs(*op, of.map(|it| registers.long(it)));
                registers.set_long(*to, active, result);
            }
            Op::LongShift(shift, to, value, by) => {
                let result = arithmetic::shift(*shift, registers.long(*value), registers.word(*by));
                registers.set_long(*to, active, result);
            }
            Op::LongInsertBits(to, of, [from, count]) => {
                let [bits, into] = of.map(|it| registers.long(it));
                let (from, count) = (registers.word(*from), registers.word(*count));
                let insert =
                    |lane| arithmetic::insert_bits(bits[lane], into[lane], from[lane], count[lane]);
                registers.set_long(*to, active, each_lane(insert));
            }
            Op::MultiplyWide { signed, to, of } => {
                let [a, b] = of.map(|it| registers.word(it));
                let product = |lane: usize| match signed {
                    true => (i64::from(a[lane].cast_signed()) * i64::from(b[lane].cast_signed()))
                        .cast_unsigned(),
                    false => u64::from(a[lane]) * u64::from(b[lane]),
                };
                registers.set_long(*to, active, each_lane(product));
            }
            Op::Narrow(to, from) => {
                let narrow = mapped(registers.long(*from), |value| value as u32);
                registers.set_word(*to, active, narrow);
            }
            Op::Join(to, parts) => {
                let [low, high] = parts.map(|it| registers.word(it));
                let join = |lane| u64::from(low[lane]) | u64::from(high[lane]) << 32;
                registers.set_long(*to, active, each_lane(join));
            }
            Op::Split([low, high], from) => {
                let from = *registers.long(*from);
                registers.set_word(*low, active, mapped(&from, |value| value as u32));
                registers.set_word(*high, active, mapped(&from, |value| (value >> 32) as u32));
            }
            Op::CompareWords(relation, reading, to, of) => {
                let of = of.map(|it| registers.word(it));
                registers.set_predicate(
                    *to,
                    active,
                    arithmetic::compare_words(*relation, *reading, of),
                );
            }
            Op::CompareLongs(relation, reading, to, of) => {
                let of = of.map(|it| registers.long(it));
                registers.set_predicate(
                    *to,
                    active,
                    arithmetic::compare_longs(*relation, *reading, of),
                );
            }
            Op::Predicate(op, to, of) => {
                let [a, b] = of.map(|it| registers.predicate(it));
                let result = match op {
                    PredicateOp::Copy => a,
                    PredicateOp::And => a & b,
                    PredicateOp::Or => a | b,
                    PredicateOp::Xor => a ^ b,
                    PredicateOp::Not => !a,
                };
                registers.set_predicate(*to, active, result);
            }
            Op::ChooseWord(to, of, by) => {
                let ([a, b], by) = (of.map(|it| registers.word(it)), registers.predicate(*by));
                let choose = |lane| {
                    if by >> lane & 1 == 1 {
                        a[lane]
                    } else {
                        b[lane]
                    }
                };
                registers.set_word(*to, active, each_lane(choose));
            }
            Op::ChooseLong(to, of, by) => {
                let ([a, b], by) = (of.map(|it| registers.long(it)), registers.predicate(*by));
                let choose = |lane| {
                    if by >> lane & 1 == 1 {
                        a[lane]
                    } else {
                        b[lane]
                    }
                };
                registers.set_long(*to, active, each_lane(choose));
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn special(&mut self, active: Mask, to: usize, special: Special) {
        let values = match special {
            Special::Thread(dimension) => self.threads.map(|thread| thread[dimension]),
            Special::Threads(dimension) => [self.launch.block[dimension]; LANES],
            Special::Block(dimension) => [self.place[dimension]; LANES],
            Special::Blocks(dimension) => [self.launch.grid[dimension]; LANES],
            Special::Lane => each_lane(|lane| lane as u32),
        };
        self.registers.set_word(to, active, values);
    }
}
