//! The model that is loaded: the child's facts, and the tokenizer and template made of them.

use super::SamplingDefaults;
use crate::hex::hex;
use crate::interpreter::{Grammars, Interpreter};
use crate::text::tools::{ChatTerms, Choices};
use crate::text::{TemplateError, TemplateSource, Text, TextError};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use worker_orcd_ipc::{
    CodecError, DeviceFacts, ModelFacts, ModelIdentity, ReadyReport, SamplingAdvice,
    TokenizerFacts, TokenizerKind, encode,
};

/// Built once per child that becomes ready; text and defaults are those of the first one.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    pub facts: ModelFacts,
    pub device: DeviceFacts,
    pub text: Arc<Text>,
    /// The interpreter that makes a prompt of messages, or why there is none.
    pub chat: Result<Arc<Interpreter>, TemplateError>,
    /// Where grammars of requests are tried first.
    pub grammars: Arc<Grammars>,
    /// What that template and the parsers of answers can do.
    pub chat_terms: ChatTerms,
    pub sampling: SamplingDefaults,
    pub tokenizer_kind: TokenizerKind,
    /// Sequences that may be decoded in one step.
    pub max_running: u32,
    /// Prompt plus completion of one request, in tokens.
    pub max_sequence_tokens: u32,
    /// KV cache, in tokens.
    pub kv_capacity_tokens: u64,
    /// The identity that the child computed.
    pub identity: ModelIdentity,
    /// Digest of identity, facts and tokenizer: equal digests mean that streams can go on.
    digest: [u8; 32],
}

/// Why a child that is ready cannot serve.
#[derive(Debug, Error)]
pub enum Unfit {
    /// Another model than that of the child before.
    #[error("another model")]
    OtherModel,
    #[error(transparent)]
    Text(#[from] TextError),
}

impl LoadedModel {
    /// Equal digests mean that streams can go on.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// A word for the digest, as the OpenAI API's `system_fingerprint` has it: where it is equal, equal requests
    /// with equal seeds get equal answers on the same kind of device.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        const BYTES: usize = 6;
        format!("fp_{}", hex(&self.digest[..BYTES]))
    }

    /// Takes tens of milliseconds for a large vocabulary, and as long as `template_timeout` for a
    /// chat template that does not end, unless there is a `previous` one. A template that cannot be
    /// compiled ends chat, not the worker.
    ///
    /// # Errors
    /// [`Unfit::OtherModel`] when it is not that of `previous`, and [`Unfit::Text`] when no
    /// tokenizer can be made of the facts, or they are none.
    pub fn build(
        report: ReadyReport,
        previous: Option<&Self>,
        template_timeout: Duration,
        model_sampling: bool,
        parsers: Choices,
    ) -> Result<Self, Unfit> {
        let digest = digest(&report)?;
        if let Some(previous) = previous {
            return match previous.digest == digest {
                true => Ok(Self {
                    device: report.device,
                    max_running: report.max_running,
                    max_sequence_tokens: report.max_sequence_tokens,
                    kv_capacity_tokens: report.kv_capacity_tokens,
                    ..previous.clone()
                }),
                false => Err(Unfit::OtherModel),
            };
        }
        let tokenizer = report.tokenizer.decode().map_err(malformed)?;
        Ok(Self {
            facts: report.model,
            device: report.device,
            text: Arc::new(Text::from_facts(&tokenizer)?),
            chat: chat(&tokenizer, template_timeout),
            grammars: Arc::new(Grammars::new(&tokenizer)),
            chat_terms: chat_terms(&tokenizer, parsers),
            sampling: sampling(&report.sampling, model_sampling),
            tokenizer_kind: tokenizer.kind,
            max_running: report.max_running,
            max_sequence_tokens: report.max_sequence_tokens,
            kv_capacity_tokens: report.kv_capacity_tokens,
            identity: report.identity,
            digest,
        })
    }

    /// What this device and another one can do together: both serve, and a request that only one of them could
    /// hold is refused.
    #[must_use]
    pub(crate) fn beside(&self, other: &Self) -> Self {
        Self {
            max_running: self.max_running.saturating_add(other.max_running),
            max_sequence_tokens: self.max_sequence_tokens.min(other.max_sequence_tokens),
            kv_capacity_tokens: self
                .kv_capacity_tokens
                .saturating_add(other.kv_capacity_tokens),
            ..self.clone()
        }
    }

    /// The model brings a chat template that can be compiled.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_ok()
    }
}

fn chat(facts: &TokenizerFacts, timeout: Duration) -> Result<Arc<Interpreter>, TemplateError> {
    let started = TemplateSource::from_facts(facts)
        .and_then(|template| Interpreter::start(template, timeout));
    if let Err(error @ TemplateError::Broken(_)) = &started {
        tracing::warn!(reason = %error, "chat_template_refused");
    }
    started.map(Arc::new)
}

fn chat_terms(facts: &TokenizerFacts, parsers: Choices) -> ChatTerms {
    parsers.resolve(facts.chat_template.as_deref().unwrap_or_default())
}

fn sampling(advice: &SamplingAdvice, is_followed: bool) -> SamplingDefaults {
    match is_followed {
        true => SamplingDefaults::of_file(advice),
        false => SamplingDefaults::default(),
    }
}

fn malformed(error: CodecError) -> TextError {
    TextError::Malformed(error.to_string())
}

fn digest(report: &ReadyReport) -> Result<[u8; 32], TextError> {
    let bytes = encode(&(&report.identity, &report.model, &report.tokenizer)).map_err(malformed)?;
    Ok(Sha256::digest(&bytes).into())
}
