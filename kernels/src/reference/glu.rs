//! The gated linear unit (Shazeer, arXiv:2002.05202, section 2): `activation(gate) * up`.

use crate::Activation;

#[must_use]
pub fn glu(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| (activation.exact(f64::from(g)) * f64::from(u)) as f32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturates_on_both_sides() {
        let y = glu(Activation::Silu, &[0.0, 100.0, -200.0], &[5.0, 2.0, 1.0]);
        assert_eq!(y[..2], [0.0, 200.0]);
        assert!(y[2].abs() < 1e-30);
    }
}
