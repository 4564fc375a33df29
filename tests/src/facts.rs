//! Ready report of the fake children: a vocabulary of 256 bytes and an end token, so that every text is its own token
//! ids.

use crate::script::{EOS, VOCAB_SIZE};
use worker_orcd_ipc::{
    DeviceFacts, Encoded, MemoryReport, ModelFacts, ModelIdentity, ReadyReport, SamplingAdvice,
    TokenKind, TokenizerFacts, TokenizerKind, WeightsManifest,
};

/// Template that renders each message as `<role>content`, and a mark where the answer begins.
pub const CHAT_TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>\
     {{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// The longest prompt that the contract allows, in four-byte characters.
pub const CONTEXT_TOKENS: u32 = 131_072;

/// Constant identity: there are no weights.
pub const IDENTITY: ModelIdentity = ModelIdentity([0x0d; 16]);

/// Memory of the scripted child.
pub const WEIGHTS_BYTES: u64 = 1000;

#[must_use]
pub fn ready_report(max_running: u32, max_sequence_tokens: Option<u32>) -> ReadyReport {
    ReadyReport {
        model: model(),
        identity: IDENTITY,
        weights: WeightsManifest::default(),
        tokenizer: Encoded::of(&tokenizer()).expect("a tokenizer that fits"),
        sampling: SamplingAdvice::default(),
        device: device(),
        memory: memory(),
        max_running,
        max_sequence_tokens: max_sequence_tokens.unwrap_or(CONTEXT_TOKENS),
        kv_capacity_tokens: u64::from(CONTEXT_TOKENS) * u64::from(max_running),
        copies_ahead: false,
        draft_model: None,
    }
}

#[must_use]
pub fn model() -> ModelFacts {
    ModelFacts {
        name: "scripted".to_owned(),
        architecture: "llama".to_owned(),
        quant_kind: "F32".to_owned(),
        tensor_types: vec![("F32".to_owned(), 1, WEIGHTS_BYTES)],
        parameters: 250,
        file_bytes: WEIGHTS_BYTES,
        n_layers: 1,
        n_embd: 32,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 32,
        vocab_size: VOCAB_SIZE,
        context_length: CONTEXT_TOKENS,
        pooling_type: None,
        rerank_template: None,
    }
}

#[must_use]
pub fn tokenizer() -> TokenizerFacts {
    let mut tokens: Vec<String> = (0..=u8::MAX)
        .map(|byte| byte_token(byte).to_string())
        .collect();
    tokens.push("<|end|>".to_owned());
    let mut kinds = vec![TokenKind::Normal; 256];
    kinds.push(TokenKind::Control);
    TokenizerFacts {
        kind: TokenizerKind::ByteLevelBpe,
        pre: "gpt-2".to_owned(),
        tokens,
        kinds,
        scores: Vec::new(),
        merges: Vec::new(),
        bos: None,
        eos: Some(EOS),
        end_of_generation: vec![EOS],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: Some(CHAT_TEMPLATE.to_owned()),
    }
}

/// Appends a token for each merge.
pub fn add_merges(report: &mut ReadyReport, merges: &[String]) {
    report.model.vocab_size += merges.len() as u32;
    change_tokenizer(report, |tokenizer| {
        for merge in merges {
            tokenizer.tokens.push(merge.replace(' ', ""));
            tokenizer.kinds.push(TokenKind::Normal);
            tokenizer.merges.push(merge.clone());
        }
    });
}

/// Appends control tokens.
pub fn add_controls(report: &mut ReadyReport, controls: &[String]) {
    report.model.vocab_size += controls.len() as u32;
    change_tokenizer(report, |tokenizer| {
        for control in controls {
            tokenizer.tokens.push(control.clone());
            tokenizer.kinds.push(TokenKind::Control);
        }
    });
}

/// # Panics
/// The report has no tokenizer.
pub fn change_tokenizer(report: &mut ReadyReport, change: impl FnOnce(&mut TokenizerFacts)) {
    let mut tokenizer = report.tokenizer.decode().expect("a tokenizer");
    change(&mut tokenizer);
    report.tokenizer = Encoded::of(&tokenizer).expect("a tokenizer that fits");
}

#[must_use]
pub fn device() -> DeviceFacts {
    DeviceFacts {
        id: "cpu".to_owned(),
        name: "scripted".to_owned(),
        uuid: None,
        driver: None,
        compute_capability: None,
        features: Vec::new(),
        threads: Some(1),
    }
}

#[must_use]
pub fn memory() -> MemoryReport {
    MemoryReport {
        weights_bytes: WEIGHTS_BYTES,
        ..MemoryReport::default()
    }
}

/// Printable character for a byte in GPT-2's encoding: printable Latin-1 stands for itself, the 68 others follow at
/// U+0100 in their order.
fn byte_token(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let others_before = (0..byte).filter(|other| !printable(*other)).count() as u32;
    char::from_u32(0x100 + others_before).expect("below the surrogates")
}
