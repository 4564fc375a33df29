//! Words of a hundred kilobytes in a real vocabulary, compared with the `tokenizers` crate.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{ModelWrapper, Tokenizer};
use worker_orcd_gpu::model::{GgufFile, tokenizer_facts};
use worker_orcd_ipc::TokenizerFacts;
use worker_orcd_tests::model::real_model;
use worker_orcd_text::Text;

/// Tokenizer of the model's own `tokenizer.json`: single digits, then GPT-2's rules.
fn engine(facts: &TokenizerFacts) -> Tokenizer {
    assert_eq!(facts.pre, "smollm");
    let vocabulary: Vocab = facts.tokens.iter().cloned().zip(0..).collect();
    let merges = facts.merges.iter().map(|merge| {
        let (left, right) = merge.split_once(' ').unwrap();
        (left.to_owned(), right.to_owned())
    });
    let merges: Vec<_> = merges.collect();
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).build();
    let mut engine = Tokenizer::new(ModelWrapper::BPE(bpe.unwrap()));
    let steps = Sequence::new(vec![
        PreTokenizerWrapper::Digits(Digits::new(true)),
        PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, true)),
    ]);
    engine.with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(steps)));
    engine
}

/// Text of so many bytes in a fixed pseudorandom order of the alphabet.
fn mixed(alphabet: &str, bytes: usize) -> String {
    let alphabet: Vec<char> = alphabet.chars().collect();
    let (mut text, mut state) = (String::new(), 1_u64);
    while text.len() < bytes {
        // Constants of Knuth's MMIX.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        text.push(alphabet[(state >> 33) as usize % alphabet.len()]);
    }
    text
}

#[test]
fn long_words_have_the_ids_that_the_tokenizers_crate_gives_them() {
    let file = GgufFile::open(&real_model()).unwrap();
    let facts = tokenizer_facts(&file.header().unwrap()).unwrap();
    let (text, engine) = (Text::from_facts(&facts).unwrap(), engine(&facts));
    let letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let alphabets = [
        ("one letter", "a"),
        ("few letters", "etaoin"),
        ("letters", letters),
        ("DNA", "ACGT"),
        ("Latin-1 and Greek", "éèüßñçøåαβγδεζηθ"),
        (
            "Chinese",
            "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出",
        ),
        ("Thai", "กขคงจฉชซญดตถทนบปผพฟมยรลวศสหอฮเแโใไะา"),
        ("emoji", "😀😁😂🤣😃🚀🎉"),
        ("spaces", " "),
        ("white space", " \t\u{a0}\n\u{3000}"),
        ("signs", "!@#$%^&*()-=+[]{};:,.<>/?"),
    ];
    for (name, alphabet) in alphabets {
        for kibibytes in [64, 200] {
            let word = mixed(alphabet, kibibytes << 10);
            let word = format!("Look: {word} and {}\n", &mixed(alphabet, 5000));
            let got = text.tokenizer().encode_plain(&word).unwrap();
            let got: Vec<u32> = got.into_iter().map(|id| id.0).collect();
            let expected = engine.encode_fast(word.as_str(), false).unwrap();
            // `assert_eq` would print all of them.
            assert!(got == expected.get_ids(), "{name}, {kibibytes} KiB");
            println!("{name}, {kibibytes} KiB: {} tokens", got.len());
        }
    }
}
