//! State-space layers of Mamba-2 (Dao and Gu, arXiv:2405.21060), as llama.cpp's `build_mamba2_layer` computes them:
//! `S = exp(dt a) S + dt B xᵀ; y = Sᵀ C + d x`.

/// Inputs of a head at one position.
#[derive(Debug, Clone, Copy)]
pub struct ScanRow<'a> {
    /// Of the head's group: what is added to the state is under `b`, and `c` reads it.
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub x: &'a [f32],
    /// Length of the step, behind its softplus.
    pub dt: f64,
    /// Logarithm of the decay of a step of length 1; not positive.
    pub a: f32,
    /// Factor of `x` in the output.
    pub d: f32,
}

/// Advances the state `[state, head_dim]` (by `b`, then by `x`) by one position, and returns the output.
#[must_use]
pub fn scan_step(state: &mut [f64], row: &ScanRow<'_>) -> Vec<f64> {
    let width = row.x.len();
    assert_eq!(state.len(), row.b.len() * width);
    let decay = (row.dt * f64::from(row.a)).exp();
    let direct = |x: &f32| f64::from(row.d) * f64::from(*x);
    let mut out: Vec<f64> = row.x.iter().map(direct).collect();
    for ((s, &b), &c) in state.chunks_exact_mut(width).zip(row.b).zip(row.c) {
        for ((s, &x), out) in s.iter_mut().zip(row.x).zip(&mut out) {
            *s = decay * *s + row.dt * f64::from(b) * f64::from(x);
            *out += f64::from(c) * *s;
        }
    }
    out
}

/// `ln(1 + exp(x))`, and `x` itself if it is large.
#[must_use]
pub fn softplus(x: f32) -> f64 {
    let x = f64::from(x);
    match x > 20.0 {
        true => x,
        false => x.exp().ln_1p(),
    }
}

/// SiLU of a causal convolution of one channel with a bias: `weights` and the last inputs, the present one last. Inputs before
/// the first position are zero.
#[must_use]
pub fn biased_conv(inputs: &[f32], weights: &[f32], bias: f32) -> f32 {
    let products = inputs.iter().rev().zip(weights.iter().rev());
    let sum: f64 = products.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
    let sum = sum + f64::from(bias);
    (sum / (1.0 + (-sum).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without decay the state is a table: `c` reads the sum of what was stored under it, times the lengths of the steps.
    #[test]
    fn a_state_adds_what_is_stored_and_forgets_by_the_step() {
        let mut state = [0.0; 2];
        let mut step = |b: [f32; 2], c: [f32; 2], x: f32, dt: f64, a: f32| {
            let row = ScanRow {
                b: &b,
                c: &c,
                x: &[x],
                dt,
                a,
                d: 10.0,
            };
            scan_step(&mut state, &row)
        };
        assert_eq!(step([1.0, 0.0], [1.0, 0.0], 3.0, 2.0, 0.0), [36.0]);
        assert_eq!(step([0.0, 1.0], [1.0, 1.0], 5.0, 1.0, 0.0), [61.0]);
        let given = step([0.0; 2], [1.0, 0.0], 0.0, 1.0, -(2_f32.ln()));
        assert!((given[0] - 3.0).abs() < 1e-6, "half is left");
    }

    #[test]
    fn a_convolution_has_a_bias_in_front_of_its_activation() {
        let silu = |x: f32| x / (1.0 + (-x).exp());
        assert_eq!(biased_conv(&[7.0, 2.0, 3.0], &[1.0, 2.0], -9.0), silu(-1.0));
        assert_eq!(softplus(30.0), 30.0);
        assert!((softplus(0.0) - 2_f64.ln()).abs() < 1e-12);
    }
}
