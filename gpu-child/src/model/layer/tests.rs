use super::*;
use crate::model::GgufBuilder;
use crate::model::gguf::parse;
use crate::model::tiny_model::{tiny_gemma4_e2b, tiny_gemma4_with_experts, tiny_model};
use crate::model::{Architecture, FileWeights, ModelConfig, TensorView};
use std::convert::Infallible;

/// Mapping that records the names.
#[derive(Default)]
struct Names(Vec<String>);

impl<'a> Mapping<TensorView<'a>, TensorView<'a>> for Names {
    type Matrix = ();
    type Vector = ();
    type Error = Infallible;

    fn matrix(&mut self, matrix: &TensorView<'a>) -> Result<(), Infallible> {
        self.vector(matrix)
    }

    fn vector(&mut self, vector: &TensorView<'a>) -> Result<(), Infallible> {
        self.0.push(vector.name.to_owned());
        Ok(())
    }
}

fn names(architecture: Architecture) -> Vec<String> {
    names_of(tiny_model(architecture))
}

fn names_of(file: GgufBuilder) -> Vec<String> {
    let untied = [0.5; 64 * 259];
    let file = file.tensor_f32("output.weight", &[64, 259], &untied);
    let bytes = file.build();
    let header = parse(&bytes).expect("a model");
    let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
    let weights = FileWeights::from_gguf(&header, &config).expect("its tensors");
    let mut names = Names::default();
    let Ok(mapped) = weights.try_map(&mut names);
    assert_eq!(mapped.layers.len(), weights.layers.len());
    names.0
}

/// Places in an arena are assigned in this order.
#[test]
fn every_tensor_is_mapped_once_and_in_the_order_of_the_arena() {
    let layer = |index: usize, tensors: &[&str]| -> Vec<String> {
        let name = |tensor: &&str| format!("blk.{index}.{tensor}");
        tensors.iter().map(name).collect()
    };
    let of_layers = |layers: usize, tensors: &[&str]| {
        let mut names = vec!["output.weight".to_owned(), "token_embd.weight".to_owned()];
        names.extend((0..layers).flat_map(|index| layer(index, tensors)));
        names.push("output_norm.weight".to_owned());
        names
    };
    let whole = |tensors: &[&str]| of_layers(2, tensors);
    let qwen2 = [
        "attn_norm.weight",
        "attn_q.bias",
        "attn_q.weight",
        "attn_k.bias",
        "attn_k.weight",
        "attn_v.bias",
        "attn_v.weight",
        "attn_output.weight",
        "ffn_norm.weight",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    ];
    assert_eq!(names(Architecture::Qwen2), whole(&qwen2));
    let qwen3 = [
        "attn_norm.weight",
        "attn_q.weight",
        "attn_k.weight",
        "attn_v.weight",
        "attn_q_norm.weight",
        "attn_k_norm.weight",
        "attn_output.weight",
        "ffn_norm.weight",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    ];
    assert_eq!(names(Architecture::Qwen3), whole(&qwen3));
    let gemma3: Vec<&str> = [
        &qwen3[..7],
        &["post_attention_norm.weight"],
        &qwen3[7..],
        &["post_ffw_norm.weight"],
    ]
    .concat();
    assert_eq!(names(Architecture::Gemma3), of_layers(7, &gemma3));
    let moe = |attention: &[&'static str], shared: &[&'static str]| {
        let experts = [
            "attn_output.weight",
            "ffn_norm.weight",
            "ffn_gate_inp.weight",
            "ffn_gate_exps.weight",
            "ffn_up_exps.weight",
            "ffn_down_exps.weight",
        ];
        whole(&[attention, &experts, shared].concat())
    };
    let shared = [
        "ffn_gate_inp_shexp.weight",
        "ffn_gate_shexp.weight",
        "ffn_up_shexp.weight",
        "ffn_down_shexp.weight",
    ];
    assert_eq!(names(Architecture::Qwen2Moe), moe(&qwen2[..7], &shared));
    assert_eq!(names(Architecture::Qwen3Moe), moe(&qwen3[..6], &[]));
    let of_gemma4 = [
        "post_attention_norm.weight",
        "ffn_norm.weight",
        "ffn_gate_inp.weight",
        "ffn_gate_up_exps.weight",
        "ffn_gate_up_exps.weight",
        "ffn_down_exps.weight",
        "ffn_down_exps.scale",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
        "post_ffw_norm_1.weight",
        "pre_ffw_norm_2.weight",
        "post_ffw_norm_2.weight",
        "ffn_gate_inp.scale",
        "post_ffw_norm.weight",
        "layer_output_scale.weight",
    ];
    let found = names_of(tiny_gemma4_with_experts());
    let of_layer = |index: usize| -> Vec<&str> {
        let prefix = format!("blk.{index}.");
        let names = found.iter();
        names
            .filter_map(|name| name.strip_prefix(&*prefix))
            .collect()
    };
    assert_eq!(of_layer(0), [&qwen3[..7], &of_gemma4].concat());
    // Without `attn_v`.
    assert_eq!(
        of_layer(2),
        [&qwen3[..3], &qwen3[4..7], &of_gemma4].concat()
    );
}

/// Without a gate, up is mapped once.
#[test]
fn a_layer_of_one_block_is_mapped_as_its_block_alone() {
    let found = names(Architecture::NemotronH);
    let of = |index: usize| -> Vec<&str> {
        let block = format!("blk.{index}.");
        found
            .iter()
            .filter_map(|name| name.strip_prefix(&block))
            .collect()
    };
    let unit = ["attn_norm.weight", "ffn_up.weight", "ffn_down.weight"];
    assert_eq!(of(1), unit);
    let first = ["attn_norm.weight", "ssm_in.weight"];
    assert_eq!(of(0)[..2], first);
    let attention = [
        "attn_norm.weight",
        "attn_q.weight",
        "attn_k.weight",
        "attn_v.weight",
        "attn_output.weight",
    ];
    assert_eq!(of(2), attention);
}

#[test]
fn inputs_of_layers_are_mapped_behind_the_embedding_and_behind_each_feed_forward_part() {
    let found = names_of(tiny_gemma4_e2b());
    let first = [
        "output.weight",
        "token_embd.weight",
        "per_layer_token_embd.weight",
        "per_layer_model_proj.weight",
        "per_layer_proj_norm.weight",
        "blk.0.attn_norm.weight",
    ];
    assert_eq!(found[..first.len()], first);
    let of_last: Vec<&str> = found
        .iter()
        .filter_map(|name| name.strip_prefix("blk.5."))
        .collect();
    let expected = [
        "attn_norm.weight",
        "attn_q.weight",
        "attn_q_norm.weight",
        "attn_output.weight",
        "post_attention_norm.weight",
        "ffn_norm.weight",
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
        "post_ffw_norm.weight",
        "inp_gate.weight",
        "proj.weight",
        "post_norm.weight",
        "layer_output_scale.weight",
    ];
    assert_eq!(of_last, expected);
}
