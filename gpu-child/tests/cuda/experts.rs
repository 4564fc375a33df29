//! Mixtures of experts: the law of the device boundary, and the arithmetic of the kernels.
//!
//! The number of rows selects the kernels, so batches and chunks here use all of them: single
//! rows, a few rows per expert, many.

use crate::support::forward::forward_with_margin;
use crate::support::laws::{self, assert_same};
use crate::support::{
    MIXED, MIXED_SMALL, Model, Seen, Share, Types, Watch, alone, config, config_like_glm,
    config_of_experts, config_of_gpt_oss, config_of_short_convs_and_experts,
    config_with_joint_norms, pages, step, tokens,
};
use crate::{load, load_with, options};
use worker_orcd_gpu::device::Executor;
use worker_orcd_gpu::model::{Architecture, ExpertsConfig, ModelConfig};
use worker_orcd_ipc::{Fault, TokenId};
use worker_orcd_kernels::reference::rope::Rope;
use worker_orcd_kernels::{Activation, TensorType, Weighing, compare};

/// Mixture like `qwen3moe`: many experts, weights divided by their sum, no shared expert.
fn many() -> ModelConfig {
    let experts = ExpertsConfig::plain(64, 8, 256);
    with(Architecture::Qwen3Moe, experts, config(None))
}

/// Mixture like `qwen2moe`: one shared expert, and probabilities as weights.
fn shared() -> ModelConfig {
    let experts = ExpertsConfig {
        weighing: Weighing::Softmax,
        has_biases: false,
        n_ff: 256,
        shared_n_ff: Some(256),
        ..config_of_experts().experts.expect("experts")
    };
    with(Architecture::Qwen2Moe, experts, config(None))
}

/// Mixture like Mixtral: few and wide experts, here so wide that segments have several units, with the end of k inside.
fn wide() -> ModelConfig {
    let experts = ExpertsConfig::plain(8, 2, 2336);
    let config = ModelConfig {
        n_embd: 288,
        ..config(None)
    };
    with(Architecture::Llama, experts, config)
}

/// Mixture like gpt-oss: many experts, weights by softmax of the chosen, biases, a clamped unit, sinks and windows.
fn gpt_oss(count: usize, used: usize) -> ModelConfig {
    let plain = config_of_gpt_oss();
    let experts = ExpertsConfig {
        count,
        used,
        n_ff: 160,
        ..plain.experts.expect("experts")
    };
    with(Architecture::GptOss, experts, plain)
}

fn with(architecture: Architecture, experts: ExpertsConfig, config: ModelConfig) -> ModelConfig {
    ModelConfig {
        architecture,
        experts: Some(experts),
        ..config
    }
}

/// Mixture like Nemotron 3: squares of ReLUs in place of gated units, and one shared expert.
fn without_gates() -> ModelConfig {
    ModelConfig {
        activation: Activation::Relu,
        ..shared()
    }
}

/// Gate and up of one type, and of two types.
fn models() -> Vec<(ModelConfig, Types)> {
    vec![
        (many(), [TensorType::F16; 9]),
        (many(), [TensorType::Q4_K; 9]),
        (shared(), [TensorType::Q6_K; 9]),
        (config_of_experts(), MIXED),
        (shared(), MIXED_SMALL),
        (wide(), [TensorType::Q8_0; 9]),
        (wide(), [TensorType::F32; 9]),
        (wide(), [TensorType::MXFP4; 9]),
        (gpt_oss(32, 4), [TensorType::MXFP4; 9]),
        (gpt_oss(32, 4), MIXED_SMALL),
        (config_of_gpt_oss(), MIXED),
        (config_like_glm(), MIXED_SMALL),
        (config_with_joint_norms(), MIXED),
        (without_gates(), [TensorType::F16; 9]),
        (without_gates(), MIXED_SMALL),
    ]
}

/// Mixtures whose single sequences decode in one launch. Their shapes give warps one or several segments of a tile and
/// these one or several units, a router's last tile fewer rows, and a warp as much of the experts' outputs as it keeps.
/// Their types take each of the kernels.
fn in_one_launch() -> Vec<(ModelConfig, Types)> {
    let of = |head_dim: usize, n_embd: usize, experts: ExpertsConfig| {
        let plain = config(None);
        let config = ModelConfig {
            n_embd,
            head_dim,
            rope: Rope {
                dims: head_dim,
                ..plain.rope.clone()
            },
            n_layers: 3,
            ..plain
        };
        with(Architecture::Qwen3Moe, experts, config)
    };
    let plain = many().experts.expect("experts");
    let few = ExpertsConfig {
        count: 20,
        used: 3,
        n_ff: 768,
        ..plain
    };
    let wide = ExpertsConfig {
        count: 12,
        used: 8,
        n_ff: 992,
        weighing: Weighing::Softmax,
        ..plain
    };
    let clear = ExpertsConfig {
        weighing: Weighing::OfChosen,
        used: 2,
        n_ff: 2336,
        ..plain
    };
    let of_q4_k_m = {
        use TensorType::{Q4_K, Q6_K};
        [Q4_K, Q4_K, Q6_K, Q4_K, Q4_K, Q4_K, Q6_K, Q4_K, Q6_K]
    };
    let mixed = {
        use TensorType::{Q4_K, Q5_K, Q6_K};
        [Q4_K, Q4_K, Q6_K, Q5_K, Q4_K, Q4_K, Q6_K, Q4_K, Q6_K]
    };
    vec![
        (of(128, 256, plain), of_q4_k_m),
        (of(128, 256, plain), mixed),
        (of(64, 768, few), [TensorType::Q8_0; 9]),
        (of(64, 256, wide), [TensorType::Q5_0; 9]),
        (of(128, 288, clear), [TensorType::Q4_0; 9]),
    ]
}

/// Steps without a tap on the layers, so that single sequences run as one launch, of which others choose other experts.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_step_in_one_launch_gives_the_same_bits() {
    for (config, types) in in_one_launch() {
        let model = Model::random(config, types);
        for sequence in 0..2 {
            assert_one_launch_gives_the_same_bits(&model, types, &tokens(140, sequence), 120);
        }
    }
}

/// Contexts of several splits of attention: in one block, and published by several.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_step_in_one_launch_gives_the_same_bits_behind_long_contexts() {
    let (config, types) = in_one_launch().swap_remove(0);
    let model = Model::random(config, types);
    for (prompt, end) in [(382, 386), (894, 898)] {
        assert_one_launch_gives_the_same_bits(&model, types, &tokens(end, 2), prompt);
    }
}

/// Decodes behind a prompt of so many tokens. A tap on the layers makes a step a chain of launches.
fn assert_one_launch_gives_the_same_bits(
    model: &Model,
    types: Types,
    tokens: &[TokenId],
    prompt: usize,
) {
    const CHUNK: usize = 300;
    let mut executor = load(model);
    let places = pages(0, tokens.len().div_ceil(32) as u32);
    let ends = (0..prompt)
        .step_by(CHUNK)
        .skip(1)
        .chain(prompt..=tokens.len());
    let mut logits = |mut watch: Watch| {
        let mut from = 0;
        for end in ends.clone() {
            let share = Share {
                request: 0,
                tokens: &tokens[from..end],
                first: from,
                pages: &places,
            };
            step(&mut executor, &[share], &mut watch).expect("a step");
            from = end;
        }
        watch.seen.remove(0).logits
    };
    let expected = logits(Watch::new(1, &model.config));
    let seen = logits(Watch::logits(1));
    assert!(seen.len() > tokens.len() - prompt);
    for (expected, seen) in expected.iter().zip(&seen) {
        let what = what(&model.config, types);
        assert!(
            expected == seen,
            "{what}: other bits at position {}",
            seen.0
        );
    }
    assert_eq!(expected.len(), seen.len());
}

fn what(config: &ModelConfig, types: Types) -> String {
    format!("{:?}, {:?}", config.architecture, &types[4..7])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn decoding_and_prefill_in_any_chunks_give_the_same_bits() {
    for (config, types) in models() {
        let what = what(&config, types);
        let model = Model::random(config, types);
        let tokens = tokens(500, 1);
        let mut executor = load(&model);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        laws::chunks_do_not_change_a_bit(
            &mut executor,
            &model.config,
            &tokens,
            &expected,
            &[2, 4, 5, 7, 16, 17, 33, 64, 65, 100, 192, 256, 500],
            &what,
        );
        executor.use_portable_kernels();
        for chunk in [1, 4, 5, 65, 300] {
            let seen = alone(&mut executor, &model.config, &tokens, chunk);
            assert_same(
                &expected,
                &seen,
                &format!("{what}, portable, chunks of {chunk}"),
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn neighbours_do_not_change_a_bit() {
    let lengths: Vec<usize> = (0..256)
        .map(|i| [1, 2, 31, 32, 33, 63, 64, 65, 95, 17][i % 10])
        .collect();
    for (config, types) in models() {
        let what = what(&config, types);
        let model = Model::random(config, types);
        laws::neighbours_do_not_change_a_bit(
            &mut load(&model),
            &model.config,
            &lengths,
            (1..=20).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 255, 256]),
            20,
            &what,
        );
    }
}

/// Runs without a tap on the layers, so that steps are recorded, and the recorded graph runs while rows choose
/// other experts.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn recorded_steps_give_the_same_bits() {
    const PROMPT: usize = 50;
    const END: usize = 90;
    const MOST: usize = 70;
    for (config, types) in models() {
        let what = what(&config, types);
        let model = Model::random(config, types);
        let config = &model.config;
        let mut executor = load(&model);
        let histories: Vec<Vec<TokenId>> = (0..MOST).map(|i| tokens(END, i)).collect();
        let places: Vec<_> = (0..MOST as u32).map(|i| pages(i * 3, 3)).collect();
        let expected: Vec<Seen> = histories[..9]
            .iter()
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        for batch in (1..=9).chain([MOST]) {
            let share = |i: usize, from: usize, to: usize| Share {
                request: i,
                tokens: &histories[i][from..to],
                first: from,
                pages: &places[i],
            };
            let mut watch = Watch::logits(MOST);
            for i in 0..batch {
                step(&mut executor, &[share(i, 0, PROMPT)], &mut watch).expect("prefill");
            }
            for at in PROMPT..END {
                let shares: Vec<_> = (0..batch).map(|i| share(i, at, at + 1)).collect();
                step(&mut executor, &shares, &mut watch).expect("decode");
            }
            for (i, (expected, seen)) in expected.iter().zip(&watch.seen[..batch]).enumerate() {
                assert_same(expected, seen, &format!("{what}, {i} of {batch}"));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn prefill_beside_decoding_does_not_change_a_bit() {
    for (config, types) in models() {
        let model = Model::random(config, types);
        laws::prefill_beside_decoding_does_not_change_a_bit(&mut load(&model), &model.config);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pages_of_another_request_serve_an_equal_prefix() {
    for (config, types) in models() {
        let model = Model::random(config, types);
        laws::pages_of_another_request_serve_an_equal_prefix(&mut load(&model), &model.config);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_nan_is_a_fault_that_names_its_request() {
    let in_one_launch = in_one_launch().swap_remove(0);
    for (config, types) in [
        (many(), [TensorType::F16; 9]),
        (config_of_experts(), MIXED),
        in_one_launch,
    ] {
        let mut model = Model::random(config, types);
        model.poison(50);
        laws::a_nan_is_a_fault_that_names_its_request(&mut load(&model), &model.config);
    }
}

/// Tolerance as a share of a row's largest value, as for models without experts (`parity.rs`).
const TOLERANCE: f32 = 5e-3;
/// Minimum router margin of the compared tokens, so that other roundings choose the same experts.
const MARGIN: f32 = 4e-3;

fn assert_close(config: &ModelConfig, types: Types, count: usize, chunks: &[usize]) {
    let what = what(config, types);
    let model = Model::random(config.clone(), types);
    let weights = model.weights();
    let clear = (0..200).find_map(|seed| {
        let tokens = tokens(count, seed);
        let (expected, margin) = forward_with_margin(config, &weights, &tokens);
        (margin > MARGIN).then_some((tokens, expected))
    });
    let (tokens, expected) = clear.unwrap_or_else(|| panic!("{what}: no tokens that are clear"));
    let mut executor = load(&model);
    for chunk in chunks {
        let seen = alone(&mut executor, config, &tokens, *chunk);
        assert_eq!(seen.hidden.len(), count);
        let mut worst = 0.0_f32;
        for (expected, (position, bits)) in expected.iter().zip(&seen.hidden) {
            let got: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            let apart = compare(expected, &got);
            worst = worst.max(apart.relative());
            assert!(
                apart.within(TOLERANCE),
                "{what}, chunks of {chunk}, at {position}: {apart:?}"
            );
        }
        println!("{what}, chunks of {chunk}: worst {worst:.1e}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_type_agrees_with_the_references() {
    for ty in TensorType::ALL {
        assert_close(&shared(), [ty; 9], 16, &[5]);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_kind_of_mixture_agrees_with_the_references() {
    for (config, types) in models() {
        assert_close(&config, types, 8, &[1, 8]);
    }
    // Enough rows for many per expert.
    let few = ExpertsConfig {
        count: 2,
        used: 1,
        ..shared().experts.expect("experts")
    };
    let config = with(Architecture::Qwen2Moe, few, config(None));
    for types in [[TensorType::F16; 9], [TensorType::Q4_K; 9], MIXED_SMALL] {
        assert_close(&config, types, 60, &[60]);
    }
}

/// A dense layer in front of others, sigmoids, biases that only choose, an ungated shared expert, norms over all heads: in
/// one row, and in more than two, which other kernels route.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn routers_by_sigmoid_and_joint_norms_agree_with_the_references() {
    let configs = [
        config_like_glm(),
        config_with_joint_norms(),
        config_of_short_convs_and_experts(),
    ];
    for config in configs {
        assert_close(&config, [TensorType::F16; 9], 8, &[1, 8]);
    }
}

/// Every expert is chosen, so that no rounding can change the choice: among this many tokens some would change.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpt_oss_agrees_with_the_references_past_its_window_and_splits() {
    for types in [[TensorType::F16; 9], [TensorType::MXFP4; 9], MIXED] {
        assert_close(&gpt_oss(3, 3), types, 200, &[1, 33, 200]);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_experts_need_in_memory_is_known_before_it_is_taken() {
    let model = Model::random(many(), [TensorType::F16; 9]);
    let mut options = options();
    let scratch = |options: &_| load_with(&model, options).memory().scratch_bytes;
    let few = scratch(&options);
    options.load.max_batch_tokens *= 2;
    // The pairs of a token have inputs of 256 columns, and results of the same width or of gate and up.
    let of_pair = 2 * 256 + 4 * 512;
    let grown = scratch(&options) - few;
    assert!(
        grown > 512 * 8 * of_pair,
        "{grown} bytes for 512 tokens more"
    );
    options.load.max_batch_tokens = 1 << 24;
    let refused = worker_orcd_gpu::device::cuda::CudaExecutor::load(
        worker_orcd_gpu::device::cuda::Device::open(0).expect("a device"),
        worker_orcd_gpu::device::Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            retained: None,
        },
        &options,
        &mut |_, _| (),
    );
    assert!(matches!(refused, Err(Fault::InsufficientMemory { .. })));
}
