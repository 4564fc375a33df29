//! Malformed model files, each with a text that its refusal contains.
//!
//! The table provides seeds of the `gguf_header` fuzz target, and cases for tests of the parser's public API and of the
//! whole worker.

use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::gguf::parse;
use worker_orcd_gpu::model::gguf_builder::{GgufBuilder, Meta};
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_kernels::TensorType;

#[derive(Debug, Clone)]
pub struct Hostile {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    /// Part of the error, which names the defect.
    pub says: &'static str,
}

/// Header that parses: three metadata entries, two tensors.
#[must_use]
pub fn honest() -> GgufBuilder {
    GgufBuilder::new()
        .meta("general.architecture", "llama")
        .meta("llama.block_count", 2_u32)
        .meta(
            "tokenizer.ggml.tokens",
            Meta::Strings(vec!["a".into(), "bc".into()]),
        )
        .tensor_f32("output_norm.weight", &[4], &[1.0, 2.0, 3.0, 4.0])
        .tensor("token_embd.weight", TensorType::Q8_0, &[32, 2], vec![7; 68])
}

/// Metadata of a complete model, without its tensors. It leads the fuzzer to the code behind the header.
#[must_use]
pub fn metadata_of_a_model() -> Vec<u8> {
    let model = tiny_model(Architecture::Llama);
    let whole = model.build();
    let header = parse(&whole).expect("the tiny model is a model");
    header
        .tensors()
        .iter()
        .fold(model, |file, tensor| file.without_tensor(tensor.name))
        .build()
}

/// Bytes that [`parse`] refuses.
#[must_use]
pub fn headers() -> Vec<Hostile> {
    let whole = honest().build();
    let cut = |at: usize| whole[..at].to_vec();
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let tensor = |ty, dims: &[u64]| honest().push_tensor("x", ty, dims, vec![0; 64]).build();
    let hostile = |name, bytes, says| Hostile { name, bytes, says };
    vec![
        hostile("empty", vec![], "ends"),
        hostile("cut-in-magic", cut(3), "ends"),
        hostile("cut-in-counts", cut(20), "are left"),
        hostile("cut-in-metadata", cut(60), "are left"),
        hostile("cut-in-data", cut(whole.len() - 1), "past"),
        hostile(
            "not-gguf",
            b"#!/bin/sh\necho this is no model, only a script\n".to_vec(),
            "GGUF",
        ),
        hostile("version-2", honest().version(2).build(), "version 2"),
        hostile("big-endian", patched(4, &3_u32.to_be_bytes()), "big-endian"),
        hostile(
            "huge-tensor-count",
            patched(8, &u64::MAX.to_le_bytes()),
            "tensor count",
        ),
        hostile(
            "huge-metadata-count",
            patched(16, &(1_u64 << 40).to_le_bytes()),
            "metadata count",
        ),
        hostile("huge-key", patched(24, &(1_u64 << 60).to_le_bytes()), "key"),
        hostile(
            "zero-alignment",
            honest().meta("general.alignment", 0_u32).build(),
            "alignment",
        ),
        hostile(
            "odd-alignment",
            honest().meta("general.alignment", 33_u32).build(),
            "alignment",
        ),
        hostile("unknown-tensor-type", tensor(250, &[16]), "type 250"),
        hostile("foreign-tensor-type", tensor(19, &[256]), "IQ1_S"),
        hostile("no-dimensions", tensor(0, &[]), "dimensions"),
        hostile("nine-dimensions", tensor(0, &[1; 9]), "dimensions"),
        hostile("empty-dimension", tensor(0, &[0, 4]), "empty or overflow"),
        hostile(
            "overflowing-dimensions",
            tensor(0, &[1 << 40, 1 << 40]),
            "overflow",
        ),
        hostile("tensor-past-the-end", tensor(0, &[1 << 20]), "past"),
        hostile(
            "half-a-block",
            tensor(TensorType::Q8_0 as u32, &[33]),
            "blocks",
        ),
        hostile(
            "same-tensor-twice",
            honest()
                .push_tensor("output_norm.weight", 0, &[4], vec![0; 16])
                .build(),
            "twice",
        ),
        hostile("deep-arrays", deep_arrays(64), "nested"),
        hostile("huge-array", huge_array(), "are left"),
        hostile(
            "unknown-value-type",
            metadata_entry(&99_u32.to_le_bytes()),
            "type 99",
        ),
    ]
}

/// Metadata entry `k` with `bytes` as its type and value.
fn metadata_entry(bytes: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend_from_slice(&3_u32.to_le_bytes());
    file.extend_from_slice(&0_u64.to_le_bytes());
    file.extend_from_slice(&1_u64.to_le_bytes());
    file.extend_from_slice(&1_u64.to_le_bytes());
    file.push(b'k');
    file.extend_from_slice(bytes);
    // Counts are checked against the rest of the file; padding prevents that error.
    file.extend_from_slice(&[0; 64]);
    file
}

fn deep_arrays(depth: usize) -> Vec<u8> {
    let mut value = 9_u32.to_le_bytes().to_vec();
    for _ in 0..depth {
        value.extend_from_slice(&9_u32.to_le_bytes());
        value.extend_from_slice(&1_u64.to_le_bytes());
    }
    metadata_entry(&value)
}

fn huge_array() -> Vec<u8> {
    let mut value = 9_u32.to_le_bytes().to_vec();
    value.extend_from_slice(&8_u32.to_le_bytes());
    value.extend_from_slice(&(1_u64 << 61).to_le_bytes());
    metadata_entry(&value)
}
