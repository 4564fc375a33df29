//! The gated activation of SwiGLU (Shazeer, arXiv:2002.05202, section 2): `silu(gate) * up` with
//! `silu(x) = x / (1 + exp(-x))`.

#[must_use]
pub fn silu_mul(gate: &[f32], up: &[f32]) -> Vec<f32> {
    let silu = |g: f64| g / (1.0 + (-g).exp());
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| (silu(f64::from(g)) * f64::from(u)) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn saturates_on_both_sides() {
        let y = super::silu_mul(&[0.0, 100.0, -200.0], &[5.0, 2.0, 1.0]);
        assert_eq!(y[..2], [0.0, 200.0]);
        assert!(y[2].abs() < 1e-30);
    }
}
