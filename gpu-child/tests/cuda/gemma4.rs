//! Gemma 4: heads of two sizes, values that are keys, norms of values, factors of layers, and experts beside a dense part; of E2B
//! shared keys and values, and per-layer inputs.
//!
//! The first two tests are small, for an interpreter of the kernels.

use crate::load;
use crate::support::forward::forward;
use crate::support::laws;
use crate::support::{
    MIXED, MIXED_SMALL, Model, Types, alone, config_like_gemma4, config_like_gemma4_e2b,
    config_like_gemma4_e2b_of_four_layers, config_like_gemma4_of_large_heads,
    config_like_gemma4_with_experts, tokens,
};
use worker_orcd_gpu::model::{ExpertsConfig, ModelConfig};
use worker_orcd_kernels::{TensorType, compare};

/// Tolerance as a share of a row's largest value, as for other models (`parity.rs`).
const TOLERANCE: f32 = 5e-3;

const F16: Types = [TensorType::F16; 9];

/// Every expert is chosen, so that no rounding can change the choice.
fn of_all_experts() -> ModelConfig {
    let experts = ExpertsConfig {
        count: 3,
        ..config_like_gemma4_with_experts().experts.expect("experts")
    };
    ModelConfig {
        experts: Some(experts),
        ..config_like_gemma4_with_experts()
    }
}

fn assert_close(config: &ModelConfig, types: Types, count: usize, chunks: &[usize]) {
    let model = Model::like_gemma4(config.clone(), types);
    let tokens = tokens(count, 2);
    let expected = forward(config, &model.weights(), &tokens);
    let mut executor = load(&model);
    for chunk in chunks {
        let seen = alone(&mut executor, config, &tokens, *chunk);
        assert_eq!(seen.hidden.len(), count);
        let mut worst = 0.0_f32;
        for (expected, (position, bits)) in expected.iter().zip(&seen.hidden) {
            let got: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            let apart = compare(expected, &got);
            worst = worst.max(apart.relative());
            let heads = config.head_dim;
            assert!(
                apart.within(TOLERANCE),
                "{types:?}, heads of {heads}, chunks of {chunk}, at {position}: {apart:?}"
            );
        }
        println!("{types:?}, chunks of {chunk}: worst {worst:.1e}");
    }
}

/// From before the window's end to behind it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_of_both_kinds_agree_with_the_references() {
    assert_close(&config_like_gemma4_e2b_of_four_layers(), F16, 46, &[1, 33]);
    assert_close(&of_all_experts(), F16, 44, &[1, 33]);
    assert_close(&config_like_gemma4_of_large_heads(), F16, 36, &[33]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_of_both_kinds_keep_the_law() {
    for (config, types) in [
        (config_like_gemma4_with_experts(), F16),
        (config_like_gemma4_of_large_heads(), F16),
        (config_like_gemma4_e2b_of_four_layers(), F16),
    ] {
        keep_the_law(&Model::like_gemma4(config, types), 44, &[33], &[31, 1]);
    }
}

/// Several splits, and rows for each way to multiply by experts.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn long_sequences_and_large_batches_agree_and_keep_the_law() {
    let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 95, 17, 5, 9, 70, 44];
    let chunks = [2, 7, 16, 17, 32, 33, 64, 65, 128, 200, 300];
    for config in [
        config_like_gemma4(),
        config_like_gemma4_e2b(),
        of_all_experts(),
        config_like_gemma4_of_large_heads(),
    ] {
        assert_close(&config, F16, 300, &[1, 33, 300]);
        for types in [MIXED, MIXED_SMALL] {
            let model = Model::like_gemma4(config.clone(), types);
            keep_the_law(&model, 700, &chunks, &lengths);
            let (executor, config) = (&mut load(&model), &model.config);
            laws::prefill_beside_decoding_does_not_change_a_bit(executor, config);
            laws::pages_of_another_request_serve_an_equal_prefix(executor, config);
            laws::drafts_do_not_change_a_bit(executor, config);
            laws::repeated_drafts_do_not_change_a_bit(executor, config);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pages_behind_windows_do_not_change_a_bit() {
    for config in [
        config_like_gemma4_with_experts(),
        config_like_gemma4_of_large_heads(),
        config_like_gemma4_e2b(),
    ] {
        let model = Model::like_gemma4(config, F16);
        for chunk in [10, 64] {
            let executor = &mut load(&model);
            laws::pages_behind_windows_do_not_change_a_bit(executor, &model.config, chunk);
        }
    }
}

/// Chunks, and neighbours of these lengths.
fn keep_the_law(model: &Model, count: usize, chunks: &[usize], lengths: &[usize]) {
    let (executor, config) = (&mut load(model), &model.config);
    let what = format!("heads of {}", config.head_dim);
    let tokens = tokens(count, 1);
    let expected = alone(executor, config, &tokens, 1);
    laws::chunks_do_not_change_a_bit(executor, config, &tokens, &expected, chunks, &what);
    let (batches, compared) = (1..=lengths.len(), lengths.len());
    laws::neighbours_do_not_change_a_bit(executor, config, lengths, batches, compared, &what);
    executor.use_portable_kernels();
    laws::chunks_do_not_change_a_bit(executor, config, &tokens, &expected, chunks, &what);
}
