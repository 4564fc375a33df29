//! Model file from an untrusted source: the header, and everything that is read from it before the first byte of a
//! tensor.
#![no_main]

use libfuzzer_sys::fuzz_target;
use worker_orcd_gpu::model::gguf::{Array, Value};
use worker_orcd_gpu::model::{
    Header, ModelConfig, ModelWeights, gguf, model_facts, sampling_advice, tokenizer_facts,
};

fuzz_target!(|file: &[u8]| {
    let Ok(header) = gguf::parse(file) else {
        return;
    };
    tensors_are_inside(&header);
    if let Some(Value::Array(array)) = header.get("tokenizer.ggml.tokens") {
        walk(array);
    }
    let _ = tokenizer_facts(&header);
    let _ = sampling_advice(&header, 1000);
    let Ok(config) = ModelConfig::from_gguf(&header, None) else {
        return;
    };
    let _ = model_facts(&header, &config, "file");
    let _ = ModelWeights::from_gguf(&header, &config);
});

fn tensors_are_inside(header: &Header<'_>) {
    for info in header.tensors() {
        let view = header
            .tensor(info.name)
            .expect("every name in the table is found");
        assert_eq!(
            Some(view.data.len()),
            view.ty.row_bytes(view.cols).map(|row| row * view.rows)
        );
        // Reads both ends, which checks that they are mapped.
        assert_eq!(view.data.first().is_some(), view.data.last().is_some());
    }
}

/// Arrays may be nested; the walk ends because the parser bounds their depth.
fn walk(array: &Array<'_>) -> usize {
    array
        .values()
        .map(|value| {
            if let Value::Array(inner) = value {
                walk(&inner)
            } else {
                1
            }
        })
        .sum()
}
