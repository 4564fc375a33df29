//! Register allocation: PTX has a register for each value, and most values are short-lived.
//!
//! A value lives from the first instruction that may have it to the last, in text order; two that never live at the
//! same time share a register. Constants get registers of their own, which are never written, so that every operand is
//! a register. (Poletto and Sarkar: "Linear scan register allocation", 1999.)

use super::names::Counts;
use super::op::{Instruction, Long, Op, Slot, Word};
use super::slots::{File, Use};
use std::collections::{BTreeSet, HashMap};

/// Constants in registers before the first instruction.
#[derive(Debug, Default)]
pub struct Constants {
    pub words: Vec<u32>,
    pub longs: Vec<u64>,
}

/// Renumbers the registers, and returns how many there are.
pub fn assign(instructions: &mut [Instruction], counts: &mut Counts) -> Constants {
    let lives = lives(instructions, *counts);
    let mut constants = Constants::default();
    let (mut words, mut longs) = (HashMap::new(), HashMap::new());
    for instruction in instructions.iter_mut() {
        instruction.each_use(&mut |it| match it {
            Use::Word(Word::Same(value)) => {
                words
                    .entry(*value)
                    .or_insert_with(|| place(&mut constants.words, *value));
            }
            Use::Long(Long::Same(value)) => {
                longs
                    .entry(*value)
                    .or_insert_with(|| place(&mut constants.longs, *value));
            }
            _ => {}
        });
    }
    let first = [constants.words.len(), constants.longs.len(), 0];
    let maps = [0, 1, 2].map(|file| share(&lives[file], first[file]));
    for instruction in instructions {
        instruction.each_use(&mut |it| match it {
            Use::Read(file, slot) | Use::Write(file, slot) => {
                *slot = maps[file as usize].slots[*slot]
            }
            Use::Word(word) => {
                if let Word::Same(value) = word {
                    *word = Word::Slot(words[value]);
                }
            }
            Use::Long(long) => {
                if let Long::Same(value) = long {
                    *long = Long::Slot(longs[value]);
                }
            }
        });
    }
    let [words, longs, predicates] = maps.map(|map| map.count);
    *counts = Counts {
        words,
        longs,
        predicates,
    };
    constants
}

fn place<T>(all: &mut Vec<T>, value: T) -> Slot {
    all.push(value);
    all.len() - 1
}

/// First and last instruction of a value.
type Life = Option<(usize, usize)>;

fn lives(instructions: &mut [Instruction], counts: Counts) -> [Vec<Life>; 3] {
    let sizes = [counts.words, counts.longs, counts.predicates];
    let firsts = [0, sizes[0], sizes[0] + sizes[1]];
    let flow = Flow::new(instructions, firsts, sizes.iter().sum());
    let mut all: Vec<Life> = vec![None; flow.values];
    let mut extend = |value: usize, at: usize| {
        let life = all[value].get_or_insert((at, at));
        *life = (life.0.min(at), life.1.max(at));
    };
    for (at, instruction) in instructions.iter_mut().enumerate() {
        instruction.each_use(&mut |it| {
            if let Use::Read(file, slot) | Use::Write(file, slot) = it {
                extend(firsts[file as usize] + *slot, at);
            }
        });
    }
    for (block, range) in flow.blocks.iter().enumerate() {
        for value in members(&flow.into[block]) {
            extend(value, range.start);
        }
        for next in &flow.next[block] {
            for value in members(&flow.into[*next]) {
                extend(value, range.end - 1);
            }
        }
    }
    let mut all = all.into_iter();
    sizes.map(|size| all.by_ref().take(size).collect())
}

/// Bit for each value.
type Set = Vec<u64>;

fn members(set: &Set) -> impl Iterator<Item = usize> {
    let words = set.iter().enumerate();
    words.flat_map(|(word, bits)| {
        let mut left = *bits;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < 64).then_some(64 * word + bit)
        })
    })
}

/// Basic blocks, and the values that each needs.
struct Flow {
    values: usize,
    blocks: Vec<std::ops::Range<usize>>,
    next: Vec<Vec<usize>>,
    /// Live-in values: those that a block, or one behind it, reads before it writes them.
    into: Vec<Set>,
}

impl Flow {
    fn new(instructions: &mut [Instruction], firsts: [usize; 3], values: usize) -> Self {
        let blocks = blocks(instructions);
        let starts: HashMap<usize, usize> = blocks
            .iter()
            .enumerate()
            .map(|(index, it)| (it.start, index))
            .collect();
        let next = blocks.iter().map(|block| {
            let last = &instructions[block.end - 1];
            let branch = match last.op {
                Op::Branch(target) => Some(target),
                _ => None,
            };
            let goes_on =
                last.guard.is_some() || !matches!(last.op, Op::Branch(_) | Op::Exit | Op::Trap);
            let behind = goes_on.then_some(block.end);
            branch
                .into_iter()
                .chain(behind)
                .filter_map(|at| starts.get(&at).copied())
                .collect()
        });
        let next: Vec<Vec<usize>> = next.collect();
        let size = values.div_ceil(64);
        let mut reads = vec![vec![0; size]; blocks.len()];
        let mut writes = reads.clone();
        for (block, range) in blocks.iter().enumerate() {
            let (reads, writes): (&mut Set, &mut Set) = (&mut reads[block], &mut writes[block]);
            for instruction in &mut instructions[range.clone()] {
                // Inactive lanes keep their value.
                let is_whole = instruction.guard.is_none();
                instruction.each_use(&mut |it| {
                    let (file, slot, is_write) = match it {
                        Use::Read(file, slot) => (file, *slot, false),
                        Use::Write(file, slot) => (file, *slot, true),
                        _ => return,
                    };
                    let value = firsts[file as usize] + slot;
                    let (word, bit) = (value / 64, 1 << (value % 64));
                    if is_write && is_whole {
                        writes[word] |= bit;
                    } else if writes[word] & bit == 0 {
                        reads[word] |= bit;
                    }
                });
            }
        }
        let into = needed(reads, &writes, &next);
        Self {
            values,
            blocks,
            next,
            into,
        }
    }
}

fn blocks(instructions: &[Instruction]) -> Vec<std::ops::Range<usize>> {
    let mut starts = BTreeSet::from([0, instructions.len()]);
    for (at, instruction) in instructions.iter().enumerate() {
        if let Op::Branch(target) = instruction.op {
            starts.insert(target);
        }
        if matches!(instruction.op, Op::Branch(_) | Op::Exit | Op::Trap) {
            starts.insert(at + 1);
        }
    }
    let starts: Vec<usize> = starts.into_iter().collect();
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// Live-in values of each block, by iteration to a fixed point.
fn needed(mut into: Vec<Set>, writes: &[Set], next: &[Vec<usize>]) -> Vec<Set> {
    loop {
        let mut grew = false;
        for block in (0..into.len()).rev() {
            for behind in &next[block] {
                for word in 0..into[block].len() {
                    let more = into[*behind][word] & !writes[block][word] & !into[block][word];
                    into[block][word] |= more;
                    grew |= more != 0;
                }
            }
        }
        if !grew {
            return into;
        }
    }
}

struct Shared {
    /// New number of each old one.
    slots: Vec<Slot>,
    count: usize,
}

/// Assigns registers in the order in which lives begin.
fn share(lives: &[Life], first: usize) -> Shared {
    let mut slots = vec![first; lives.len()];
    let mut order: Vec<(usize, usize, usize)> = lives
        .iter()
        .enumerate()
        .filter_map(|(value, life)| life.map(|(from, to)| (from, to, value)))
        .collect();
    order.sort_unstable();
    let mut count = first;
    let mut free = BTreeSet::new();
    // By last instruction.
    let mut taken = BTreeSet::new();
    for (from, to, value) in order {
        while let Some((end, slot)) = taken.first().copied()
            && end < from
        {
            taken.remove(&(end, slot));
            free.insert(slot);
        }
        let slot = free.pop_first().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        taken.insert((to, slot));
        slots[value] = slot;
    }
    Shared { slots, count }
}

const _: () = assert!(
    File::Words as usize == 0 && File::Longs as usize == 1 && File::Predicates as usize == 2
);
