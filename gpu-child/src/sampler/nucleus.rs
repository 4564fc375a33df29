//! Top-p without sorting the vocabulary: masses of buckets first, then the one bucket in which p is
//! reached, token by token.

use super::Candidate;

/// Buckets of equal width over the scaled logits whose weight is not 0.
const BUCKETS: usize = 4096;
const BUCKETS_PER_UNIT: f32 = BUCKETS as f32 / 87.0;

/// The smallest set of most probable tokens that has `top_p` of the mass, at least one. Of equals,
/// lower ids come first.
pub(super) fn nucleus(tokens: Vec<Candidate>, top_p: f32) -> Vec<Candidate> {
    let mut masses = vec![0.0_f64; BUCKETS];
    for token in &tokens {
        masses[bucket(token)] += f64::from(token.weight);
    }
    let needed = f64::from(top_p) * masses.iter().sum::<f64>();
    let mut before = 0.0;
    let mut last = 0;
    while last + 1 < BUCKETS && before + masses[last] < needed {
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
    border.sort_unstable_by(|a, b| b.scaled.total_cmp(&a.scaled).then(a.id.cmp(&b.id)));
    for token in border {
        if before >= needed && !inside.is_empty() {
            break;
        }
        before += f64::from(token.weight);
        inside.push(token);
    }
    inside
}

/// The most probable token's is 0.
fn bucket(token: &Candidate) -> usize {
    ((-token.scaled * BUCKETS_PER_UNIT) as usize).min(BUCKETS - 1)
}
