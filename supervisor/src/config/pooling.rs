//! `--pooling`: pooling of embeddings; overrides the model file.

use worker_orcd_ipc::Pooling;

const WORDS: [(&str, Pooling); 3] = [
    ("last", Pooling::Last),
    ("mean", Pooling::Mean),
    ("cls", Pooling::Cls),
];

/// # Errors
/// The list of valid values.
pub(super) fn parse(text: &str) -> Result<Pooling, String> {
    let found = WORDS.iter().find(|(word, _)| *word == text);
    found
        .map(|(_, pooling)| *pooling)
        .ok_or_else(|| format!("{text:?} is neither last, mean nor cls"))
}
