//! Collective operations of a warp's lanes.

use super::Trouble;
use super::arithmetic::{self, float_of_half};
use super::memory::Memory;
use super::registers::{LANES, Mask, Words, each_lane, lanes, mapped};
use super::warp::Warp;
use crate::ptx::op::{Address, ReduceOp, ShuffleMode, Slot, Word};

impl Warp<'_> {
    /// `shfl.sync`: each lane gets the value of another, or its own where its part of the warp has none.
    pub(super) fn shuffle(
        &mut self,
        active: Mask,
        mode: ShuffleMode,
        (to, valid): (Slot, Option<Slot>),
        of: [Word; 3],
    ) {
        let [values, by, clamp] = of.map(|it| self.registers.word(it));
        let mut result = *values;
        let mut found = 0;
        for lane in lanes(active) {
            let (by, clamp) = (by[lane] as usize & 31, clamp[lane] as usize);
            let (parts, last) = (clamp >> 8 & 31, clamp & 31);
            let least = lane & parts;
            let limit = least | last & !parts;
            let (from, is_there) = match mode {
                ShuffleMode::Up => (lane.wrapping_sub(by), lane >= by && lane - by >= limit),
                ShuffleMode::Down => (lane + by, lane + by <= limit),
                ShuffleMode::Butterfly => (lane ^ by, lane ^ by <= limit),
                ShuffleMode::Index => (least | by & !parts, least | by & !parts <= limit),
            };
            if is_there {
                result[lane] = values[from];
                found |= 1 << lane;
            }
        }
        self.registers.set_word(to, active, result);
        if let Some(valid) = valid {
            self.registers.set_predicate(valid, active, found);
        }
    }

    pub(super) fn reduce(&mut self, active: Mask, op: ReduceOp, to: Slot, value: Word, mask: Word) {
        let mask = self.first_of(mask, active) & active;
        let values = self.each(value, mask).map(|(_, value)| value);
        let result = match op {
            ReduceOp::MaxUnsigned => values.max(),
            ReduceOp::MinSigned => values.map(u32::cast_signed).min().map(i32::cast_unsigned),
        };
        let result = result.unwrap_or_default();
        self.registers.set_word(to, active, [result; LANES]);
    }

    /// Mask of the lanes with the same value, for each lane.
    pub(super) fn match_any(&mut self, active: Mask, to: Slot, value: Word, mask: Word) {
        let mask = self.first_of(mask, active) & active;
        let mut result = [0; LANES];
        for (lane, own) in self.each(value, mask) {
            let alike = self.each(value, mask).filter(|(_, other)| *other == own);
            result[lane] = alike.fold(0, |all, (other, _)| all | 1 << other);
        }
        self.registers.set_word(to, active, result);
    }

    /// `ldmatrix.x4`: lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i; lane l gets columns
    /// 2 (l mod 4) and the next of row l / 4 of each.
    pub(super) fn load_matrix(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        to: [Slot; 4],
        address: &Address,
    ) -> Result<(), Trouble> {
        let rows = self.matrix_rows(memory, active, address)?;
        for (matrix, to) in to.into_iter().enumerate() {
            let word = |lane: usize| {
                let row = &rows[8 * matrix + lane / 4];
                let at = 4 * (lane % 4);
                u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
            };
            self.registers.set_word(to, active, each_lane(word));
        }
        Ok(())
    }

    /// `mma.m16n8k16`: product of a 16 × 16 and a 16 × 8 matrix of halves, added to a 16 × 8 matrix of floats. Lane l
    /// has rows l / 4 and l / 4 + 8, and columns 2 (l mod 4) and the next (PTX ISA, "Matrix Fragments for
    /// mma.m16n8k16").
    pub(super) fn matrix_product(
        &mut self,
        active: Mask,
        to: [Slot; 4],
        a: [Word; 4],
        b: [Word; 2],
        c: [Word; 4],
    ) {
        let a = a.map(|it| self.registers.word(it));
        let b = b.map(|it| self.registers.word(it));
        let c = c.map(|it| self.registers.word(it));
        for (to, sums) in to.into_iter().zip(sums(a, b, c)) {
            self.registers.set_word(to, active, sums);
        }
    }
}

fn sums(a: [&Words; 4], b: [&Words; 2], c: [&Words; 4]) -> [Words; 4] {
    #[cfg(target_arch = "x86_64")]
    if arithmetic::has_vectors() {
        // SAFETY: this processor has these instructions.
        return unsafe { sums_in_vectors(a, b, c) };
    }
    sums_anywhere(a, b, c)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_in_vectors(a: [&Words; 4], b: [&Words; 2], c: [&Words; 4]) -> [Words; 4] {
    sums_anywhere(a, b, c)
}

#[inline(always)]
fn sums_anywhere(a: [&Words; 4], b: [&Words; 2], c: [&Words; 4]) -> [Words; 4] {
    let mut left = [[0.0_f64; 16]; 16];
    // Indexed by the summed dimension.
    let mut right = [[0.0_f64; 8]; 16];
    for (index, words) in a.into_iter().enumerate() {
        for (second, values) in halves(words).iter().enumerate() {
            for (lane, value) in values.iter().enumerate() {
                let (row, column) = (lane / 4 + index % 2 * 8, 2 * (lane % 4) + index / 2 * 8);
                left[row][column + second] = *value;
            }
        }
    }
    for (index, words) in b.into_iter().enumerate() {
        for (second, values) in halves(words).iter().enumerate() {
            for (lane, value) in values.iter().enumerate() {
                right[2 * (lane % 4) + 8 * index + second][lane / 4] = *value;
            }
        }
    }
    let sums = products(&left, &right);
    let mut results = [[0; LANES]; 4];
    for (index, result) in results.iter_mut().enumerate() {
        *result = each_lane(|lane| {
            let (row, column) = (lane / 4 + index / 2 * 8, 2 * (lane % 4) + index % 2);
            let sum = f64::from(f32::from_bits(c[index][lane])) + sums[row][column];
            (sum as f32).to_bits()
        });
    }
    results
}

/// Exact, except for sums of very different sizes.
#[inline(always)]
fn products(left: &[[f64; 16]; 16], right: &[[f64; 8]; 16]) -> [[f64; 8]; 16] {
    let mut sums = [[0.0; 8]; 16];
    let is_finite = right.iter().flatten().all(|it| it.is_finite());
    for (sums, left) in sums.iter_mut().zip(left) {
        // Most rows are padding where few are multiplied.
        if is_finite && left.iter().all(|it| *it == 0.0) {
            continue;
        }
        for (a, right) in left.iter().zip(right) {
            for (sum, b) in sums.iter_mut().zip(right) {
                *sum += a * b;
            }
        }
    }
    sums
}

/// Low and high halves.
#[inline(always)]
fn halves(words: &Words) -> [[f64; LANES]; 2] {
    [0, 16].map(|shift| {
        mapped(words, |word| {
            f64::from(float_of_half((word >> shift) as u16))
        })
    })
}
