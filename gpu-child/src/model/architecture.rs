//! Supported architectures, and the differences between their files.
//!
//! The only place that distinguishes architectures: the rest of the program sees configuration and tensors.

use worker_orcd_kernels::reference::delta_net::HeadOrder;
use worker_orcd_kernels::reference::rope::RopePairs;
use worker_orcd_kernels::{Activation, Weighing};

/// Value of `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Phi3,
    Qwen2Moe,
    Qwen3Moe,
    SmolLm3,
    Mistral3,
    Gemma3,
    GptOss,
    Qwen35,
    Qwen35Moe,
    Qwen3Next,
    Qwen3Vl,
    Qwen3VlMoe,
    Gemma4,
    SeedOss,
    Ernie45,
    Ernie45Moe,
    Glm4Moe,
    MiniMaxM2,
    Lfm2,
    Lfm2Moe,
    GraniteHybrid,
    NemotronH,
    NemotronHMoe,
}

/// Properties specific to an architecture's files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conventions {
    pub(super) rope_pairs: RopePairs,
    /// RoPE rotates whole heads, as llama.cpp asserts.
    pub(super) rotates_whole_heads: bool,
    pub(super) rope_factors: Option<RopeFactors>,
    /// [`Positions::unrotated_every`](super::Positions::unrotated_every).
    pub(super) unrotated_every: Option<usize>,
    /// Queries may have a [temperature](super::Temperature), and YaRN a multiplier of its logarithm.
    pub(super) has_temperature: bool,
    /// Biases of Q, K and V are required.
    pub(super) has_qkv_bias: bool,
    /// A bias of attention's output is required.
    pub(super) has_output_bias: bool,
    /// Each head has a sink: a logit in its softmax's denominator.
    pub(super) has_sinks: bool,
    /// Tensor of the norm before the feed-forward part.
    pub(super) ffn_norm: &'static str,
    pub(super) qk_norms: QkNorms,
    /// Gate and up are one tensor, and Q, K and V may be.
    pub(super) is_fused: bool,
    /// The outputs of attention and of the feed-forward part have norms, before the residual addition.
    pub(super) has_post_norms: bool,
    pub(super) windows: Option<Windows>,
    /// A token's embedding is multiplied by the square root of its width.
    pub(super) scales_embedding: bool,
    pub(super) attention_scale: AttentionScale,
    /// Values have norms without weights, and a layer without a matrix of values has its unnormalized keys as values.
    pub(super) normalizes_values: bool,
    /// A layer's output may have a factor.
    pub(super) scales_output: bool,
    /// A key may turn the rotation of all layers off.
    pub(super) may_not_rotate: bool,
    /// Embeddings, outputs of blocks, attention scores and logits may have factors.
    pub(super) has_scales: bool,
    /// Logits may have a [soft cap](super::ModelConfig::logit_cap).
    pub(super) caps_logits: bool,
    /// The last layers may attend to [keys and values of earlier ones](super::ModelConfig::kv_layer).
    pub(super) shares_kv: bool,
    /// Layers may have [per-layer inputs](super::LayerInputs).
    pub(super) has_layer_inputs: bool,
    /// Dense feed-forward parts may [differ in width](super::ModelConfig::ff_widths).
    pub(super) has_ff_widths: bool,
    /// The file may have a classification head, with llama.cpp's softmax.
    pub(super) has_rank_head: bool,
    /// Activation of the feed-forward part.
    pub(super) activation: Activation,
    /// Units of the feed-forward part, shared experts too, have a [gate](super::GatedUnit::has_gate).
    pub(super) has_gate: bool,
    /// A layer is a mixer or a feed-forward part ([`feed_forward_layers`](super::ModelConfig::feed_forward_layers)).
    pub(super) has_layers_of_one_block: bool,
    /// The epsilon of norms may have the key of LayerNorm's.
    pub(super) may_have_eps_of_layer_norms: bool,
    pub(super) experts: Experts,
    /// Attention's output has gates.
    pub(super) gates_attention: bool,
    /// Tensor of the norm before the output.
    pub(super) output_norm: &'static str,
    pub(super) recurrence: Recurrence,
    /// The file may have layers that predict further tokens.
    pub(super) may_have_mtp: bool,
}

/// Conventions of most architectures.
const PLAIN: Conventions = Conventions {
    rope_pairs: RopePairs::HalfOffset,
    rotates_whole_heads: false,
    rope_factors: None,
    unrotated_every: None,
    has_temperature: false,
    has_qkv_bias: false,
    has_output_bias: false,
    has_sinks: false,
    qk_norms: QkNorms::None,
    is_fused: false,
    has_post_norms: false,
    windows: None,
    ffn_norm: "ffn_norm.weight",
    scales_embedding: false,
    attention_scale: AttentionScale::ByHead,
    normalizes_values: false,
    scales_output: false,
    may_not_rotate: false,
    has_scales: false,
    caps_logits: false,
    shares_kv: false,
    has_layer_inputs: false,
    has_ff_widths: false,
    has_rank_head: false,
    activation: Activation::Silu,
    has_gate: true,
    has_layers_of_one_block: false,
    may_have_eps_of_layer_norms: false,
    experts: Experts::None,
    gates_attention: false,
    output_norm: "output_norm.weight",
    recurrence: Recurrence::None,
    may_have_mtp: false,
};

/// Qwen3.5, 3.6 and 3.8.
const QWEN_3_5: Conventions = Conventions {
    qk_norms: QkNorms::OfHeads,
    // A norm before the feed-forward part, in spite of its name.
    ffn_norm: "post_attention_norm.weight",
    gates_attention: true,
    recurrence: Recurrence::DeltaNet(HeadOrder::Tiled),
    may_have_mtp: true,
    ..PLAIN
};

const QWEN_3_5_MOE: Conventions = Conventions {
    experts: Experts::Always(Mixture {
        shared: Shared::Gated,
        ..MIXTURE
    }),
    ..QWEN_3_5
};

const GPT_OSS: Conventions = Conventions {
    has_qkv_bias: true,
    has_output_bias: true,
    has_sinks: true,
    windows: Some(Windows {
        full_every: FullEvery::Default(2),
        have_rotation: false,
        have_heads: false,
    }),
    ffn_norm: "post_attention_norm.weight",
    activation: Activation::ClampedSwiglu,
    experts: Experts::Always(Mixture {
        weighing: Weighing::OfChosen,
        has_biases: true,
        ..MIXTURE
    }),
    ..PLAIN
};

const GEMMA_3: Conventions = Conventions {
    qk_norms: QkNorms::OfHeads,
    has_post_norms: true,
    windows: Some(Windows {
        full_every: FullEvery::Default(6),
        have_rotation: true,
        have_heads: false,
    }),
    scales_embedding: true,
    // The largest, of 27B.
    attention_scale: AttentionScale::ByWidth { layers: 62 },
    activation: Activation::Gelu,
    ..PLAIN
};

const GEMMA_4: Conventions = Conventions {
    rope_factors: Some(RopeFactors::OfWholeLayers),
    windows: Some(Windows {
        full_every: FullEvery::Listed,
        have_rotation: true,
        have_heads: true,
    }),
    attention_scale: AttentionScale::One,
    normalizes_values: true,
    scales_output: true,
    caps_logits: true,
    shares_kv: true,
    has_layer_inputs: true,
    has_ff_widths: true,
    experts: Experts::BesideDense,
    ..GEMMA_3
};

const ERNIE_4_5: Conventions = Conventions {
    rope_pairs: RopePairs::Adjacent,
    rotates_whole_heads: true,
    ..PLAIN
};

const ERNIE_4_5_MOE: Conventions = Conventions {
    experts: Experts::Always(Mixture {
        choice_bias: ChoiceBias::Optional,
        shared: Shared::Optional,
        may_begin_dense: true,
        ..MIXTURE
    }),
    ..ERNIE_4_5
};

const MINIMAX_M2: Conventions = Conventions {
    qk_norms: QkNorms::Joint,
    experts: Experts::Always(Mixture {
        weighing: Weighing::RenormalizedSigmoid,
        choice_bias: ChoiceBias::Required,
        has_dense_width: true,
        ..MIXTURE
    }),
    ..PLAIN
};

const LFM_2: Conventions = Conventions {
    qk_norms: QkNorms::OfHeads,
    output_norm: "token_embd_norm.weight",
    recurrence: Recurrence::ShortConv,
    ..PLAIN
};

const LFM_2_MOE: Conventions = Conventions {
    experts: Experts::Always(Mixture {
        weighing: Weighing::RenormalizedSigmoid,
        choice_bias: ChoiceBias::Required,
        may_begin_dense: true,
        needs_gating: true,
        ..MIXTURE
    }),
    ..LFM_2
};

/// Granite 4.0.
const GRANITE_HYBRID: Conventions = Conventions {
    rope_pairs: RopePairs::Adjacent,
    rope_factors: Some(RopeFactors::ByScaling),
    may_not_rotate: true,
    has_scales: true,
    recurrence: Recurrence::Mamba,
    experts: Experts::OptionalMixture(Mixture {
        shared: Shared::Optional,
        has_dense_width: true,
        ..MIXTURE
    }),
    ..PLAIN
};

/// Nemotron-H and Nemotron Nano 2.
const NEMOTRON_H: Conventions = Conventions {
    unrotated_every: Some(1),
    ffn_norm: "attn_norm.weight",
    activation: Activation::Relu,
    has_gate: false,
    has_layers_of_one_block: true,
    may_have_eps_of_layer_norms: true,
    recurrence: Recurrence::Mamba,
    ..PLAIN
};

/// Nemotron 3.
const NEMOTRON_H_MOE: Conventions = Conventions {
    experts: Experts::Always(Mixture {
        weighing: Weighing::Sigmoid,
        has_options: true,
        choice_bias: ChoiceBias::Required,
        shared: Shared::Optional,
        ..MIXTURE
    }),
    may_have_mtp: true,
    ..NEMOTRON_H
};

/// GLM-4.5, 4.6 and 4.7.
const GLM_4_MOE: Conventions = Conventions {
    qk_norms: QkNorms::OptionalOfHeads,
    ffn_norm: "post_attention_norm.weight",
    experts: Experts::Always(Mixture {
        weighing: Weighing::Sigmoid,
        has_options: true,
        choice_bias: ChoiceBias::Required,
        shared: Shared::OfExperts,
        may_begin_dense: true,
        ..MIXTURE
    }),
    may_have_mtp: true,
    ..PLAIN
};

/// Recurrence in some of the layers, in place of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recurrence {
    None,
    /// A gated delta net in most layers, with heads in this order. Grouped heads have their strengths and decays in one
    /// tensor.
    DeltaNet(HeadOrder),
    /// A short convolution in the layers without heads of keys and values.
    ShortConv,
    /// Mamba-2 in the layers without heads of keys and values, and without a feed-forward part if layers have one block.
    Mamba,
}

/// Most layers have a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    pub(super) full_every: FullEvery,
    /// Sliding-window layers have a RoPE base of their own, without scaling.
    pub(super) have_rotation: bool,
    /// Sliding-window layers have a head size of their own, and may have another number of heads of keys and values.
    pub(super) have_heads: bool,
}

/// Layers with full attention among those with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FullEvery {
    /// The last of this many layers, unless a key overrides the number.
    Default(usize),
    /// A key lists the layers with a window.
    Listed,
}

/// Factor of attention scores. There is no key for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttentionScale {
    /// `1 / sqrt(head_dim)`.
    ByHead,
    /// The same, except in models with this number of layers: `1 / sqrt(n_embd / n_heads)`. llama.cpp identifies them
    /// by this number.
    ByWidth {
        layers: usize,
    },
    One,
}

/// Mixture of experts that a file of this architecture may have in place of a dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Experts {
    None,
    /// Present if the file's keys define it. An expert has the width of the dense part.
    Optional,
    /// The same, of another kind.
    OptionalMixture(Mixture),
    /// Present if the file's keys define them, beside a dense part.
    BesideDense,
    Always(Mixture),
}

/// A mixture of experts in place of a dense feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mixture {
    pub(super) weighing: Weighing,
    /// `expert_weights_norm` makes weights renormalized, and `expert_weights_scale` is their factor.
    pub(super) has_options: bool,
    pub(super) choice_bias: ChoiceBias,
    pub(super) shared: Shared,
    /// Router and experts have biases.
    pub(super) has_biases: bool,
    /// The first `leading_dense_block_count` layers have a dense part.
    pub(super) may_begin_dense: bool,
    /// An expert has the width of a dense part.
    pub(super) has_dense_width: bool,
    /// `expert_gating_func` is required.
    pub(super) needs_gating: bool,
}

/// The mixture of most architectures.
pub(super) const MIXTURE: Mixture = Mixture {
    weighing: Weighing::Renormalized,
    has_options: false,
    choice_bias: ChoiceBias::None,
    shared: Shared::None,
    has_biases: false,
    may_begin_dense: false,
    has_dense_width: false,
    needs_gating: false,
};

/// A bias of each expert, which only chooses (`exp_probs_b.bias`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChoiceBias {
    None,
    Optional,
    Required,
}

/// An additional expert, for every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    None,
    /// Weighted by the sigmoid of a product. Its width has a key, and is otherwise that of a dense part.
    Gated,
    /// As wide as `expert_shared_count` experts.
    OfExperts,
    /// Present if its width has a key.
    Optional,
}

/// Norms of queries and keys in front of their rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorms {
    None,
    /// Over each head.
    OfHeads,
    /// The same, if the file has them.
    OptionalOfHeads,
    /// Over all heads of a row.
    Joint,
}

/// Tensor with RoPE's per-dimension factors, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RopeFactors {
    /// `rope_freqs`, except for scaling of type `longrope`.
    ByScaling,
    /// `rope_freqs`, which is required, and not used by sliding-window layers.
    OfWholeLayers,
    /// The short or the long factors, by the served sequence length.
    ByLength,
}

impl Architecture {
    pub const ALL: [Self; 26] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Phi3,
        Self::Qwen2Moe,
        Self::Qwen3Moe,
        Self::SmolLm3,
        Self::Mistral3,
        Self::Gemma3,
        Self::GptOss,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Next,
        Self::Qwen3Vl,
        Self::Qwen3VlMoe,
        Self::Gemma4,
        Self::SeedOss,
        Self::Ernie45,
        Self::Ernie45Moe,
        Self::Glm4Moe,
        Self::MiniMaxM2,
        Self::Lfm2,
        Self::Lfm2Moe,
        Self::GraniteHybrid,
        Self::NemotronH,
        Self::NemotronHMoe,
    ];

    /// Name in `general.architecture`, and prefix of every key.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Phi3 => "phi3",
            Self::Qwen2Moe => "qwen2moe",
            Self::Qwen3Moe => "qwen3moe",
            Self::SmolLm3 => "smollm3",
            Self::Mistral3 => "mistral3",
            Self::Gemma3 => "gemma3",
            Self::GptOss => "gpt-oss",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Next => "qwen3next",
            Self::Qwen3Vl => "qwen3vl",
            Self::Qwen3VlMoe => "qwen3vlmoe",
            Self::Gemma4 => "gemma4",
            Self::SeedOss => "seed_oss",
            Self::Ernie45 => "ernie4_5",
            Self::Ernie45Moe => "ernie4_5-moe",
            Self::Glm4Moe => "glm4moe",
            Self::MiniMaxM2 => "minimax-m2",
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe => "lfm2moe",
            Self::GraniteHybrid => "granitehybrid",
            Self::NemotronH => "nemotron_h",
            Self::NemotronHMoe => "nemotron_h_moe",
        }
    }

    pub(super) fn conventions(self) -> Conventions {
        match self {
            Self::Llama => Conventions {
                // GGUF stores rows of Q and K permuted for this.
                rope_pairs: RopePairs::Adjacent,
                rotates_whole_heads: true,
                rope_factors: Some(RopeFactors::ByScaling),
                // Mixtral's files are of this architecture.
                experts: Experts::Optional,
                ..PLAIN
            },
            Self::Qwen2 => Conventions {
                has_qkv_bias: true,
                ..PLAIN
            },
            // Rotated by sections of a position in an image, which are equal in a text.
            Self::Qwen3 | Self::Qwen3Vl => Conventions {
                qk_norms: QkNorms::OfHeads,
                has_rank_head: true,
                ..PLAIN
            },
            Self::Phi3 => Conventions {
                rope_factors: Some(RopeFactors::ByLength),
                is_fused: true,
                ..PLAIN
            },
            Self::Qwen2Moe => Conventions {
                has_qkv_bias: true,
                experts: Experts::Always(Mixture {
                    weighing: Weighing::Softmax,
                    shared: Shared::Gated,
                    ..MIXTURE
                }),
                ..PLAIN
            },
            Self::Qwen3Moe | Self::Qwen3VlMoe => Conventions {
                qk_norms: QkNorms::OfHeads,
                experts: Experts::Always(MIXTURE),
                ..PLAIN
            },
            Self::GptOss => GPT_OSS,
            Self::Qwen35 => QWEN_3_5,
            Self::Qwen35Moe => QWEN_3_5_MOE,
            Self::Qwen3Next => Conventions {
                recurrence: Recurrence::DeltaNet(HeadOrder::Grouped),
                ..QWEN_3_5_MOE
            },
            Self::SmolLm3 => Conventions {
                rope_pairs: RopePairs::Adjacent,
                rotates_whole_heads: true,
                // There is no key; the value is llama.cpp's `n_no_rope_layer_step`.
                unrotated_every: Some(4),
                ..PLAIN
            },
            Self::Mistral3 => Conventions {
                rope_pairs: RopePairs::Adjacent,
                rotates_whole_heads: true,
                rope_factors: Some(RopeFactors::ByScaling),
                has_temperature: true,
                ..PLAIN
            },
            Self::SeedOss => Conventions {
                rotates_whole_heads: true,
                has_qkv_bias: true,
                ffn_norm: "post_attention_norm.weight",
                ..PLAIN
            },
            Self::Ernie45 => ERNIE_4_5,
            Self::Ernie45Moe => ERNIE_4_5_MOE,
            Self::Glm4Moe => GLM_4_MOE,
            Self::MiniMaxM2 => MINIMAX_M2,
            Self::Lfm2 => LFM_2,
            Self::Lfm2Moe => LFM_2_MOE,
            Self::GraniteHybrid => GRANITE_HYBRID,
            Self::NemotronH => NEMOTRON_H,
            Self::NemotronHMoe => NEMOTRON_H_MOE,
            Self::Gemma3 => GEMMA_3,
            Self::Gemma4 => GEMMA_4,
        }
    }
}
