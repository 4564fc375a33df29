//! Catalogue of served kinds of files, and of llama.cpp's other architectures with their missing features.
//!
//! One row per kind of file. docs/guide/models.md shows the rows (`cargo xtask tables` generates them), and a refusal
//! quotes them. Deliberately absent: arithmetic differences between architectures
//! ([`architecture`](super::architecture)), and tensor types, which are the same for all.

use super::architecture::Architecture;

/// A kind of file that is served on the CPU.
#[derive(Debug)]
pub struct Served {
    pub architecture: Architecture,
    /// Key, after the architecture's name, that distinguishes such files from others of the architecture.
    pub with_key: Option<&'static str>,
    /// Names of models, in Markdown.
    pub models: &'static str,
    /// Served on CUDA, too.
    pub on_cuda: bool,
    /// Tiny models of `tests/oracle/tiny_models.py` with logits compared to llama.cpp's; one of them also serves a chat
    /// over HTTP in a test.
    pub held_by: &'static [&'static str],
}

/// All kinds, in the order of the tables.
pub const SERVED: &[Served] = &[
    Served {
        architecture: Architecture::Llama,
        with_key: None,
        models: "Llama 2 and 3, SmolLM2, Mistral 7B, … with a factor for each pair of RoPE, linear scaling, or YaRN",
        on_cuda: true,
        held_by: &[
            "llama",
            "llama-rope-freqs",
            "llama-linear-rope",
            "llama-yarn",
        ],
    },
    Served {
        architecture: Architecture::Llama,
        with_key: Some("expert_count"),
        models: "Mixtral: experts in one tensor (`ffn_gate_exps`)",
        on_cuda: true,
        held_by: &["mixtral"],
    },
    Served {
        architecture: Architecture::Qwen2,
        with_key: None,
        models: "Qwen2, Qwen2.5, with YaRN too",
        on_cuda: true,
        held_by: &["qwen2"],
    },
    Served {
        architecture: Architecture::Qwen3,
        with_key: None,
        models: "Qwen3, with YaRN too; Qwen3-Reranker ([rerank.md](rerank.md))",
        on_cuda: true,
        held_by: &["qwen3", "qwen3-yarn"],
    },
    Served {
        architecture: Architecture::Phi3,
        with_key: None,
        models: "Phi-3, Phi-4",
        on_cuda: true,
        held_by: &[
            "phi3",
            "phi3-short-factors",
            "phi3-long-factors",
            "phi3-partial-rope",
        ],
    },
    Served {
        architecture: Architecture::Gemma3,
        with_key: None,
        models: "Gemma 3, text: windows in five of six layers, norms in front of blocks and behind them",
        on_cuda: true,
        held_by: &["gemma3", "gemma3-pattern"],
    },
    Served {
        architecture: Architecture::Gemma4,
        with_key: None,
        models: "Gemma 4 E2B, E4B, 12B and 31B, text: windows in most layers, with heads of another size; in E2B and E4B layers that share keys and values, and per-layer embeddings",
        on_cuda: true,
        held_by: &["gemma4", "gemma4-values", "gemma4-e2b"],
    },
    Served {
        architecture: Architecture::Gemma4,
        with_key: Some("expert_count"),
        models: "Gemma 4 26B-A4B, text: as above, with experts beside the dense part",
        on_cuda: true,
        held_by: &["gemma4-experts"],
    },
    Served {
        architecture: Architecture::Mistral3,
        with_key: None,
        models: "Ministral 3, Mistral Small and Devstral of 2025: YaRN, and queries that are longer far behind the beginning",
        on_cuda: true,
        held_by: &[
            "mistral3",
            "mistral3-yarn",
            "mistral3-log",
            "mistral3-plain",
        ],
    },
    Served {
        architecture: Architecture::SmolLm3,
        with_key: None,
        models: "SmolLM3, with YaRN too: every fourth layer does not rotate queries and keys",
        on_cuda: true,
        held_by: &["smollm3", "smollm3-yarn"],
    },
    Served {
        architecture: Architecture::SeedOss,
        with_key: None,
        models: "Seed-OSS-36B",
        on_cuda: true,
        held_by: &["seed_oss"],
    },
    Served {
        architecture: Architecture::Ernie45,
        with_key: None,
        models: "ERNIE-4.5-0.3B",
        on_cuda: true,
        held_by: &["ernie4_5"],
    },
    Served {
        architecture: Architecture::Ernie45Moe,
        with_key: Some("expert_count"),
        models: "ERNIE-4.5-21B-A3B and -300B-A47B: experts with biases that only choose, behind dense layers",
        on_cuda: true,
        held_by: &["ernie4_5-moe"],
    },
    Served {
        architecture: Architecture::Glm4Moe,
        with_key: Some("expert_count"),
        models: "GLM-4.5, 4.5-Air, 4.6 and 4.7: a router of sigmoids, with biases that only choose, behind dense layers; blocks that predict further tokens (MTP) are not used",
        on_cuda: true,
        held_by: &["glm4moe"],
    },
    Served {
        architecture: Architecture::MiniMaxM2,
        with_key: Some("expert_count"),
        models: "MiniMax-M2 and M2.1: a router of sigmoids, with biases that only choose, and norms of queries and keys over all heads",
        on_cuda: true,
        held_by: &["minimax-m2"],
    },
    Served {
        architecture: Architecture::Lfm2,
        with_key: None,
        models: "LFM2 and LFM2.5: short convolutions in most layers",
        on_cuda: true,
        held_by: &["lfm2"],
    },
    Served {
        architecture: Architecture::Lfm2Moe,
        with_key: Some("expert_count"),
        models: "LFM2-8B-A1B, LFM2-24B-A2B and LFM2.5-8B-A1B: as above, with experts behind dense layers, a router of sigmoids, and biases that only choose",
        on_cuda: true,
        held_by: &["lfm2moe"],
    },
    Served {
        architecture: Architecture::GraniteHybrid,
        with_key: None,
        models: "Granite 4.0 H 350M, 1B and Micro: state spaces (Mamba-2) in most layers; factors of embeddings, of what blocks add, of attention scores and of logits",
        on_cuda: true,
        held_by: &["granitehybrid", "granitehybrid-rope"],
    },
    Served {
        architecture: Architecture::GraniteHybrid,
        with_key: Some("expert_count"),
        models: "Granite 4.0 H Tiny and Small: as above, with experts and one that is shared",
        on_cuda: true,
        held_by: &["granitehybrid-experts"],
    },
    Served {
        architecture: Architecture::NemotronH,
        with_key: None,
        models: "Nemotron-H 4B to 56B and Nemotron Nano 2: layers of one block, of which most have state spaces (Mamba-2) or a feed-forward part without a gate, and few attention",
        on_cuda: true,
        held_by: &["nemotron_h"],
    },
    Served {
        architecture: Architecture::NemotronHMoe,
        with_key: Some("expert_count"),
        models: "Nemotron 3 Nano: as above, with experts, one that is shared, a router of sigmoids, and biases that only choose; experts of a latent width (Nemotron 3 Super) are refused, and blocks that predict further tokens (MTP) are not used",
        on_cuda: true,
        held_by: &["nemotron_h_moe"],
    },
    Served {
        architecture: Architecture::GptOss,
        with_key: Some("expert_count"),
        models: "gpt-oss-20b and -120b",
        on_cuda: true,
        held_by: &["gpt-oss"],
    },
    Served {
        architecture: Architecture::Qwen2Moe,
        with_key: Some("expert_count"),
        models: "Qwen1.5-MoE, Qwen2-57B-A14B: experts, and one that is shared",
        on_cuda: true,
        held_by: &["qwen2moe"],
    },
    Served {
        architecture: Architecture::Qwen3Moe,
        with_key: Some("expert_count"),
        models: "Qwen3-30B-A3B and its like",
        on_cuda: true,
        held_by: &["qwen3moe"],
    },
    Served {
        architecture: Architecture::Qwen3Vl,
        with_key: None,
        models: "Qwen3-VL, dense: texts, without images",
        on_cuda: true,
        held_by: &["qwen3vl"],
    },
    Served {
        architecture: Architecture::Qwen3VlMoe,
        with_key: Some("expert_count"),
        models: "Qwen3-VL-30B-A3B and its like: texts, without images",
        on_cuda: true,
        held_by: &["qwen3vlmoe"],
    },
    Served {
        architecture: Architecture::Qwen35,
        with_key: None,
        models: "Qwen3.5, 3.6 and 3.8, dense: a gated delta net in three of four layers, gated attention; blocks that predict further tokens (MTP) are not used",
        on_cuda: true,
        held_by: &["qwen35"],
    },
    Served {
        architecture: Architecture::Qwen35Moe,
        with_key: Some("expert_count"),
        models: "Qwen3.5-35B-A3B, Qwen3.6-35B-A3B and their like: as above, with experts and one that is shared",
        on_cuda: true,
        held_by: &["qwen35moe"],
    },
    Served {
        architecture: Architecture::Qwen3Next,
        with_key: Some("expert_count"),
        models: "Qwen3-Next-80B-A3B, Qwen3-Coder-Next: as above; older files, with `ssm_in` tensors, are refused",
        on_cuda: true,
        held_by: &["qwen3next"],
    },
];

/// Known architectures that are not served.
#[derive(Debug)]
pub struct Refused {
    /// Values of `general.architecture`.
    pub names: &'static [&'static str],
    /// Missing features.
    pub needs: &'static str,
}

/// Names and missing features according to llama.cpp's `src/llama-arch.cpp` and `src/models/`.
pub const REFUSED: &[Refused] = &[
    Refused {
        names: &["kimi-linear", "kimi-k3", "bailingmoe3"],
        needs: "delta attention, which has a recurrent state, and latent attention (MLA)",
    },
    Refused {
        names: &["minimax-01"],
        needs: "lightning attention, which has a recurrent state",
    },
    Refused {
        names: &["mamba", "mamba2"],
        needs: "state-space layers, which have a recurrent state, in place of attention",
    },
    Refused {
        names: &["jamba", "falcon-h1", "plamo2"],
        needs: "state-space layers, which have a recurrent state, beside attention",
    },
    Refused {
        names: &["rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"],
        needs: "the time mixing of RWKV, which has a recurrent state, in place of attention",
    },
    Refused {
        names: &["deepseek2", "minicpm3", "mistral4", "plm"],
        needs: "latent attention (MLA)",
    },
    Refused {
        names: &["glm-dsa", "deepseek32", "dots3note"],
        needs: "latent attention (MLA) to the tokens that an indexer chooses",
    },
    Refused {
        names: &["deepseek4", "glm5-next", "hy_v4", "qwen4exp"],
        needs: "attention to what an indexer chooses, and hyper-connections",
    },
    Refused {
        names: &["minimax-m3"],
        needs: "attention to the blocks that an indexer chooses",
    },
    Refused {
        names: &["hrm_text", "nanbeige"],
        needs: "layers that run several times",
    },
    Refused {
        names: &["talkie"],
        needs: "norms without weights, also behind the rotation, and the embedding added to each layer",
    },
    Refused {
        names: &["mimo2"],
        needs: "attention sinks, windows, and a router with sigmoid and biases",
    },
    Refused {
        names: &["gemma"],
        needs: "GELU and a scaled embedding",
    },
    Refused {
        names: &["gemma2"],
        needs: "four norms a layer, windows in every second layer, soft caps, GELU and a scaled embedding",
    },
    Refused {
        names: &["gemma3n"],
        needs: "embeddings for each layer, AltUp, LAuReL, and layers that share keys and values",
    },
    Refused {
        names: &["llama4"],
        needs: "attention in chunks, layers without rotation, and a router with sigmoid beside a shared expert",
    },
    Refused {
        names: &["bailingmoe2"],
        needs: "experts in groups, and queries, keys and values in one tensor",
    },
    Refused {
        names: &["exaone-moe"],
        needs: "experts and shared ones in models with windows, of which some layers do not rotate",
    },
    Refused {
        names: &["afmoe", "laguna", "step35"],
        needs: "gated attention, windows, and a router with biases that only choose",
    },
    Refused {
        names: &["muse-glimmer", "spark2_5"],
        needs: "gates of attention in a tensor of their own, and windows",
    },
    Refused {
        names: &["maple", "mellum"],
        needs: "windows beside experts that a softmax chooses",
    },
    Refused {
        names: &[
            "deepseek",
            "deepseek2-ocr",
            "bailingmoe",
            "hunyuan-moe",
            "arctic",
            "grovemoe",
            "smallthinker",
            "olmoe",
            "phimoe",
            "grok",
        ],
        needs: "a mixture of experts of another kind (first layers, shared or further experts, norms or router)",
    },
    Refused {
        names: &["granite", "granitemoe", "minicpm"],
        needs: "scales of embeddings, of what layers add, of attention and of logits",
    },
    Refused {
        names: &["granite_swa", "graniteswitch"],
        needs: "the scales of Granite beside windows, or adapters that tokens switch on",
    },
    Refused {
        names: &["qwen2vl", "hunyuan_vl", "paddleocr"],
        needs: "a rotation by sections (M-RoPE)",
    },
    Refused {
        names: &["cogvlm", "chameleon"],
        needs: "parts of their own for the tokens of images",
    },
    Refused {
        names: &["chatglm", "glm4"],
        needs: "a rotation of half of each head in adjacent pairs, with gate and up in one tensor",
    },
    Refused {
        names: &["olmo2", "exaone4", "plamo3"],
        needs: "norms behind attention and feed-forward part",
    },
    Refused {
        names: &[
            "gpt2",
            "gptj",
            "gptneox",
            "starcoder",
            "starcoder2",
            "codeshell",
            "falcon",
            "phi2",
            "stablelm",
            "orion",
            "nemotron",
            "jais2",
            "olmo",
            "dbrx",
            "command-r",
            "cohere2",
            "cohere2moe",
        ],
        needs: "LayerNorm in place of RMSNorm",
    },
    Refused {
        names: &["bloom", "mpt", "jais", "refact", "baichuan"],
        needs: "attention that is biased by distance (ALiBi)",
    },
    Refused {
        names: &["arcee", "apertus", "plamo", "bitnet"],
        needs: "a feed-forward part without a gate, beside attention, or with a norm of its own",
    },
    Refused {
        names: &["deci", "openelm"],
        needs: "heads and widths that differ by layer",
    },
    Refused {
        names: &[
            "xverse",
            "internlm2",
            "dots1",
            "exaone",
            "hy_v3",
            "hunyuan-dense",
            "maincoder",
            "pangu-embedded",
            "qwen",
        ],
        needs: "little or nothing that is not computed, but none of its files was ever held against llama.cpp's logits",
    },
    Refused {
        names: &[
            "bert",
            "modern-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "neo-bert",
            "jina-bert-v2",
            "jina-bert-v3",
            "eurobert",
            "gemma-embedding",
            "llama-embed",
        ],
        needs: "attention that is not causal: it is an encoder",
    },
    Refused {
        names: &["dream", "llada", "llada-moe", "rnd1"],
        needs: "attention that is not causal: it makes text by diffusion",
    },
    Refused {
        names: &["t5", "t5encoder"],
        needs: "an encoder whose words the decoder attends to",
    },
    Refused {
        names: &["clip", "wavtokenizer-dec"],
        needs: "a language model: it is an encoder or decoder of images or sounds, which belongs to one",
    },
    Refused {
        names: &["qwen3tts", "pockettts"],
        needs: "codes of sounds in place of text: it is a part of a speech synthesizer",
    },
    Refused {
        names: &["eagle3", "dflash", "gemma4-assistant"],
        needs: "the hidden values of the model for which it drafts tokens",
    },
];

/// Reason for which a file of this architecture is not served.
pub(super) fn refusal(name: &str) -> String {
    let known = REFUSED.iter().find(|known| known.names.contains(&name));
    let needs = match known {
        Some(known) => format!("is not supported: it needs {}", known.needs),
        None => "is not supported".to_owned(),
    };
    let served = Architecture::ALL.map(Architecture::name).join(", ");
    format!("architecture {name} {needs}; served are {served}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_that_is_loaded_has_a_row() {
        for architecture in Architecture::ALL {
            let row = SERVED.iter().find(|row| row.architecture == architecture);
            let row = row.unwrap_or_else(|| panic!("{architecture:?} has no row"));
            assert!(!row.held_by.is_empty(), "{architecture:?} has no test");
        }
    }

    #[test]
    fn nothing_is_served_and_refused_or_refused_twice() {
        let mut names: Vec<_> = REFUSED.iter().flat_map(|it| it.names).copied().collect();
        names.extend(Architecture::ALL.map(Architecture::name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }

    #[test]
    fn a_refusal_says_what_is_missing_where_that_is_known() {
        let known = refusal("mamba2");
        assert!(
            known.contains("mamba2 is not supported: it needs state-space layers"),
            "{known}"
        );
        for architecture in Architecture::ALL {
            assert!(known.contains(architecture.name()), "{known}");
        }
        let unknown = refusal("of-tomorrow");
        assert!(
            unknown.starts_with("architecture of-tomorrow is not supported; served are llama"),
            "{unknown}"
        );
    }
}
