//! The delta net by blocks against the recurrence, position by position.

use worker_orcd_kernels::compare;
use worker_orcd_kernels::cpu::delta_net::BLOCK;
use worker_orcd_kernels::cpu::{DeltaInputs, DeltaUnit, DeltaWeights, Isa, delta_row};
use worker_orcd_kernels::reference::delta_net::{
    DeltaRow, causal_conv, delta_step, l2_norm, log_decay,
};
use worker_orcd_kernels::synthetic::Noise;

const EPS: f32 = 1e-6;

struct Case {
    unit: DeltaUnit,
    weights: DeltaWeights,
    rows: Vec<DeltaInputs>,
}

impl Case {
    fn random(unit: DeltaUnit, rows: usize, seed: u64) -> Self {
        let mut noise = Noise::new(seed);
        let heads = unit.v_heads;
        let mut values = |count: usize, magnitude: f32| noise.values(count, magnitude);
        let weights = DeltaWeights {
            conv: values(unit.kernel * unit.channels(), 1.0),
            dt: values(heads, 2.0),
            // From no decay to one that forgets within a position.
            decay: (0..heads).map(|head| -(head as f32).powi(3)).collect(),
            eps: EPS,
        };
        let row = |_| DeltaInputs {
            channels: values(unit.channels(), 2.0),
            beta: values(heads, 3.0),
            alpha: values(heads, 3.0),
        };
        Self {
            unit,
            weights,
            rows: (0..rows).map(row).collect(),
        }
    }

    /// Outputs by the definition.
    fn expected(&self) -> Vec<Vec<f32>> {
        let DeltaUnit {
            head_dim: dim,
            v_heads,
            kernel,
        } = self.unit;
        let channels = self.unit.channels();
        let mut states = vec![vec![0.0; dim * dim]; v_heads];
        let position = |at: usize| {
            let conv = |channel: usize| {
                let from = (at + 1).saturating_sub(kernel);
                let inputs: Vec<_> = self.rows[from..=at]
                    .iter()
                    .map(|row| row.channels[channel])
                    .collect();
                let weights = self.weights.conv.chunks_exact(channels);
                let weights: Vec<_> = weights.map(|weights| weights[channel]).collect();
                causal_conv(&inputs, &weights)
            };
            let qkv: Vec<f32> = (0..channels).map(conv).collect();
            let mut q = l2_norm(&qkv[..dim], EPS);
            q.iter_mut().for_each(|q| *q /= (dim as f32).sqrt());
            let k = l2_norm(&qkv[dim..2 * dim], EPS);
            let inputs = &self.rows[at];
            let heads = states.iter_mut().enumerate().flat_map(|(head, state)| {
                let row = DeltaRow {
                    q: &q,
                    k: &k,
                    v: &qkv[(2 + head) * dim..][..dim],
                    beta: 1.0 / (1.0 + f64::from(-inputs.beta[head]).exp()),
                    log_decay: log_decay(
                        self.weights.decay[head],
                        inputs.alpha[head],
                        self.weights.dt[head],
                    ),
                };
                delta_step(state, &row)
            });
            heads.map(|value| value as f32).collect()
        };
        (0..self.rows.len()).map(position).collect()
    }

    /// Outputs by blocks. Each position is computed after other ones in its place, which are then dropped.
    fn found(&self, isa: Isa) -> Vec<Vec<f32>> {
        let mut blocks: Vec<Vec<f32>> = Vec::new();
        let width = self.unit.v_heads * self.unit.head_dim;
        let position = |(at, inputs): (usize, &DeltaInputs)| {
            let slot = at % BLOCK;
            if slot == 0 {
                blocks.push(vec![0.0; self.unit.floats()]);
            }
            let mut out = vec![f32::NAN; width];
            let (block, earlier) = blocks.split_last_mut().expect("a block");
            let before = earlier.last().map(Vec::as_slice);
            let dropped = DeltaInputs {
                channels: inputs.channels.iter().map(|x| 3.0 - x).collect(),
                ..inputs.clone()
            };
            for inputs in [&dropped, inputs] {
                let place = (&mut block[..], slot);
                delta_row(
                    isa,
                    &self.unit,
                    &self.weights,
                    inputs,
                    before,
                    place,
                    &mut out,
                );
            }
            out
        };
        self.rows.iter().enumerate().map(position).collect()
    }
}

#[test]
fn blocks_agree_with_the_recurrence_at_every_position() {
    for (seed, (head_dim, v_heads, kernel)) in [(8, 1, 4), (16, 3, 2), (64, 2, 4), (128, 2, 4)]
        .into_iter()
        .enumerate()
    {
        let unit = DeltaUnit {
            head_dim,
            v_heads,
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
