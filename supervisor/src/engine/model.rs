//! What is known of the model that is loaded: the child's facts, and the text made of them.

use crate::text::{Text, TextError};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use worker_orcd_ipc::{DeviceFacts, MemoryReport, ModelFacts, ReadyReport, TokenizerKind, encode};

/// Built once per child that becomes ready; the text is shared as long as the file is the same.
#[derive(Debug)]
pub struct LoadedModel {
    pub facts: ModelFacts,
    pub device: DeviceFacts,
    pub text: Arc<Text>,
    pub tokenizer_kind: TokenizerKind,
    pub has_chat_template: bool,
    /// As it was when the model became ready.
    pub memory: MemoryReport,
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion of one request, in tokens.
    pub max_sequence_tokens: u32,
    /// KV cache, in tokens.
    pub kv_capacity_tokens: u64,
    /// Of model and tokenizer facts: equal digests mean that tokens mean the same.
    identity: [u8; 32],
}

impl LoadedModel {
    /// Takes tens of milliseconds for a large vocabulary, unless `previous` is the same model.
    ///
    /// # Errors
    /// When no tokenizer can be made of the facts.
    pub fn build(report: ReadyReport, previous: Option<&Self>) -> Result<Self, TextError> {
        let identity = identity(&report)?;
        let text = match previous.filter(|previous| previous.identity == identity) {
            Some(previous) => Arc::clone(&previous.text),
            None => Arc::new(Text::from_facts(&report.tokenizer)?),
        };
        Ok(Self {
            facts: report.model,
            device: report.device,
            text,
            tokenizer_kind: report.tokenizer.kind,
            has_chat_template: report.tokenizer.chat_template.is_some(),
            memory: report.memory,
            max_running: report.max_running,
            max_sequence_tokens: report.max_sequence_tokens,
            kv_capacity_tokens: report.kv_capacity_tokens,
            identity,
        })
    }

    /// The file behind the path is still the one that running requests were begun with.
    #[must_use]
    pub fn is_same_model(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

fn identity(report: &ReadyReport) -> Result<[u8; 32], TextError> {
    let bytes = encode(&(&report.model, &report.tokenizer))
        .map_err(|error| TextError::Malformed(error.to_string()))?;
    Ok(Sha256::digest(&bytes).into())
}
