//! Distance between two rows. A non-finite value never passes.

/// Result of [`compare`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Largest `|actual - expected|` over the finite values.
    pub max_abs: f32,
    /// Index of `max_abs`; 0 for empty rows.
    pub at: usize,
    /// Largest `|expected|`: the scale of `max_abs`.
    pub scale: f32,
    /// First index at which either row holds a NaN or an infinity.
    pub first_non_finite: Option<usize>,
}

impl Difference {
    /// `max_abs` relative to the largest expected value; infinite if all of those are zero and `max_abs` is not.
    #[must_use]
    pub fn relative(&self) -> f32 {
        if self.max_abs == 0.0 {
            0.0
        } else {
            self.max_abs / self.scale
        }
    }

    /// True if every value is finite and [`relative`](Self::relative) is at most `tolerance`.
    #[must_use]
    pub fn within(&self, tolerance: f32) -> bool {
        self.first_non_finite.is_none() && self.relative() <= tolerance
    }
}

/// Compares two rows of one length.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn compare(expected: &[f32], actual: &[f32]) -> Difference {
    assert_eq!(expected.len(), actual.len(), "rows of different lengths");
    let mut seen = Difference {
        max_abs: 0.0,
        at: 0,
        scale: 0.0,
        first_non_finite: None,
    };
    for (index, (&want, &got)) in expected.iter().zip(actual).enumerate() {
        if !(want.is_finite() && got.is_finite()) {
            seen.first_non_finite.get_or_insert(index);
            continue;
        }
        seen.scale = seen.scale.max(want.abs());
        let apart = (got - want).abs();
        if apart > seen.max_abs {
            (seen.max_abs, seen.at) = (apart, index);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::compare;

    #[test]
    fn finds_the_largest_difference_and_its_place() {
        let seen = compare(&[1.0, -4.0, 2.0], &[1.0, -3.5, 2.25]);
        assert_eq!((seen.max_abs, seen.at, seen.scale), (0.5, 1, 4.0));
        assert!(seen.within(0.125));
        assert!(!seen.within(0.124));
    }

    #[test]
    fn a_value_that_is_not_finite_never_passes() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!compare(&[0.0, 1.0], &[0.0, bad]).within(f32::INFINITY));
            // Even if both rows agree about it.
            assert!(!compare(&[bad], &[bad]).within(f32::INFINITY));
        }
        assert_eq!(
            compare(&[0.0, f32::NAN], &[0.0, 0.0]).first_non_finite,
            Some(1)
        );
    }

    #[test]
    fn anything_but_zero_where_zero_is_expected_fails() {
        assert!(compare(&[0.0], &[0.0]).within(0.0));
        assert!(!compare(&[0.0], &[1e-30]).within(1.0));
    }
}
