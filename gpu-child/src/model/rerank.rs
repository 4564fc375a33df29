//! Rerankers, in the format of llama.cpp's converter for Qwen3-Reranker: a pooling type, a classification head, and a
//! prompt template for a query and a document.

use super::config::ModelConfig;
use super::error::ModelError;
use super::gguf::{Header, TensorView};

/// The rows of the output matrix for "yes" and for "no".
pub(super) const HEAD: &str = "cls.output.weight";
pub(super) const HEAD_ROWS: usize = 2;

/// llama.cpp's `LLAMA_POOLING_TYPE_RANK`.
const RANK: u32 = 4;

const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// Maximum bytes of a template. Qwen3-Reranker's has some hundred.
pub(super) const MAX_TEMPLATE_BYTES: usize = 1 << 16;

/// The head, `[2, n_embd]`, with a shape checked with the other weights. `None` if it is missing, or the file has
/// another pooling type.
///
/// # Errors
/// If the pooling type is not a number.
pub fn rank_head<'a>(
    header: &Header<'a>,
    config: &ModelConfig,
) -> Result<Option<TensorView<'a>>, ModelError> {
    let key = format!("{}.pooling_type", config.architecture.name());
    let ranks = config.architecture.conventions().has_rank_head && header.u32(&key)? == Some(RANK);
    Ok(header.tensor(HEAD).filter(|_| ranks))
}

/// The prompt template of a reranker, with `{query}` and `{document}`. `None` if the file is not a complete reranker.
///
/// # Errors
/// Those of [`rank_head`]; also if the template is not a text or too long.
pub fn rerank_template(
    header: &Header<'_>,
    config: &ModelConfig,
) -> Result<Option<String>, ModelError> {
    if rank_head(header, config)?.is_none() {
        return Ok(None);
    }
    let template = header.text(TEMPLATE, MAX_TEMPLATE_BYTES)?;
    let has_both = |text: &&str| text.contains("{query}") && text.contains("{document}");
    Ok(template.filter(has_both).map(str::to_owned))
}
