//! Comparison of masks with those of plain llguidance.

use super::*;
use crate::limits::{MAX_KEPT_GRAMMARS, MAX_SCOUTED_BYTES};
use worker_orcd_ipc::{TokenId, TokenKind, TokenizerKind};

const GRAMMARS: &[(&str, &str)] = &[
    ("json", r#"{"type": "object"}"#),
    (
        "json",
        r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0},
            "of": {"enum": ["on", "one", null]}}, "required": ["name", "age"]}"#,
    ),
    (
        "json",
        r#"{"type": "array", "minItems": 3, "items": {"anyOf": [{"type": "number"}, {"type": "string", "format": "date"},
            {"type": "string", "pattern": "^[a-zé]{2,40}$"}, {"type": "array"}]}}"#,
    ),
    ("regex", "([A-Z][a-z ]*, )*[0-9]{4}"),
    ("regex", "(\"é+|a\"|[^\"]{3})*"),
    (
        "lark",
        "start: sum\nsum: product (/[+-]/ product)*\nproduct: atom (/[*\\/]/ atom)*\n\
            atom: NUMBER | NAME | \"(\" sum \")\"\nNUMBER: /[0-9]+/\nNAME: /[a-z]+/\n%ignore / /",
    ),
    (
        "lark",
        "start: text <|tool|> %json {\"type\": \"object\"} text\ntext: /[a-z \"]*/",
    ),
    // Counts more characters than the scout looks ahead.
    ("json", r#"{"type": "string", "maxLength": 200}"#),
    // One text may be of two lexemes.
    ("lark", "start: (A \"1\" | B \"0\")+\nA: /[ae]+/\nB: /a*e/"),
    // The last bytes of a lexeme may belong to the next one.
    (
        "lark",
        "start: (a \"}\" \"1\")+\na[stop=/[}\\]]/]: /[a-e]*/",
    ),
    (
        "lark",
        "start: (a /[a-e]+/ \"}\")+\na[stop=\"}\"]: /[a-z\"}]*/",
    ),
    (
        "lark",
        "start: (a \"{\" b)+\na[lazy]: /[a-z]*\\{/\nb[suffix=\"\\\"\"]: /.*/",
    ),
];

fn grammar((kind, text): (&str, &str)) -> Grammar {
    match kind {
        "json" => Grammar::JsonSchema(text.to_owned()),
        "regex" => Grammar::Regex(text.to_owned()),
        _ => Grammar::Lark(text.to_owned()),
    }
}

/// A number below a limit, by SplitMix64.
pub(crate) fn random(state: &mut u64, limit: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % limit as u64) as usize
}

/// Bytes, and typical texts of grammars and strings, some of them twice.
pub(crate) fn facts() -> TokenizerFacts {
    let mut tokens: Vec<(String, TokenKind)> = (0..=255_u8)
        .map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte))
        .collect();
    let (mut state, letters) = (
        5,
        [
            "{", "}", "[", "]", "\"", ",", ":", "▁", "\n", "a", "e", "é", "日", "1", "0", "-",
            "name", "\\",
        ],
    );
    for _ in 0..3000 {
        let length = 1 + random(&mut state, 6);
        let text = (0..length).map(|_| letters[random(&mut state, letters.len())]);
        tokens.push((text.collect(), TokenKind::Normal));
    }
    for text in [
        "ae0", "ae1", "a0", "a1", "aae0", "aee1", "e0", "}1", "]1", "}1a", "]1a",
    ] {
        tokens.push((text.to_owned(), TokenKind::Normal));
    }
    tokens.push(("<|tool|>".to_owned(), TokenKind::Control));
    tokens.push(("</s>".to_owned(), TokenKind::Control));
    let (tokens, kinds): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    let end = TokenId(tokens.len() as u32 - 1);
    TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        merges: Vec::new(),
        bos: None,
        eos: Some(end),
        end_of_generation: vec![end],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    }
}

impl Compiler {
    /// A matcher of plain llguidance.
    fn plain(&self, grammar: &Grammar) -> Matcher {
        let mut parser = self.parser(grammar).expect("a grammar");
        parser.start_without_prompt();
        Matcher::new(Arc::new(parser), self.vocabulary)
    }
}

#[test]
fn masks_are_those_of_llguidance_whether_their_tables_are_kept_or_not() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    for grammar in GRAMMARS.iter().copied().map(grammar) {
        for seed in 0..6 {
            let mut plain = compiler.plain(&grammar);
            // The first matcher creates tables in states without one. The second finds them.
            let mut first = compiler.compile(&grammar).expect("a grammar");
            let mut again = compiler.compile(&grammar).expect("a grammar");
            let (mut state, mut drawn) = (seed, Vec::new());
            for _ in 0..60 {
                let expected = plain.mask();
                assert_eq!(first.mask(), expected, "{grammar:?} behind {drawn:?}");
                assert_eq!(again.mask(), expected, "{grammar:?} behind {drawn:?}");
                let Ok(mask) = expected else { break };
                let allowed: Vec<TokenId> = mask.tokens().collect();
                let token = allowed[random(&mut state, allowed.len())];
                drawn.push(token);
                let accepted = plain.accept(token);
                assert_eq!(first.accept(token), accepted);
                assert_eq!(again.accept(token), accepted);
                if accepted.is_err() {
                    break;
                }
            }
        }
    }
}

/// Limits count the lexer's size, so they end an answer at the same token, independently of the matcher that created
/// the tables.
#[test]
fn a_lexer_learns_the_same_whether_its_tables_are_kept_or_not() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    for grammar in GRAMMARS.iter().copied().map(grammar) {
        let mut makes = compiler.compile(&grammar).expect("a grammar");
        let mut finds = compiler.compile(&grammar).expect("a grammar");
        let plain = compiler.plain(&grammar).lexer_bytes();
        let known = makes.lexer_bytes() - plain;
        assert!(
            known <= MAX_SCOUTED_BYTES + MAX_SCOUTED_BYTES / 2,
            "{known} bytes"
        );
        let mut state = 3;
        for _ in 0..60 {
            let masks = [&mut makes, &mut finds].map(|it| (it.mask(), it.lexer_bytes(), it.work()));
            assert_eq!(masks[0], masks[1], "{grammar:?}");
            let Ok(mask) = &masks[0].0 else { break };
            let allowed: Vec<TokenId> = mask.tokens().collect();
            let token = allowed[random(&mut state, allowed.len())];
            let accepted = makes.accept(token);
            assert_eq!(finds.accept(token), accepted);
        }
    }
}

#[test]
fn a_bounded_number_of_grammars_is_kept_the_last_ones_that_were_used() {
    let compiler = Compiler::new(&facts()).expect("a vocabulary");
    let number = |index: usize| Grammar::Regex(format!("a{{{}}}", index + 1));
    for index in 0..=MAX_KEPT_GRAMMARS {
        compiler.compile(&number(index)).expect("a grammar");
        compiler.compile(&number(0)).expect("a grammar");
    }
    assert!(compiler.kept().find(&number(0)).is_some());
    assert!(compiler.kept().find(&number(1)).is_none());
    assert!(compiler.kept().find(&number(2)).is_some());
    assert_eq!(compiler.kept().len(), MAX_KEPT_GRAMMARS);
}
