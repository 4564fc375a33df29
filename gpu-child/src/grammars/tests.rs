//! Masks of the real threads, over a vocabulary of bytes.

use super::*;
use worker_orcd_ipc::{TokenKind, TokenizerKind};

const END: TokenId = TokenId(256);

fn grammars() -> Grammars {
    let bytes = (0..=255_u8).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte));
    let end = ("</s>".to_owned(), TokenKind::Control);
    let (tokens, kinds): (Vec<_>, Vec<_>) = bytes.chain([end]).unzip();
    Grammars::new(&TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        merges: Vec::new(),
        bos: None,
        eos: Some(END),
        end_of_generation: vec![END],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    })
}

fn ids(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(byte.into())).collect()
}

fn next(tokens: &str, most_forced: usize, drafts: &str) -> MaskRequest {
    MaskRequest::Next {
        ticket: 1,
        tokens: ids(tokens),
        most_forced,
        drafts: ids(drafts),
    }
}

impl Grammars {
    fn begun(expression: &str) -> Self {
        let mut grammars = grammars();
        let grammar = Arc::new(Grammar::Regex(expression.to_owned()));
        let begin = MaskRequest::Begin {
            ticket: 1,
            grammar,
            generated: Vec::new(),
            most_forced: 0,
        };
        grammars.hear(begin).unwrap();
        grammars.mask();
        grammars
    }

    fn within(&mut self, patience: Duration) -> Option<Answer> {
        self.answer_by(Instant::now() + patience)
    }

    /// Number of forced tokens, and the mask behind them.
    fn mask(&mut self) -> (usize, Mask) {
        match self.within(Duration::from_secs(20)) {
            Some(Answer::Next { forced, mask, .. }) => (forced.len(), mask.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Texts of one byte that each mask behind drafts allows, up to the last one.
    fn drafted(&mut self, most: usize) -> Vec<String> {
        let mut masks = Vec::new();
        while masks.len() < most {
            match self.within(Duration::from_secs(20)) {
                Some(Answer::Drafted { mask: None, .. }) => break,
                Some(Answer::Drafted {
                    mask: Some(mask), ..
                }) => masks.push(texts(&mask)),
                other => panic!("{other:?}"),
            }
        }
        masks
    }
}

fn texts(mask: &Mask) -> String {
    let bytes = mask.tokens().filter_map(|token| u8::try_from(token.0).ok());
    bytes.map(char::from).collect()
}

#[test]
fn masks_behind_drafts_end_where_the_grammar_forbids_one() {
    let mut grammars = Grammars::begun("a[bc]d[ef]g[hi]*");
    grammars.hear(next("a", 0, "bdfxh")).unwrap();
    assert_eq!(texts(&grammars.mask().1), "bc");
    assert_eq!(grammars.drafted(9), ["d", "ef", "g"]);
    // The matcher itself has not accepted them.
    grammars.hear(next("cde", 0, "ghih")).unwrap();
    assert_eq!(texts(&grammars.mask().1), "g");
    assert_eq!(grammars.drafted(4), ["hi"; 4]);
}

#[test]
fn masks_behind_drafts_begin_behind_forced_tokens() {
    let mut grammars = Grammars::begun("[ab]cde[fg]h");
    grammars.hear(next("a", 9, "cdefh")).unwrap();
    let (forced, mask) = grammars.mask();
    assert_eq!((forced, texts(&mask)), (3, "fg".to_owned()));
    assert_eq!(grammars.drafted(2), ["h", ""]);
    let mut grammars = Grammars::begun("[ab]cde[fg]h");
    grammars.hear(next("a", 9, "cdx")).unwrap();
    assert_eq!(grammars.mask().0, 3);
    let none = grammars.within(Duration::from_millis(50));
    assert!(none.is_none(), "{none:?}");
}

#[test]
fn masks_behind_drafts_that_the_matcher_has_left_are_dropped() {
    let mut grammars = Grammars::begun("[a-z]*");
    for _ in 0..200 {
        grammars.hear(next("a", 0, "bcdefg")).unwrap();
        grammars.mask();
    }
    grammars.hear(next("a", 0, "")).unwrap();
    grammars.mask();
    let none = grammars.within(Duration::from_millis(100));
    assert!(none.is_none(), "{none:?}");
}
