//! Integer weight of a token in sampling.
//!
//! `e^((logit - max) / temperature)` in plain `f32` arithmetic, then as a multiple of 2⁻⁴⁰. Every sum of integers is
//! exact, so order, threads and devices do not matter: `kernels/cuda/sample.cu` has the same operations, and samples
//! the same token. No libm (a system's may differ) and no branch, so that the compiler vectorizes a loop over it.

use std::f32::consts::{LN_2, LOG2_E};

/// The weight of the most probable token, as a [`mass`]. Sixteen million of them can be added.
pub(super) const ONE: u64 = 1 << 40;

/// Minimum weight with mass; a token below it is never sampled.
pub const LEAST: f32 = 1.0 / ONE as f32;

/// Powers of two per logit, at a temperature. Finite for every temperature.
pub(super) fn rate(temperature: f32) -> f32 {
    (LOG2_E / temperature).min(f32::MAX)
}

/// Weight of a logit at this distance from the largest: `distance` is not positive. Relative error under 2e-7 in
/// addition to the rounding of `distance * rate`.
#[inline]
pub(super) fn weight(distance: f32, rate: f32) -> f32 {
    // Far below `LEAST`, and far above what the exponent cannot hold.
    const FLOOR: f32 = -64.0;
    // Adding 1.5 * 2^23 rounds to an integer, and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let product = distance * rate;
    let power = if product > FLOOR { product } else { FLOOR };
    let rounded = power + ROUND;
    let r = power - (rounded - ROUND);
    // (2^r - 1) / r for |r| <= 1/2, interpolated at the nodes of Chebyshev.
    let mut e = 1.545_316_3e-4_f32;
    for coefficient in [
        1.339_086_3e-3,
        9.618_083e-3,
        5.550_357e-2,
        0.240_226_5,
        LN_2,
        1.0,
    ] {
        e = e * r + coefficient;
    }
    // 0.7 < e < 1.42, and the product's exponent is in range: a sum of exponents.
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23;
    f32::from_bits(e.to_bits().wrapping_add(exponent))
}

/// A weight of at most 1 in units of 2⁻⁴⁰, rounded down.
#[inline]
pub(super) fn mass(weight: f32) -> u64 {
    let bits = weight.to_bits();
    let significand = u64::from((bits & 0x007f_ffff) | 0x0080_0000);
    (significand << 17) >> (127 - (bits >> 23)).min(63)
}

/// A share of a mass, in 2⁻⁶⁴, rounded up.
pub(super) fn share(mass: u64, of: u64) -> u64 {
    let product = u128::from(mass) * u128::from(of);
    product.div_ceil(1 << 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_exponential() {
        assert_eq!(weight(0.0, LOG2_E), 1.0);
        for step in 0..44_000 {
            let x = -(step as f32) / 1000.0;
            let truth = f64::from(x * LOG2_E).exp2();
            let error = (f64::from(weight(x, LOG2_E)) - truth).abs() / truth;
            assert!(error < 2e-7, "e^{x}: relative error {error}");
        }
    }

    #[test]
    fn it_never_grows_when_its_argument_falls_and_is_never_above_one() {
        let mut last = 1.0_f32;
        for step in 1..400_000 {
            let value = weight(-(step as f32) / 3999.0, 1.0);
            assert!(value <= (last * (1.0 + 2e-7)).min(1.0));
            last = value;
        }
    }

    #[test]
    fn whatever_is_far_away_has_no_mass() {
        for distance in [-41.0, -64.0, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(mass(weight(distance, 1.0)), 0);
        }
        assert_eq!(mass(weight(-0.0, rate(1e-45))), ONE);
        assert_eq!(mass(weight(-1e-30, rate(f32::MIN_POSITIVE))), 0);
    }

    #[test]
    fn a_mass_is_the_weight_rounded_down() {
        assert_eq!(mass(1.0), ONE);
        assert_eq!(mass(LEAST), 1);
        for step in 0..4100 {
            let weight = weight(-(step as f32) / 100.0, 1.0);
            assert_eq!(mass(weight), (f64::from(weight) * ONE as f64) as u64);
        }
    }

    #[test]
    fn shares_are_rounded_up() {
        assert_eq!(share(1000, 1 << 63), 500);
        assert_eq!(share(1001, 1 << 63), 501);
        assert_eq!(share(1000, 0), 0);
        assert_eq!(share(u64::MAX, u64::MAX), u64::MAX);
    }
}
