//! The gated linear unit (Shazeer, arXiv:2002.05202, section 2): `activation(gate) * up`, or a model's variant of it.

use crate::Activation;

#[must_use]
pub fn glu(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| activation.exact(f64::from(g), f64::from(u)) as f32)
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

    #[test]
    fn the_clamped_one_ends_at_its_limits() {
        let of = |gate, up| glu(Activation::ClampedSwiglu, &[gate], &[up])[0];
        let most = 7.0 / (1.0 + (-1.702_f32 * 7.0).exp());
        for (gate, up, expected) in [
            (7.0, 7.0, 8.0 * most),
            (900.0, 900.0, 8.0 * most),
            (900.0, -900.0, -6.0 * most),
            (1.0, -1.0, 0.0),
            (1.0, 0.0, 1.0 / (1.0 + (-1.702_f32).exp())),
            (-900.0, 3.0, 0.0),
        ] {
            let got = of(gate, up);
            assert!(
                (got - expected).abs() < 1e-5,
                "{gate} {up}: {got} {expected}"
            );
        }
    }
}
