//! Comparison with the `tokenizers` crate, which has another regex engine and merges whole words.

use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel as Bytes;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{ModelWrapper, SplitDelimiterBehavior, Tokenizer as Engine};
use worker_orcd_ipc::{TokenKind, TokenizerKind};

/// One pre-tokenizer for each list of patterns.
const PATTERNS: [&str; 6] = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "falcon"];

/// Merges of letters, digits, spaces and line breaks. Includes a token with several derivations, and merges with a
/// lower rank than those of their parts.
const MERGES: [&str; 20] = [
    "ab c",
    "a b",
    "1 2",
    "12 3",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "Ġ a",
    "' s",
    "Ċ Ċ",
    "! !",
    "Ġ Ċ",
    "ĠĊ ĠĊ",
    "r e",
    "' re",
    "b c",
    "a bc",
    "c c",
    "cc c",
    "c cc",
    "æ ±",
];

/// Vocabulary of the bytes that have a token, and of the results of `merges`.
fn facts(pre: &str, has_token: impl Fn(&str) -> bool, merges: &[String]) -> TokenizerFacts {
    let mut tokens: Vec<String> = Bytes::alphabet().iter().map(char::to_string).collect();
    tokens.retain(|token| has_token(token));
    tokens.sort();
    for merge in merges {
        let token = merge.replace(' ', "");
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    TokenizerFacts {
        kind: TokenizerKind::ByteLevelBpe,
        pre: pre.to_owned(),
        kinds: vec![TokenKind::Normal; tokens.len()],
        tokens,
        scores: Vec::new(),
        merges: merges.to_vec(),
        bos: None,
        eos: None,
        end_of_generation: Vec::new(),
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    }
}

fn of_merges(pre: &str) -> TokenizerFacts {
    facts(pre, |_| true, &MERGES.map(str::to_owned))
}

fn engine(facts: &TokenizerFacts) -> Engine {
    let pre = PreTokenizer::named(&facts.pre).unwrap();
    let vocabulary: Vocab = facts.tokens.iter().cloned().zip(0..).collect();
    let merges = facts.merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ').unwrap();
        (left.to_owned(), right.to_owned())
    });
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary, merges.collect::<Vec<_>>())
        .ignore_merges(pre.ignore_merges)
        .build();
    let mut engine = Engine::new(ModelWrapper::BPE(bpe.unwrap()));
    let cuts = pre.patterns.iter().map(|pattern| {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap();
        PreTokenizerWrapper::Split(split)
    });
    let bytes = PreTokenizerWrapper::ByteLevel(Bytes::new(false, false, false));
    let steps = Sequence::new(cuts.chain([bytes]).collect());
    engine.with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(steps)));
    engine
}

/// Both tokenizers for each pattern.
static MODELS: LazyLock<[(&str, ByteLevel, Engine); PATTERNS.len()]> = LazyLock::new(|| {
    PATTERNS.map(|pre| {
        let facts = of_merges(pre);
        let model = ByteLevel::from_facts(&facts).unwrap();
        (pre, model, engine(&facts))
    })
});

fn ids_of(engine: &Engine, text: &str) -> Vec<u32> {
    engine.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn ids(model: &ByteLevel, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    model.encode(text, &mut ids).unwrap();
    ids.into_iter().map(|id| id.0).collect()
}

/// Ids of the whole text as one word, merged in pieces of `piece` bytes.
fn ids_by(model: &ByteLevel, text: &str, piece: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    pieces::encode_small(&model.word(text), piece, &mut ids).unwrap();
    ids.into_iter().map(|id| id.0).collect()
}

fn texts() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "b",
        "abc",
        "AB",
        "1",
        "12",
        "123",
        " ",
        "  ",
        "    ",
        "\n",
        "\r\n",
        "\t",
        "'s",
        "'",
        "r",
        "re",
        "!",
        "!!",
        "$",
        "é",
        "汉字",
        "ß",
        "🙂",
        "\u{a0}",
        "-",
        "`",
        "_",
        "²",
        "٣",
        "\u{2028}",
        "\u{85}",
        "สวัสดี",
        "\u{301}",
        "Ⅷ",
        "+",
        "ccccc",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Vocabularies over three letters: each step joins a random pair of the tokens so far. Then the merges are ranked at
/// random.
fn vocabularies() -> impl Strategy<Value = Vec<String>> {
    let pairs = prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 1..24);
    let merges = pairs.prop_map(|pairs| {
        let mut tokens: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut merges: Vec<String> = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (left.get(&tokens), right.get(&tokens));
            let merge = format!("{left} {right}");
            if left.len() + right.len() <= 8 && !merges.contains(&merge) {
                tokens.push([left.as_str(), right].concat());
                merges.push(merge);
            }
        }
        merges
    });
    merges.prop_shuffle()
}

proptest! {
    #[test]
    fn ids_are_those_of_the_tokenizers_crate(text in texts()) {
        for (pre, model, engine) in &*MODELS {
            prop_assert_eq!(ids(model, &text), ids_of(engine, &text), "{} {:?}", pre, text);
        }
    }

    #[test]
    fn bytes_without_a_token_are_left_out(text in "[abcé1 ]{0,40}") {
        let merges = ["a c".to_owned(), "ac a".to_owned()];
        let facts = facts("gpt-2", |token| !["b", "Ġ", "Ã"].contains(&token), &merges);
        let model = ByteLevel::from_facts(&facts).unwrap();
        prop_assert_eq!(ids(&model, &text), ids_of(&engine(&facts), &text), "{:?}", text);
    }

    #[test]
    fn pieces_of_a_word_give_the_ids_of_the_whole(
        merges in vocabularies(), word in "[abc]{0,200}", piece in 1_usize..64
    ) {
        let facts = facts("gpt-2", |_| true, &merges);
        let model = ByteLevel::from_facts(&facts).unwrap();
        let expected = ids_of(&engine(&facts), &word);
        prop_assert_eq!(ids_by(&model, &word, piece), expected, "{:?} {:?}", merges, word);
    }
}

#[test]
fn long_words_of_any_kind_have_the_ids_of_the_tokenizers_crate() {
    let kinds = [
        "c", "abc", "abcc", " ", "\t ", "\n", " \n", "!", "汉", "é", "²", "a\u{301}",
    ];
    for kind in kinds {
        let long = kind.repeat(10_000 / kind.len());
        for text in [format!("a {long}a"), format!("'{long} {long}")] {
            for (pre, model, engine) in &*MODELS {
                assert_eq!(ids(model, &text), ids_of(engine, &text), "{pre} {kind:?}");
            }
        }
    }
}

#[test]
fn a_word_as_long_as_a_body_is_taken_apart() {
    let model = ByteLevel::from_facts(&of_merges("gpt-2")).unwrap();
    for (kind, length) in [("a", 4 << 20), (" ", 1 << 20)] {
        let ids = ids(&model, &kind.repeat(length));
        assert!(ids.len() >= length / 4, "{kind:?}");
    }
}

#[test]
fn a_word_that_is_a_token_is_that_token_only_where_the_family_says_so() {
    for (pre, is_whole) in [("llama-bpe", true), ("qwen2", false)] {
        let mut facts = of_merges(pre);
        facts.tokens.push("bab".to_owned());
        let model = ByteLevel::from_facts(&facts).unwrap();
        let ids = ids(&model, "bab");
        assert_eq!(ids, ids_of(&engine(&facts), "bab"));
        assert_eq!(ids.len() == 1, is_whole, "{pre}");
    }
}

#[test]
fn a_merge_of_or_to_what_is_no_token_is_malformed() {
    for merge in ["a zz", "zz a", "y z", "y", ""] {
        let mut facts = of_merges("gpt-2");
        facts.merges.push(merge.to_owned());
        let malformed = ByteLevel::from_facts(&facts).unwrap_err();
        assert!(malformed.to_string().contains("merge"), "{malformed}");
    }
}
