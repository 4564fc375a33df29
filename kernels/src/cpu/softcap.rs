//! Soft cap of logits, in place.

/// `cap * tanh(x / cap)` of each value; NaN of an infinite one, which the cap would hide.
pub fn softcap(cap: f32, x: &mut [f32]) {
    x.iter_mut().for_each(|x| {
        let capped = cap * (*x / cap).tanh();
        *x = if x.is_finite() { capped } else { f32::NAN };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;
    use crate::synthetic::Noise;

    #[test]
    fn it_is_the_references_and_shows_what_is_not_finite() {
        let mut noise = Noise::new(5);
        let mut x: Vec<f32> = (0..1000).map(|_| 100.0 * noise.value()).collect();
        let expected = reference::softcap::softcap(30.0, &x);
        softcap(30.0, &mut x);
        for (x, expected) in x.iter().zip(expected) {
            assert!(
                (x - expected).abs() <= 1e-6 * expected.abs(),
                "{x} {expected}"
            );
        }
        let mut bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        softcap(30.0, &mut bad);
        assert!(bad.iter().all(|x| x.is_nan()));
    }
}
