use super::*;
use crate::model::gguf::parse;
use crate::model::gguf_builder::{GgufBuilder, Meta};
use crate::model::tiny_model::{HEAD_DIM, WINDOW, tiny_model};
use worker_orcd_kernels::reference::rope::RopePairs;

fn config(file: &GgufBuilder, max_sequence_tokens: Option<u32>) -> Result<ModelConfig, ModelError> {
    let bytes = file.build();
    ModelConfig::from_gguf(&parse(&bytes).unwrap(), max_sequence_tokens)
}

fn refusal(file: GgufBuilder) -> String {
    config(&file, None)
        .expect_err("the configuration is refused")
        .to_string()
}

#[test]
fn each_architecture_is_read() {
    for architecture in Architecture::ALL {
        let config = config(&tiny_model(architecture), None).unwrap();
        assert_eq!(config.architecture, architecture);
        let rope = config.rope.clone();
        assert_eq!((config.n_layers, config.n_embd, config.n_ff), (2, 64, 96));
        assert_eq!(
            (config.n_heads, config.n_kv_heads, config.head_dim),
            (4, 2, 16)
        );
        assert_eq!((rope.base, rope.scale, rope.attn_factor), (1e4, 1.0, 1.0));
        assert_eq!((rope.dims, rope.factors), (16, None));
        let is_gpt_oss = architecture == Architecture::GptOss;
        assert_eq!(config.has_sinks, is_gpt_oss);
        let windows = [0, 1].map(|layer| config.window_of(layer));
        let window = is_gpt_oss.then_some(WINDOW as usize);
        assert_eq!(windows, [window, None]);
        let adjacent = rope.pairs == RopePairs::Adjacent;
        assert_eq!(adjacent, architecture == Architecture::Llama);
    }
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let llama = || tiny_model(Architecture::Llama);
    assert!(refusal(llama().meta("general.architecture", "mamba")).contains("architecture mamba"));
    let qwen3 = tiny_model(Architecture::Qwen3).meta("qwen3.expert_count", 8_u32);
    assert!(refusal(qwen3).contains("mixture of experts"));
    assert!(refusal(llama().meta("llama.attention.scale", 0.5)).contains("llama.attention.scale"));
    assert!(refusal(llama().meta("llama.rope.scaling.type", "su")).contains("type su"));
    let yarn = llama().meta("llama.rope.scaling.type", "yarn");
    let fast = yarn.meta("llama.rope.scaling.yarn_beta_fast", 128.0);
    assert!(refusal(fast).contains("yarn_beta_fast"));
    let by_layer = Meta::I32s(vec![4, 2]);
    assert!(
        refusal(llama().meta("llama.attention.head_count", by_layer)).contains("differs by layer")
    );
}

#[test]
fn values_that_make_no_sense_are_refused_by_key() {
    let llama = || tiny_model(Architecture::Llama);
    for name in [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "context_length",
        "attention.layer_norm_rms_epsilon",
    ] {
        let key = format!("llama.{name}");
        assert!(refusal(llama().without_meta(&key)).contains(&format!("key {key} is missing")));
        assert!(refusal(llama().meta(&key, "x")).contains(&format!("key {key}: ")));
    }
    assert!(refusal(llama().meta("llama.block_count", 0_u32)).contains("must not be zero"));
    assert!(
        refusal(llama().meta("llama.attention.head_count_kv", 3_u32)).contains("cannot share 3")
    );
    assert!(refusal(llama().meta("llama.embedding_length", 65_u32)).contains("cannot be split"));
    assert!(
        refusal(llama().meta("llama.rope.dimension_count", 8_u32)).contains("cannot be rotated")
    );
    assert!(
        refusal(llama().meta("llama.rope.freq_base", f32::NAN)).contains("not a positive number")
    );
    assert!(refusal(llama().meta("llama.attention.value_length", 8_u32)).contains("value_length"));
    assert!(
        refusal(llama().meta("tokenizer.ggml.tokens", Meta::Strings(vec![]))).contains("empty")
    );
}

#[test]
fn scaling_follows_the_type() {
    let with = |ty: &str| {
        tiny_model(Architecture::Llama)
            .meta("llama.rope.scaling.type", ty)
            .meta("llama.rope.scaling.factor", 4.0)
    };
    assert_eq!(config(&with("linear"), None).unwrap().rope.scale, 4.0);
    assert_eq!(config(&with("none"), None).unwrap().rope.scale, 1.0);
    let unnamed = with("linear").without_meta("llama.rope.scaling.type");
    assert_eq!(config(&unnamed, None).unwrap().rope.scale, 4.0);
}

#[test]
fn partial_rotation_is_allowed_outside_llama() {
    let file = tiny_model(Architecture::Phi3).meta("phi3.rope.dimension_count", 8_u32);
    assert_eq!(config(&file, None).unwrap().rope.dims, 8);
}

#[test]
fn the_served_length_chooses_the_long_factors() {
    let half = HEAD_DIM / 2;
    let file = tiny_model(Architecture::Phi3)
        .meta("phi3.rope.scaling.original_context_length", 128_u32)
        .meta("phi3.rope.scaling.attn_factor", 1.19)
        .tensor_f32(
            "rope_factors_short.weight",
            &[half],
            &vec![1.0; half as usize],
        )
        .tensor_f32(
            "rope_factors_long.weight",
            &[half],
            &vec![2.0; half as usize],
        );
    let factor = |tokens| config(&file, tokens).unwrap().rope.factors.unwrap()[0];
    assert_eq!(factor(None), 2.0);
    assert_eq!(factor(Some(129)), 2.0);
    assert_eq!(factor(Some(128)), 1.0);
    assert_eq!(config(&file, None).unwrap().rope.attn_factor, 1.19);
}

#[test]
fn llama_factors_are_read_and_checked() {
    let half = HEAD_DIM / 2;
    let with = |len: u64, value: f32| {
        let values = vec![value; len as usize];
        tiny_model(Architecture::Llama).tensor_f32("rope_freqs.weight", &[len], &values)
    };
    assert_eq!(
        config(&with(half, 8.0), None).unwrap().rope.factors,
        Some(vec![8.0; half as usize])
    );
    assert!(refusal(with(half + 1, 8.0)).contains("rope_freqs.weight"));
    assert!(refusal(with(half, 0.0)).contains("not a positive number"));
    let stretched = |file: GgufBuilder, key: &str| {
        let file = file.meta("llama.rope.scaling.type", "yarn");
        let file = file.meta("llama.rope.scaling.factor", 8.0);
        refusal(file.meta(key, f32::MAX))
    };
    for key in ["rope.scaling.factor", "rope.scaling.attn_factor"] {
        let refused = stretched(with(half, 8.0), &format!("llama.{key}"));
        assert!(refused.contains("YaRN cannot make"), "{key}: {refused}");
    }
}

#[test]
fn windows_are_read_where_the_architecture_has_them() {
    let with = |name: &str, value: Meta| {
        let key = format!("gpt-oss.{name}");
        tiny_model(Architecture::GptOss).meta(&key, value)
    };
    for (name, value, expected) in [
        ("attention.sliding_window", 0_u32.into(), "must not be zero"),
        (
            "attention.sliding_window_pattern",
            6_u32.into(),
            "windows in other layers",
        ),
        (
            "attention.sliding_window_pattern",
            Meta::I32s(vec![0, 1]),
            "differs by layer",
        ),
        ("rope.freq_base_swa", 5e5.into(), "another rotation"),
    ] {
        let refused = refusal(with(name, value));
        assert!(
            refused.contains(name) && refused.contains(expected),
            "{refused}"
        );
    }
    let missing = tiny_model(Architecture::GptOss).without_meta("gpt-oss.attention.sliding_window");
    assert!(refusal(missing).contains("sliding_window is missing"));
    let same = with("attention.sliding_window_pattern", 2_u32.into());
    let same = same
        .meta("gpt-oss.rope.freq_base", 5e5)
        .meta("gpt-oss.rope.freq_base_swa", 5e5);
    assert!(config(&same, None).is_ok());
    // As for llama.cpp.
    let phi3 = tiny_model(Architecture::Phi3).meta("phi3.attention.sliding_window", 8_u32);
    assert_eq!(config(&phi3, None).unwrap().window_of(0), None);
}
