use super::*;
use crate::model::Architecture;
use crate::model::gguf::parse;
use crate::model::gguf_builder::GgufBuilder;
use crate::model::tiny_model::tiny_model;

fn load<T>(file: &GgufBuilder, look: impl FnOnce(&FileWeights<'_>) -> T) -> Result<T, ModelError> {
    let bytes = file.build();
    let header = parse(&bytes).unwrap();
    let config = ModelConfig::from_gguf(&header, None)?;
    FileWeights::from_gguf(&header, &config).map(|weights| look(&weights))
}

fn refusal(file: GgufBuilder) -> String {
    load(&file, |_| ())
        .expect_err("the tensors are refused")
        .to_string()
}

#[test]
fn every_architecture_finds_its_tensors() {
    for (architecture, has_bias, has_head_norm) in [
        (Architecture::Llama, false, false),
        (Architecture::Qwen2, true, false),
        (Architecture::Qwen3, false, true),
        (Architecture::Phi3, false, false),
    ] {
        load(&tiny_model(architecture), |weights| {
            assert_eq!(weights.layers.len(), 2);
            assert_eq!(weights.output.weight.name, "token_embd.weight", "tied");
            assert!(weights.token_embd.is_none(), "kept once");
            for layer in &weights.layers {
                assert_eq!(layer.qkv.map(|linear| linear.weight.rows), [64, 32, 32]);
                assert_eq!(layer.gate_up.map(|linear| linear.weight.rows), [96, 96]);
                assert_eq!(layer.qkv.map(|linear| linear.bias.is_some()), [has_bias; 3]);
                assert_eq!(
                    layer.q_norm.is_some() && layer.k_norm.is_some(),
                    has_head_norm
                );
            }
        })
        .unwrap();
    }
}

#[test]
fn phi3_parts_follow_each_other_in_the_fused_tensors() {
    load(&tiny_model(Architecture::Phi3), |weights| {
        let layer = &weights.layers[0];
        let next = |a: &FileLinear<'_>, b: &FileLinear<'_>| {
            assert_eq!(a.weight.data.as_ptr_range().end, b.weight.data.as_ptr());
        };
        let ([q, k, v], [gate, up]) = (&layer.qkv, &layer.gate_up);
        next(q, k);
        next(k, v);
        next(gate, up);
    })
    .unwrap();
}

#[test]
fn an_untied_output_is_taken() {
    let file =
        tiny_model(Architecture::Llama).tensor_f32("output.weight", &[64, 259], &[0.5; 64 * 259]);
    let names = |weights: &FileWeights<'_>| {
        let table = weights.token_embd().name.to_owned();
        (table, weights.output.weight.name.to_owned())
    };
    let (table, output) = load(&file, names).unwrap();
    assert_eq!((&*table, &*output), ("token_embd.weight", "output.weight"));
}

#[test]
fn a_missing_tensor_is_named() {
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.1.ffn_down.weight",
        "blk.0.attn_k.bias",
    ] {
        let message = refusal(tiny_model(Architecture::Qwen2).without_tensor(name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let file =
        tiny_model(Architecture::Llama).tensor_f32("blk.1.attn_q.weight", &[64, 32], &[0.0; 2048]);
    let message = refusal(file);
    assert!(
        message.contains("blk.1.attn_q.weight: [64, 32, 1, 1]"),
        "{message}"
    );
    assert!(message.contains("says [64, 64, 1, 1]"), "{message}");
}

#[test]
fn a_norm_that_is_not_f32_is_refused() {
    let file = tiny_model(Architecture::Llama).tensor(
        "output_norm.weight",
        TensorType::F16,
        &[64],
        vec![0; 128],
    );
    assert_eq!(
        refusal(file),
        "tensor output_norm.weight: type F16 is not supported here; F32 is"
    );
}

#[test]
fn a_tensor_without_a_role_is_refused() {
    let file =
        tiny_model(Architecture::Llama).tensor_f32("blk.0.attn_sinks.weight", &[4], &[0.0; 4]);
    assert!(refusal(file).contains("blk.0.attn_sinks.weight is not part"));
}

#[test]
fn a_billion_announced_layers_end_at_the_first_that_is_missing() {
    let file = tiny_model(Architecture::Llama).meta("llama.block_count", u32::MAX);
    assert_eq!(refusal(file), "tensor blk.2.attn_norm.weight is missing");
}
