use super::*;
use crate::model::Architecture;
use crate::model::gguf::parse;
use crate::model::gguf_builder::GgufBuilder;
use crate::model::tiny_model::{
    CONV_LAYERS, tiny_gemma4_e2b, tiny_gemma4_with_experts, tiny_granite_with_experts,
    tiny_mixtral, tiny_model,
};

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

fn mixer_of<'l, 'a>(layer: &'l FileLayer<'a>) -> &'l FileMixer<'a> {
    &layer.mixer.as_ref().expect("a mixer").part
}

fn feed_forward_of<'l, 'a>(layer: &'l FileLayer<'a>) -> &'l FileFeedForward<'a> {
    let block = layer.feed_forward.as_ref();
    &block.expect("a feed-forward part").part
}

fn dense<'l, 'a>(layer: &'l FileLayer<'a>) -> &'l FileUnit<'a> {
    match feed_forward_of(layer) {
        FeedForward::Dense(unit) => unit,
        FeedForward::Experts(_) => panic!("experts"),
    }
}

fn attention<'l, 'a>(layer: &'l FileLayer<'a>) -> &'l FileAttention<'a> {
    layer.attention().expect("attention")
}

/// Rows of gate, up and down.
fn rows(unit: &FileUnit<'_>) -> [usize; 3] {
    let [gate, up] = unit.gate_up;
    [gate, up, unit.down].map(|linear| linear.weight.rows)
}

#[test]
fn every_architecture_finds_its_tensors() {
    for (architecture, has_bias, has_head_norm) in [
        (Architecture::Llama, false, false),
        (Architecture::Qwen2, true, false),
        (Architecture::Qwen3, false, true),
        (Architecture::Phi3, false, false),
        (Architecture::SmolLm3, false, false),
        (Architecture::Gemma3, false, true),
        (Architecture::SeedOss, true, false),
        (Architecture::Ernie45, false, false),
    ] {
        load(&tiny_model(architecture), |weights| {
            let layers = match architecture {
                Architecture::SmolLm3 => 4,
                Architecture::Gemma3 => 7,
                _ => 2,
            };
            assert_eq!(weights.layers.len(), layers);
            assert_eq!(weights.output.weight.name, "token_embd.weight", "tied");
            assert!(weights.token_embd.is_none(), "kept once");
            for layer in &weights.layers {
                let Attention {
                    qkv,
                    q_norm,
                    k_norm,
                    ..
                } = attention(layer);
                assert_eq!(qkv.map(|linear| linear.weight.rows), [64, 32, 32]);
                assert_eq!(rows(dense(layer)), [96, 96, 64]);
                assert_eq!(qkv.map(|linear| linear.bias.is_some()), [has_bias; 3]);
                assert_eq!(q_norm.is_some() && k_norm.is_some(), has_head_norm);
                let mixer = layer.mixer.as_ref().and_then(|it| it.post_norm);
                let feed_forward = layer.feed_forward.as_ref().and_then(|it| it.post_norm);
                let has_post_norms = architecture == Architecture::Gemma3;
                assert_eq!(mixer.is_some(), has_post_norms);
                assert_eq!(feed_forward.is_some(), has_post_norms);
            }
        })
        .unwrap();
    }
}

#[test]
fn qwen3_5_has_delta_nets_and_gated_attention_in_turn_and_misses_each_tensor_by_name() {
    let file = || tiny_model(Architecture::Qwen35);
    load(&file(), |weights| {
        assert_eq!(weights.layers.len(), 4);
        for (index, layer) in weights.layers.iter().enumerate() {
            match mixer_of(layer) {
                Mixer::Attention(attention) => {
                    assert_eq!(index % 2, 1);
                    let rows = attention.qkv.map(|linear| linear.weight.rows);
                    assert_eq!(rows, [128, 32, 32], "queries and gates, keys, values");
                }
                Mixer::DeltaNet(net) => {
                    assert_eq!(index % 2, 0);
                    let linears = [net.qkv, net.gate, net.beta, net.output].into_iter();
                    let rows = linears.chain(net.alpha).map(|linear| linear.weight.rows);
                    assert_eq!(rows.collect::<Vec<_>>(), [128, 64, 4, 64, 4]);
                    assert_eq!((net.conv.rows, net.conv.cols), (128, 4));
                    let vectors = [net.dt, net.decay, net.norm].map(|vector| vector.cols);
                    assert_eq!(vectors, [4, 4, 16]);
                }
                Mixer::ShortConv(_) | Mixer::Mamba(_) => panic!("a delta net"),
            }
        }
    })
    .unwrap();
    for name in [
        "ssm_conv1d.weight",
        "ssm_a",
        "ssm_dt.bias",
        "attn_gate.weight",
    ] {
        let name = format!("blk.2.{name}");
        let message = refusal(file().without_tensor(&name));
        assert!(message.contains(&name), "{message}");
    }
}

#[test]
fn lfm2_has_short_convolutions_beside_attention_and_misses_each_tensor_by_name() {
    let file = || tiny_model(Architecture::Lfm2);
    load(&file(), |weights| {
        for (layer, is_conv) in weights.layers.iter().zip(CONV_LAYERS) {
            let Mixer::ShortConv(conv) = mixer_of(layer) else {
                assert!(layer.attention().is_some() && !is_conv);
                continue;
            };
            assert!(is_conv);
            assert_eq!((conv.input.weight.rows, conv.output.weight.rows), (192, 64));
            assert_eq!((conv.conv.rows, conv.conv.cols), (64, 3));
        }
    })
    .unwrap();
    for name in [
        "token_embd_norm.weight",
        "blk.0.shortconv.in_proj.weight",
        "blk.1.shortconv.conv.weight",
        "blk.3.shortconv.out_proj.weight",
        "blk.2.attn_q_norm.weight",
    ] {
        let message = refusal(file().without_tensor(name));
        assert!(message.contains(name), "{message}");
    }
    // Keys in a layer with a convolution, and the projection of embeddings of LFM2-ColBERT.
    for name in ["blk.0.attn_k.weight", "dense_2.weight"] {
        let message = refusal(file().tensor_f32(name, &[64, 32], &[0.5; 2048]));
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn granite_has_state_spaces_beside_attention_and_misses_each_tensor_by_name() {
    for file in [
        tiny_model(Architecture::GraniteHybrid),
        tiny_granite_with_experts(),
    ] {
        load(&file, |weights| {
            for (layer, is_mamba) in weights.layers.iter().zip(CONV_LAYERS) {
                let Mixer::Mamba(mamba) = mixer_of(layer) else {
                    assert!(layer.attention().is_some() && !is_mamba);
                    continue;
                };
                let rows = [mamba.input, mamba.output].map(|linear| linear.weight.rows);
                assert!(is_mamba && rows == [392, 64], "{rows:?}");
                assert_eq!((mamba.conv.rows, mamba.conv.cols), (256, 4));
                assert!(mamba.conv_bias.is_some());
            }
        })
        .unwrap();
    }
    let file = || tiny_model(Architecture::GraniteHybrid);
    for name in [
        "ssm_in.weight",
        "ssm_a",
        "ssm_d",
        "ssm_dt.bias",
        "ssm_norm.weight",
    ] {
        let name = format!("blk.1.{name}");
        let message = refusal(file().without_tensor(&name));
        assert!(message.contains(&name), "{message}");
    }
    let without_bias = file().without_tensor("blk.1.ssm_conv1d.bias");
    assert!(load(&without_bias, |_| ()).is_ok(), "it is optional");
}

#[test]
fn nemotron_has_layers_of_one_block_and_misses_each_tensor_by_name() {
    use crate::model::tiny_model::{NEMOTRON_LAYERS, OneBlock};
    load(&tiny_model(Architecture::NemotronH), |weights| {
        for (layer, block) in weights.layers.iter().zip(NEMOTRON_LAYERS) {
            let is_feed_forward = block == OneBlock::FeedForward;
            assert_eq!(layer.mixer.is_none(), is_feed_forward);
            assert_eq!(layer.feed_forward.is_some(), is_feed_forward);
            assert_eq!(layer.attention().is_some(), block == OneBlock::Attention);
            if is_feed_forward {
                let unit = dense(layer);
                assert!(!unit.has_gate && unit.linears().count() == 2);
                assert_eq!(rows(unit), [96, 96, 64]);
            }
        }
    })
    .unwrap();
    load(&tiny_model(Architecture::NemotronHMoe), |weights| {
        let FeedForward::Experts(experts) = feed_forward_of(&weights.layers[3]) else {
            panic!("experts");
        };
        let shared = experts.shared.as_ref().expect("a shared expert");
        assert!(!experts.unit.has_gate && !shared.unit.has_gate);
        assert!(shared.weigher.is_none() && experts.choice_bias.is_some());
        assert_eq!(rows(&experts.unit), [6 * 32, 6 * 32, 6 * 64]);
        assert_eq!(rows(&shared.unit), [48, 48, 64]);
    })
    .unwrap();
    for (architecture, names) in [
        (
            Architecture::NemotronH,
            &["blk.0.ssm_in", "blk.1.attn_norm", "blk.1.ffn_up"][..],
        ),
        (
            Architecture::NemotronHMoe,
            &["blk.2.attn_q", "blk.1.ffn_up_exps", "blk.3.ffn_up_shexp"],
        ),
    ] {
        for name in names {
            let name = format!("{name}.weight");
            let message = refusal(tiny_model(architecture).without_tensor(&name));
            assert!(message.contains(&name), "{message}");
        }
    }
    // A gate, and experts of a latent width, would change the arithmetic.
    for name in ["blk.1.ffn_gate.weight", "blk.3.ffn_latent_down.weight"] {
        let file = tiny_model(Architecture::NemotronH);
        let message = refusal(file.tensor_f32(name, &[64, 96], &[0.5; 64 * 96]));
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn layers_that_predict_further_tokens_have_no_role_and_are_no_mistake() {
    let tensor = |file: GgufBuilder, name: &str| file.tensor_f32(name, &[4], &[0.5; 4]);
    let file = tiny_model(Architecture::Qwen35)
        .meta("qwen35.block_count", 5_u32)
        .meta("qwen35.nextn_predict_layers", 1_u32);
    let layers = |weights: &FileWeights<'_>| weights.layers.len();
    let glm = tiny_model(Architecture::Glm4Moe)
        .meta("glm4moe.block_count", 3_u32)
        .meta("glm4moe.nextn_predict_layers", 1_u32);
    let glm = tensor(glm, "blk.2.nextn.eh_proj.weight");
    assert_eq!(load(&glm, layers).unwrap(), 2);
    let known = tensor(file.clone(), "blk.4.nextn.enorm.weight");
    assert_eq!(load(&known, layers).unwrap(), 4);
    let message = refusal(tensor(file, "blk.5.nextn.enorm.weight"));
    assert!(message.contains("blk.5.nextn.enorm.weight"), "{message}");
}

#[test]
fn phi3_parts_follow_each_other_in_the_fused_tensors() {
    load(&tiny_model(Architecture::Phi3), |weights| {
        let layer = &weights.layers[0];
        let next = |a: &FileLinear<'_>, b: &FileLinear<'_>| {
            assert_eq!(a.weight.data.as_ptr_range().end, b.weight.data.as_ptr());
        };
        let ([q, k, v], [gate, up]) = (&attention(layer).qkv, &dense(layer).gate_up);
        next(q, k);
        next(k, v);
        next(gate, up);
    })
    .unwrap();
}

#[test]
fn experts_are_rows_of_one_tensor() {
    for (file, of_experts, of_shared) in [
        (tiny_model(Architecture::Qwen3Moe), [192, 192, 384], None),
        (
            tiny_model(Architecture::Qwen2Moe),
            [192, 192, 384],
            Some([48, 48, 64]),
        ),
        (tiny_mixtral(), [576, 576, 384], None),
        (tiny_model(Architecture::GptOss), [192, 192, 384], None),
    ] {
        load(&file, |weights| {
            for layer in &weights.layers {
                let FeedForward::Experts(experts) = feed_forward_of(layer) else {
                    panic!("a dense part")
                };
                assert_eq!(experts.router.weight.rows, 6);
                assert_eq!(rows(&experts.unit), of_experts);
                let shared = experts.shared.as_ref();
                assert_eq!(shared.map(|shared| rows(&shared.unit)), of_shared);
                let weigher = shared.map(|shared| shared.weigher.expect("a gate").weight);
                assert!(weigher.is_none_or(|it| (it.rows, it.cols) == (1, 64)));
            }
        })
        .unwrap();
    }
}

#[test]
fn glm_has_a_dense_layer_then_experts_with_a_bias_and_an_ungated_shared_one() {
    let file = || tiny_model(Architecture::Glm4Moe);
    load(&file(), |weights| {
        assert_eq!(rows(dense(&weights.layers[0])), [96, 96, 64]);
        let FeedForward::Experts(experts) = feed_forward_of(&weights.layers[1]) else {
            panic!("a dense part")
        };
        assert_eq!(experts.choice_bias.expect("a bias").cols, 6);
        let shared = experts.shared.as_ref().expect("a shared expert");
        assert!(shared.weigher.is_none());
        assert_eq!(rows(&shared.unit), [64, 64, 64]);
    })
    .unwrap();
    for name in ["blk.1.exp_probs_b.bias", "blk.1.ffn_up_shexp.weight"] {
        let message = refusal(file().without_tensor(name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
    let bias = file().tensor_f32("blk.0.exp_probs_b.bias", &[6], &[0.0; 6]);
    assert!(refusal(bias).contains("blk.0.exp_probs_b.bias is not part"));
    let gate = file().tensor_f32("blk.1.ffn_gate_inp_shexp.weight", &[64], &[0.0; 64]);
    assert!(refusal(gate).contains("blk.1.ffn_gate_inp_shexp.weight is not part"));
    // GLM-4.5-Air has no norms of queries and keys.
    let norms = |weights: &FileWeights<'_>| {
        let attention = attention(&weights.layers[0]);
        (attention.q_norm.is_some(), attention.k_norm.is_some())
    };
    assert_eq!(load(&file(), norms).unwrap(), (true, true));
    let without = file()
        .without_tensor("blk.0.attn_q_norm.weight")
        .without_tensor("blk.0.attn_k_norm.weight");
    assert_eq!(load(&without, norms).unwrap(), (false, false));
}

#[test]
fn minimax_has_norms_of_all_heads() {
    let file = || tiny_model(Architecture::MiniMaxM2);
    load(&file(), |weights| {
        let attention = attention(&weights.layers[1]);
        let norms = [attention.q_norm, attention.k_norm].map(|norm| norm.expect("a norm").cols);
        assert_eq!(norms, [64, 32]);
    })
    .unwrap();
    let of_head = file().tensor_f32("blk.1.attn_q_norm.weight", &[16], &[1.0; 16]);
    assert!(refusal(of_head).contains("blk.1.attn_q_norm.weight: [16, 1, 1, 1]"));
}

#[test]
fn gemma4_has_values_that_are_keys_where_attention_is_full() {
    load(&tiny_model(Architecture::Gemma4), |weights| {
        for (index, layer) in weights.layers.iter().enumerate() {
            let attention = attention(layer);
            let is_whole = (index + 1) % 3 == 0;
            let (kv, rows, matrices) = match is_whole {
                true => (KvOrigin::KeysAreValues, [128, 32, 32], 3),
                false => (KvOrigin::Projected, [64, 64, 64], 4),
            };
            assert_eq!(attention.kv, kv);
            assert_eq!(attention.qkv.map(|linear| linear.weight.rows), rows);
            // Without the three of the feed-forward part.
            assert_eq!(layer.linears().count() - 3, matrices);
            let norm = attention.q_norm.expect("a norm");
            assert_eq!(norm.cols, if is_whole { 32 } else { 16 });
            assert!(layer.output_scale.is_some());
        }
    })
    .unwrap();
    let without = |name: &str| tiny_model(Architecture::Gemma4).without_tensor(name);
    let optional = without("blk.0.layer_output_scale.weight");
    let scale = |weights: &FileWeights<'_>| weights.layers[0].output_scale.is_some();
    assert!(!load(&optional, scale).unwrap());
    let message = refusal(tiny_model(Architecture::Gemma3).without_tensor("blk.5.attn_v.weight"));
    assert_eq!(message, "tensor blk.5.attn_v.weight is missing");
}

#[test]
fn gemma4_e2b_has_inputs_of_layers_and_no_keys_and_values_in_its_last_ones() {
    load(&tiny_gemma4_e2b(), |weights| {
        let inputs = weights.layer_inputs.as_ref().expect("inputs");
        let projection = inputs.projection.weight;
        let shapes = [inputs.table, projection].map(|it| (it.rows, it.cols));
        assert_eq!(shapes, [(259, 144), (144, 64)]);
        assert_eq!(inputs.norm.cols, 24);
        for (index, layer) in weights.layers.iter().enumerate() {
            let attention = attention(layer);
            let is_last = index >= 3;
            assert_eq!(attention.has_kv(), !is_last);
            assert_eq!(attention.k_norm.is_some(), !is_last);
            let n_ff = if is_last { 192 } else { 96 };
            assert_eq!(rows(dense(layer)), [n_ff, n_ff, 64]);
            let input = layer.input.as_ref().expect("an input");
            let rows = [input.gate, input.output].map(|linear| linear.weight.rows);
            assert_eq!(rows, [24, 64]);
            // Queries, output, the feed-forward part, and the input.
            let matrices = layer.linears().count();
            assert_eq!(matrices, [9, 9, 8, 7, 7, 7][index]);
        }
        let names = weights.matrices().map(|matrix| matrix.name);
        let of_inputs = names.filter(|name| name.starts_with("per_layer"));
        assert_eq!(of_inputs.count(), 2);
    })
    .unwrap();
    for name in [
        "per_layer_token_embd.weight",
        "per_layer_model_proj.weight",
        "per_layer_proj_norm.weight",
        "blk.1.inp_gate.weight",
        "blk.5.proj.weight",
        "blk.0.post_norm.weight",
        "blk.2.attn_k.weight",
        "blk.1.attn_k_norm.weight",
        "blk.4.attn_q_norm.weight",
    ] {
        let message = refusal(tiny_gemma4_e2b().without_tensor(name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
}

/// llama.cpp loads them and does not use them.
#[test]
fn keys_and_values_of_layers_that_share_those_of_others_are_left_in_the_file() {
    let values = vec![0.5; 64 * 64];
    let tensor = |file: GgufBuilder, name: &str, dims: &[u64]| {
        let len = dims.iter().product::<u64>() as usize;
        file.tensor_f32(name, dims, &values[..len])
    };
    let mut file = tensor(tiny_gemma4_e2b(), "blk.3.attn_k.weight", &[64, 64]);
    file = tensor(file, "blk.3.attn_v.weight", &[64, 64]);
    file = tensor(file, "blk.3.attn_k_norm.weight", &[16]);
    let matrices = |weights: &FileWeights<'_>| weights.layers[3].linears().count();
    assert_eq!(load(&file, matrices).unwrap(), 7);
    let wrong = tensor(tiny_gemma4_e2b(), "blk.3.attn_k.weight", &[64, 32]);
    assert!(refusal(wrong).contains("blk.3.attn_k.weight: "));
    let wide = tensor(tiny_gemma4_e2b(), "blk.3.ffn_up.weight", &[64, 64]);
    assert!(refusal(wide).contains("says [64, 192, 1, 1]"));
}

#[test]
fn gate_and_up_of_each_expert_are_rows_of_a_fused_tensor() {
    load(&tiny_gemma4_with_experts(), |weights| {
        let FeedForward::Experts(experts) = feed_forward_of(&weights.layers[1]) else {
            panic!("a dense part")
        };
        assert_eq!(rows(&experts.unit), [192, 192, 384]);
        let [gate, up] = experts.unit.gate_up.map(|linear| linear.weight);
        for expert in 0..6 {
            let [gate, up] = [gate, up].map(|it| it.row_range(32 * expert, 32).expect("rows"));
            assert_eq!(gate.data.as_ptr_range().end, up.data.as_ptr());
        }
        let beside = experts.beside.as_ref().expect("a dense part beside them");
        assert_eq!(rows(&beside.unit), [96, 96, 64]);
        assert!(experts.output_scales.is_some());
    })
    .unwrap();
    for name in [
        "post_ffw_norm_1.weight",
        "pre_ffw_norm_2.weight",
        "post_ffw_norm_2.weight",
        "ffn_gate_inp.scale",
        "ffn_gate.weight",
    ] {
        let name = format!("blk.2.{name}");
        let message = refusal(tiny_gemma4_with_experts().without_tensor(&name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
    let apart = tiny_gemma4_with_experts().without_tensor("blk.0.ffn_gate_up_exps.weight");
    let message = refusal(apart);
    assert_eq!(message, "tensor blk.0.ffn_gate_exps.weight is missing");
}

#[test]
fn tensors_that_would_be_ignored_are_refused_by_name() {
    let values = vec![0.5; 64 * 192];
    let joint = tiny_model(Architecture::Qwen3Next)
        .without_tensor("blk.0.attn_qkv.weight")
        .tensor_f32("blk.0.ssm_in.weight", &[64, 192], &values);
    assert!(refusal(joint).contains("blk.0.ssm_in.weight"));
    let factors = tiny_model(Architecture::Gemma4);
    let factors = factors.tensor_f32("rope_factors_long.weight", &[16], &values[..16]);
    assert!(refusal(factors).contains("rope_factors_long.weight"));
}

#[test]
fn experts_in_other_tensors_are_refused_by_name() {
    let apart = tiny_mixtral()
        .without_tensor("blk.0.ffn_gate_exps.weight")
        .tensor_f32("blk.0.ffn_gate.0.weight", &[64, 96], &[0.0; 64 * 96]);
    assert!(refusal(apart).contains("a tensor for each expert"));
    for (tensor, dims) in [
        ("ffn_gate_inp.bias", &[6][..]),
        ("exp_probs_b.bias", &[6]),
        ("ffn_down_exps.bias", &[64, 6]),
        ("ffn_down_exps.scale", &[6]),
        ("ffn_gate_up_exps.weight", &[64, 6]),
    ] {
        let name = format!("blk.1.{tensor}");
        let values = vec![0.0; dims.iter().product::<u64>() as usize];
        let file = tiny_model(Architecture::Qwen3Moe).tensor_f32(&name, dims, &values);
        let expected = format!("tensor {name} is not part of this architecture");
        assert!(refusal(file).contains(&expected), "{name}");
    }
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

#[test]
fn gpt_oss_has_sinks_and_biases_everywhere_and_misses_each_by_name() {
    let file = || tiny_model(Architecture::GptOss);
    load(&file(), |weights| {
        for layer in &weights.layers {
            let sinks = attention(layer).sinks.as_ref().expect("sinks");
            assert_eq!((sinks.rows, sinks.cols), (1, 4));
            assert!(layer.linears().all(|linear| linear.bias.is_some()));
            let FeedForward::Experts(experts) = feed_forward_of(layer) else {
                panic!("a dense part")
            };
            let [gate, up] = experts.unit.gate_up;
            let biases = [gate, up, experts.unit.down].map(|it| it.bias.expect("a bias"));
            let shapes = biases.map(|bias| (bias.rows, bias.cols));
            assert_eq!(shapes, [(6, 32), (6, 32), (6, 64)]);
        }
    })
    .unwrap();
    for tensor in [
        "attn_sinks.weight",
        "attn_q.bias",
        "attn_output.bias",
        "post_attention_norm.weight",
        "ffn_gate_inp.bias",
        "ffn_gate_exps.bias",
        "ffn_up_exps.bias",
        "ffn_down_exps.bias",
    ] {
        let name = format!("blk.1.{tensor}");
        let message = refusal(file().without_tensor(&name));
        assert_eq!(message, format!("tensor {name} is missing"));
    }
    let name = "blk.0.ffn_down_exps.bias";
    let turned = file().tensor_f32(name, &[6, 64], &[0.0; 384]);
    assert!(refusal(turned).contains("says [64, 6, 1, 1]"));
}
