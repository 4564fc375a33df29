//! Facts of a model: its name, its shape, and the tensor types in its file.

use super::config::ModelConfig;
use super::error::ModelError;
use super::gguf::Header;
use super::rerank::rerank_template;
use worker_orcd_ipc::ModelFacts;
use worker_orcd_kernels::TensorType;

/// Facts of a file. `fallback_name` is for files without a `general.name`.
///
/// # Errors
/// If `general.name` is not a string, the pooling type not a number, or a reranker's prompt not a text.
pub fn model_facts(
    header: &Header<'_>,
    config: &ModelConfig,
    fallback_name: &str,
) -> Result<ModelFacts, ModelError> {
    let tensor_types = tensor_types(header);
    let most_bytes = tensor_types.iter().max_by_key(|(_, _, bytes)| *bytes);
    Ok(ModelFacts {
        name: header
            .str("general.name")?
            .unwrap_or(fallback_name)
            .to_owned(),
        architecture: config.architecture.name().to_owned(),
        quant_kind: most_bytes
            .map(|(name, ..)| name.clone())
            .unwrap_or_default(),
        tensor_types,
        parameters: header
            .tensors()
            .iter()
            .map(|tensor| tensor.elements())
            .sum(),
        file_bytes: header.file_bytes(),
        // All of these came out of 32 bits.
        n_layers: config.n_layers as u32,
        n_embd: config.n_embd as u32,
        n_heads: config.n_heads as u32,
        n_kv_heads: config.n_kv_heads as u32,
        head_dim: config.head_dim as u32,
        vocab_size: config.vocab_size as u32,
        context_length: config.context_length as u32,
        rerank_template: rerank_template(header, config)?,
        pooling_type: header.u32(&format!("{}.pooling_type", config.architecture.name()))?,
    })
}

fn tensor_types(header: &Header<'_>) -> Vec<(String, u32, u64)> {
    let share = |ty: TensorType| {
        let of_type = header.tensors().iter().filter(|tensor| tensor.ty == ty);
        let (tensors, bytes) = of_type.fold((0, 0), |(n, bytes), tensor| {
            (n + 1, bytes + tensor.bytes as u64)
        });
        (tensors > 0).then(|| (ty.name().to_owned(), tensors, bytes))
    };
    TensorType::ALL.into_iter().filter_map(share).collect()
}
