use super::*;
use proptest::prelude::*;
use worker_orcd_ipc::{TokenKind, TokenizerKind};

const MERGES: [&str; 8] = ["a b", "▁ a", "▁ ▁", "ab c", "▁▁ ▁▁", "b c", "é é", "\n \n"];

/// A token for each byte, then characters, then what merges make.
fn facts() -> TokenizerFacts {
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let characters = ["a", "b", "c", "▁", "é", "\n"].map(str::to_owned);
    let merges = MERGES.map(str::to_owned);
    let merged = merges.each_ref().map(|it| it.replace(' ', ""));
    let runs = ["\n\n\n\n".to_owned()];
    let tokens: Vec<_> = bytes.chain(characters).chain(merged).chain(runs).collect();
    TokenizerFacts {
        kind: TokenizerKind::CharacterBpe,
        pre: String::new(),
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

/// Texts of the tokens.
fn encode(facts: &TokenizerFacts, text: &str) -> Vec<String> {
    let mut ids = Vec::new();
    let model = CharacterLevel::from_facts(facts).unwrap();
    model.encode(text, &mut ids).unwrap();
    let texts = ids.iter().map(|id| facts.tokens[id.index()].clone());
    texts.collect()
}

#[test]
fn pairs_merge_across_spaces_by_their_rank() {
    let facts = facts();
    for (text, expected) in [
        ("abc", vec!["abc"]),
        // `a b` has an earlier place than `▁ a`.
        (" ab", vec!["▁", "ab"]),
        (" ac", vec!["▁a", "c"]),
        ("    ", vec!["▁▁▁▁"]),
        ("a▁", vec!["a", "▁"]),
        ("aéé", vec!["a", "éé"]),
    ] {
        assert_eq!(encode(&facts, text), expected, "{text:?}");
    }
}

#[test]
fn line_feeds_are_words_of_their_own() {
    let facts = facts();
    for (count, expected) in [
        (1, vec!["\n"]),
        (2, vec!["\n\n"]),
        // Not a token: merged.
        (3, vec!["\n\n", "\n"]),
        (4, vec!["\n\n\n\n"]),
    ] {
        let text = ["a", &*"\n".repeat(count), "b"].concat();
        let expected = [vec!["a"], expected, vec!["b"]].concat();
        assert_eq!(encode(&facts, &text), expected);
    }
}

#[test]
fn a_character_without_a_token_becomes_bytes_and_is_merged_with_none() {
    let mut facts = facts();
    assert_eq!(encode(&facts, "aüb"), ["a", "<0xC3>", "<0xBC>", "b"]);
    let model = CharacterLevel::from_facts(&facts).unwrap();
    assert!(model.names_every_byte());
    facts.tokens[0xBC] = "unused".to_owned();
    assert_eq!(encode(&facts, "aüb"), ["a", "<0xC3>", "b"]);
    let model = CharacterLevel::from_facts(&facts).unwrap();
    assert!(!model.names_every_byte());
}

proptest! {
    #[test]
    fn pieces_give_the_ids_of_the_whole_text(text in "[abcéü▁ ]{0,80}", piece in 1_usize..40) {
        let model = CharacterLevel::from_facts(&facts()).unwrap();
        let text = Run { model: &model, text: &text };
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        let mut start = 0;
        for (token, len) in text.merge(0..text.len()) {
            text.append(token, start..start + len, &mut whole);
            start += len;
        }
        pieces::encode_small(&text, piece, &mut pieces).unwrap();
        prop_assert_eq!(whole, pieces);
    }
}
