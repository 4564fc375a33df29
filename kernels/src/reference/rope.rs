//! Rotary position embedding (Su et al., arXiv:2104.09864, section 3.2.2).
//!
//! Pair `i` of a head turns by `position * base^(-2i / dims) / (scale * factor_i)`; cos and sin
//! are multiplied by the attention factor of long-context variants (arXiv:2309.00071 section
//! 3.4, as ggml's `rope_yarn` applies it with `ext_factor` 0).

/// The values of a head that form pair `i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`.
    Adjacent,
    /// `(i, i + dims / 2)`, NeoX.
    HalfOffset,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub pairs: RopePairs,
    /// Values at the front of a head that are rotated; the rest pass through.
    pub dims: usize,
    pub base: f32,
    /// Divides every frequency; 1 without linear scaling.
    pub scale: f32,
    /// Divides the frequency of each pair, `[dims / 2]`.
    pub factors: Option<Vec<f32>>,
    /// Multiplies cos and sin.
    pub attn_factor: f32,
}

impl Rope {
    /// Angle by which pair `i` turns from one position to the next.
    #[must_use]
    pub fn frequency(&self, i: usize) -> f64 {
        let exponent = -2.0 * i as f64 / self.dims as f64;
        let factor = self.factors.as_ref().map_or(1.0, |f| f64::from(f[i]));
        f64::from(self.base).powf(exponent) / (f64::from(self.scale) * factor)
    }

    /// `(cos, sin)` of pair `i` at `position`.
    #[must_use]
    pub fn rotation(&self, position: u32, i: usize) -> (f32, f32) {
        self.turn(position, self.frequency(i))
    }

    /// `(cos, sin)` at `position` of a pair with this frequency.
    #[must_use]
    pub fn turn(&self, position: u32, frequency: f64) -> (f32, f32) {
        let (sin, cos) = (f64::from(position) * frequency).sin_cos();
        let gain = f64::from(self.attn_factor);
        ((cos * gain) as f32, (sin * gain) as f32)
    }

    /// Indices of pair `i`.
    #[must_use]
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairs {
            RopePairs::Adjacent => (2 * i, 2 * i + 1),
            RopePairs::HalfOffset => (i, i + self.dims / 2),
        }
    }
}

/// Rotates one head in place.
pub fn rope(head: &mut [f32], position: u32, rope: &Rope) {
    for i in 0..rope.dims / 2 {
        let (cos, sin) = rope.rotation(position, i);
        let (a, b) = rope.pair(i);
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(pairs: RopePairs) -> Rope {
        Rope {
            pairs,
            dims: 4,
            base: 100.0,
            scale: 1.0,
            factors: None,
            attn_factor: 1.0,
        }
    }

    #[test]
    fn pairs_turn_by_their_own_frequency() {
        let (s0, c0) = 3f32.sin_cos();
        let (s1, c1) = 0.3f32.sin_cos();
        let mut head = [1.0, 0.0, 1.0, 0.0, 7.0];
        rope(&mut head, 3, &plain(RopePairs::Adjacent));
        assert_eq!(head, [c0, s0, c1, s1, 7.0]);
        let mut head = [1.0, 1.0, 0.0, 0.0, 7.0];
        rope(&mut head, 3, &plain(RopePairs::HalfOffset));
        assert_eq!(head, [c0, c1, s0, s1, 7.0]);
    }

    #[test]
    fn scale_and_factors_slow_the_turn_and_the_gain_stretches_it() {
        let long = Rope {
            scale: 2.0,
            factors: Some(vec![1.5, 1.0]),
            attn_factor: 3.0,
            ..plain(RopePairs::Adjacent)
        };
        let mut head = [1.0, 0.0, 0.0, 0.0];
        rope(&mut head, 3, &long);
        assert!((head[0] - 3.0 * 1f32.cos()).abs() < 1e-6);
        assert!((head[1] - 3.0 * 1f32.sin()).abs() < 1e-6);
    }
}
