//! Whole small models against the forward pass of the scalar references.
//!
//! Activations are F16 under one power of two per row, weights are rounded to F16, and so are the scales of
//! k-quants: each product has some random roundings of at most 2^-12. Over the products of one value
//! that is about 1e-3 of a row's largest; a nibble read from the wrong half, a wrong pair or a
//! missing bias causes an error a hundred times as large.

use crate::load;
use crate::support::forward::forward;
use crate::support::{
    Model, alone, config, config_of_delta_nets, config_of_large_delta_nets, config_of_mamba,
    config_of_short_convs, config_of_single_blocks, config_of_single_blocks_and_experts,
    config_with_temperature, config_with_windows, config_without_rotations, delta_nets, tokens,
};
use worker_orcd_gpu::device::Executor;
use worker_orcd_gpu::model::{
    DeltaNetConfig, MambaConfig, ModelConfig, Recurrence, ShortConvConfig,
};
use worker_orcd_kernels::reference::delta_net::HeadOrder;
use worker_orcd_kernels::reference::rope::RopePairs;
use worker_orcd_kernels::{TensorType, compare};

/// Tolerance as a share of a row's largest value.
const TOLERANCE: f32 = 5e-3;

fn assert_close(config: ModelConfig, types: [TensorType; 9], count: usize, chunk: usize) {
    model_is_close(
        &Model::random(config, types),
        &format!("{types:?}"),
        count,
        chunk,
    );
}

fn model_is_close(model: &Model, types: &str, count: usize, chunk: usize) {
    let what = format!("{types} {:?} chunks of {chunk}", model.config);
    let tokens = tokens(count, 2);
    let expected = forward(&model.config, &model.weights(), &tokens);
    let seen = alone(&mut load(model), &model.config, &tokens, chunk);
    let mut worst = 0.0_f32;
    for (expected, (position, bits)) in expected.iter().zip(&seen.hidden) {
        let got: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let apart = compare(expected, &got);
        worst = worst.max(apart.relative());
        assert!(apart.within(TOLERANCE), "{what} at {position}: {apart:?}");
    }
    println!("{what}: worst {worst:.1e}");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_type_agrees_with_the_references() {
    for ty in TensorType::ALL {
        assert_close(config(None), [ty; 9], 40, 11);
    }
}

/// More than 16, 64 and 128 rows use other kernels.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_type_agrees_in_long_prompts() {
    for ty in TensorType::ALL {
        assert_close(config(None), [ty; 9], 200, 200);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_head_size_and_rotation_agrees() {
    for head_dim in [16, 32, 64, 96, 128, 256] {
        for pairs in [RopePairs::Adjacent, RopePairs::HalfOffset] {
            for (n_heads, n_kv_heads) in [(4, 4), (6, 2), (7, 1)] {
                let mut config = config(None);
                (config.head_dim, config.rope.dims) = (head_dim, head_dim - 8);
                (config.n_heads, config.n_kv_heads) = (n_heads, n_kv_heads);
                config.attention_scale = 1.0 / (head_dim as f64).sqrt();
                config.rope.pairs = pairs;
                config.rope.scale = 2.0;
                config.rope.factors =
                    Some((0..config.rope.dims / 2).map(|i| 1.0 + i as f32).collect());
                config.rope.attn_factor = 1.2;
                assert_close(config, [TensorType::F16; 9], 100, 33);
            }
        }
    }
}

/// Models with norms of heads and without, since separate kernels rotate them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_without_rotation_and_queries_with_a_temperature_agree() {
    for config in [config_without_rotations(), config_with_temperature()] {
        for has_head_norms in [true, false] {
            let mut model = Model::random(config.clone(), [TensorType::F16; 9]);
            model.has_head_norms = has_head_norms;
            for chunk in [1, 33] {
                model_is_close(&model, "F16", 100, chunk);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn norms_behind_blocks_two_rotations_and_scales_agree() {
    for chunk in [1, 33, 200] {
        let model = Model::like_gemma([TensorType::F16; 9]);
        model_is_close(&model, "F16", 200, chunk);
    }
}

/// From the first block of a state to the third, in both orders of heads.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn delta_nets_and_gated_attention_agree_with_the_references() {
    for order in [HeadOrder::Tiled, HeadOrder::Grouped] {
        let small = config_of_delta_nets();
        let net = *small.delta_net().expect("delta nets");
        let config = ModelConfig {
            recurrent: Some(delta_nets(DeltaNetConfig { order, ..net })),
            ..small
        };
        assert_close(config, [TensorType::F16; 9], 70, 33);
    }
}

/// From the first block of a state to the third, with states of each size.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn state_spaces_agree_with_the_references() {
    for (state, head_dim, heads, groups) in [
        (64, 40, 12, 2),
        (128, 64, 4, 1),
        (32, 16, 8, 8),
        (256, 32, 2, 1),
    ] {
        let small = config_of_mamba();
        let mut recurrent = small.recurrent.clone().expect("recurrent layers");
        recurrent.recurrence = Recurrence::Mamba(MambaConfig {
            state,
            head_dim,
            heads,
            groups,
            ..*small.mamba().expect("state spaces")
        });
        let config = ModelConfig {
            recurrent: Some(recurrent),
            ..small
        };
        assert_close(config, [TensorType::F16; 9], 70, 33);
    }
}

/// From the first block of a state to the third.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn layers_of_one_block_agree_with_the_references() {
    assert_close(config_of_single_blocks(), [TensorType::F16; 9], 70, 33);
    let experts = config_of_single_blocks_and_experts();
    assert_close(experts, [TensorType::F16; 9], 70, 33);
}

/// From the first block of a state to the third, with windows of a few positions and of the most.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn short_convolutions_agree_with_the_references() {
    for kernel in [3, 8] {
        let small = config_of_short_convs();
        let mut recurrent = small.recurrent.clone().expect("recurrent layers");
        recurrent.recurrence = Recurrence::ShortConv(ShortConvConfig { kernel, width: 256 });
        let config = ModelConfig {
            recurrent: Some(recurrent),
            ..small
        };
        assert_close(config, [TensorType::F16; 9], 70, 33);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn delta_nets_of_each_size_agree() {
    let small = config_of_delta_nets();
    let small_net = *small.delta_net().expect("delta nets");
    let of = |head_dim, kernel, v_heads| ModelConfig {
        recurrent: Some(delta_nets(DeltaNetConfig {
            head_dim,
            kernel,
            v_heads,
            ..small_net
        })),
        ..small.clone()
    };
    let configs = [of(16, 2, 3), of(64, 8, 9), config_of_large_delta_nets()];
    for config in configs {
        for chunk in [1, 33, 200] {
            assert_close(config.clone(), [TensorType::F16; 9], 200, chunk);
        }
    }
}

/// Values far below 1, far above the largest F16, and so spread that each row has its own power of two.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn units_of_any_magnitude_agree() {
    for magnitude in [1e-3, 100.0, 1e4] {
        for ty in [TensorType::F16, TensorType::F32] {
            for chunk in [1, 24, 200] {
                let model = Model::random(config(None), [ty; 9]).with_units_of(magnitude);
                model_is_close(&model, &format!("{ty:?}, {magnitude}"), 200, chunk);
            }
        }
    }
}

/// Windows within a page, across pages, across splits; in all layers and in some.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn windows_agree() {
    for positions in [1, 10, 40, 129, 200] {
        for config in [config(Some(positions)), config_with_windows(positions)] {
            for chunk in [1, 33, 300] {
                assert_close(config.clone(), [TensorType::F16; 9], 300, chunk);
            }
        }
    }
}

/// Widths that are no whole units, and the maximum number of segments.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn odd_widths_agree() {
    for (n_embd, n_ff) in [(64, 96), (576, 1536), (896, 4864), (160, 2336)] {
        let mut config = config(None);
        (config.n_embd, config.n_ff) = (n_embd, n_ff);
        for ty in [
            TensorType::F16,
            TensorType::Q8_0,
            TensorType::Q4_1,
            TensorType::IQ4_NL,
            TensorType::MXFP4,
        ] {
            for chunk in [1, 24] {
                assert_close(config.clone(), [ty; 9], 24, chunk);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_device_says_what_it_is_and_what_it_holds() {
    let executor = load(&Model::random(config(None), [TensorType::Q8_0; 9]));
    let (facts, memory) = (executor.facts(), executor.memory());
    println!("{facts:?}\n{memory:?}");
    assert_eq!(facts.id, "cuda:0");
    assert!(facts.uuid.is_some_and(|uuid| uuid.starts_with("GPU-")));
    assert!(memory.weights_bytes > 0 && memory.scratch_bytes > 0);
    let geometry = executor.kv_geometry();
    assert_eq!(
        memory.kv_capacity_bytes,
        u64::from(geometry.pages) * geometry.page_bytes
    );
    assert!(memory.free_bytes < memory.total_bytes);
}
