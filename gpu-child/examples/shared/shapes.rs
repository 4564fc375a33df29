//! Models for speed measurements: real shapes, random weights.

use worker_orcd_gpu::model::{
    Architecture, DeltaNetConfig, ExpertsConfig, Heads, ModelConfig, Positions, Recurrence,
    RecurrentLayers, Window,
};
use worker_orcd_ipc::Sampling;
use worker_orcd_kernels::reference::delta_net::HeadOrder;
use worker_orcd_kernels::reference::rope::{Rope, RopePairs};
use worker_orcd_kernels::{Activation, TensorType, Weighing};

/// Any error, for the mains of the examples.
pub type BoxError = Box<dyn std::error::Error>;

/// The shapes of Qwen2.5-0.5B, Qwen2.5-7B, SmolLM2-135M, Qwen3-30B-A3B, gpt-oss-20b, Qwen3.6-27B, Qwen3.6-35B-A3B, Gemma 4 31B and
/// Gemma 4 26B-A4B.
pub fn config(shape: &str) -> Result<ModelConfig, String> {
    let (n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, vocab_size) = match shape {
        "0.5b" => (24, 896, 4864, 14, 2, 64, 151_936),
        "7b" => (28, 3584, 18_944, 28, 4, 128, 152_064),
        "135m" => (30, 576, 1536, 9, 3, 64, 49_152),
        "30b-a3b" => (48, 2048, 6144, 32, 4, 128, 151_936),
        "gpt-oss-20b" => (24, 2880, 2880, 64, 8, 64, 201_088),
        "qwen3.6-27b" => (64, 5120, 17_408, 24, 4, 256, 248_320),
        "qwen3.6-35b-a3b" => (40, 2048, 5632, 16, 2, 256, 248_320),
        "gemma4-31b" => (60, 5376, 21_504, 32, 4, 512, 262_144),
        "gemma4-26b-a4b" => (30, 2816, 2112, 16, 2, 512, 262_144),
        _ => return Err(format!("no such shape: {shape}")),
    };
    let plain = ModelConfig {
        architecture: Architecture::Qwen2,
        n_layers,
        n_mtp_layers: 0,
        n_embd,
        experts: None,
        n_ff,
        ff_widths: None,
        feed_forward_layers: None,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        context_length: 32_768,
        norm_eps: 1e-6,
        rope: Rope {
            pairs: RopePairs::HalfOffset,
            dims: head_dim,
            base: 1e6,
            scale: 1.0,
            factors: None,
            attn_factor: 1.0,
        },
        activation: Activation::Silu,
        positions: Positions::default(),
        attention_scale: 1.0 / (head_dim as f64).sqrt(),
        embedding_scale: 1.0,
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
    };
    Ok(match shape {
        "30b-a3b" => ModelConfig {
            architecture: Architecture::Qwen3Moe,
            experts: Some(ExpertsConfig::plain(128, 8, 768)),
            ..plain
        },
        "gpt-oss-20b" => ModelConfig {
            architecture: Architecture::GptOss,
            experts: Some(ExpertsConfig {
                weighing: Weighing::OfChosen,
                has_biases: true,
                ..ExpertsConfig::plain(32, 4, 2880)
            }),
            activation: Activation::ClampedSwiglu,
            has_sinks: true,
            positions: Positions {
                window: Some(Window {
                    positions: 128,
                    full_every: Some(2),
                    rope: None,
                }),
                ..Positions::default()
            },
            ..plain
        },
        "qwen3.6-27b" => of_delta_nets(plain, 48),
        "qwen3.6-35b-a3b" => ModelConfig {
            architecture: Architecture::Qwen35Moe,
            experts: Some(ExpertsConfig {
                shared_n_ff: Some(512),
                gates_shared: true,
                ..ExpertsConfig::plain(256, 8, 512)
            }),
            ..of_delta_nets(plain, 32)
        },
        "gemma4-31b" => like_gemma4(plain, 16),
        "gemma4-26b-a4b" => ModelConfig {
            experts: Some(ExpertsConfig {
                beside_dense: true,
                ..ExpertsConfig::plain(128, 8, 704)
            }),
            ..like_gemma4(plain, 8)
        },
        _ => plain,
    })
}

/// Three of four layers are delta nets with this number of heads of values.
fn of_delta_nets(plain: ModelConfig, v_heads: usize) -> ModelConfig {
    let net = Recurrence::DeltaNet(DeltaNetConfig {
        kernel: 4,
        head_dim: 128,
        k_heads: 16,
        v_heads,
        order: HeadOrder::Tiled,
    });
    ModelConfig {
        architecture: Architecture::Qwen35,
        gates_attention: true,
        recurrent: Some(RecurrentLayers::beside_attention(net, 4, plain.n_layers)),
        rope: Rope {
            dims: 64,
            ..plain.rope
        },
        ..plain
    }
}

/// Five of six layers have a window, and this number of heads of keys and values of 256 values.
fn like_gemma4(plain: ModelConfig, kv_count: usize) -> ModelConfig {
    let sliding = Rope {
        dims: 256,
        base: 1e4,
        ..plain.rope.clone()
    };
    let pairs = plain.head_dim / 2;
    let factor = |pair| if pair < pairs / 4 { 1.0 } else { 1e30 };
    ModelConfig {
        architecture: Architecture::Gemma4,
        positions: Positions {
            window: Some(Window {
                positions: 1024,
                full_every: Some(6),
                rope: Some(sliding),
            }),
            ..Positions::default()
        },
        rope: Rope {
            factors: Some((0..pairs).map(factor).collect()),
            ..plain.rope
        },
        sliding_heads: Some(Heads {
            count: plain.n_heads,
            kv_count,
            dim: 256,
        }),
        attention_scale: 1.0,
        embedding_scale: (plain.n_embd as f32).sqrt(),
        activation: Activation::Gelu,
        normalizes_values: true,
        logit_cap: Some(30.0),
        ..plain
    }
}

/// Types of a model's matrices, in the order of the tests' models: Q, K, V, output of attention, gate, up, down,
/// embedding and head. With experts in MXFP4 the rest is Q8_0, as in the published files of gpt-oss.
#[allow(dead_code, reason = "not all examples make a model")]
pub fn types(shape: &str, ty: TensorType) -> [TensorType; 9] {
    let rest = match shape {
        "gpt-oss-20b" if ty == TensorType::MXFP4 => TensorType::Q8_0,
        _ => ty,
    };
    [rest, rest, rest, rest, ty, ty, ty, rest, rest]
}

/// Looks up a type by its name in llama.cpp.
pub fn tensor_type(name: &str) -> Result<TensorType, String> {
    let known = TensorType::ALL.into_iter().find(|ty| ty.name() == name);
    known.ok_or(format!("no such type: {name}"))
}

/// Sampling parameters by name.
pub fn sampling(name: &str) -> Result<Sampling, String> {
    let plain = Sampling {
        temperature: 0.8,
        seed: 1,
        ..Sampling::default()
    };
    match name {
        "greedy" => Ok(Sampling::default()),
        "plain" => Ok(plain),
        "top_k" => Ok(Sampling { top_k: 40, ..plain }),
        "top_p" => Ok(Sampling {
            top_p: 0.95,
            ..plain
        }),
        "both" => Ok(Sampling {
            top_k: 40,
            top_p: 0.95,
            ..plain
        }),
        "penalties" => Ok(Sampling {
            repetition_penalty: 1.1,
            ..plain
        }),
        _ => Err(format!("no such sampling: {name}")),
    }
}
