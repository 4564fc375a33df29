//! State-space layers by blocks against the recurrence, position by position.

use worker_orcd_kernels::compare;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::{Isa, ScanInputs, ScanUnit, ScanWeights, scan_row};
use worker_orcd_kernels::reference::mamba::{ScanRow, biased_conv, scan_step, softplus};
use worker_orcd_kernels::synthetic::Noise;

struct Case {
    unit: ScanUnit,
    weights: ScanWeights,
    rows: Vec<ScanInputs>,
}

impl Case {
    fn random(unit: ScanUnit, rows: usize, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let heads = unit.heads;
        let mut values = |count: usize, magnitude: f32| noise.values(count, magnitude);
        let weights = ScanWeights {
            conv: values(unit.kernel * unit.channels(), 1.0),
            conv_bias: values(unit.channels(), 0.5),
            dt: values(heads, 2.0),
            // From no decay to one that forgets within a position.
            decay: (0..heads).map(|head| -(head as f32).powi(3)).collect(),
            direct: values(heads, 1.0),
        };
        let row = |_| ScanInputs {
            channels: values(unit.channels(), 2.0),
            dt: values(heads, 3.0),
        };
        Self {
            unit,
            weights,
            rows: (0..rows).map(row).collect(),
        }
    }

    /// Outputs by the definition.
    fn expected(&self) -> Vec<Vec<f32>> {
        let ScanUnit {
            state,
            head_dim: dim,
            heads,
            kernel,
        } = self.unit;
        let (channels, weights) = (self.unit.channels(), &self.weights);
        let mut states = vec![vec![0.0; state * dim]; heads];
        let position = |at: usize| {
            let conv = |channel: usize| {
                let from = (at + 1).saturating_sub(kernel);
                let rows = self.rows[from..=at].iter();
                let inputs: Vec<_> = rows.map(|row| row.channels[channel]).collect();
                let of_positions = weights.conv.chunks_exact(channels);
                let of_channel: Vec<_> = of_positions.map(|it| it[channel]).collect();
                biased_conv(&inputs, &of_channel, weights.conv_bias[channel])
            };
            let mixed: Vec<f32> = (0..channels).map(conv).collect();
            let (x, rest) = mixed.split_at(heads * dim);
            let (b, c) = rest.split_at(state);
            let heads = states.iter_mut().enumerate().flat_map(|(head, of_head)| {
                let row = ScanRow {
                    b,
                    c,
                    x: &x[head * dim..][..dim],
                    dt: softplus(self.rows[at].dt[head] + weights.dt[head]),
                    a: weights.decay[head],
                    d: weights.direct[head],
                };
                scan_step(of_head, &row)
            });
            heads.map(|value| value as f32).collect()
        };
        (0..self.rows.len()).map(position).collect()
    }

    /// Outputs by blocks. Each position is computed after another one in its place, which is then dropped.
    fn found(&self, isa: Isa) -> Vec<Vec<f32>> {
        let mut blocks: Vec<Vec<f32>> = Vec::new();
        let width = self.unit.heads * self.unit.head_dim;
        let position = |(at, inputs): (usize, &ScanInputs)| {
            let slot = at % BLOCK;
            if slot == 0 {
                blocks.push(vec![0.0; self.unit.floats()]);
            }
            let mut out = vec![f32::NAN; width];
            let (block, earlier) = blocks.split_last_mut().expect("a block");
            let before = earlier.last().map(Vec::as_slice);
            let dropped = ScanInputs {
                channels: inputs.channels.iter().map(|x| 3.0 - x).collect(),
                ..inputs.clone()
            };
            for inputs in [&dropped, inputs] {
                let of = (&self.unit, &self.weights);
                scan_row(isa, of, inputs, before, (&mut block[..], slot), &mut out);
            }
            out
        };
        self.rows.iter().enumerate().map(position).collect()
    }
}

#[test]
fn blocks_agree_with_the_recurrence_at_every_position() {
    for (seed, (state, head_dim, heads, kernel)) in [(16, 8, 1, 4), (32, 20, 3, 2), (128, 64, 2, 4)]
        .into_iter()
        .enumerate()
    {
        let unit = ScanUnit {
            state,
            head_dim,
            heads,
            kernel,
        };
        let case = Case::random(unit, 3 * BLOCK + 5, seed as u64);
        let expected = case.expected();
        for isa in Isa::all() {
            for (at, (expected, found)) in expected.iter().zip(case.found(isa)).enumerate() {
                let seen = compare(expected, &found);
                assert!(seen.within(1e-5), "{isa:?} {unit:?} at {at}: {seen:?}");
            }
        }
    }
}
