//! The law of the device boundary: only a sequence's own tokens and positions determine the bits of
//! its results.

use crate::support::laws::{self, assert_same};
use crate::support::{
    MIXED, MIXED_SMALL, Model, Seen, Share, Types, Watch, alone, config, config_like_gemma,
    config_like_gemma4, config_like_gemma4_e2b, config_like_gemma4_with_experts,
    config_of_delta_nets, config_of_delta_nets_and_experts, config_of_gpt_oss,
    config_of_large_delta_nets, config_of_mamba, config_of_short_convs, config_of_single_blocks,
    config_of_single_blocks_and_experts, config_with_temperature, config_with_windows,
    config_without_rotations, page_table, pages, step, step_with_tables, tokens,
};
use crate::{load, load_with, options};
use worker_orcd_gpu::device::Executor;
use worker_orcd_gpu::model::{
    MambaConfig, ModelConfig, Recurrence, RecurrentLayers, ShortConvConfig,
};
use worker_orcd_ipc::TokenId;
use worker_orcd_kernels::TensorType;
use worker_orcd_kernels::reference::rope::Rope;

/// Wide enough that a row of weights has several segments of several units.
fn wide() -> ModelConfig {
    ModelConfig {
        n_embd: 896,
        n_ff: 2304,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        rope: Rope {
            dims: 64,
            ..config(None).rope
        },
        ..config(None)
    }
}

/// Widths and heads that matrices of k-quants alone have.
fn of_k_quants(head_dim: usize) -> ModelConfig {
    ModelConfig {
        n_embd: 768,
        n_ff: 2304,
        n_heads: 768 / head_dim,
        head_dim,
        rope: Rope {
            dims: head_dim,
            ..config(None).rope
        },
        ..config(None)
    }
}

const K_QUANTS: Types = [
    TensorType::Q4_K,
    TensorType::Q6_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q4_K,
    TensorType::Q6_K,
];

/// Head sizes with wide tiles for prompts.
fn windowed(positions: usize) -> ModelConfig {
    ModelConfig {
        n_layers: 4,
        positions: config_with_windows(positions).positions,
        ..wide()
    }
}

/// Heads as large as most of Gemma's.
fn large_heads_like_gemma() -> Model {
    let small = config_like_gemma();
    let config = ModelConfig {
        head_dim: 256,
        n_heads: 4,
        n_kv_heads: 1,
        ..small
    };
    let mut model = Model::random(config, [TensorType::Q8_0; 9]);
    model.has_post_norms = true;
    model
}

/// Sinks, with heads of a size that has separate kernels, and windows in every second layer.
fn with_sinks(head_dim: usize, positions: usize) -> ModelConfig {
    let mut config = ModelConfig {
        head_dim,
        attention_scale: 1.0 / (head_dim as f64).sqrt(),
        ..config_of_gpt_oss()
    };
    if let Some(window) = &mut config.positions.window {
        window.positions = positions;
    }
    config
}

fn models() -> Vec<Model> {
    let of = |config: &ModelConfig, types: Types| Model::random(config.clone(), types);
    vec![
        of(&config(None), MIXED),
        of(&config(None), MIXED_SMALL),
        of(&wide(), [TensorType::F16; 9]),
        of(&wide(), [TensorType::Q8_0; 9]),
        of(&wide(), [TensorType::F32; 9]),
        of(&of_k_quants(64), K_QUANTS),
        of(&of_k_quants(128), [TensorType::Q4_K; 9]),
        // Units with a bound that is too high for a common power of two of all rows.
        of(&config(None), [TensorType::F16; 9]).with_units_of(1e4),
        of(&config_without_rotations(), MIXED),
        of(&config_with_temperature(), MIXED),
        of(&config_with_windows(40), MIXED),
        of(&config(Some(270)), MIXED),
        of(&windowed(200), [TensorType::F16; 9]),
        Model::like_gemma(MIXED),
        large_heads_like_gemma(),
        of(&config_of_gpt_oss(), MIXED),
        of(&with_sinks(64, 128), [TensorType::F16; 9]),
        of(&with_sinks(64, 200), [TensorType::MXFP4; 9]),
        of(&with_sinks(256, 40), [TensorType::Q8_0; 9]),
        of(&config_of_delta_nets(), MIXED),
        of(&config_of_short_convs(), MIXED),
        of(&config_of_mamba(), MIXED_SMALL),
        of(&config_of_single_blocks(), MIXED),
        of(&config_of_single_blocks_and_experts(), MIXED),
        Model::like_gemma4(config_like_gemma4(), MIXED),
        Model::like_gemma4(config_like_gemma4_with_experts(), MIXED),
        Model::like_gemma4(config_like_gemma4_e2b(), MIXED),
    ]
}

/// Positions of six splits of attention, the last one partial.
const SPLITS_TOKENS: usize = 700;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn decoding_and_prefill_in_any_chunks_give_the_same_bits() {
    for (index, model) in models().into_iter().enumerate() {
        let tokens = tokens(SPLITS_TOKENS, 1);
        let mut executor = load(&model);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        laws::chunks_do_not_change_a_bit(
            &mut executor,
            &model.config,
            &tokens,
            &expected,
            &[2, 7, 16, 17, 32, 33, 64, 65, 128, 200, 256, 300],
            &format!("model {index}"),
        );
    }
}

/// Kernels for Hopper and those for all architectures.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn both_sets_of_kernels_give_the_same_bits() {
    for (index, model) in models().into_iter().enumerate() {
        let tokens = tokens(SPLITS_TOKENS, 1);
        let mut executor = load(&model);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        executor.use_portable_kernels();
        for chunk in [5, 16, 17, 60, 65, 128, 300] {
            let seen = alone(&mut executor, &model.config, &tokens, chunk);
            let what = format!("model {index}, portable, chunks of {chunk}");
            assert_same(&expected, &seen, &what);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn neighbours_do_not_change_a_bit() {
    // Lengths on both sides of pages and splits, repeated up to a large batch.
    let lengths: Vec<usize> = (0..256)
        .map(|i| [1, 2, 31, 32, 33, 63, 64, 65, 95, 17][i % 10])
        .collect();
    // Pages of 256 sequences, of all groups of a model with states.
    let mut options = options();
    options.load.kv_cache_bytes = Some(512 << 20);
    for (index, model) in models().into_iter().enumerate() {
        laws::neighbours_do_not_change_a_bit(
            &mut load_with(&model, &options),
            &model.config,
            &lengths,
            (1..=20).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256]),
            20,
            &format!("model {index}"),
        );
    }
}

/// Steps without a tap on the layers, so that small batches run as one launch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_step_in_one_launch_gives_the_same_bits() {
    const PROMPT: usize = 50;
    for (index, model) in models().into_iter().enumerate() {
        let config = &model.config;
        let mut executor = load(&model);
        let histories: Vec<Vec<TokenId>> = (0..9).map(|i| tokens(130 + i, i)).collect();
        let places: Vec<_> = (0..9).map(|i| pages(i * 5, 5)).collect();
        let expected: Vec<Seen> = histories
            .iter()
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        for batch in 1..=9 {
            let share = |i: usize, from: usize, to: usize| Share {
                request: i,
                tokens: &histories[i][from..to],
                first: from,
                pages: &places[i],
            };
            let mut watch = Watch::logits(9);
            let prompts: Vec<_> = (0..batch).map(|i| share(i, 0, PROMPT)).collect();
            step(&mut executor, &prompts, &mut watch).expect("prefill");
            for at in PROMPT..130 {
                let shares: Vec<_> = (0..batch).map(|i| share(i, at, at + 1)).collect();
                step(&mut executor, &shares, &mut watch).expect("decode");
            }
            for (i, seen) in watch.seen[..batch].iter().enumerate() {
                assert_eq!(seen.logits.len(), 81);
                assert_same(
                    &expected[i],
                    seen,
                    &format!("model {index}, {i} of {batch}"),
                );
            }
        }
    }
}

/// Enough positions that several blocks share the keys of a head and merge their published results: with heads of 64
/// columns several splits per team as well, beside sequences of one split.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_step_in_one_launch_shares_long_contexts_among_blocks() {
    const LONG: usize = 2200;
    let large_heads = ModelConfig {
        head_dim: 128,
        rope: Rope {
            dims: 128,
            ..wide().rope
        },
        ..wide()
    };
    let mut options = options();
    options.load.max_sequence_tokens = LONG as u32 + 32;
    for config in [wide(), large_heads] {
        let config = ModelConfig {
            context_length: 4096,
            ..config
        };
        let model = Model::random(config, [TensorType::F16; 9]);
        let config = &model.config;
        let mut executor = load_with(&model, &options);
        let lengths = [LONG, 1300, 100, LONG - 60];
        let histories: Vec<Vec<TokenId>> = (0..4).map(|i| tokens(lengths[i], i)).collect();
        let places: Vec<_> = (0..4).map(|i| pages(i * 70, 70)).collect();
        let expected: Vec<Seen> = histories
            .iter()
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        for batch in 1..=4 {
            let share = |i: usize, from: usize, to: usize| Share {
                request: i,
                tokens: &histories[i][from..to],
                first: from,
                pages: &places[i],
            };
            let mut watch = Watch::logits(4);
            for (i, length) in lengths[..batch].iter().enumerate() {
                for from in (0..length - 40).step_by(512) {
                    let to = (from + 512).min(length - 40);
                    step(&mut executor, &[share(i, from, to)], &mut watch).expect("prefill");
                }
            }
            for at in 0..40 {
                let shares: Vec<_> = (0..batch)
                    .map(|i| share(i, lengths[i] - 40 + at, lengths[i] - 39 + at))
                    .collect();
                step(&mut executor, &shares, &mut watch).expect("decode");
            }
            for (i, seen) in watch.seen[..batch].iter().enumerate() {
                let what = format!("heads of {}, {i} of {batch}", config.head_dim);
                assert_same(&expected[i], seen, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn prefill_beside_decoding_does_not_change_a_bit() {
    let model = Model::random(wide(), MIXED_WIDE);
    laws::prefill_beside_decoding_does_not_change_a_bit(&mut load(&model), &model.config);
}

/// Types with blocks of 32, which fit any width, and floats.
const MIXED_WIDE: Types = [
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q5_0,
    TensorType::Q8_0,
    TensorType::Q4_1,
    TensorType::Q5_1,
    TensorType::Q4_0,
    TensorType::F16,
    TensorType::BF16,
];

/// Chunks, neighbours, and pages that held states before.
fn states_keep_the_law(model: &Model, tokens: &[TokenId], chunks: &[usize], lengths: &[usize]) {
    let (executor, config) = (&mut load(model), &model.config);
    let what = format!("{:?}", config.recurrent);
    let expected = alone(executor, config, tokens, 1);
    laws::chunks_do_not_change_a_bit(executor, config, tokens, &expected, chunks, &what);
    let (batches, compared) = (1..=lengths.len(), lengths.len());
    laws::neighbours_do_not_change_a_bit(executor, config, lengths, batches, compared, &what);
    // Each page has held another group of another block.
    let groups = executor.kv_geometry().groups.count() as u32;
    let blocks = pages(1, tokens.len().div_ceil(32) as u32);
    let mut table = page_table(&blocks, groups);
    table.iter_mut().for_each(|page| page.0 -= 1);
    let mut watch = Watch::new(1, config);
    for (first, tokens) in (0..).step_by(33).zip(tokens.chunks(33)) {
        let share = Share {
            request: 0,
            tokens,
            first,
            pages: &blocks,
        };
        let tables = [table.clone()];
        step_with_tables(executor, &[share], &tables, &mut watch).expect("a step");
    }
    assert_same(&expected, &watch.seen[0], &format!("{what} in used pages"));
}

/// Small, for an interpreter of the kernels.
fn small_delta_nets() -> Model {
    let config = ModelConfig {
        n_embd: 64,
        n_ff: 64,
        n_heads: 2,
        n_kv_heads: 1,
        ..config_of_delta_nets()
    };
    Model::random(config, [TensorType::F16; 9])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_state_keeps_the_law_from_block_to_block() {
    let model = small_delta_nets();
    states_keep_the_law(&model, &tokens(40, 1), &[33, 40], &[31, 1]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rejected_drafts_leave_no_trace_in_a_state() {
    for model in [small_delta_nets(), small_short_convs(), small_mamba()] {
        laws::drafts_do_not_change_a_bit(&mut load(&model), &model.config);
    }
}

/// Small, for an interpreter of the kernels.
fn small_short_convs() -> Model {
    let large = config_of_short_convs();
    let mut recurrent = large.recurrent.clone().expect("recurrent layers");
    recurrent.recurrence = Recurrence::ShortConv(ShortConvConfig {
        kernel: 3,
        width: 64,
    });
    let config = ModelConfig {
        n_embd: 64,
        n_ff: 64,
        n_heads: 2,
        n_kv_heads: 1,
        recurrent: Some(recurrent),
        ..large
    };
    Model::random(config, [TensorType::F16; 9])
}

/// Small, for an interpreter of the kernels.
fn small_mamba() -> Model {
    let large = config_of_mamba();
    let mut recurrent = large.recurrent.clone().expect("recurrent layers");
    recurrent.recurrence = Recurrence::Mamba(MambaConfig {
        state: 32,
        head_dim: 16,
        heads: 4,
        ..*large.mamba().expect("state spaces")
    });
    let config = ModelConfig {
        n_embd: 64,
        n_ff: 64,
        n_heads: 2,
        n_kv_heads: 1,
        recurrent: Some(recurrent),
        ..large
    };
    Model::random(config, [TensorType::F16; 9])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_state_space_keeps_the_law_from_block_to_block() {
    let model = small_mamba();
    states_keep_the_law(&model, &tokens(70, 1), &[2, 33, 70], &[31, 1, 34]);
}

/// Small, for an interpreter of the kernels.
fn small_single_blocks(config: ModelConfig) -> Model {
    let config = ModelConfig {
        n_embd: 64,
        n_ff: 64,
        ff_widths: config.ff_widths.map(|_| vec![0, 64, 0, 48, 0]),
        n_heads: 2,
        n_kv_heads: 1,
        recurrent: small_mamba()
            .config
            .recurrent
            .map(|recurrent| RecurrentLayers {
                layers: vec![true, false, false, false, true],
                ..recurrent
            }),
        ..config
    };
    Model::random(config, [TensorType::F16; 9])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_of_one_block_keep_the_law_from_block_to_block() {
    let experts = small_single_blocks(config_of_single_blocks_and_experts());
    states_keep_the_law(&experts, &tokens(70, 1), &[2, 33, 70], &[31, 1, 34]);
    let dense = small_single_blocks(config_of_single_blocks());
    laws::drafts_do_not_change_a_bit(&mut load(&dense), &dense.config);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_short_convolution_keeps_the_law_from_block_to_block() {
    let model = small_short_convs();
    states_keep_the_law(&model, &tokens(70, 1), &[2, 33, 70], &[31, 1, 34]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn states_of_large_heads_and_beside_experts_keep_the_law() {
    let large = Model::random(config_of_large_delta_nets(), [TensorType::Q8_0; 9]);
    let experts = Model::random(config_of_delta_nets_and_experts(), MIXED);
    for model in [large, experts] {
        let chunks = [2, 7, 31, 32, 33, 64, 65, 128, 200, 300];
        let lengths = [1, 2, 31, 32, 33, 63, 64, 65, 95, 17, 5, 9, 70, 44];
        states_keep_the_law(&model, &tokens(300, 1), &chunks, &lengths);
        let (executor, config) = (&mut load(&model), &model.config);
        laws::prefill_beside_decoding_does_not_change_a_bit(executor, config);
        laws::pages_of_another_request_serve_an_equal_prefix(executor, config);
        laws::drafts_do_not_change_a_bit(executor, config);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pages_behind_windows_do_not_change_a_bit() {
    let windowed = windowed(40);
    let sinks = with_sinks(64, 40);
    let models = [
        config(Some(40)),
        config_with_windows(40),
        windowed,
        sinks,
        config_of_delta_nets(),
        config_of_large_delta_nets(),
        config_of_short_convs(),
        config_of_mamba(),
        config_of_single_blocks(),
    ];
    let models = models.map(|config| Model::random(config, [TensorType::F16; 9]));
    for model in models
        .into_iter()
        .chain([Model::like_gemma(MIXED), large_heads_like_gemma()])
    {
        for chunk in [1, 10, 64] {
            let executor = &mut load(&model);
            laws::pages_behind_windows_do_not_change_a_bit(executor, &model.config, chunk);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn drafts_do_not_change_a_bit() {
    for model in models() {
        laws::drafts_do_not_change_a_bit(&mut load(&model), &model.config);
    }
}

/// Steps without a tap on the layers, so that they are recorded.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn recorded_drafts_do_not_change_a_bit() {
    let of = |config: &ModelConfig, types: Types| Model::random(config.clone(), types);
    for model in [
        of(&config(None), MIXED),
        of(&wide(), [TensorType::F16; 9]),
        of(&of_k_quants(128), [TensorType::Q4_K; 9]),
        large_heads_like_gemma(),
        of(&with_sinks(64, 128), [TensorType::MXFP4; 9]),
        of(&config_of_delta_nets(), MIXED),
        of(&config_of_delta_nets_and_experts(), MIXED),
        of(&config_of_short_convs(), MIXED),
        of(&config_of_mamba(), MIXED),
        of(&config_of_single_blocks(), MIXED),
        of(&config_of_single_blocks_and_experts(), MIXED),
    ] {
        let executor = &mut load(&model);
        laws::repeated_drafts_do_not_change_a_bit(executor, &model.config);
        assert!(executor.recorded_steps() > 0, "no step was recorded");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pages_of_another_request_serve_an_equal_prefix() {
    let model = Model::random(config(None), MIXED);
    laws::pages_of_another_request_serve_an_equal_prefix(&mut load(&model), &model.config);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_nan_is_a_fault_that_names_its_request() {
    let mut model = Model::random(config(None), MIXED);
    model.poison(50);
    laws::a_nan_is_a_fault_that_names_its_request(&mut load(&model), &model.config);
}
