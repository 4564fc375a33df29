//! Results of arithmetic instructions, for all lanes at once.
//!
//! A device's approximations are exact here, and sums of tensor cores are rounded once. Results are therefore near a
//! device's, and not the same bits. Every run has the same bits.

use super::registers::{LANES, Longs, Mask, Registers, Words, each_lane, mapped};
use crate::ptx::op::{LongOp, Reading, Relation, Shift, Word, WordOp};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::cmp::Ordering;

/// `op` of the first of these words, as many as it takes.
#[inline]
pub fn of_words(op: WordOp, of: &[Word; 4], registers: &Registers) -> Words {
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        // SAFETY: this processor has these instructions.
        return unsafe { of_words_in_vectors(op, of, registers) };
    }
    of_words_anywhere(op, of, registers)
}

/// Whether the processor has the instructions of functions that are compiled a second time, for vectors of eight lanes.
/// Their results have the same bits.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn has_vectors() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_words_in_vectors(op: WordOp, of: &[Word; 4], registers: &Registers) -> Words {
    of_words_anywhere(op, of, registers)
}

#[inline(always)]
fn of_words_anywhere(op: WordOp, of: &[Word; 4], registers: &Registers) -> Words {
    let word = |at: usize| registers.word(of[at]);
    match op {
        WordOp::Copy => *word(0),
        WordOp::Add => both(word(0), word(1), u32::wrapping_add),
        WordOp::Subtract => both(word(0), word(1), u32::wrapping_sub),
        WordOp::Multiply => both(word(0), word(1), u32::wrapping_mul),
        WordOp::MultiplyHighSigned => both(word(0), word(1), |a, b| {
            let product = i64::from(a.cast_signed()) * i64::from(b.cast_signed());
            (product >> 32) as u32
        }),
        WordOp::MultiplyHighUnsigned => both(word(0), word(1), |a, b| {
            ((u64::from(a) * u64::from(b)) >> 32) as u32
        }),
        WordOp::MultiplyAdd => three(word(0), word(1), word(2), |a, b, c| {
            a.wrapping_mul(b).wrapping_add(c)
        }),
        WordOp::ShiftLeft => both(word(0), word(1), |a, by| a.checked_shl(by).unwrap_or(0)),
        WordOp::ShiftRightUnsigned => {
            both(word(0), word(1), |a, by| a.checked_shr(by).unwrap_or(0))
        }
        WordOp::ShiftRightSigned => both(word(0), word(1), |a, by| {
            (a.cast_signed() >> by.min(31)).cast_unsigned()
        }),
        WordOp::And => both(word(0), word(1), |a, b| a & b),
        WordOp::Or => both(word(0), word(1), |a, b| a | b),
        WordOp::Xor => both(word(0), word(1), |a, b| a ^ b),
        WordOp::Not => mapped(word(0), |a| !a),
        WordOp::Negate => mapped(word(0), u32::wrapping_neg),
        WordOp::Lop3(table) => three(word(0), word(1), word(2), |a, b, c| lop3(table, a, b, c)),
        WordOp::Permute => three(word(0), word(1), word(2), permute),
        WordOp::InsertBits => {
            let (bits, into, from, count) = (word(0), word(1), word(2), word(3));
            each_lane(|lane| {
                let (bits, into) = (u64::from(bits[lane]), u64::from(into[lane]));
                insert_bits(bits, into, from[lane], count[lane]) as u32
            })
        }
        WordOp::LeadingZeros => mapped(
            word(0),
            |a| if a == 0 { u32::MAX } else { a.leading_zeros() },
        ),
        WordOp::ReverseBits => mapped(word(0), u32::reverse_bits),
        WordOp::CountBits => mapped(word(0), u32::count_ones),
        WordOp::JoinHalves => both(word(0), word(1), |low, high| low & 0xFFFF | high << 16),
        WordOp::SignExtend8 => mapped(word(0), |a| i32::from(a as u8 as i8).cast_unsigned()),
        WordOp::DivideSigned
        | WordOp::DivideUnsigned
        | WordOp::RemainderSigned
        | WordOp::RemainderUnsigned
        | WordOp::MaxSigned
        | WordOp::MinSigned
        | WordOp::MaxUnsigned
        | WordOp::MinUnsigned => both(word(0), word(1), |a, b| divided_or_limited(op, a, b)),
        _ => of_floats(op, of, registers),
    }
}

fn divided_or_limited(op: WordOp, a: u32, b: u32) -> u32 {
    let (signed_a, signed_b) = (a.cast_signed(), b.cast_signed());
    match op {
        WordOp::DivideSigned => signed_a.checked_div(signed_b).unwrap_or(-1).cast_unsigned(),
        WordOp::DivideUnsigned => a.checked_div(b).unwrap_or(u32::MAX),
        WordOp::RemainderSigned => signed_a.checked_rem(signed_b).unwrap_or(0).cast_unsigned(),
        WordOp::RemainderUnsigned => a.checked_rem(b).unwrap_or(0),
        WordOp::MaxSigned => signed_a.max(signed_b).cast_unsigned(),
        WordOp::MinSigned => signed_a.min(signed_b).cast_unsigned(),
        WordOp::MaxUnsigned => a.max(b),
        _ => a.min(b),
    }
}

#[inline(always)]
fn of_floats(op: WordOp, of: &[Word; 4], registers: &Registers) -> Words {
    let word = |at: usize| registers.word(of[at]);
    match op {
        WordOp::AddFloat => float2(word(0), word(1), |a, b| a + b),
        WordOp::AddFloatFlushed => {
            float2(word(0), word(1), |a, b| flushed(flushed(a) + flushed(b)))
        }
        WordOp::SubtractFloat => float2(word(0), word(1), |a, b| a - b),
        WordOp::MultiplyFloat => float2(word(0), word(1), |a, b| a * b),
        WordOp::DivideFloat => float2(word(0), word(1), |a, b| a / b),
        WordOp::FusedFloat => float3(word(0), word(1), word(2), f32::mul_add),
        WordOp::FusedFloatDown => float3(word(0), word(1), word(2), fused_down),
        WordOp::MaxFloat => float2(word(0), word(1), f32::max),
        WordOp::MinFloat => float2(word(0), word(1), f32::min),
        WordOp::AbsoluteFloat => mapped(word(0), |a| a & 0x7FFF_FFFF),
        WordOp::NegateFloat => mapped(word(0), |a| a ^ 0x8000_0000),
        WordOp::Exp2 => float1(word(0), |a| f64::from(a).exp2() as f32),
        WordOp::Exp2Flushed => float1(word(0), |a| flushed(f64::from(flushed(a)).exp2() as f32)),
        WordOp::ReciprocalRootFlushed => {
            float1(word(0), |a| f64::from(flushed(a)).sqrt().recip() as f32)
        }
        WordOp::ReciprocalRoot => float1(word(0), |a| f64::from(a).sqrt().recip() as f32),
        WordOp::Saturate => float1(word(0), |a| if a > 0.0 { a.min(1.0) } else { 0.0 }),
        WordOp::SubtractHalves => of_halves([word(0), word(1), word(1)], |[a, b, _]| a - b),
        WordOp::MultiplyHalves => of_halves([word(0), word(1), word(1)], |[a, b, _]| a * b),
        WordOp::FusedHalves => of_halves([word(0), word(1), word(2)], |[a, b, c]| a * b + c),
        WordOp::HalvesFromFloats => {
            let [high, low] = [word(0), word(1)].map(|bits| halves(&mapped(bits, f32::from_bits)));
            both(&low, &high, |low, high| low | high << 16)
        }
        WordOp::HalfFromFloat => halves(&mapped(word(0), f32::from_bits)),
        WordOp::FloatFromHalf => mapped(word(0), |a| float_of_half(a as u16).to_bits()),
        WordOp::FloatFromSigned => mapped(word(0), |a| (a.cast_signed() as f32).to_bits()),
        WordOp::FloatFromUnsigned => mapped(word(0), |a| (a as f32).to_bits()),
        other => unreachable!("{other:?}"),
    }
}

#[inline(always)]
fn float1(a: &Words, f: impl Fn(f32) -> f32) -> Words {
    mapped(a, |a| f(f32::from_bits(a)).to_bits())
}

#[inline(always)]
fn float2(a: &Words, b: &Words, f: impl Fn(f32, f32) -> f32) -> Words {
    both(a, b, |a, b| {
        f(f32::from_bits(a), f32::from_bits(b)).to_bits()
    })
}

#[inline(always)]
fn float3(a: &Words, b: &Words, c: &Words, f: impl Fn(f32, f32, f32) -> f32) -> Words {
    three(a, b, c, |a, b, c| {
        f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)).to_bits()
    })
}

#[inline(always)]
fn both(a: &Words, b: &Words, f: impl Fn(u32, u32) -> u32) -> Words {
    each_lane(|lane| f(a[lane], b[lane]))
}

#[inline(always)]
fn three(a: &Words, b: &Words, c: &Words, f: impl Fn(u32, u32, u32) -> u32) -> Words {
    each_lane(|lane| f(a[lane], b[lane], c[lane]))
}

/// Exact, and without a branch for the common case.
#[inline(always)]
pub fn float_of_half(bits: u16) -> f32 {
    const TWO_TO_112: f32 = f32::from_bits(0x7780_0000);
    let (bits, sign) = (u32::from(bits & 0x7FFF), u32::from(bits & 0x8000) << 16);
    let value = match bits {
        0x7C00.. => f32::from_bits(0x7F80_0000 | bits << 13),
        _ => f32::from_bits(bits << 13) * TWO_TO_112,
    };
    f32::from_bits(value.to_bits() | sign)
}

/// Exact in 64 bits up to the one rounding, except for sums of very different sizes.
#[inline(always)]
fn of_halves(words: [&Words; 3], f: impl Fn([f64; 3]) -> f64) -> Words {
    let of = |shift: u32| {
        halves(&each_lane(|lane| {
            let half = |words: &Words| f64::from(float_of_half((words[lane] >> shift) as u16));
            to_odd(f(words.map(half)))
        }))
    };
    both(&of(0), &of(16), |low, high| low | high << 16)
}

/// Bits of the nearest halves.
#[inline(always)]
fn halves(values: &[f32; LANES]) -> Words {
    let mut halves = [f16::ZERO; LANES];
    halves.convert_from_f32_slice(values);
    each_lane(|lane| u32::from(halves[lane].to_bits()))
}

/// Rounds to odd: the last bit is set where others are lost. The nearest half of the result is that of the value.
/// (Boldo and Melquiond: "When double rounding is odd", 2005.)
#[inline(always)]
pub(super) fn to_odd(value: f64) -> f32 {
    const LOST: u64 = (1 << (f64::MANTISSA_DIGITS - f32::MANTISSA_DIGITS)) - 1;
    let bits = value.to_bits();
    let odd = u64::from(bits & LOST != 0) * (LOST + 1);
    f64::from_bits(bits & !LOST | odd) as f32
}

fn flushed(value: f32) -> f32 {
    if value.is_subnormal() {
        0.0_f32.copysign(value)
    } else {
        value
    }
}

/// The product is exact in 64 bits; the error of the sum has the direction of its rounding.
fn fused_down(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // Knuth's two-sum.
    let of_c = sum - product;
    let lost = (product - (sum - of_c)) + (c - of_c);
    let rounded = sum as f32;
    let is_above = f64::from(rounded) > sum || (f64::from(rounded) == sum && lost < 0.0);
    if is_above {
        rounded.next_down()
    } else {
        rounded
    }
}

fn lop3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    let mut result = 0;
    for index in 0..8 {
        if table >> index & 1 == 1 {
            let pick = |word: u32, bit: u32| if index & bit == 0 { !word } else { word };
            result |= pick(a, 4) & pick(b, 2) & pick(c, 1);
        }
    }
    result
}

/// Bytes of `low` and `high`, or copies of their signs.
fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let mut result = [0; 4];
    for (index, byte) in result.iter_mut().enumerate() {
        let select = selector >> (4 * index) & 0xF;
        let chosen = bytes[(select & 7) as usize];
        *byte = match select & 8 {
            0 => chosen,
            _ => (chosen.cast_signed() >> 7).cast_unsigned(),
        };
    }
    u32::from_le_bytes(result)
}

/// Replaces `count` bits of `into`, from bit `from` on, by the low bits of `bits`.
pub fn insert_bits(bits: u64, into: u64, from: u32, count: u32) -> u64 {
    let (from, count) = (from & 0xFF, count & 0xFF);
    let mask = 1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1);
    let mask = mask.checked_shl(from).unwrap_or(0);
    into & !mask | bits.checked_shl(from).unwrap_or(0) & mask
}

pub fn of_longs(op: LongOp, [a, b]: [&Longs; 2]) -> Longs {
    let both = |f: fn(u64, u64) -> u64| each_lane(|lane| f(a[lane], b[lane]));
    match op {
        LongOp::Copy => *a,
        LongOp::Add => both(u64::wrapping_add),
        LongOp::Subtract => both(u64::wrapping_sub),
        LongOp::Multiply => both(u64::wrapping_mul),
        LongOp::MultiplyHighUnsigned => both(|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        LongOp::DivideSigned => both(|a, b| {
            a.cast_signed()
                .checked_div(b.cast_signed())
                .unwrap_or(-1)
                .cast_unsigned()
        }),
        LongOp::DivideUnsigned => both(|a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        LongOp::RemainderSigned => both(|a, b| {
            a.cast_signed()
                .checked_rem(b.cast_signed())
                .unwrap_or(0)
                .cast_unsigned()
        }),
        LongOp::RemainderUnsigned => both(|a, b| a.checked_rem(b).unwrap_or(0)),
        LongOp::And => both(|a, b| a & b),
        LongOp::Or => both(|a, b| a | b),
        LongOp::Xor => both(|a, b| a ^ b),
        LongOp::Not => mapped(a, |a| !a),
        LongOp::MaxSigned => both(|a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        LongOp::MinSigned => both(|a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned()),
        LongOp::MaxUnsigned => both(u64::max),
        LongOp::MinUnsigned => both(u64::min),
    }
}

pub fn shift(shift: Shift, value: &Longs, by: &Words) -> Longs {
    each_lane(|lane| {
        let (value, by) = (value[lane], by[lane]);
        match shift {
            Shift::Left => value.checked_shl(by).unwrap_or(0),
            Shift::RightUnsigned => value.checked_shr(by).unwrap_or(0),
            Shift::RightSigned => (value.cast_signed() >> by.min(63)).cast_unsigned(),
        }
    })
}

fn holds<T: PartialOrd>(relation: Relation, a: T, b: T) -> bool {
    match relation {
        Relation::Equal => a == b,
        // Every relation with NaN is false.
        Relation::NotEqual => a.partial_cmp(&b).is_some_and(Ordering::is_ne),
        Relation::Less => a < b,
        Relation::LessOrEqual => a <= b,
        Relation::Greater => a > b,
        Relation::GreaterOrEqual => a >= b,
    }
}

fn mask_of(holds: impl Fn(usize) -> bool) -> Mask {
    let bits = each_lane(|lane| Mask::from(holds(lane)) << lane);
    bits.iter().fold(0, |mask, bit| mask | bit)
}

pub fn compare_words(relation: Relation, reading: Reading, [a, b]: [&Words; 2]) -> Mask {
    let float = |bits: u32| f32::from_bits(bits);
    match reading {
        Reading::Signed => {
            mask_of(|lane| holds(relation, a[lane].cast_signed(), b[lane].cast_signed()))
        }
        Reading::Unsigned => mask_of(|lane| holds(relation, a[lane], b[lane])),
        Reading::Float => mask_of(|lane| holds(relation, float(a[lane]), float(b[lane]))),
        Reading::NoNumber => mask_of(|lane| float(a[lane]).is_nan() || float(b[lane]).is_nan()),
        Reading::FloatUnordered => mask_of(|lane| {
            let (a, b) = (float(a[lane]), float(b[lane]));
            a.is_nan() || b.is_nan() || holds(relation, a, b)
        }),
    }
}

pub fn compare_longs(relation: Relation, reading: Reading, [a, b]: [&Longs; 2]) -> Mask {
    match reading {
        Reading::Signed => {
            mask_of(|lane| holds(relation, a[lane].cast_signed(), b[lane].cast_signed()))
        }
        _ => mask_of(|lane| holds(relation, a[lane], b[lane])),
    }
}
