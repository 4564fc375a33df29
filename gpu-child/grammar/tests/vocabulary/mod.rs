//! A vocabulary of bytes and of some pairs of them, so that one text has many tokenizations.

#![allow(dead_code, reason = "each test file uses its part")]

use worker_orcd_grammar::Matcher;
use worker_orcd_ipc::{TokenId, TokenKind, TokenizerFacts, TokenizerKind};

const PAIRS: [&str; 14] = [
    "{\"", "\":", "\",", "\"}", "▁\"", "na", "me", "name", "true", "null", "ab", "12", "}}", "yes",
];

/// The control tokens after the bytes and the pairs; the last two end a generation.
const CONTROL: [&str; 3] = ["<|tool|>", "<|im_end|>", "</s>"];

const FIRST_CONTROL: u32 = 256 + PAIRS.len() as u32;
pub const NAMED: TokenId = TokenId(FIRST_CONTROL);
pub const ENDS: [TokenId; 2] = [TokenId(FIRST_CONTROL + 1), TokenId(FIRST_CONTROL + 2)];

pub fn facts() -> TokenizerFacts {
    let bytes = (0..=255_u8).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte));
    let pairs = PAIRS.map(|pair| (pair.to_owned(), TokenKind::Normal));
    let control = CONTROL.map(|name| (name.to_owned(), TokenKind::Control));
    let (tokens, kinds): (Vec<_>, Vec<_>) = bytes.chain(pairs).chain(control).unzip();
    TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        merges: Vec::new(),
        bos: None,
        eos: Some(ENDS[1]),
        end_of_generation: ENDS.to_vec(),
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    }
}

/// Tokens of a text, byte by byte.
pub fn ids(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(byte.into())).collect()
}

pub fn text(tokens: &[TokenId]) -> String {
    let bytes = tokens.iter().flat_map(|token| match token.0 {
        byte @ ..256 => vec![byte as u8],
        pair @ ..FIRST_CONTROL => PAIRS[pair as usize - 256].replace('▁', " ").into_bytes(),
        _ => vec![],
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Samples allowed tokens at random until one ends the generation, or `length` of them are sampled. Returns those
/// before the end, and whether the end came.
pub fn walk(matcher: &mut Matcher, seed: u64, length: usize) -> (Vec<TokenId>, bool) {
    let mut random = Random(seed);
    let mut tokens = Vec::new();
    while tokens.len() < length {
        let mask = matcher.mask().expect("a mask");
        let ends = ENDS.iter().filter(|end| mask.allows(**end)).count();
        assert!(
            ends == 0 || ends == ENDS.len(),
            "one end is as good as another"
        );
        let allowed: Vec<TokenId> = mask.tokens().collect();
        let drawn = allowed[random.below(allowed.len())];
        matcher.accept(drawn).expect("an allowed token");
        if ENDS.contains(&drawn) {
            return (tokens, true);
        }
        tokens.push(drawn);
    }
    (tokens, false)
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}
