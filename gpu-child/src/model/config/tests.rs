use super::*;
use crate::model::gguf::parse;
use crate::model::gguf_builder::{GgufBuilder, Meta};
use crate::model::tiny_model::{
    CONV_LAYERS, GRANITE_SCALES, HEAD_DIM, LOGIT_CAP, NEMOTRON_LAYERS, OneBlock, WINDOW,
    tiny_gemma4_e2b, tiny_model,
};
use crate::model::{Recurrence, RecurrentLayers, Temperature};
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
    let all = Architecture::ALL.into_iter();
    for architecture in all.filter(|it| *it != Architecture::Gemma4) {
        let config = config(&tiny_model(architecture), None).unwrap();
        assert_eq!(config.architecture, architecture);
        assert!(config.sliding_heads.is_none() && config.logit_cap.is_none());
        let rope = config.rope;
        let n_ff = match architecture {
            Architecture::NemotronHMoe => 32,
            _ => 96,
        };
        assert_eq!((config.n_embd, config.n_ff), (64, n_ff));
        assert_eq!(
            (config.n_heads, config.n_kv_heads, config.head_dim),
            (4, 2, 16)
        );
        assert_eq!((rope.base, rope.scale, rope.attn_factor), (1e4, 1.0, 1.0));
        assert_eq!((rope.dims, rope.factors), (16, None));
        let is_granite = architecture == Architecture::GraniteHybrid;
        assert_eq!(config.logit_scale != 1.0, is_granite);
        let is_gpt_oss = architecture == Architecture::GptOss;
        assert_eq!(config.has_sinks, is_gpt_oss);
        let is_minimax = architecture == Architecture::MiniMaxM2;
        assert_eq!(config.has_joint_norms, is_minimax);
        let has_windows = config.positions.window.is_some();
        assert_eq!(
            has_windows,
            is_gpt_oss || architecture == Architecture::Gemma3
        );
        let adjacent = rope.pairs == RopePairs::Adjacent;
        let is_adjacent = [
            Architecture::Llama,
            Architecture::SmolLm3,
            Architecture::Mistral3,
            Architecture::Ernie45,
            Architecture::Ernie45Moe,
            Architecture::GraniteHybrid,
        ];
        assert_eq!(adjacent, is_adjacent.contains(&architecture));
    }
}

#[test]
fn delta_nets_are_in_all_layers_but_every_other_one() {
    let config = config(&tiny_model(Architecture::Qwen35), None).unwrap();
    assert!(config.gates_attention);
    let width = config.heads_of(0).width();
    assert_eq!((width, config.queries_width_of(width)), (64, 128));
    let recurrent = config.recurrent.expect("recurrent layers");
    assert_eq!(recurrent.layers, [true, false, true, false]);
    let Recurrence::DeltaNet(net) = recurrent.recurrence else {
        panic!("delta nets");
    };
    assert_eq!(
        (net.k_width(), net.v_width(), net.channels()),
        (32, 64, 128)
    );
    assert_eq!(net.projected_width(), 128 + 64 + 4 + 4);
}

fn with_layers(flags: Vec<i32>) -> GgufBuilder {
    let key = "qwen35.attention.recurrent_layers";
    tiny_model(Architecture::Qwen35).meta(key, Meta::I32s(flags))
}

#[test]
fn a_list_of_layers_with_a_delta_net_takes_the_place_of_the_interval() {
    let layers = |flags| {
        let config = config(&with_layers(flags), None).unwrap();
        let RecurrentLayers { layers, .. } = config.recurrent.expect("recurrent layers");
        layers.into_iter().map(i32::from).collect::<Vec<_>>()
    };
    // At any distance; the fifth predicts further tokens.
    for flags in [[1, 1, 1, 0, 1], [1, 0, 1, 0, 0], [0, 1, 1, 0, 1]] {
        assert_eq!(layers(flags.to_vec()), flags[..4]);
    }
}

#[test]
fn delta_nets_that_cannot_be_computed_are_refused_by_name() {
    let file = |key: &str, value: u32| {
        refusal(tiny_model(Architecture::Qwen35).meta(&format!("qwen35.{key}"), value))
    };
    for (key, value, what) in [
        ("ssm.conv_kernel", 9, "9 positions"),
        ("ssm.conv_kernel", 1, "1 positions"),
        ("ssm.time_step_rank", 3, "3 heads of values"),
        ("ssm.state_size", 12, "heads of 12"),
        ("ssm.inner_size", 32, "32 is not the width"),
        ("full_attention_interval", 5, "none of 4 layers"),
        ("nextn_predict_layers", 4, "4 of 4 layers"),
    ] {
        let message = file(key, value);
        assert!(message.contains(what) && message.contains(key), "{message}");
    }
    for (flags, what) in [
        (vec![1, 0, 1], "3 entries for 4 layers"),
        (vec![1; 4], "none of 4 layers"),
    ] {
        let message = refusal(with_layers(flags));
        assert!(message.contains(what), "{message}");
    }
    let llama = tiny_model(Architecture::Llama).meta("llama.nextn_predict_layers", 1_u32);
    let message = refusal(llama);
    assert!(message.contains("predict further tokens"), "{message}");
}

#[test]
fn layers_without_heads_of_keys_and_values_have_short_convolutions() {
    let file = || tiny_model(Architecture::Lfm2);
    let config = config(&file(), None).unwrap();
    let conv = config.short_conv().expect("short convolutions");
    assert_eq!((conv.kernel, conv.width, conv.units()), (3, 64, 2));
    assert_eq!(
        [0, 1, 2, 3].map(|layer| config.is_recurrent(layer)),
        CONV_LAYERS
    );
    assert_eq!((config.n_kv_heads, config.heads_of(2).kv_count), (2, 2));
    let heads = |heads: &[i32]| {
        let key = "lfm2.attention.head_count_kv";
        file().meta(key, Meta::I32s(heads.to_vec()))
    };
    for (file, what) in [
        (heads(&[0, 0, 2]), "3 entries for 4 layers"),
        (heads(&[0; 4]), "none of 4 layers has attention"),
        (heads(&[0, 2, 4, 0]), "a value that differs by layer"),
        (
            file().meta("lfm2.attention.sliding_window", 8_u32),
            "windows beside short convolutions",
        ),
        (file().meta("lfm2.shortconv.l_cache", 1_u32), "1 positions"),
        (file().meta("lfm2.shortconv.l_cache", 9_u32), "9 positions"),
        (
            file()
                .meta("lfm2.embedding_length", 72_u32)
                .meta("lfm2.attention.key_length", 16_u32)
                .meta("lfm2.attention.value_length", 16_u32),
            "short convolutions of 72 values",
        ),
    ] {
        let message = refusal(file);
        assert!(message.contains(what), "{message}");
    }
    let every = self::config(&heads(&[2; 4]), None).unwrap();
    assert!(every.recurrent.is_none(), "all layers have attention");
}

#[test]
fn granite_has_factors_and_state_spaces_in_layers_without_heads_of_keys_and_values() {
    let file = || tiny_model(Architecture::GraniteHybrid);
    let key = |name: &str| format!("granitehybrid.{name}");
    let granite = config(&file(), None).unwrap();
    let mamba = granite.mamba().expect("state spaces");
    assert_eq!((mamba.heads, mamba.head_dim, mamba.groups), (8, 16, 2));
    assert_eq!((mamba.width(), mamba.channels()), (128, 256));
    assert_eq!(mamba.projected_width(), 128 + 256 + 8);
    assert_eq!((mamba.unit_heads(), mamba.units()), (1, 8));
    assert_eq!(
        [0, 1, 2, 3].map(|layer| granite.is_recurrent(layer)),
        CONV_LAYERS
    );
    // The residual stream is divided by the factor of what blocks add.
    assert_eq!((granite.embedding_scale, granite.norm_eps), (48.0, 1.6e-4));
    assert_eq!(mamba.eps, 1e-5);
    assert_eq!(
        (granite.attention_scale, granite.logit_scale),
        (0.0625, 1.0 / 3.0)
    );
    assert!((0..4).all(|layer| !granite.positions.rotates(layer)));
    let rotates = file().meta(&key("rope.scaling.finetuned"), true);
    let rotates = config(&rotates, None).unwrap();
    assert!((0..4).all(|layer| rotates.positions.rotates(layer)));
    let plain = GRANITE_SCALES
        .iter()
        .fold(file(), |file, (name, _)| file.meta(&key(name), 0.0));
    let plain = config(&plain, None).unwrap();
    assert_eq!((plain.embedding_scale, plain.norm_eps), (1.0, 1e-5));
    assert_eq!((plain.attention_scale, plain.logit_scale), (0.25, 1.0));
    for (name, value, what) in [
        (
            "ssm.inner_size",
            100,
            "100 values cannot be split over 8 heads",
        ),
        ("ssm.group_count", 3, "8 heads cannot be in 3 groups"),
        ("ssm.state_size", 36, "states of 36 values"),
        ("ssm.conv_kernel", 9, "9 positions"),
        ("attention.head_count_kv", 2, "no state-space layers"),
    ] {
        let message = refusal(file().meta(&key(name), value as u32));
        assert!(message.contains(what), "{message}");
    }
    let message = refusal(file().meta(&key("residual_scale"), -1.0));
    assert!(message.contains("-1 is no factor"), "{message}");
}

#[test]
fn factors_of_which_a_derived_one_is_infinite_are_refused_by_key() {
    let key = |name: &str| format!("granitehybrid.{name}");
    let file = || tiny_model(Architecture::GraniteHybrid);
    // The least normal number; those below have no finite reciprocal.
    assert!(config(&file().meta(&key("logit_scale"), f32::MIN_POSITIVE), None).is_ok());
    for (name, value, file) in [
        ("logit_scale", 1e-39, file()),
        ("embedding_scale", 1e38, file()),
        ("residual_scale", 1e-30, file()),
    ] {
        let file = match name {
            "embedding_scale" => file.meta(&key("residual_scale"), 0.01),
            _ => file,
        };
        let message = refusal(file.meta(&key(name), value));
        assert!(message.contains(&key(name)), "{message}");
        assert!(message.contains("inf is computed") || message.contains("NaN is computed"));
    }
}

#[test]
fn the_router_of_lfm2moe_is_named_as_llama_cpp_needs_it() {
    let key = "lfm2moe.expert_gating_func";
    let file = || tiny_model(Architecture::Lfm2Moe);
    let message = refusal(file().without_meta(key));
    assert_eq!(message, format!("key {key} is missing"));
    let message = refusal(file().meta(key, 1_u32));
    assert!(message.contains("a router other than sigmoid"), "{message}");
}

#[test]
fn units_have_as_few_heads_as_leave_a_layer_eight() {
    let file = tiny_model(Architecture::GraniteHybrid);
    let granite = config(&file, None).unwrap();
    let tiny = *granite.mamba().expect("state spaces");
    // Granite 4.0 H Tiny and Small, Nemotron 3 Nano and Nemotron Nano 9B.
    for (heads, groups, of_unit) in [(48, 1, 6), (128, 1, 16), (64, 8, 8), (128, 8, 16)] {
        let config = MambaConfig {
            heads,
            groups,
            ..tiny
        };
        assert_eq!(config.unit_heads(), of_unit, "{heads} {groups}");
    }
}

#[test]
fn two_lists_define_the_one_block_of_each_layer_of_nemotron() {
    for architecture in [Architecture::NemotronH, Architecture::NemotronHMoe] {
        let file = || tiny_model(architecture);
        let key = |name: &str| format!("{}.{name}", architecture.name());
        let nemotron = config(&file(), None).unwrap();
        for (layer, block) in NEMOTRON_LAYERS.into_iter().enumerate() {
            let has = [
                (OneBlock::Mamba, nemotron.is_recurrent(layer)),
                (OneBlock::Attention, nemotron.has_attention(layer)),
                (OneBlock::FeedForward, nemotron.has_feed_forward(layer)),
            ];
            for (one, has) in has {
                assert_eq!(has, one == block, "{layer} {one:?}");
            }
            assert_eq!(nemotron.has_mixer(layer), block != OneBlock::FeedForward);
            assert!(!nemotron.positions.rotates(layer));
        }
        assert_eq!(nemotron.activation, Activation::Relu);
        // The key of LayerNorm's epsilon counts without the other.
        let only = file()
            .without_meta(&key("attention.layer_norm_rms_epsilon"))
            .meta(&key("attention.layer_norm_epsilon"), 1e-6);
        assert_eq!(config(&only, None).unwrap().norm_eps, 1e-6);
        let list = |values: &[i32]| Meta::I32s(values.to_vec());
        let (n_ff, kv) = ("feed_forward_length", "attention.head_count_kv");
        for (name, value, what) in [
            (n_ff, 96_u32.into(), "must be a list of layers"),
            (n_ff, list(&[0, 96, 0, 96]), "4 entries for 5 layers"),
            (n_ff, list(&[0, 96, 0, -1, 0]), "must be positive numbers"),
            (n_ff, list(&[0; 5]), "no layer with a feed-forward part"),
            (kv, list(&[0, 0, 2, 0]), "4 entries for 5 layers"),
            (
                kv,
                list(&[0, 2, 2, 0, 0]),
                "layer 1 has a feed-forward part",
            ),
            (kv, list(&[1, 0, 2, 0, 0]), "a value that differs by layer"),
            (kv, list(&[0; 5]), "none of 5 layers has attention"),
            (kv, 2_u32.into(), "layer 1 has a feed-forward part"),
        ] {
            let message = refusal(file().meta(&key(name), value));
            assert!(message.contains(&key(name)), "{message}");
            assert!(message.contains(what), "{message}");
        }
        // The list of widths contradicts that of heads, which is named.
        for (widths, what) in [
            ([96, 96, 0, 96, 96], "no state-space layers"),
            ([0, 96, 96, 96, 0], "layer 2 has a feed-forward part"),
        ] {
            let message = refusal(file().meta(&key(n_ff), list(&widths)));
            assert!(
                message.contains(&key(kv)) && message.contains(what),
                "{message}"
            );
        }
    }
}

#[test]
fn lists_of_nemotron_may_go_on_with_layers_that_predict_further_tokens() {
    let key = |name: &str| format!("nemotron_h_moe.{name}");
    let file = tiny_model(Architecture::NemotronHMoe)
        .meta(&key("block_count"), 6_u32)
        .meta(&key("nextn_predict_layers"), 1_u32)
        .meta(
            &key("feed_forward_length"),
            Meta::I32s(vec![0, 32, 0, 32, 0, 32]),
        )
        .meta(
            &key("attention.head_count_kv"),
            Meta::I32s(vec![0, 0, 2, 0, 0, 2]),
        );
    let nemotron = config(&file, None).unwrap();
    assert_eq!((nemotron.n_layers, nemotron.n_mtp_layers), (5, 1));
    let layers = nemotron.feed_forward_layers.expect("layers of one block");
    assert_eq!(layers, [false, true, false, true, false]);
    let recurrent = nemotron.recurrent.expect("recurrent layers").layers;
    assert_eq!(recurrent, [true, false, false, false, true]);
}

#[test]
fn every_fourth_layer_of_smollm3_does_not_rotate() {
    let rotates = |architecture| {
        let config = config(&tiny_model(architecture), None).unwrap();
        [0, 1, 2, 3, 4, 7, 8].map(|layer| config.positions.rotates(layer))
    };
    let expected = [true, true, true, false, true, false, true];
    assert_eq!(rotates(Architecture::SmolLm3), expected);
    assert_eq!(rotates(Architecture::Llama), [true; 7]);
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
    for (name, value) in [
        ("rope.scaling.yarn_log_multiplier", Meta::F32(1.0)),
        ("attention.temperature_scale", Meta::F32(0.1)),
        ("attention.temperature_length", Meta::U32(8192)),
        ("attention.output_scale", Meta::F32(0.5)),
    ] {
        let key = format!("llama.{name}");
        let file = llama().meta("llama.rope.scaling.type", "yarn");
        assert!(refusal(file.meta(&key, value)).contains(&key), "{key}");
    }
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
fn the_temperature_of_mistral3_is_read_with_the_original_context() {
    let plain = tiny_model(Architecture::Mistral3);
    let file = || {
        tiny_model(Architecture::Mistral3)
            .meta("mistral3.rope.scaling.type", "yarn")
            .meta("mistral3.rope.scaling.factor", 16.0)
            .meta("mistral3.rope.scaling.original_context_length", 64_u32)
            .meta("mistral3.rope.scaling.yarn_log_multiplier", 1.0)
            .meta("mistral3.attention.temperature_scale", 0.1)
    };
    assert_eq!(config(&plain, None).unwrap().positions.temperature, None);
    let read = config(&file(), None).unwrap();
    let expected = Temperature {
        scale: 0.1,
        original: 64,
    };
    assert_eq!(read.positions.temperature, Some(expected));
    assert_eq!(read.rope.attn_factor, 1.0);
    let endless = file().meta("mistral3.attention.temperature_scale", f32::INFINITY);
    assert!(refusal(endless).contains("temperature_scale: inf is no factor"));
}

#[test]
fn the_windows_of_gemma3_have_a_rotation_of_their_own() {
    let file = || {
        tiny_model(Architecture::Gemma3)
            .meta("gemma3.rope.freq_base", 1e6)
            .meta("gemma3.rope.scaling.type", "linear")
            .meta("gemma3.rope.scaling.factor", 8.0)
    };
    let read = config(&file(), None).unwrap();
    let ropes: Vec<_> = read.ropes().map(|rope| (rope.base, rope.scale)).collect();
    assert_eq!(ropes, [(1e6, 8.0), (1e4, 1.0)]);
    let layers = [0, 4, 5, 6, 10, 11];
    let windows = layers.map(|layer| read.positions.window_of(layer));
    let sliding = Some(WINDOW as usize);
    assert_eq!(windows, [sliding, sliding, None, sliding, sliding, None]);
    let places = layers.map(|layer| read.rope_of(layer));
    assert_eq!(places, [1, 1, 0, 1, 1, 0].map(Some));
    assert_eq!(read.embedding_scale, 8.0);
    assert_eq!(read.activation, Activation::Gelu);

    let every = file().meta("gemma3.attention.sliding_window_pattern", 2_u32);
    let own = every.meta("gemma3.rope.freq_base_swa", 500.0);
    let read = config(&own, None).unwrap();
    let windows = [0, 1, 2, 3].map(|layer| read.positions.window_of(layer));
    assert_eq!(windows, [sliding, None, sliding, None]);
    assert_eq!(read.ropes().last().unwrap().base, 500.0);

    let whole = file().without_meta("gemma3.attention.sliding_window");
    assert!(refusal(whole).contains("gemma3.attention.sliding_window is missing"));
    let yarn = file().meta("gemma3.rope.scaling.type", "yarn");
    assert!(refusal(yarn).contains("YaRN beside windows"));
    let capped = file().meta("gemma3.final_logit_softcapping", 30.0);
    assert!(refusal(capped).contains("soft-capped logits"));
}

#[test]
fn gemma4_has_heads_of_two_kinds_and_two_rotations() {
    let read = config(&tiny_model(Architecture::Gemma4), None).unwrap();
    let heads = |count, kv_count, dim| Heads {
        count,
        kv_count,
        dim,
    };
    let (sliding, whole) = (heads(4, 4, 16), heads(4, 1, 32));
    let found = [0, 1, 2, 3, 4, 5].map(|layer| read.heads_of(layer));
    assert_eq!(found, [sliding, sliding, whole, sliding, sliding, whole]);
    assert_eq!(
        (sliding.kv_width(), whole.width(), whole.group()),
        (64, 128, 4)
    );
    let ropes: Vec<_> = read.ropes().collect();
    assert_eq!((ropes[0].base, ropes[0].dims), (1e6, 32));
    assert_eq!((ropes[1].base, ropes[1].dims), (1e4, 16));
    let turning = ropes[0].factors.as_ref().map(|factors| {
        let ones = factors.iter().filter(|factor| **factor == 1.0);
        (ones.count(), factors.len())
    });
    assert_eq!((turning, &ropes[1].factors), (Some((4, 16)), &None));
    assert_eq!((read.attention_scale, read.embedding_scale), (1.0, 8.0));
    assert_eq!(read.logit_cap, Some(LOGIT_CAP));
    assert!(read.normalizes_values && read.experts.is_none());
    assert_eq!((read.shared_kv_layers, read.layer_input), (0, None));
    assert_eq!((read.kv_layers(), read.ff_widths), (6, None));
}

#[test]
fn the_last_layers_of_gemma4_e2b_share_keys_and_values_and_are_wider() {
    let read = config(&tiny_gemma4_e2b(), None).unwrap();
    assert_eq!((read.kv_layers(), read.layer_input), (3, Some(24)));
    let layers = [0, 1, 2, 3, 4, 5];
    let earlier = layers.map(|layer| read.kv_layer(layer));
    assert_eq!(earlier, [0, 1, 2, 1, 1, 2], "the last of each kind");
    let widths = layers.map(|layer| read.n_ff_of(layer));
    assert_eq!(widths, [96, 96, 96, 192, 192, 192]);
    assert_eq!(read.n_ff, 192, "the largest");
    let file = |widths| {
        let file = tiny_model(Architecture::Gemma4);
        file.meta("gemma4.feed_forward_length", Meta::I32s(widths))
    };
    let equal = config(&file(vec![96; 6]), None).unwrap();
    assert_eq!((equal.n_ff, equal.ff_widths), (96, None));
    let refused = refusal(file(vec![96; 5]));
    assert!(refused.contains("5 entries for 6 layers"), "{refused}");
    for wrong in [0, -96] {
        let refused = refusal(file(vec![96, 96, wrong, 96, 96, 96]));
        assert!(refused.contains("must be positive numbers"), "{refused}");
    }
}

#[test]
fn shared_keys_and_values_and_inputs_of_layers_that_cannot_be_computed_are_refused_by_name() {
    let sharing = |shared: u32| {
        let file = tiny_model(Architecture::Gemma4);
        refusal(file.meta("gemma4.attention.shared_kv_layers", shared))
    };
    for (shared, what) in [
        (7, "7 of 6 layers leave fewer than two"),
        (5, "5 of 6 layers leave fewer than two"),
        // The last layer with its own has a window, and so has the one before it.
        (4, "layer 2 with keys and values"),
        // The one before the last has full attention.
        (2, "layer 4 with keys and values"),
    ] {
        let message = sharing(shared);
        assert!(
            message.contains(what) && message.contains("shared_kv_layers"),
            "{message}"
        );
    }
    for (key, what) in [
        (
            "attention.shared_kv_layers",
            "keys and values of earlier ones",
        ),
        (
            "embedding_length_per_layer_input",
            "embeddings for each layer",
        ),
    ] {
        let key = format!("gemma3.{key}");
        let message = refusal(tiny_model(Architecture::Gemma3).meta(&key, 1_u32));
        assert!(
            message.contains(what) && message.contains(&key),
            "{message}"
        );
    }
    let key = "gemma4.embedding_length_per_layer_input";
    let message = refusal(tiny_model(Architecture::Gemma4).meta(key, 12_u32));
    assert!(message.contains("not a multiple of 8"), "{message}");
}

#[test]
fn what_gemma4_files_need_and_is_not_computed_is_refused_by_name() {
    let file = |key: &str, value: Meta| {
        refusal(tiny_model(Architecture::Gemma4).meta(&format!("gemma4.{key}"), value))
    };
    let windows = "attention.sliding_window_pattern";
    let kv_heads = "attention.head_count_kv";
    for (key, value, what) in [
        (windows, 3_u32.into(), "a list of layers"),
        (windows, Meta::I32s(vec![1, 1, 0]), "3 entries for 6 layers"),
        (
            windows,
            Meta::I32s(vec![1, 1, 1, 1, -1, 0]),
            "list of flags",
        ),
        (
            windows,
            Meta::I32s(vec![1, 0, 0, 1, 1, 0]),
            "unequal distances",
        ),
        (
            kv_heads,
            Meta::I32s(vec![4, 4, 1, 4, 2, 1]),
            "differs between layers of one kind",
        ),
        (
            kv_heads,
            Meta::I32s(vec![4, 4, 1]),
            "3 entries for 6 layers",
        ),
        (kv_heads, Meta::I32s(vec![0; 6]), "positive numbers"),
        (kv_heads, Meta::I32s(vec![3; 6]), "cannot share 3"),
        ("attention.value_length_swa", 8_u32.into(), "another length"),
        (
            "rope.dimension_count_swa",
            18_u32.into(),
            "cannot be rotated",
        ),
        ("final_logit_softcapping", f32::NAN.into(), "no cap"),
    ] {
        let message = file(key, value);
        assert!(message.contains(what) && message.contains(key), "{message}");
    }
    for key in [
        windows,
        "attention.key_length_swa",
        "attention.value_length_swa",
    ] {
        let key = format!("gemma4.{key}");
        let message = refusal(tiny_model(Architecture::Gemma4).without_meta(&key));
        assert!(
            message.contains(&format!("key {key} is missing")),
            "{message}"
        );
    }
    let message = refusal(tiny_model(Architecture::Gemma4).without_tensor("rope_freqs.weight"));
    assert_eq!(message, "tensor rope_freqs.weight is missing");
}

#[test]
fn the_largest_gemma3_scales_attention_by_its_width() {
    let scale = |layers: u32| {
        let file = tiny_model(Architecture::Gemma3)
            .meta("gemma3.block_count", layers)
            .meta("gemma3.attention.key_length", 4_u32)
            .meta("gemma3.attention.value_length", 4_u32);
        config(&file, None).unwrap().attention_scale
    };
    // 64 values of four heads.
    assert_eq!([scale(61), scale(62)], [0.5, 0.25]);
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
    let same = with("attention.sliding_window_pattern", 3_u32.into())
        .meta("gpt-oss.rope.freq_base", 5e5)
        .meta("gpt-oss.rope.freq_base_swa", 5e5);
    let read = config(&same, None).unwrap();
    let windows = [0, 1, 2].map(|layer| read.positions.window_of(layer));
    let sliding = Some(WINDOW as usize);
    assert_eq!(windows, [sliding, sliding, None]);
    assert_eq!(read.ropes().count(), 1);
    // As in llama.cpp.
    let phi3 = tiny_model(Architecture::Phi3).meta("phi3.attention.sliding_window", 8_u32);
    assert_eq!(config(&phi3, None).unwrap().positions.window, None);
}
