//! YaRN (Peng et al., arXiv:2309.00071), as in llama.cpp's `rope_yarn`: pairs with many turns within the original
//! context keep their frequency, those with less than one are divided by the scale, those between are interpolated. cos
//! and sin are multiplied by the attention factor, unless the file disables it.

use super::config::Keys;
use super::error::ModelError;
use std::f64::consts::TAU;
use worker_orcd_kernels::reference::rope::Rope;

/// Turns within the original context: from `BETA_FAST` on, a pair keeps its frequency; up to `BETA_SLOW`, it is divided
/// by the scale. The paper's values (section 3.2), and llama.cpp's for the served architectures.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

#[derive(Debug, Clone, Copy)]
pub(super) struct Yarn {
    /// Positions of the original context.
    original: usize,
    /// Multiplier of the logarithm in the attention factor that the file cancels; 0: none (`mscale_all_dim` in
    /// transformers, with `mscale` 1).
    log_multiplier: f64,
}

impl Yarn {
    /// YaRN's parameters.
    ///
    /// # Errors
    /// If the file has other values than llama.cpp uses for its architecture.
    pub(super) fn read(keys: &Keys<'_, '_>, original: usize) -> Result<Self, ModelError> {
        for (name, only) in [
            ("rope.scaling.yarn_ext_factor", 1.0),
            ("rope.scaling.yarn_attn_factor", 1.0),
            ("rope.scaling.yarn_beta_fast", BETA_FAST),
            ("rope.scaling.yarn_beta_slow", BETA_SLOW),
        ] {
            let key = keys.key(name);
            if keys
                .header
                .f32(&key)?
                .is_some_and(|it| f64::from(it) != only)
            {
                return Err(ModelError::unsupported(
                    key,
                    format!("YaRN with another value than {only}"),
                ));
            }
        }
        const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
        let key = keys.key(LOG_MULTIPLIER);
        let log_multiplier = keys.header.f32(&key)?.unwrap_or(0.0);
        if log_multiplier != 0.0 && !keys.architecture.conventions().has_temperature {
            let feature = "a multiplier of YaRN's logarithm";
            return Err(ModelError::unsupported(key, feature));
        }
        Ok(Self {
            original,
            log_multiplier: f64::from(log_multiplier),
        })
    }

    /// Converts a rotation with linear scaling to YaRN with the same scale.
    pub(super) fn stretch(self, rope: Rope) -> Rope {
        let scale = f64::from(rope.scale);
        let (first, last) = (
            self.pair_of(BETA_FAST, &rope).floor(),
            self.pair_of(BETA_SLOW, &rope).ceil(),
        );
        let (first, last) = (first.max(0.0), last.min(rope.dims as f64 - 1.0));
        let factor = |pair: usize| {
            let along = (pair as f64 - first) / (last - first).max(0.001);
            let kept = 1.0 - along.clamp(0.0, 1.0);
            let own = rope
                .factors
                .as_ref()
                .map_or(1.0, |factors| f64::from(factors[pair]));
            (own / (kept + (1.0 - kept) / scale)) as f32
        };
        let factors = (0..rope.dims / 2).map(factor).collect();
        let stretch_by = |multiplier: f64| 1.0 + 0.1 * multiplier * scale.max(1.0).ln();
        let stretch = match self.log_multiplier {
            0.0 => stretch_by(1.0),
            multiplier => stretch_by(1.0) / stretch_by(multiplier),
        };
        Rope {
            scale: 1.0,
            attn_factor: (f64::from(rope.attn_factor) * stretch) as f32,
            factors: Some(factors),
            ..rope
        }
    }

    /// Index of the pair, with a fraction, with this number of turns within the original context.
    fn pair_of(self, turns: f64, rope: &Rope) -> f64 {
        let positions = self.original as f64;
        rope.dims as f64 * (positions / (turns * TAU)).ln() / (2.0 * f64::from(rope.base).ln())
    }
}

/// True if each number is finite and above zero.
pub(super) fn is_a_rotation(rope: &Rope) -> bool {
    let factors = rope.factors.iter().flatten();
    let mut numbers = factors.chain([&rope.attn_factor]);
    numbers.all(|number| number.is_finite() && *number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_kernels::reference::rope::RopePairs;

    #[test]
    fn fast_pairs_keep_their_frequency_slow_ones_are_slowed_and_all_are_stretched() {
        let plain = Rope {
            pairs: RopePairs::HalfOffset,
            dims: 64,
            base: 10_000.0,
            scale: 4.0,
            factors: None,
            attn_factor: 1.0,
        };
        let yarn = Yarn {
            original: 4096,
            log_multiplier: 0.0,
        };
        let stretched = yarn.stretch(plain.clone());
        let own = Rope {
            scale: 1.0,
            ..plain.clone()
        };
        assert_eq!(stretched.frequency(0), own.frequency(0));
        assert_eq!(stretched.frequency(31), plain.frequency(31));
        let slower = |pair| own.frequency(pair) / stretched.frequency(pair);
        // The integers around the two pairs of the formula; the pairs between are interpolated.
        assert_eq!((slower(10), slower(23)), (1.0, 4.0));
        assert!((11..23).all(|pair| slower(pair - 1) < slower(pair)));
        assert!((stretched.attn_factor - 1.138_629_4).abs() < 1e-6);
        let taken_back = Yarn {
            log_multiplier: 1.0,
            ..yarn
        };
        assert_eq!(taken_back.stretch(plain).attn_factor, 1.0);
    }
}
