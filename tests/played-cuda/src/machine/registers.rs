//! Registers of a warp: one value for each lane.

use crate::ptx::Kernel;
use crate::ptx::op::{Long, Predicate, Slot, Word};

pub const LANES: usize = 32;
/// Bit for each lane.
pub type Mask = u32;
pub type Words = [u32; LANES];
pub type Longs = [u64; LANES];

/// Value of each lane. (`array::from_fn` calls a function for each, and is not unrolled.)
#[inline(always)]
pub fn each_lane<T: Copy + Default>(value: impl Fn(usize) -> T) -> [T; LANES] {
    let mut values = [T::default(); LANES];
    for (lane, place) in values.iter_mut().enumerate() {
        *place = value(lane);
    }
    values
}

/// Maps each lane's value.
#[inline(always)]
pub fn mapped<T: Copy, U: Copy + Default>(values: &[T; LANES], of: impl Fn(T) -> U) -> [U; LANES] {
    each_lane(|lane| of(values[lane]))
}

/// Calls `run` with each lane of a mask.
#[inline(always)]
pub fn for_each_lane(mask: Mask, run: impl FnMut(usize)) {
    match mask {
        Mask::MAX => (0..LANES).for_each(run),
        _ => lanes(mask).for_each(run),
    }
}

pub fn lanes(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

#[derive(Debug)]
pub struct Registers {
    words: Vec<Words>,
    longs: Vec<Longs>,
    predicates: Vec<Mask>,
}

impl Registers {
    pub fn new(kernel: &Kernel) -> Self {
        let mut words = vec![[0; LANES]; kernel.counts.words];
        for (register, value) in words.iter_mut().zip(&kernel.constants.words) {
            *register = [*value; LANES];
        }
        let mut longs = vec![[0; LANES]; kernel.counts.longs];
        for (register, value) in longs.iter_mut().zip(&kernel.constants.longs) {
            *register = [*value; LANES];
        }
        let predicates = vec![0; kernel.counts.predicates];
        Self {
            words,
            longs,
            predicates,
        }
    }

    #[inline]
    pub fn word(&self, word: Word) -> &Words {
        match word {
            Word::Slot(slot) => &self.words[slot],
            Word::Same(_) => unreachable!("numbers are in registers"),
        }
    }

    #[inline]
    pub fn long(&self, long: Long) -> &Longs {
        match long {
            Long::Slot(slot) => &self.longs[slot],
            Long::Same(_) => unreachable!("numbers are in registers"),
        }
    }

    #[inline]
    pub fn predicate(&self, predicate: Predicate) -> Mask {
        match predicate {
            Predicate::Slot(slot) => self.predicates[slot],
            Predicate::Same(true) => Mask::MAX,
            Predicate::Same(false) => 0,
        }
    }

    #[inline]
    pub fn set_word(&mut self, to: Slot, active: Mask, values: Words) {
        let register = &mut self.words[to];
        if active == Mask::MAX {
            *register = values;
            return;
        }
        for lane in lanes(active) {
            register[lane] = values[lane];
        }
    }

    #[inline]
    pub fn set_long(&mut self, to: Slot, active: Mask, values: Longs) {
        let register = &mut self.longs[to];
        if active == Mask::MAX {
            *register = values;
            return;
        }
        for lane in lanes(active) {
            register[lane] = values[lane];
        }
    }

    #[inline]
    pub fn set_predicate(&mut self, to: Slot, active: Mask, values: Mask) {
        let register = &mut self.predicates[to];
        *register = *register & !active | values & active;
    }
}
