//! `tokenizer.ggml.*`, checked and forwarded: the supervisor builds the tokenizer, the child needs only the end of a
//! sequence.

use super::error::ModelError;
use super::gguf::{GgufError, Header};
use super::rerank;
use std::collections::HashMap;
use worker_orcd_ipc::{MAX_FRAME_BYTES, TokenId, TokenKind, TokenizerFacts, TokenizerKind};

/// Texts that end a turn in a family of chat models. Files mark the right token in many ways or not at all, so
/// llama.cpp goes by the text (its issue 9606), and this list is its list.
const END_OF_GENERATION: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Separators of fill-in-the-middle training: a model that writes one has left its answer. The token is that of the
/// key, or else of the first existing text.
const FILL_IN_THE_MIDDLE: [(&str, &[&str]); 3] = [
    (
        "tokenizer.ggml.fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "tokenizer.ggml.fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    ("tokenizer.ggml.fim_sep_token_id", &["<|file_sep|>"]),
];

/// Byte-level vocabularies with a BOS before the text by default.
const ADD_BOS: [&str; 8] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "lfm2",
    "pixtral",
    "tekken",
];

/// Maximum bytes of a chat template. Those of well-known models have some kilobytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// Maximum bytes of all tokens and merges on the wire: with the largest templates they still fit a frame.
const MAX_VOCABULARY_BYTES: usize = 30 << 20;
const _: () = assert!(
    MAX_VOCABULARY_BYTES + MAX_TEMPLATE_BYTES + rerank::MAX_TEMPLATE_BYTES < MAX_FRAME_BYTES
);

/// Tokenizer data of a file.
///
/// # Errors
/// If the tokenizer's model is not supported, a list is missing or has another length than the vocabulary, a special
/// token is outside it, or the data exceeds the limits.
pub fn tokenizer_facts(header: &Header<'_>) -> Result<TokenizerFacts, ModelError> {
    let kind = kind(header)?;
    let (is_byte_level, is_character_level) = (
        kind == TokenizerKind::ByteLevelBpe,
        kind == TokenizerKind::CharacterBpe,
    );
    let is_bpe = kind != TokenizerKind::SentencePiece;
    let tokens = required(header.strings(TOKENS)?, TOKENS)?;
    let merges = match is_bpe {
        true => required(header.strings(MERGES)?, MERGES)?,
        false => Vec::new(),
    };
    check_size(&tokens, &merges)?;
    let special = Special {
        header,
        n_tokens: tokens.len(),
    };
    let mut kinds = kinds(header, tokens.len())?;
    // llama.cpp's defaults for SentencePiece files that name none.
    let default = |id: u32| (!is_bpe && (id as usize) < tokens.len()).then_some(TokenId(id));
    let bos = special.id("tokenizer.ggml.bos_token_id")?.or(default(1));
    let eos = special.id("tokenizer.ggml.eos_token_id")?.or(default(2));
    let unknown = special
        .id("tokenizer.ggml.unknown_token_id")?
        .or(default(0));
    let end_of_generation = end_of_generation(&special, &tokens, eos)?;
    // A token that ends a generation is never text, even if the file marks it as such.
    for token in &end_of_generation {
        if kinds[token.index()] == TokenKind::Normal {
            kinds[token.index()] = TokenKind::Control;
        }
    }
    let pre = header.str("tokenizer.ggml.pre")?;
    let flag = |key: &str| header.bool(key);
    Ok(TokenizerFacts {
        kind,
        pre: if is_byte_level {
            pre.unwrap_or("default").to_owned()
        } else {
            String::new()
        },
        kinds,
        scores: if is_bpe {
            Vec::new()
        } else {
            scores(header, tokens.len())?
        },
        merges: owned(merges),
        bos,
        eos,
        end_of_generation,
        unknown,
        // llama.cpp overrides the key for Gemma 4 (its pull request 21500).
        add_bos: is_character_level
            || flag("tokenizer.ggml.add_bos_token")?
                .unwrap_or(!is_bpe || pre.is_some_and(|pre| ADD_BOS.contains(&pre))),
        add_eos: flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        add_space_prefix: !is_character_level
            && flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(!is_bpe),
        chat_template: header
            .text("tokenizer.chat_template", MAX_TEMPLATE_BYTES)?
            .map(str::to_owned),
        tokens: owned(tokens),
    })
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";
const KINDS: &str = "tokenizer.ggml.token_type";

fn kind(header: &Header<'_>) -> Result<TokenizerKind, ModelError> {
    const KEY: &str = "tokenizer.ggml.model";
    match required(header.str(KEY)?, KEY)? {
        "gpt2" => Ok(TokenizerKind::ByteLevelBpe),
        "llama" => Ok(TokenizerKind::SentencePiece),
        "gemma4" => Ok(TokenizerKind::CharacterBpe),
        other => Err(ModelError::unsupported(
            KEY,
            format!("a tokenizer of type {other}"),
        )),
    }
}

fn kinds(header: &Header<'_>, n_tokens: usize) -> Result<Vec<TokenKind>, ModelError> {
    let Some(array) = header.array(KINDS)? else {
        return Ok(vec![TokenKind::Normal; n_tokens]);
    };
    check_length(KINDS, array.len, n_tokens)?;
    let kind = |value: Option<u64>| match value {
        Some(1) => Ok(TokenKind::Normal),
        Some(2) => Ok(TokenKind::Unknown),
        Some(3) => Ok(TokenKind::Control),
        Some(4) => Ok(TokenKind::UserDefined),
        Some(5) => Ok(TokenKind::Unused),
        Some(6) => Ok(TokenKind::Byte),
        _ => Err(ModelError::bad_value(KINDS, "a token type outside 1 to 6")),
    };
    array.values().map(|value| kind(value.as_u64())).collect()
}

fn scores(header: &Header<'_>, n_tokens: usize) -> Result<Vec<f32>, ModelError> {
    let array = required(header.array(SCORES)?, SCORES)?;
    check_length(SCORES, array.len, n_tokens)?;
    let score = |value: Option<f64>| {
        value
            .filter(|score| !score.is_nan())
            .map(|score| score as f32)
            .ok_or_else(|| ModelError::bad_value(SCORES, "a score is not a number"))
    };
    array.values().map(|value| score(value.as_f64())).collect()
}

fn end_of_generation(
    special: &Special<'_, '_>,
    tokens: &[&str],
    eos: Option<TokenId>,
) -> Result<Vec<TokenId>, ModelError> {
    // The last of equal texts wins, as in a map that is filled in order.
    let by_text: HashMap<&str, TokenId> = tokens
        .iter()
        .zip(0..)
        .map(|(text, id)| (*text, TokenId(id)))
        .collect();
    let find = |text: &&str| by_text.get(text).copied();
    let mut ids: Vec<TokenId> = END_OF_GENERATION.iter().filter_map(find).collect();
    ids.extend(eos);
    ids.extend(special.id("tokenizer.ggml.eot_token_id")?);
    ids.extend(special.id("tokenizer.ggml.eom_token_id")?);
    for (key, texts) in FILL_IN_THE_MIDDLE {
        ids.extend(special.id(key)?.or_else(|| texts.iter().find_map(find)));
    }
    // In these two formats the first text separates parts of one answer.
    let has = |text| by_text.contains_key(text);
    if has("<|call|>") && has("<|return|>") || has("<|calls|>") && has("<|flush|>") {
        ids.retain(|id| Some(*id) != find(&"<|end|>"));
    }
    if has("<|tool_response>") {
        ids.retain(|id| Some(*id) != find(&"</s>"));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

struct Special<'h, 'a> {
    header: &'h Header<'a>,
    n_tokens: usize,
}

impl Special<'_, '_> {
    fn id(&self, key: &str) -> Result<Option<TokenId>, ModelError> {
        match self.header.u32(key)? {
            Some(id) if id as usize >= self.n_tokens => {
                let message = format!("token {id} is outside a vocabulary of {}", self.n_tokens);
                Err(ModelError::bad_value(key, message))
            }
            id => Ok(id.map(TokenId)),
        }
    }
}

fn check_length(key: &str, found: usize, n_tokens: usize) -> Result<(), ModelError> {
    if found == n_tokens {
        return Ok(());
    }
    Err(ModelError::bad_value(
        key,
        format!("{found} entries for {n_tokens} tokens"),
    ))
}

/// Checks the size on the wire. Besides its text, a token has a length, a kind, a score, and possibly an entry in the
/// list of ends.
fn check_size(tokens: &[&str], merges: &[&str]) -> Result<(), ModelError> {
    const BESIDE_TEXT: usize = 16;
    let texts = tokens.iter().chain(merges);
    let bytes: usize = texts.map(|text| text.len() + BESIDE_TEXT).sum();
    if bytes <= MAX_VOCABULARY_BYTES {
        return Ok(());
    }
    let message = format!(
        "a vocabulary of {bytes} bytes; at most {MAX_VOCABULARY_BYTES} are sent to the supervisor"
    );
    Err(ModelError::bad_value(TOKENS, message))
}

fn required<T>(value: Option<T>, key: &str) -> Result<T, ModelError> {
    value.ok_or_else(|| GgufError::MissingKey(key.to_owned()).into())
}

fn owned(strings: Vec<&str>) -> Vec<String> {
    strings.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
