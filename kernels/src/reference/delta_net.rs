//! Gated delta rule (Yang, Kautz and Hatamizadeh, arXiv:2412.06464, equation 10), with the convolution in front of it,
//! as Qwen3-Next computes them: `S = g S; u = beta (v - Sᵀ k); S = S + k uᵀ; o = Sᵀ q`.

/// Which head of keys a head of values uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Head `h` of values uses head `h % k_heads` of keys.
    Tiled,
    /// Head `h` of values uses head `h / (v_heads / k_heads)` of keys.
    Grouped,
}

impl HeadOrder {
    /// The `index`-th head of values that uses head `k_head` of keys.
    #[must_use]
    pub fn v_head(self, k_head: usize, index: usize, k_heads: usize, v_heads: usize) -> usize {
        match self {
            Self::Tiled => index * k_heads + k_head,
            Self::Grouped => k_head * (v_heads / k_heads) + index,
        }
    }
}

/// Inputs of a head at one position.
#[derive(Debug, Clone, Copy)]
pub struct DeltaRow<'a> {
    /// Normalized and scaled.
    pub q: &'a [f32],
    /// Normalized.
    pub k: &'a [f32],
    pub v: &'a [f32],
    /// Strength of the update, in `0 ..= 1`.
    pub beta: f64,
    /// Logarithm of the decay; not positive.
    pub log_decay: f64,
}

/// Advances the state `[head_dim, head_dim]` (by key, then by value) by one position, and returns the output.
#[must_use]
pub fn delta_step(state: &mut [f64], row: &DeltaRow<'_>) -> Vec<f64> {
    let width = row.v.len();
    assert_eq!(state.len(), row.k.len() * width);
    let decay = row.log_decay.exp();
    state.iter_mut().for_each(|s| *s *= decay);
    let read = |state: &[f64], by: &[f32]| -> Vec<f64> {
        let mut sums = vec![0.0; width];
        for (s, &by) in state.chunks_exact(width).zip(by) {
            sums.iter_mut()
                .zip(s)
                .for_each(|(sum, s)| *sum += s * f64::from(by));
        }
        sums
    };
    let known = read(state, row.k);
    for (s, &k) in state.chunks_exact_mut(width).zip(row.k) {
        for ((s, &v), known) in s.iter_mut().zip(row.v).zip(&known) {
            *s += f64::from(k) * row.beta * (f64::from(v) - known);
        }
    }
    read(state, row.q)
}

/// SiLU of a causal convolution of one channel: `weights` and the last inputs, the present one last. Inputs before the
/// first position are zero.
#[must_use]
pub fn causal_conv(inputs: &[f32], weights: &[f32]) -> f32 {
    let products = inputs.iter().rev().zip(weights.iter().rev());
    let sum: f64 = products.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    (sum / (1.0 + (-sum).exp())) as f32
}

/// `x / sqrt(sum(x²) + eps)`.
#[must_use]
pub fn l2_norm(x: &[f32], eps: f32) -> Vec<f32> {
    let sum: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let inverse = 1.0 / (sum + f64::from(eps)).sqrt();
    x.iter().map(|&x| (f64::from(x) * inverse) as f32).collect()
}

/// Logarithm of the decay: `factor * softplus(alpha + dt)`, with a factor that is not positive.
#[must_use]
pub fn log_decay(factor: f32, alpha: f32, dt: f32) -> f64 {
    f64::from(factor) * (f64::from(alpha) + f64::from(dt)).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With orthonormal keys, full strength and no decay, the state is a table: a key reads the value that was stored
    /// last.
    #[test]
    fn a_key_reads_what_was_stored_under_it_last() {
        let keys = [[1.0, 0.0], [0.0, 1.0]];
        let mut state = [0.0; 4];
        let mut store = |k: &[f32; 2], v: [f32; 2], q: &[f32; 2]| {
            let row = DeltaRow {
                q,
                k,
                v: &v,
                beta: 1.0,
                log_decay: 0.0,
            };
            delta_step(&mut state, &row)
        };
        assert_eq!(store(&keys[0], [1.0, 2.0], &keys[0]), [1.0, 2.0]);
        assert_eq!(store(&keys[1], [3.0, 4.0], &keys[0]), [1.0, 2.0]);
        assert_eq!(store(&keys[0], [5.0, 6.0], &keys[0]), [5.0, 6.0]);
        assert_eq!(store(&keys[0], [5.0, 6.0], &keys[1]), [3.0, 4.0]);
    }

    #[test]
    fn heads_of_values_share_keys_in_both_orders() {
        let heads = |order: HeadOrder| [0, 1].map(|index| order.v_head(1, index, 3, 6));
        assert_eq!(heads(HeadOrder::Tiled), [1, 4]);
        assert_eq!(heads(HeadOrder::Grouped), [2, 3]);
    }

    #[test]
    fn a_convolution_ends_at_the_present_position() {
        let silu = |x: f32| x / (1.0 + (-x).exp());
        assert_eq!(causal_conv(&[2.0], &[9.0, 9.0, 0.5]), silu(1.0));
        assert_eq!(causal_conv(&[7.0, 2.0, 3.0], &[1.0, 2.0]), silu(8.0));
    }
}
