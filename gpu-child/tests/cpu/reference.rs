//! The forward pass compared with one made of the scalar references. It covers combinations that the other engine in
//! `tests/oracle` does not: windows in all layers, head norms together with biases.

use crate::support::forward::forward;
use crate::support::{
    Model, alone, config, config_like_gemma4, config_like_gemma4_e2b,
    config_like_gemma4_with_experts, config_like_glm, config_of_delta_nets, config_of_experts,
    config_of_gpt_oss, config_of_mamba, config_of_short_convs, config_of_short_convs_and_experts,
    config_of_single_blocks, config_of_single_blocks_and_experts, config_with_joint_norms,
    config_with_temperature, config_with_windows, config_without_rotations, delta_nets, tokens,
};
use worker_orcd_gpu::model::{DeltaNetConfig, ModelConfig};
use worker_orcd_kernels::reference::delta_net::HeadOrder;
use worker_orcd_kernels::reference::rope::RopePairs;
use worker_orcd_kernels::{TensorType, Weighing, compare};

/// Tolerance: float weights leave rounding and the F16 cache; 2e-3 of the largest value covers both, and a wrong pair,
/// window or bias is off by a hundred times that.
#[test]
fn the_pass_agrees_with_the_references_at_every_position() {
    for pairs in [RopePairs::Adjacent, RopePairs::HalfOffset] {
        for window in [None, Some(10)] {
            let mut config = config(window);
            config.rope.pairs = pairs;
            config.rope.scale = 2.0;
            config.rope.factors = Some((0..config.rope.dims / 2).map(|i| 1.0 + i as f32).collect());
            config.rope.attn_factor = 1.2;
            agrees(config, &format!("{pairs:?} {window:?}"));
        }
    }
}

/// Same tolerance as above.
#[test]
fn layers_that_do_not_rotate_agree_with_the_references() {
    agrees(config_without_rotations(), "layers without rotation");
}

/// Same tolerance as above.
#[test]
fn windows_in_some_layers_agree_with_the_references() {
    agrees(config_with_windows(10), "windows");
}

/// Same tolerance as above.
#[test]
fn norms_behind_blocks_two_rotations_and_scales_agree_with_the_references() {
    model_agrees(Model::like_gemma([TensorType::F32; 9]), "like Gemma");
}

/// Same tolerance as above.
#[test]
fn heads_of_two_sizes_and_values_that_are_keys_agree_with_the_references() {
    for (config, what) in [
        (config_like_gemma4(), "like Gemma 4"),
        (config_like_gemma4_e2b(), "like Gemma 4 E2B"),
        (
            config_like_gemma4_with_experts(),
            "like Gemma 4, with experts",
        ),
    ] {
        let mut config = config;
        if let Some(window) = &mut config.positions.window {
            window.positions = 10;
        }
        model_agrees(Model::like_gemma4(config, [TensorType::F32; 9]), what);
    }
}

/// Same tolerance as above.
#[test]
fn queries_with_a_temperature_agree_with_the_references() {
    agrees(config_with_temperature(), "a temperature");
}

/// Same tolerance as above. The second case has a shared expert and weights that do not add up to 1 (qwen2moe), unlike
/// Mixtral and qwen3moe. The third has a dense layer, sigmoids, a bias that chooses, a factor of weights, and a shared expert
/// without a gate (glm4moe); the fourth has norms over all heads (minimax-m2).
#[test]
fn a_mixture_of_experts_agrees_with_the_references() {
    for (weighing, shared_n_ff) in [
        (Weighing::Renormalized, None),
        (Weighing::Softmax, Some(64)),
    ] {
        let mut config = config_of_experts();
        if let Some(experts) = &mut config.experts {
            (experts.weighing, experts.shared_n_ff) = (weighing, shared_n_ff);
            experts.gates_shared = shared_n_ff.is_some();
        }
        agrees(config, &format!("{weighing:?}"));
    }
    agrees(config_like_glm(), "sigmoids");
    agrees(config_with_joint_norms(), "joint norms");
}

#[test]
fn gpt_oss_agrees_with_the_references_past_its_window() {
    let mut config = config_of_gpt_oss();
    if let Some(window) = &mut config.positions.window {
        window.positions = 10;
    }
    agrees(config, "gpt-oss");
}

/// Same tolerance as above: in both orders of heads, from one block of a state to the next.
#[test]
fn delta_nets_and_gated_attention_agree_with_the_references() {
    for order in [HeadOrder::Tiled, HeadOrder::Grouped] {
        let small = config_of_delta_nets();
        let net = *small.delta_net().expect("delta nets");
        let config = ModelConfig {
            recurrent: Some(delta_nets(DeltaNetConfig { order, ..net })),
            ..small
        };
        agrees(config, &format!("{order:?}"));
    }
}

/// Same tolerance as above.
#[test]
fn state_spaces_agree_with_the_references() {
    agrees(config_of_mamba(), "state spaces");
}

/// Same tolerance as above.
#[test]
fn layers_of_one_block_agree_with_the_references() {
    agrees(config_of_single_blocks(), "layers of one block");
    agrees(config_of_single_blocks_and_experts(), "with experts");
}

/// Same tolerance as above.
#[test]
fn short_convolutions_agree_with_the_references() {
    agrees(config_of_short_convs(), "short convolutions");
    agrees(config_of_short_convs_and_experts(), "with experts");
}

/// Compares the last hidden state at each position, with both sets of CPU code.
fn agrees(config: ModelConfig, what: &str) {
    model_agrees(Model::random(config, [TensorType::F32; 9]), what);
}

fn model_agrees(model: Model, what: &str) {
    let tokens = tokens(40, 2);
    let expected = forward(&model.config, &model.weights(), &tokens);
    for (portable, mut executor) in [(true, model.load_portable()), (false, model.load(2))] {
        let seen = alone(&mut executor, &model.config, &tokens, 11);
        for (expected, (position, bits)) in expected.iter().zip(&seen.hidden) {
            let got: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
            let apart = compare(expected, &got);
            assert!(
                apart.within(2e-3),
                "{what} portable {portable} at {position}: {apart:?}"
            );
        }
    }
}
