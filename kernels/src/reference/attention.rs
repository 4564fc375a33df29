//! Scaled dot-product attention of one query token (Vaswani et al., arXiv:1706.03762, equation
//! 1), causal, with grouped query heads (arXiv:2305.13245) and an optional sliding window
//! (arXiv:2004.05150, as gpt-oss uses it) and optional sinks (`sdpa` in the `torch/model.py` of openai/gpt-oss).

use super::softmax::softmax;

#[derive(Debug, Clone, Copy)]
pub struct AttentionShape {
    pub n_heads: usize,
    /// Divides `n_heads`; head `h` reads key-value head `h / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Positions that a query sees at most, including its own.
    pub window: Option<usize>,
}

/// Attention of one query. `q` is `[n_heads, head_dim]` at the last position; `keys` and `values` are
/// `[positions, n_kv_heads, head_dim]` up to and including it. A head's sink is one more score in its softmax, without
/// a value.
#[must_use]
pub fn attention(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    sinks: Option<&[f32]>,
    shape: &AttentionShape,
) -> Vec<f32> {
    let AttentionShape {
        n_heads,
        n_kv_heads,
        head_dim,
        window,
    } = *shape;
    let kv_row = n_kv_heads * head_dim;
    let positions = keys.len() / kv_row;
    let first = window.map_or(0, |w| positions.saturating_sub(w));
    let mut out = Vec::with_capacity(q.len());
    for h in 0..n_heads {
        let kv = h / (n_heads / n_kv_heads) * head_dim;
        let of = |rows: &[f32], p: usize, d: usize| f64::from(rows[p * kv_row + kv + d]);
        let score = |p| {
            let dot: f64 = (0..head_dim)
                .map(|d| f64::from(q[h * head_dim + d]) * of(keys, p, d))
                .sum();
            (dot / (head_dim as f64).sqrt()) as f32
        };
        let sink = sinks.map(|sinks| sinks[h]);
        let weights = softmax(
            &(first..positions)
                .map(score)
                .chain(sink)
                .collect::<Vec<_>>(),
        );
        out.extend((0..head_dim).map(|d| {
            let pairs = (first..positions).zip(&weights);
            pairs
                .map(|(p, &w)| f64::from(w) * of(values, p, d))
                .sum::<f64>() as f32
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttentionShape = AttentionShape {
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 2,
        window: None,
    };

    #[test]
    fn equal_keys_average_the_values_they_show() {
        let keys = [1.0; 6];
        let values = [0.0, 3.0, 3.0, 0.0, 6.0, 0.0];
        assert_eq!(
            attention(&[1.0; 4], &keys, &values, None, &SHAPE),
            [3.0, 1.0, 3.0, 1.0]
        );
        let narrow = AttentionShape {
            window: Some(2),
            ..SHAPE
        };
        assert_eq!(
            attention(&[1.0; 4], &keys, &values, None, &narrow),
            [4.5, 0.0, 4.5, 0.0]
        );
    }

    #[test]
    fn each_head_looks_with_its_own_query() {
        let keys = [100.0, 0.0, 0.0, 100.0];
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(
            attention(&[9.0, 0.0, 0.0, 9.0], &keys, &values, None, &SHAPE),
            [1.0, 2.0, 3.0, 4.0]
        );
    }
    #[test]
    fn a_sink_takes_its_share_and_gives_nothing() {
        // Two positions and a sink, all equally likely for the first head; the second head's sink takes nothing.
        let score = 2.0 / 2_f32.sqrt();
        let sinks = [score, -1e9];
        let got = attention(
            &[1.0; 4],
            &[1.0; 4],
            &[3.0, 6.0, 3.0, 0.0],
            Some(&sinks),
            &SHAPE,
        );
        for (got, expected) in got.iter().zip([2.0, 2.0, 3.0, 3.0]) {
            assert!((got - expected).abs() < 1e-5, "{got} {expected}");
        }
    }
}
