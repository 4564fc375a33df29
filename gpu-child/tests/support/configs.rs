//! Small configurations, each with the features of one family of models.

use worker_orcd_gpu::model::{
    Architecture, DeltaNetConfig, ExpertsConfig, Heads, MambaConfig, ModelConfig, Positions,
    Recurrence, RecurrentLayers, ShortConvConfig, Temperature, Window,
};
use worker_orcd_kernels::reference::delta_net::HeadOrder;
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};
use worker_orcd_kernels::{Activation, Weighing};

/// A basic configuration, with an optional window in all layers.
pub fn config(window: Option<usize>) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen3,
        n_layers: 2,
        n_mtp_layers: 0,
        n_embd: 256,
        n_ff: 512,
        ff_widths: None,
        feed_forward_layers: None,
        experts: None,
        n_heads: 8,
        n_kv_heads: 2,
        head_dim: 32,
        vocab_size: 101,
        context_length: 1024,
        norm_eps: 1e-5,
        rope: Rope {
            pairs: RopePairs::HalfOffset,
            dims: 24,
            base: 1e4,
            scale: 1.0,
            factors: None,
            attn_factor: 1.0,
        },
        positions: Positions {
            window: window.map(|positions| Window {
                positions,
                full_every: None,
                rope: None,
            }),
            ..Positions::default()
        },
        attention_scale: 1.0 / 32_f64.sqrt(),
        embedding_scale: 1.0,
        activation: Activation::Silu,
        has_joint_norms: false,
        has_sinks: false,
        gates_attention: false,
        recurrent: None,
        sliding_heads: None,
        normalizes_values: false,
        logit_scale: 1.0,
        logit_cap: None,
        shared_kv_layers: 0,
        layer_input: None,
    }
}

/// Like Qwen3.5: a delta net in two of three layers, two heads of values for each head of keys, and gated attention.
pub fn config_of_delta_nets() -> ModelConfig {
    let net = DeltaNetConfig {
        kernel: 4,
        head_dim: 32,
        k_heads: 3,
        v_heads: 6,
        order: HeadOrder::Tiled,
    };
    ModelConfig {
        n_layers: 3,
        gates_attention: true,
        recurrent: Some(delta_nets(net)),
        ..config(None)
    }
}

/// Delta nets in two of three layers.
pub fn delta_nets(net: DeltaNetConfig) -> RecurrentLayers {
    RecurrentLayers::beside_attention(Recurrence::DeltaNet(net), 3, 3)
}

/// Like LFM2: short convolutions in the first two and in the last of four layers.
pub fn config_of_short_convs() -> ModelConfig {
    let conv = ShortConvConfig {
        kernel: 3,
        width: 256,
    };
    ModelConfig {
        n_layers: 4,
        recurrent: Some(RecurrentLayers {
            recurrence: Recurrence::ShortConv(conv),
            layers: vec![true, true, false, true],
        }),
        ..config(None)
    }
}

/// Like Granite 4.0: state-space layers in the first and the last of three layers, of two heads a unit and three units a group, and
/// factors of embeddings and scores.
pub fn config_of_mamba() -> ModelConfig {
    let mamba = MambaConfig {
        kernel: 4,
        state: 32,
        head_dim: 24,
        heads: 12,
        groups: 2,
        eps: 1e-5,
    };
    ModelConfig {
        n_layers: 3,
        recurrent: Some(RecurrentLayers {
            recurrence: Recurrence::Mamba(mamba),
            layers: vec![true, false, true],
        }),
        embedding_scale: 3.0,
        attention_scale: 0.1,
        positions: Positions {
            unrotated_every: Some(1),
            ..Positions::default()
        },
        ..config(None)
    }
}

/// Like Nemotron-H: layers of one block. Of five, the first and the last have state spaces, the second and the fourth a
/// feed-forward part without a gate, of unequal widths, and the third has attention.
pub fn config_of_single_blocks() -> ModelConfig {
    let mamba = config_of_mamba();
    let mut recurrent = mamba.recurrent.clone().expect("recurrent layers");
    recurrent.layers = vec![true, false, false, false, true];
    ModelConfig {
        n_layers: 5,
        ff_widths: Some(vec![0, 512, 0, 384, 0]),
        feed_forward_layers: Some(vec![false, true, false, true, false]),
        recurrent: Some(recurrent),
        activation: Activation::Relu,
        embedding_scale: 1.0,
        ..mamba
    }
}

/// Like Nemotron 3: the same, with experts like GLM's but without gates.
pub fn config_of_single_blocks_and_experts() -> ModelConfig {
    let experts = config_like_glm().experts.expect("experts");
    ModelConfig {
        ff_widths: None,
        experts: Some(ExpertsConfig {
            first_layer: 0,
            ..experts
        }),
        ..config_of_single_blocks()
    }
}

/// Short convolutions, and experts like those of LFM2-8B-A1B behind a dense layer.
pub fn config_of_short_convs_and_experts() -> ModelConfig {
    ModelConfig {
        experts: Some(ExpertsConfig {
            weighing: Weighing::RenormalizedSigmoid,
            has_choice_bias: true,
            first_layer: 1,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        ..config_of_short_convs()
    }
}

/// Like [`config_of_delta_nets`], with heads as large as those of Qwen3.5, and three heads of values for each head of keys.
pub fn config_of_large_delta_nets() -> ModelConfig {
    let small = config_of_delta_nets();
    let net = DeltaNetConfig {
        head_dim: 128,
        k_heads: 2,
        v_heads: 6,
        ..*small.delta_net().expect("delta nets")
    };
    ModelConfig {
        n_embd: 512,
        n_heads: 4,
        n_kv_heads: 1,
        head_dim: 256,
        attention_scale: 1.0 / 16.0,
        rope: Rope {
            dims: 64,
            ..small.rope.clone()
        },
        recurrent: Some(delta_nets(net)),
        ..small
    }
}

/// Delta nets and experts, one of them shared.
pub fn config_of_delta_nets_and_experts() -> ModelConfig {
    ModelConfig {
        experts: config_of_experts().experts,
        ..config_of_delta_nets()
    }
}

/// Like SmolLM3, but with RoPE in two of four layers: every second layer does not rotate queries and keys.
pub fn config_without_rotations() -> ModelConfig {
    ModelConfig {
        n_layers: 4,
        positions: Positions {
            unrotated_every: Some(2),
            ..Positions::default()
        },
        ..config(None)
    }
}

/// Four layers: full attention in every second one, and a window of this length in the others.
pub fn config_with_windows(positions: usize) -> ModelConfig {
    ModelConfig {
        n_layers: 4,
        positions: Positions {
            window: Some(Window {
                positions,
                full_every: Some(2),
                rope: None,
            }),
            ..Positions::default()
        },
        ..config(None)
    }
}

/// Like Gemma 3, but with full attention in every second of three layers. The model has norms after its blocks
/// ([`has_post_norms`](super::Model::has_post_norms)).
pub fn config_like_gemma() -> ModelConfig {
    let plain = config(None);
    let rope = Rope {
        base: 500.0,
        ..plain.rope.clone()
    };
    ModelConfig {
        n_layers: 3,
        positions: Positions {
            window: Some(Window {
                positions: 40,
                full_every: Some(2),
                rope: Some(rope),
            }),
            ..Positions::default()
        },
        rope: Rope {
            base: 1e6,
            scale: 8.0,
            ..plain.rope.clone()
        },
        attention_scale: 0.11,
        embedding_scale: 16.0,
        activation: Activation::Gelu,
        ..plain
    }
}

/// Like Gemma 4, dense: larger and fewer heads in layers with full attention, every second of three, of which a quarter
/// of the pairs turns, values that are keys there, and norms of values.
pub fn config_like_gemma4() -> ModelConfig {
    let gemma3 = config_like_gemma();
    let mut rope = gemma3.rope.clone();
    rope.dims = 64;
    rope.scale = 1.0;
    let factor = |pair| if pair < 8 { 1.0 } else { 1e30 };
    rope.factors = Some((0..32).map(factor).collect());
    ModelConfig {
        n_kv_heads: 1,
        head_dim: 64,
        sliding_heads: Some(Heads {
            count: gemma3.n_heads,
            kv_count: 4,
            dim: 32,
        }),
        rope,
        attention_scale: 1.0,
        normalizes_values: true,
        logit_cap: Some(3.0),
        ..gemma3
    }
}

/// The same with heads as large as those of Gemma 4.
pub fn config_like_gemma4_of_large_heads() -> ModelConfig {
    let small = config_like_gemma4();
    let mut rope = small.rope.clone();
    rope.dims = 512;
    let factor = |pair| if pair < 64 { 1.0 } else { 1e30 };
    rope.factors = Some((0..256).map(factor).collect());
    ModelConfig {
        n_heads: 4,
        head_dim: 512,
        sliding_heads: Some(Heads {
            count: 4,
            kv_count: 2,
            dim: 256,
        }),
        rope,
        ..small
    }
}

/// Like Gemma 4 E2B: the last three of six layers have the keys and values of earlier ones, and wider feed-forward parts. Layers
/// have per-layer inputs. The epsilon of norms is large, so that a factor in front of a norm changes its output.
pub fn config_like_gemma4_e2b() -> ModelConfig {
    let plain = config_like_gemma4();
    let mut positions = plain.positions.clone();
    if let Some(window) = &mut positions.window {
        window.full_every = Some(3);
    }
    ModelConfig {
        n_layers: 6,
        n_ff: 384,
        ff_widths: Some(vec![256, 256, 256, 384, 384, 384]),
        shared_kv_layers: 3,
        layer_input: Some(32),
        norm_eps: 0.05,
        positions,
        ..plain
    }
}

/// The same with fewer layers: the last two of four have the keys and values of those in front of them.
pub fn config_like_gemma4_e2b_of_four_layers() -> ModelConfig {
    let plain = config_like_gemma4_e2b();
    let mut positions = plain.positions.clone();
    if let Some(window) = &mut positions.window {
        window.full_every = Some(2);
    }
    ModelConfig {
        n_layers: 4,
        ff_widths: Some(vec![256, 256, 384, 384]),
        shared_kv_layers: 2,
        positions,
        ..plain
    }
}

/// Like [`config_like_gemma4`], with experts beside the dense part.
pub fn config_like_gemma4_with_experts() -> ModelConfig {
    ModelConfig {
        experts: Some(ExpertsConfig {
            beside_dense: true,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        ..config_like_gemma4()
    }
}

/// Attention temperature: queries are scaled from position 20 on, and further from 40.
pub fn config_with_temperature() -> ModelConfig {
    ModelConfig {
        positions: Positions {
            temperature: Some(Temperature {
                scale: 0.5,
                original: 20,
            }),
            ..Positions::default()
        },
        ..config(None)
    }
}

/// Experts replace the feed-forward part, one of them shared. A row uses three of seven
/// experts: some have many rows of a batch, some few, and some none.
pub fn config_of_experts() -> ModelConfig {
    ModelConfig {
        experts: Some(ExpertsConfig {
            shared_n_ff: Some(64),
            gates_shared: true,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        ..config(None)
    }
}

/// Like GLM-4.5: a dense layer in front of two with experts, an ungated shared expert, weights by sigmoid with a factor, and
/// a bias of each expert that only chooses.
pub fn config_like_glm() -> ModelConfig {
    ModelConfig {
        n_layers: 3,
        experts: Some(ExpertsConfig {
            shared_n_ff: Some(64),
            weighing: Weighing::RenormalizedSigmoid,
            scale: 2.5,
            has_choice_bias: true,
            first_layer: 1,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        ..config(None)
    }
}

/// Like MiniMax-M2: norms of queries and keys over all heads of a row, weights by sigmoid, and a bias of each expert that
/// only chooses.
pub fn config_with_joint_norms() -> ModelConfig {
    ModelConfig {
        has_joint_norms: true,
        experts: Some(ExpertsConfig {
            weighing: Weighing::Sigmoid,
            has_choice_bias: true,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        ..config(None)
    }
}

/// Features of gpt-oss: sinks, biases everywhere, a window in the first of two layers, expert weights by softmax of the
/// chosen, a clamped unit.
pub fn config_of_gpt_oss() -> ModelConfig {
    ModelConfig {
        experts: Some(ExpertsConfig {
            weighing: Weighing::OfChosen,
            has_biases: true,
            ..ExpertsConfig::plain(7, 3, 96)
        }),
        activation: Activation::ClampedSwiglu,
        has_sinks: true,
        positions: Positions {
            window: Some(Window {
                positions: 40,
                full_every: Some(2),
                rope: None,
            }),
            ..Positions::default()
        },
        ..config(None)
    }
}
