//! `e^x` for `x <= 0` in plain `f32` arithmetic: the same bits on every machine (a system's libm
//! may differ), without branches, so that the compiler makes vectors of a loop over it.

use std::f32::consts::LOG2_E;

/// Below this the result is 0: `e^-87.3` is the smallest normal `f32`.
const UNDERFLOW: f32 = -87.0;

/// ln 2 in two parts, the first with so few bits that a product with a whole number is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Relative error under 3e-7.
#[inline]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    let clamped = if x > UNDERFLOW { x } else { UNDERFLOW };
    // Adding 1.5 * 2^23 rounds to a whole number, and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = clamped * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    // Taylor on |r| <= ln(2) / 2; the first term left out is under 2e-7 / 20.
    let mut e = 1.0 / 5040.0;
    for coefficient in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        e = e * r + coefficient;
    }
    let exponent = rounded
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(127);
    let power_of_two = f32::from_bits(exponent << 23);
    if x < UNDERFLOW { 0.0 } else { e * power_of_two }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_exponential() {
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-1e30), 0.0);
        for step in 0..87_000 {
            let x = -(step as f32) / 1000.0;
            let truth = f64::from(x).exp();
            let error = (f64::from(exp_nonpositive(x)) - truth).abs() / truth;
            assert!(error < 3e-7, "e^{x}: relative error {error}");
        }
    }

    #[test]
    fn it_never_grows_when_its_argument_falls() {
        let mut last = 1.0;
        for step in 1..200_000 {
            let value = exp_nonpositive(-(step as f32) / 1999.0);
            assert!(value <= last * (1.0 + 3e-7));
            last = value;
        }
    }
}
