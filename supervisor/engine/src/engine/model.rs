//! The loaded model: the child's facts, and the tokenizer and chat template built from them.

use super::SamplingDefaults;
use crate::interpreter::{Grammars, Interpreter};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use worker_orcd_ipc::{
    CodecError, DeviceFacts, ModelFacts, ModelIdentity, ReadyReport, SamplingAdvice,
    TokenizerFacts, TokenizerKind, encode,
};
use worker_orcd_text::hex::hex;
use worker_orcd_text::tools::{ChatTerms, Choices};
use worker_orcd_text::{TemplateError, TemplateSource, Text, TextError};

/// Model of a ready child. Text and defaults are those of the first child.
#[derive(Debug, Clone)]
pub struct LoadedModel {
    pub facts: ModelFacts,
    pub device: DeviceFacts,
    pub text: Arc<Text>,
    /// Interpreter of the chat template, or the reason why there is none.
    pub chat: Result<Arc<Interpreter>, TemplateError>,
    /// Validator of requests' grammars.
    pub grammars: Arc<Grammars>,
    /// Capabilities of the template and of the answer parsers.
    pub chat_terms: ChatTerms,
    pub sampling: SamplingDefaults,
    pub tokenizer_kind: TokenizerKind,
    /// Maximum number of sequences in one decode step.
    pub max_running: u32,
    /// Maximum tokens of one request, prompt and completion together.
    pub max_sequence_tokens: u32,
    /// KV cache capacity in tokens.
    pub kv_capacity_tokens: u64,
    /// Identity computed by the child.
    pub identity: ModelIdentity,
    /// Digest of identity, facts and tokenizer. Streams can continue on a model of equal digest.
    digest: [u8; 32],
}

/// Reason why a ready child cannot serve.
#[derive(Debug, Error)]
pub(crate) enum Unfit {
    /// The model differs from the previous child's.
    #[error("another model")]
    OtherModel,
    /// The tokenizer report cannot be decoded: a fault of the child, not of the model.
    #[error("its tokenizer: {0}")]
    Nonsense(CodecError),
    #[error(transparent)]
    Text(#[from] TextError),
}

impl LoadedModel {
    /// Digest of the model. Streams can continue on a model of equal digest.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// `system_fingerprint` of the OpenAI API, derived from the digest. With equal fingerprints, equal requests with
    /// equal seeds get equal answers on the same kind of device.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        const BYTES: usize = 6;
        format!("fp_{}", hex(&self.digest[..BYTES]))
    }

    /// Builds the model of a ready child. Without a `previous` model this takes tens of milliseconds for a large
    /// vocabulary, and the processor time `template_timeout` for a chat template that does not terminate. A template that
    /// does not compile disables chat, not the worker.
    ///
    /// # Errors
    /// [`Unfit::OtherModel`] if the model differs from `previous`, [`Unfit::Nonsense`] if the tokenizer facts cannot be
    /// decoded, and [`Unfit::Text`] if no tokenizer can be built from them.
    pub(crate) fn build(
        report: ReadyReport,
        previous: Option<&Self>,
        template_timeout: Duration,
        model_sampling: bool,
        parsers: Choices,
    ) -> Result<Self, Unfit> {
        let digest = digest(&report)?;
        if let Some(previous) = previous.filter(|it| it.digest == digest) {
            return Ok(Self {
                device: report.device,
                max_running: report.max_running,
                max_sequence_tokens: report.max_sequence_tokens,
                kv_capacity_tokens: report.kv_capacity_tokens,
                ..previous.clone()
            });
        }
        let tokenizer = report.tokenizer.decode().map_err(Unfit::Nonsense)?;
        if previous.is_some() {
            return Err(Unfit::OtherModel);
        }
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

    /// Common properties of this device and another one. Both serve. A request that exceeds the limit of either is
    /// refused.
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

    /// True if the model has a chat template that compiles.
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

fn digest(report: &ReadyReport) -> Result<[u8; 32], TextError> {
    let bytes = encode(&(&report.identity, &report.model, &report.tokenizer))
        .map_err(|error| TextError::Malformed(error.to_string()))?;
    Ok(Sha256::digest(&bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::{Encoded, MemoryReport, TokenId, TokenKind, WeightsManifest};

    fn tokenizer() -> TokenizerFacts {
        TokenizerFacts {
            kind: TokenizerKind::ByteLevelBpe,
            pre: "gpt-2".to_owned(),
            tokens: vec!["a".to_owned(), "<eos>".to_owned()],
            kinds: vec![TokenKind::Normal, TokenKind::Control],
            scores: vec![],
            merges: vec![],
            bos: None,
            eos: Some(TokenId(1)),
            end_of_generation: vec![TokenId(1)],
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            chat_template: None,
        }
    }

    fn report(tokenizer: Encoded<TokenizerFacts>, max_running: u32) -> ReadyReport {
        ReadyReport {
            model: ModelFacts {
                name: "tiny".to_owned(),
                architecture: "llama".to_owned(),
                quant_kind: "F32".to_owned(),
                tensor_types: vec![],
                file_bytes: 8,
                parameters: 2,
                n_layers: 1,
                n_embd: 2,
                n_heads: 1,
                n_kv_heads: 1,
                head_dim: 2,
                vocab_size: 2,
                context_length: 8,
                pooling_type: None,
                rerank_template: None,
            },
            identity: ModelIdentity([7; 16]),
            weights: WeightsManifest::default(),
            tokenizer,
            sampling: SamplingAdvice::default(),
            device: DeviceFacts {
                id: "cpu".to_owned(),
                name: "a device".to_owned(),
                uuid: None,
                driver: None,
                compute_capability: None,
                features: vec![],
                threads: None,
            },
            memory: MemoryReport::default(),
            max_running,
            max_sequence_tokens: 8,
            kv_capacity_tokens: 8,
            copies_ahead: false,
            draft_model: None,
        }
    }

    fn build(report: ReadyReport, previous: Option<&LoadedModel>) -> Result<LoadedModel, Unfit> {
        let timeout = Duration::from_secs(1);
        LoadedModel::build(report, previous, timeout, true, Choices::default())
    }

    #[test]
    fn a_later_child_of_the_same_model_shares_the_text_of_the_first() {
        let facts = Encoded::of(&tokenizer()).unwrap();
        let first = build(report(facts.clone(), 1), None).unwrap();
        let second = build(report(facts, 3), Some(&first)).unwrap();
        assert!(Arc::ptr_eq(&first.text, &second.text));
        assert_eq!((first.max_running, second.max_running), (1, 3));
    }

    #[test]
    fn another_tokenizer_is_another_model_and_nonsense_is_the_childs_fault() {
        let first = build(report(Encoded::of(&tokenizer()).unwrap(), 1), None).unwrap();
        let other = TokenizerFacts {
            add_bos: true,
            ..tokenizer()
        };
        let other = report(Encoded::of(&other).unwrap(), 1);
        let refused = build(other, Some(&first)).unwrap_err();
        assert!(matches!(refused, Unfit::OtherModel), "{refused}");
        for previous in [None, Some(&first)] {
            let refused = build(report(vec![200].into(), 1), previous).unwrap_err();
            assert!(matches!(refused, Unfit::Nonsense(_)), "{refused}");
        }
    }
}
