//! Registers that an instruction reads and writes.

use super::op::{Address, Instruction, Long, Op, Predicate, Slot, Source, Target, Word};

/// File of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    Words,
    Longs,
    Predicates,
}

/// Use of a register or constant.
#[derive(Debug)]
pub enum Use<'a> {
    Read(File, &'a mut Slot),
    Write(File, &'a mut Slot),
    Word(&'a mut Word),
    Long(&'a mut Long),
}

impl Instruction {
    /// Visits all uses, reads first.
    pub fn each_use(&mut self, show: &mut dyn FnMut(Use<'_>)) {
        if let Some(guard) = &mut self.guard {
            show(Use::Read(File::Predicates, &mut guard.predicate));
        }
        self.op.each_read(show);
        self.op.each_write(show);
    }
}

fn word(word: &mut Word, show: &mut dyn FnMut(Use<'_>)) {
    match word {
        Word::Slot(slot) => show(Use::Read(File::Words, slot)),
        Word::Same(_) => show(Use::Word(word)),
    }
}

fn long(long: &mut Long, show: &mut dyn FnMut(Use<'_>)) {
    match long {
        Long::Slot(slot) => show(Use::Read(File::Longs, slot)),
        Long::Same(_) => show(Use::Long(long)),
    }
}

fn predicate(predicate: &mut Predicate, show: &mut dyn FnMut(Use<'_>)) {
    if let Predicate::Slot(slot) = predicate {
        show(Use::Read(File::Predicates, slot));
    }
}

fn source(source: &mut Source, show: &mut dyn FnMut(Use<'_>)) {
    match source {
        Source::Word(it) => word(it, show),
        Source::Long(it) => long(it, show),
    }
}

fn address(address: &mut Address, show: &mut dyn FnMut(Use<'_>)) {
    source(&mut address.base, show);
}

fn target(target: &mut Target, show: &mut dyn FnMut(Use<'_>)) {
    match target {
        Target::Word(slot) => show(Use::Write(File::Words, slot)),
        Target::Long(slot) => show(Use::Write(File::Longs, slot)),
    }
}

impl Op {
    fn each_read(&mut self, show: &mut dyn FnMut(Use<'_>)) {
        match self {
            Self::Word(_, _, of) => of.iter_mut().for_each(|it| word(it, show)),
            Self::Long(_, _, of) | Self::CompareLongs(_, _, _, of) => {
                of.iter_mut().for_each(|it| long(it, show))
            }
            Self::LongShift(_, _, value, by) => {
                long(value, show);
                word(by, show);
            }
            Self::LongInsertBits(_, of, place) => {
                of.iter_mut().for_each(|it| long(it, show));
                place.iter_mut().for_each(|it| word(it, show));
            }
            Self::MultiplyWide { of, .. } | Self::Join(_, of) | Self::CompareWords(_, _, _, of) => {
                of.iter_mut().for_each(|it| word(it, show));
            }
            Self::Narrow(_, from) | Self::Split(_, from) => long(from, show),
            Self::Predicate(_, _, of) => of.iter_mut().for_each(|it| predicate(it, show)),
            Self::ChooseWord(_, of, by) => {
                of.iter_mut().for_each(|it| word(it, show));
                predicate(by, show);
            }
            Self::ChooseLong(_, of, by) => {
                of.iter_mut().for_each(|it| long(it, show));
                predicate(by, show);
            }
            Self::Load(_, _, place) | Self::LoadMatrix(_, place) => address(place, show),
            Self::Store(_, from, place) => {
                from.iter_mut().for_each(|it| source(it, show));
                address(place, show);
            }
            Self::Atomic(atomic) => {
                address(&mut atomic.address, show);
                source(&mut atomic.value, show);
            }
            Self::CopyAsync { to, from, read, .. } => {
                address(to, show);
                address(from, show);
                read.iter_mut().for_each(|it| word(it, show));
            }
            Self::CopyBulk {
                to,
                from,
                bytes,
                at,
            } => {
                [to, from, at].into_iter().for_each(|it| address(it, show));
                word(bytes, show);
            }
            Self::StartBarrier(at, of)
            | Self::Arrive { at, count: of, .. }
            | Self::TryWait(_, at, of) => {
                address(at, show);
                word(of, show);
            }
            Self::Barrier(of) => of.iter_mut().flatten().for_each(|it| word(it, show)),
            Self::BarrierAnd(_, holds) => predicate(holds, show),
            Self::VoteAny(_, holds, mask) => {
                predicate(holds, show);
                word(mask, show);
            }
            Self::SyncWarp(mask) => word(mask, show),
            Self::Shuffle {
                value,
                by,
                clamp,
                mask,
                ..
            } => {
                [value, by, clamp, mask]
                    .into_iter()
                    .for_each(|it| word(it, show));
            }
            Self::Reduce(_, _, value, mask) | Self::MatchAny(_, value, mask) => {
                word(value, show);
                word(mask, show);
            }
            Self::MatrixProduct { a, b, c, .. } => {
                a.iter_mut().chain(b).chain(c).for_each(|it| word(it, show));
            }
            Self::Special(..)
            | Self::ActiveMask(_)
            | Self::CommitCopies
            | Self::WaitCopies { .. }
            | Self::Branch(_)
            | Self::Exit
            | Self::Trap
            | Self::Fence => {}
        }
    }

    fn each_write(&mut self, show: &mut dyn FnMut(Use<'_>)) {
        match self {
            Self::Word(_, to, _)
            | Self::Narrow(to, _)
            | Self::ChooseWord(to, ..)
            | Self::Special(to, _)
            | Self::Reduce(_, to, ..)
            | Self::MatchAny(to, ..)
            | Self::ActiveMask(to) => show(Use::Write(File::Words, to)),
            Self::Long(_, to, _)
            | Self::LongShift(_, to, ..)
            | Self::LongInsertBits(to, ..)
            | Self::MultiplyWide { to, .. }
            | Self::Join(to, _)
            | Self::ChooseLong(to, ..) => show(Use::Write(File::Longs, to)),
            Self::Split(to, _) => to
                .iter_mut()
                .for_each(|it| show(Use::Write(File::Words, it))),
            Self::CompareWords(_, _, to, _)
            | Self::CompareLongs(_, _, to, _)
            | Self::Predicate(_, to, _)
            | Self::TryWait(to, ..)
            | Self::VoteAny(to, ..)
            | Self::BarrierAnd(to, _) => show(Use::Write(File::Predicates, to)),
            Self::Load(_, to, _) => to.iter_mut().for_each(|it| target(it, show)),
            Self::Atomic(atomic) => atomic.to.iter_mut().for_each(|it| target(it, show)),
            Self::Shuffle { to, valid, .. } => {
                show(Use::Write(File::Words, to));
                valid
                    .iter_mut()
                    .for_each(|it| show(Use::Write(File::Predicates, it)));
            }
            Self::LoadMatrix(to, _) | Self::MatrixProduct { to, .. } => {
                to.iter_mut()
                    .for_each(|it| show(Use::Write(File::Words, it)));
            }
            _ => {}
        }
    }
}
