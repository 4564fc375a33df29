use super::*;
use crate::model::config::ModelConfig;
use crate::model::gguf::parse;
use crate::model::gguf_builder::{GgufBuilder, Meta};
use crate::model::tiny_model::{tiny_gemma4_with_experts, tiny_mixtral, tiny_model};
use crate::model::{Architecture, FileWeights};

fn read(file: &GgufBuilder) -> Result<Option<ExpertsConfig>, ModelError> {
    let bytes = file.build();
    let config = ModelConfig::from_gguf(&parse(&bytes).unwrap(), None)?;
    Ok(config.experts)
}

fn refusal(file: &GgufBuilder) -> String {
    let refused = read(file).expect_err("the configuration is refused");
    refused.to_string()
}

fn qwen2moe() -> GgufBuilder {
    tiny_model(Architecture::Qwen2Moe)
}

fn qwen3moe() -> GgufBuilder {
    tiny_model(Architecture::Qwen3Moe)
}

#[test]
fn each_architecture_with_experts_is_read() {
    let plain = ExpertsConfig::plain(6, 2, 32);
    let expected = [
        (qwen3moe(), Some(plain)),
        (
            qwen2moe(),
            Some(ExpertsConfig {
                shared_n_ff: Some(48),
                gates_shared: true,
                weighing: Weighing::Softmax,
                ..plain
            }),
        ),
        (tiny_mixtral(), Some(ExpertsConfig { n_ff: 96, ..plain })),
        (
            tiny_model(Architecture::GptOss),
            Some(ExpertsConfig {
                weighing: Weighing::OfChosen,
                has_biases: true,
                ..plain
            }),
        ),
        (
            tiny_gemma4_with_experts(),
            Some(ExpertsConfig {
                beside_dense: true,
                ..plain
            }),
        ),
        (
            tiny_model(Architecture::Ernie45Moe),
            Some(ExpertsConfig {
                shared_n_ff: Some(48),
                has_choice_bias: true,
                first_layer: 1,
                ..plain
            }),
        ),
        (
            tiny_model(Architecture::Glm4Moe),
            Some(ExpertsConfig {
                shared_n_ff: Some(2 * 32),
                weighing: Weighing::RenormalizedSigmoid,
                scale: 2.5,
                has_choice_bias: true,
                first_layer: 1,
                ..plain
            }),
        ),
        (
            tiny_model(Architecture::MiniMaxM2),
            Some(ExpertsConfig {
                n_ff: 96,
                weighing: Weighing::RenormalizedSigmoid,
                has_choice_bias: true,
                ..plain
            }),
        ),
        (tiny_model(Architecture::Gemma4), None),
        (tiny_model(Architecture::Llama), None),
        (tiny_mixtral().meta("llama.expert_count", 0_u32), None),
    ];
    for (file, experts) in expected {
        assert_eq!(read(&file).unwrap(), experts);
    }
}

/// Derived as in llama.cpp.
#[test]
fn widths_that_are_missing_are_derived() {
    let experts = |file: GgufBuilder| read(&file).unwrap().unwrap();
    let of_qwen3moe = experts(qwen3moe().without_meta("qwen3moe.expert_feed_forward_length"));
    assert_eq!(of_qwen3moe.n_ff, 96 / 2);
    let without = qwen2moe().without_meta("qwen2moe.expert_shared_feed_forward_length");
    assert_eq!(experts(without).shared_n_ff, Some(96));
}

#[test]
fn counts_that_make_no_sense_are_refused_by_key() {
    for (name, value, message) in [
        ("expert_count", 0, "must not be zero"),
        ("expert_count", 1, "2 of 1 experts cannot be used"),
        ("expert_count", 513, "513 experts are more than 512"),
        ("expert_count", u32::MAX, "experts are more than 512"),
        ("expert_used_count", 0, "must not be zero"),
        ("expert_used_count", 7, "7 of 6 experts cannot be used"),
        ("expert_used_count", u32::MAX, "experts cannot be used"),
        ("expert_feed_forward_length", 0, "must not be zero"),
    ] {
        let key = format!("qwen3moe.{name}");
        let refused = refusal(&qwen3moe().meta(&key, value));
        assert!(refused.contains(message), "{key} = {value}: {refused}");
        let without = qwen3moe().without_meta(&key);
        if name != "expert_feed_forward_length" {
            let missing = format!("key {key} is missing");
            assert!(refusal(&without).contains(&missing), "{key}");
        }
        let refused = refusal(&qwen3moe().meta(&key, "many"));
        assert!(refused.contains(&key), "{refused}");
    }
}

#[test]
fn nemotron_has_a_router_of_sigmoids_and_refuses_a_latent_width_and_widths_by_layer() {
    let file = || tiny_model(Architecture::NemotronHMoe);
    let key = |name: &str| format!("nemotron_h_moe.{name}");
    let found = read(&file()).unwrap().expect("experts");
    let plain = ExpertsConfig::plain(6, 2, 32);
    let expected = ExpertsConfig {
        shared_n_ff: Some(48),
        weighing: Weighing::RenormalizedSigmoid,
        scale: 2.5,
        has_choice_bias: true,
        ..plain
    };
    assert_eq!(found, expected);
    for (name, value, what) in [
        (
            "moe_latent_size",
            16_u32.into(),
            "experts of a latent width",
        ),
        (
            "expert_feed_forward_length",
            Meta::I32s(vec![0, 32, 0, 16, 0]),
            "a value that differs by layer",
        ),
        (
            "expert_used_count",
            Meta::I32s(vec![0, 2, 0, 1, 0]),
            "a value that differs by layer",
        ),
        ("expert_group_count", 2_u32.into(), "experts in groups"),
    ] {
        let message = refusal(&file().meta(&key(name), value));
        assert!(message.contains(&key(name)), "{message}");
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn what_is_not_implemented_is_refused_by_key() {
    let of_qwen3moe: [(&str, Meta, &str); 10] = [
        ("expert_gating_func", 2_u32.into(), "other than softmax"),
        ("expert_weights_norm", false.into(), "not renormalized"),
        ("expert_weights_scale", 2.5.into(), "a scale"),
        ("expert_group_count", 8_u32.into(), "in groups"),
        ("expert_shared_count", 1_u32.into(), "shared"),
        (
            "expert_shared_feed_forward_length",
            8_u32.into(),
            "a shared expert",
        ),
        ("leading_dense_block_count", 1_u32.into(), "some of the"),
        ("moe_every_n_layers", 2_u32.into(), "some of the"),
        ("interleave_moe_layer_step", 2_u32.into(), "some of the"),
        (
            "expert_feed_forward_length",
            Meta::I32s(vec![32, 16]),
            "differs by layer",
        ),
    ];
    for (name, value, feature) in of_qwen3moe {
        let key = format!("qwen3moe.{name}");
        let refused = refusal(&qwen3moe().meta(&key, value));
        assert!(
            refused.contains(&key) && refused.contains(feature),
            "{refused}"
        );
    }
    let renormalized = qwen2moe().meta("qwen2moe.expert_weights_norm", true);
    assert!(refusal(&renormalized).contains("weights are renormalized"));
    let gpt_oss = tiny_model(Architecture::GptOss).meta("gpt-oss.expert_gating_func", 1_u32);
    assert!(refusal(&gpt_oss).contains("a router other than softmax over the chosen"));
    let shared = qwen2moe().meta("qwen2moe.expert_shared_count", 2_u32);
    assert!(refusal(&shared).contains("so many shared experts"));
    let narrow = tiny_mixtral().meta("llama.expert_feed_forward_length", 32_u32);
    assert!(refusal(&narrow).contains("a width of experts"));
}

#[test]
fn glm_has_options_in_its_keys_and_other_values_are_refused() {
    let glm = || tiny_model(Architecture::Glm4Moe);
    let with = |name: &str, value: Meta| glm().meta(&format!("glm4moe.{name}"), value);
    let experts = |file: GgufBuilder| read(&file).unwrap().unwrap();
    let apart = experts(with("expert_weights_norm", false.into()));
    assert_eq!(apart.weighing, Weighing::Sigmoid);
    let unsaid = experts(glm().without_meta("glm4moe.expert_weights_norm"));
    assert_eq!(unsaid.weighing, Weighing::Sigmoid);
    assert_eq!(experts(with("expert_weights_scale", 0.0.into())).scale, 1.0);
    let plain = experts(glm().without_meta("glm4moe.leading_dense_block_count"));
    assert!(plain.is_in(0));
    let late = experts(with("leading_dense_block_count", 1_u32.into()));
    assert_eq!([0, 1].map(|layer| late.is_in(layer)), [false, true]);
    for (name, value, what) in [
        ("expert_gating_func", 1_u32.into(), "other than sigmoid"),
        ("expert_weights_scale", f32::NAN.into(), "NaN is no factor"),
        ("expert_shared_count", 0_u32.into(), "must not be zero"),
        (
            "expert_shared_feed_forward_length",
            32_u32.into(),
            "2 shared experts of 32",
        ),
        (
            "leading_dense_block_count",
            2_u32.into(),
            "2 of 2 layers leave none",
        ),
        ("interleave_moe_layer_step", 2_u32.into(), "some of the"),
    ] {
        let refused = refusal(&with(name, value));
        assert!(
            refused.contains(name) && refused.contains(what),
            "{refused}"
        );
    }
}

#[test]
fn minimax_and_ernie_refuse_routers_that_are_not_theirs() {
    for (architecture, name, value, what) in [
        (
            Architecture::MiniMaxM2,
            "expert_gating_func",
            Meta::U32(1),
            "other than sigmoid",
        ),
        (
            Architecture::MiniMaxM2,
            "expert_weights_norm",
            false.into(),
            "not renormalized",
        ),
        (
            Architecture::MiniMaxM2,
            "expert_weights_scale",
            2.5.into(),
            "a scale",
        ),
        (
            Architecture::MiniMaxM2,
            "expert_feed_forward_length",
            32_u32.into(),
            "a width of experts",
        ),
        (
            Architecture::MiniMaxM2,
            "leading_dense_block_count",
            1_u32.into(),
            "some of the",
        ),
        (
            Architecture::Ernie45Moe,
            "expert_gating_func",
            2_u32.into(),
            "other than softmax",
        ),
        (
            Architecture::Ernie45Moe,
            "interleave_moe_layer_step",
            2_u32.into(),
            "some of the",
        ),
    ] {
        let key = format!("{}.{name}", architecture.name());
        let refused = refusal(&tiny_model(architecture).meta(&key, value));
        assert!(
            refused.contains(&key) && refused.contains(what),
            "{refused}"
        );
    }
    let ernie = tiny_model(Architecture::Ernie45Moe).without_tensor("blk.1.exp_probs_b.bias");
    assert!(!read(&ernie).unwrap().unwrap().has_choice_bias);
}

/// Keys that repeat the default are legal.
#[test]
fn keys_that_say_what_is_computed_are_taken() {
    let file = qwen3moe()
        .meta("qwen3moe.expert_gating_func", 1_u32)
        .meta("qwen3moe.expert_weights_norm", true)
        .meta("qwen3moe.expert_weights_scale", 1.0)
        .meta("qwen3moe.expert_shared_count", 0_u32);
    assert!(read(&file).unwrap().is_some());
    for norm in [false, true] {
        let gpt_oss = tiny_model(Architecture::GptOss).meta("gpt-oss.expert_gating_func", 3_u32);
        let gpt_oss = gpt_oss.meta("gpt-oss.expert_weights_norm", norm);
        assert!(read(&gpt_oss).unwrap().is_some());
    }
    let same = tiny_mixtral().meta("llama.expert_feed_forward_length", 96_u32);
    assert!(read(&same).unwrap().is_some());
}

/// No memory is allocated by these numbers before the tensors' sizes are checked.
#[test]
fn a_count_that_the_tensors_do_not_have_is_refused_with_both_shapes() {
    for (key, value) in [
        ("qwen3moe.expert_count", 512),
        ("qwen3moe.expert_feed_forward_length", u32::MAX),
    ] {
        let bytes = qwen3moe().meta(key, value).build();
        let header = parse(&bytes).unwrap();
        let config = ModelConfig::from_gguf(&header, None).unwrap();
        let refused = FileWeights::from_gguf(&header, &config).unwrap_err();
        assert!(matches!(refused, ModelError::Shape { .. }), "{refused}");
    }
}
