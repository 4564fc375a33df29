//! Top-p without sorting the vocabulary: masses of buckets first, then the one bucket in which p is reached, token by
//! token.

use super::WeightedToken;
use super::weight::{LEAST, mass, share};

/// Bits of a weight below the resolution of a bucket: 64 buckets for each power of two.
const FINER: u32 = 17;
const BUCKETS: usize = ((1.0_f32.to_bits() - LEAST.to_bits()) >> FINER) as usize + 1;

/// The smallest set of heaviest tokens with at least `top_p` (in 2⁻⁶⁴) of the mass, at least one token. Of equals,
/// lower ids come first.
pub(super) fn nucleus(tokens: Vec<WeightedToken>, top_p: u64) -> Vec<WeightedToken> {
    let mut masses = vec![0_u64; BUCKETS];
    for token in &tokens {
        masses[bucket(token)] += mass(token.weight);
    }
    let needed = share(masses.iter().sum(), top_p).max(1);
    let mut before = 0;
    let mut last = 0;
    while before + masses[last] < needed {
        before += masses[last];
        last += 1;
    }
    let (mut inside, mut border) = (Vec::new(), Vec::new());
    for token in tokens {
        match bucket(&token) {
            bucket if bucket < last => inside.push(token),
            bucket if bucket == last => border.push(token),
            _ => {}
        }
    }
    border.sort_unstable_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
    for token in border {
        if before >= needed {
            break;
        }
        before += mass(token.weight);
        inside.push(token);
    }
    inside
}

/// Bucket of a token: 0 for the heaviest. Tokens without mass share the bucket of the lightest with mass.
fn bucket(token: &WeightedToken) -> usize {
    let below = 1.0_f32.to_bits() - token.weight.to_bits();
    ((below >> FINER) as usize).min(BUCKETS - 1)
}
