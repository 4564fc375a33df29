//! The short convolution by blocks against its definition, position by position.

use worker_orcd_kernels::compare;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::{ConvInputs, ConvUnit, Isa, short_conv_row};
use worker_orcd_kernels::reference::short_conv::short_conv;
use worker_orcd_kernels::synthetic::Noise;

/// `b`, `c` and `x` of a position, beside each other.
struct Case {
    unit: ConvUnit,
    /// `[kernel, channels]`.
    weights: Vec<f32>,
    rows: Vec<Vec<f32>>,
}

impl Case {
    fn random(unit: ConvUnit, rows: usize, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        Self {
            unit,
            weights: noise.values(unit.kernel * unit.channels, 1.0),
            rows: (0..rows)
                .map(|_| noise.values(3 * unit.channels, 2.0))
                .collect(),
        }
    }

    fn parts(&self, at: usize) -> ConvInputs<'_> {
        let (b, rest) = self.rows[at].split_at(self.unit.channels);
        let (c, x) = rest.split_at(self.unit.channels);
        ConvInputs { b, c, x }
    }

    fn expected(&self, at: usize) -> Vec<f32> {
        let ConvUnit { channels, kernel } = self.unit;
        let from = (at + 1).saturating_sub(kernel);
        let channel = |channel: usize| {
            let product = |at: usize| {
                let ConvInputs { b, x, .. } = self.parts(at);
                b[channel] * x[channel]
            };
            let inputs: Vec<_> = (from..=at).map(product).collect();
            let weights = self.weights.chunks_exact(channels);
            let weights: Vec<_> = weights.map(|weights| weights[channel]).collect();
            short_conv(self.parts(at).c[channel], &inputs, &weights)
        };
        (0..channels).map(channel).collect()
    }

    /// Outputs by blocks. Each position is computed after another one in its place, which is then dropped.
    fn found(&self, isa: Isa) -> Vec<Vec<f32>> {
        let mut blocks: Vec<Vec<f32>> = Vec::new();
        let position = |at: usize| {
            let slot = at % BLOCK;
            if slot == 0 {
                blocks.push(vec![f32::NAN; self.unit.floats()]);
            }
            let mut out = vec![f32::NAN; self.unit.channels];
            let (block, earlier) = blocks.split_last_mut().expect("a block");
            let before = earlier.last().map(Vec::as_slice);
            let own = self.parts(at);
            let dropped = ConvInputs { b: own.c, ..own };
            for inputs in [dropped, own] {
                let of = (&self.unit, &self.weights[..]);
                short_conv_row(isa, of, inputs, before, (&mut block[..], slot), &mut out);
            }
            out
        };
        (0..self.rows.len()).map(position).collect()
    }
}

#[test]
fn blocks_agree_with_the_convolution_at_every_position() {
    for (seed, (channels, kernel)) in [(32, 3), (5, 2), (64, 8)].into_iter().enumerate() {
        let case = Case::random(ConvUnit { channels, kernel }, 2 * BLOCK + 5, seed as u64);
        for isa in Isa::all() {
            for (at, found) in case.found(isa).iter().enumerate() {
                let seen = compare(&case.expected(at), found);
                assert!(
                    seen.within(1e-6),
                    "{isa:?} {:?} at {at}: {seen:?}",
                    case.unit
                );
            }
        }
    }
}
