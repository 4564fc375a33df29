//! The forward pass against one written with the scalar references: what the other engine in
//! `tests/oracle` cannot show (a sliding window, head norms together with biases) is shown here.

use crate::support::forward::forward;
use crate::support::{Model, alone, config, tokens};
use worker_orcd_kernels::reference::rope::RopePairs;
use worker_orcd_kernels::{TensorType, compare};

/// Float weights leave rounding and the F16 cache; 2e-3 of the largest value covers both, and a
/// wrong pair, window or bias is off by a hundred times that.
#[test]
fn the_pass_agrees_with_the_references_at_every_position() {
    for pairs in [RopePairs::Adjacent, RopePairs::HalfOffset] {
        for window in [None, Some(10)] {
            let mut config = config(window);
            config.rope.pairs = pairs;
            config.rope.scale = 2.0;
            config.rope.factors = Some((0..config.rope.dims / 2).map(|i| 1.0 + i as f32).collect());
            config.rope.attn_factor = 1.2;
            let model = Model::random(config, [TensorType::F32; 9]);
            let tokens = tokens(40, 2);
            let expected = forward(&model.config, &model.weights(), &tokens);
            for portable in [false, true] {
                let mut executor = if portable {
                    model.load_portable()
                } else {
                    model.load(2)
                };
                let seen = alone(&mut executor, &model.config, &tokens, 11);
                for (expected, (position, bits)) in expected.iter().zip(&seen.hidden) {
                    let got: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
                    let apart = compare(expected, &got);
                    assert!(
                        apart.within(2e-3),
                        "{pairs:?} {window:?} portable {portable} at {position}: {apart:?}"
                    );
                }
            }
        }
    }
}
