//! Attention of prompts in tiles of many rows: the bits equal those of decoding, for any mix in a step.

use crate::support::laws::{assert_same, chunks_do_not_change_a_bit};
use crate::support::{
    Model, Seen, Share, Watch, alone, config, config_with_windows, pages, step, tokens,
};
use crate::{load, load_with, options};
use worker_orcd_gpu::model::ModelConfig;
use worker_orcd_ipc::TokenId;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::rope::Rope;

/// Heads of queries and of keys and values: groups of one, of a power of two, and of a number that divides no tile.
const HEADS: [(usize, usize); 3] = [(16, 16), (32, 8), (28, 4)];
/// Head sizes of the kernel.
const HEAD_DIMS: [usize; 3] = [64, 96, 128];

/// Every second layer has a window across splits.
fn model_with_windows(head_dim: usize, heads: (usize, usize)) -> Model {
    of(config_with_windows(200), head_dim, heads)
}

fn model(head_dim: usize, heads: (usize, usize)) -> Model {
    of(config(None), head_dim, heads)
}

fn of(config: ModelConfig, head_dim: usize, (n_heads, n_kv_heads): (usize, usize)) -> Model {
    let config = ModelConfig {
        n_heads,
        n_kv_heads,
        head_dim,
        rope: Rope {
            dims: head_dim,
            ..config.rope
        },
        ..config
    };
    Model::random(config, [TensorType::F16; 9])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn chunks_of_any_size_give_the_bits_of_decoding() {
    const TOKENS: usize = 700;
    for head_dim in HEAD_DIMS {
        for heads in HEADS {
            for model in [model(head_dim, heads), model_with_windows(head_dim, heads)] {
                let tokens = tokens(TOKENS, 1);
                let mut executor = load(&model);
                let expected = alone(&mut executor, &model.config, &tokens, 1);
                let window = &model.config.positions.window;
                let what = format!("heads {heads:?} of {head_dim}, {window:?}");
                let chunks = [33, 65, 128, 200, 256, 300, 384, 500, 512];
                chunks_do_not_change_a_bit(
                    &mut executor,
                    &model.config,
                    &tokens,
                    &expected,
                    &chunks,
                    &what,
                );
                executor.use_portable_kernels();
                let seen = alone(&mut executor, &model.config, &tokens, 512);
                assert_same(&expected, &seen, &format!("{what}, portable"));
            }
        }
    }
}

/// Positions far from the start of a sequence, where most splits need no mask.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn chunks_far_behind_the_beginning_give_the_same_bits() {
    const TOKENS: usize = 3100;
    let mut options = options();
    options.load.max_sequence_tokens = 3200;
    options.load.max_batch_tokens = 2048;
    let tokens = tokens(TOKENS, 2);
    for mut model in [model(128, (28, 4)), model_with_windows(128, (28, 4))] {
        model.config.context_length = 4096;
        let mut executor = load_with(&model, &options);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        chunks_do_not_change_a_bit(
            &mut executor,
            &model.config,
            &tokens,
            &expected,
            &[217, 500, 1024, 2048],
            "a long prompt",
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn prompts_and_decoding_sequences_share_a_step() {
    const LENGTHS: [usize; 6] = [601, 40, 300, 430, 129, 333];
    /// Positions before the mixed step, and its tokens: prompts between decoding sequences.
    const PARTS: [(usize, usize); 6] =
        [(600, 1), (39, 1), (0, 300), (329, 101), (128, 1), (300, 33)];
    for head_dim in HEAD_DIMS {
        let model = model(head_dim, (28, 4));
        let config = &model.config;
        let mut executor = load(&model);
        let histories: Vec<Vec<TokenId>> = (0..6).map(|i| tokens(LENGTHS[i], i)).collect();
        let expected: Vec<Seen> = histories
            .iter()
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        let places: Vec<_> = (0..6).map(|i| pages(i * 20, 20)).collect();
        let share = |i: usize, from: usize, to: usize| Share {
            request: i,
            tokens: &histories[i][from..to],
            first: from,
            pages: &places[i],
        };
        // Decoding sequences first, last, and in between.
        for order in [[0, 1, 4, 2, 3, 5], [2, 3, 5, 0, 1, 4], [2, 0, 3, 1, 5, 4]] {
            let mut watch = Watch::new(6, config);
            for (i, (before, _)) in PARTS.into_iter().enumerate() {
                for from in (0..before).step_by(512) {
                    step(
                        &mut executor,
                        &[share(i, from, before.min(from + 512))],
                        &mut watch,
                    )
                    .expect("prefill");
                }
            }
            let parts = order.map(|i| share(i, PARTS[i].0, PARTS[i].0 + PARTS[i].1));
            step(&mut executor, &parts, &mut watch).expect("a mixed step");
            for (i, seen) in watch.seen.iter().enumerate() {
                let what = format!("heads of {head_dim}, sequence {i} in {order:?}");
                assert_eq!(seen.hidden.len(), LENGTHS[i]);
                assert_same(&expected[i], seen, &what);
            }
        }
    }
}
