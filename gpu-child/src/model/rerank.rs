//! What makes a file that of a reranker, as llama.cpp's converter writes Qwen3-Reranker: a pooling type, a head, and
//! the prompt that a query and a document are put into.

use super::config::ModelConfig;
use super::error::ModelError;
use super::gguf::{Header, TensorView};

/// The rows of the output for "yes" and for "no".
pub(super) const HEAD: &str = "cls.output.weight";
pub(super) const HEAD_ROWS: usize = 2;

/// llama.cpp's `LLAMA_POOLING_TYPE_RANK`.
const RANK: u32 = 4;

const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// That of Qwen3-Reranker has some hundred bytes.
pub(super) const MAX_TEMPLATE_BYTES: usize = 1 << 16;

/// The head, `[2, n_embd]`, whose shape was checked with the other weights. `None` where it is not there, or the file
/// says that texts are pooled in another way.
///
/// # Errors
/// When the pooling type is no number.
pub fn rank_head<'a>(
    header: &Header<'a>,
    config: &ModelConfig,
) -> Result<Option<TensorView<'a>>, ModelError> {
    let key = format!("{}.pooling_type", config.architecture.name());
    let ranks = config.architecture.conventions().has_rank_head && header.u32(&key)? == Some(RANK);
    Ok(header.tensor(HEAD).filter(|_| ranks))
}

/// The prompt of a reranker, with `{query}` and `{document}` in it. `None` where something of one is missing.
///
/// # Errors
/// As for [`rank_head`], and when the prompt is no text or too long a one.
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
