use super::*;
use crate::model::gguf::parse;
use crate::model::tiny_model::tiny_model;
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
    let untied = [0.5; 64 * 259];
    let file = tiny_model(architecture).tensor_f32("output.weight", &[64, 259], &untied);
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
}
