use super::*;
use std::collections::HashSet;
use std::sync::Arc;
use worker_orcd_ipc::{TokenKind, TokenizerFacts, TokenizerKind};

/// One token each; `<T>` and `</T>` are control tokens, and the tags of the reasoning.
const WORDS: [&str; 14] = [
    "a", " ", "\n", "<", "T", ">", "</", "</T>", "<T>", "x</", "T>y", "<0xE3>", "<0x80>", "<T>\nb",
];
const OPEN: &str = "<T>";
const CLOSE: &str = "</T>";

fn limits() -> Limits {
    let kind = |text: &&str| match *text {
        OPEN | CLOSE => TokenKind::Control,
        text if text.starts_with("<0x") => TokenKind::Byte,
        _ => TokenKind::Normal,
    };
    let facts = TokenizerFacts {
        kind: TokenizerKind::SentencePiece,
        pre: String::new(),
        tokens: WORDS.map(str::to_owned).to_vec(),
        kinds: WORDS.iter().map(kind).collect(),
        scores: vec![0.0; WORDS.len()],
        merges: vec![],
        bos: None,
        eos: None,
        end_of_generation: vec![],
        unknown: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        chat_template: None,
    };
    Limits {
        max_running: 1,
        max_sequence_tokens: 100,
        max_batch_tokens: 1,
        vocab_size: WORDS.len() as u32,
        speculates: false,
        traces_logits: false,
        end_of_generation: HashSet::new(),
        suppressed: Vec::new(),
        words: Arc::new(Vocabulary::from_facts(&facts).unwrap()),
        rank_head: None,
    }
}

fn token(text: &str) -> TokenId {
    let at = WORDS.iter().position(|it| *it == text);
    TokenId(at.expect("a word") as u32)
}

/// Tags in pieces, as in a vocabulary without the tag.
fn budget(tokens: u32, open: Option<&str>) -> ThinkingBudget {
    ThinkingBudget {
        tokens,
        open: open.map(str::to_owned),
        close: CLOSE.to_owned(),
        closing: ["</", "T", ">"].map(token).to_vec(),
    }
}

fn behind(budget: &ThinkingBudget, texts: &[&str]) -> ReasoningBudget {
    let generated: Vec<TokenId> = texts.iter().map(|it| token(it)).collect();
    ReasoningBudget::new(budget.clone().into(), &generated, &limits())
}

/// The forced next token.
fn must(reasoning: &ReasoningBudget) -> Option<&'static str> {
    let words = reasoning.allowed(None)?;
    let mut all = (0..WORDS.len()).filter(|at| words[at / 32] & 1 << (at % 32) != 0);
    let only = all.next().expect("a token");
    assert_eq!(all.next(), None, "one token");
    Some(WORDS[only])
}

#[test]
fn behind_so_many_tokens_the_closing_tag_must_come_and_then_nothing() {
    let opened = budget(2, None);
    let expected = [
        (&[][..], None),
        (&["a"], None),
        (&["a", "a"], Some("</")),
        (&["a", "a", "</"], Some("T")),
        (&["a", "a", "</", "T"], Some(">")),
        (&["a", "a", "</", "T", ">"], None),
        (&["a", "a", "</", "T", ">", "a", "a", "a"], None),
    ];
    for (texts, next) in expected {
        assert_eq!(must(&behind(&opened, texts)), next, "{texts:?}");
    }
    assert_eq!(must(&behind(&budget(0, None), &[])), Some("</"));
}

#[test]
fn a_tag_that_comes_by_itself_ends_it_however_it_is_cut() {
    for texts in [
        &["</T>"][..],
        &["</", "T", ">"],
        &["<", "</", "T", ">"],
        &["x</", "T>y"],
        &["a", "</", "T>y"],
    ] {
        let mut texts = texts.to_vec();
        texts.extend(["a"; 9]);
        assert_eq!(must(&behind(&budget(4, None), &texts)), None, "{texts:?}");
    }
    for texts in [&["</", "T", "T", ">"][..], &["<T>", "<", "T", ">"]] {
        let reasoning = behind(&budget(4, None), texts);
        assert_eq!(must(&reasoning), Some("</"), "{texts:?}");
    }
}

#[test]
fn the_opening_tag_is_counted_no_more_than_what_comes_before() {
    let tagged = budget(1, Some(OPEN));
    for texts in [
        &["<T>"][..],
        &["\n", " ", "<T>"],
        &["<", "T", ">"],
        &[" ", "<", "T", ">"],
        // The rest of the token that completes the tag does not count as a token.
        &["<T>\nb"],
        // A space of three bytes, U+3000.
        &["<0xE3>", "<0x80>", "<0x80>", "<T>"],
    ] {
        let before = behind(&tagged, texts);
        assert_eq!(must(&before), None, "{texts:?}");
        let more = [texts, &["a"]].concat();
        assert_eq!(must(&behind(&tagged, &more)), Some("</"), "{more:?}");
    }
    for texts in [
        &["a", "<T>"][..],
        &["<", "<T>"],
        &["</T>", "<T>"],
        &["<0x80>", "<T>"],
    ] {
        let more = [texts, &["a"; 5]].concat();
        assert_eq!(must(&behind(&tagged, &more)), None, "{more:?}");
    }
}

/// gpt-oss begins with two control tokens and a word between them.
#[test]
fn an_opening_tag_may_be_several_control_tokens_and_words() {
    let tagged = budget(1, Some("<T>a<T>"));
    assert_eq!(must(&behind(&tagged, &["<T>", "a", "<T>"])), None);
    let texts = ["<T>", "a", "<T>", "x</"];
    assert_eq!(must(&behind(&tagged, &texts)), Some("</"));
    for texts in [
        ["<T>", "x</", "<T>"],
        ["<T>", "<T>", "a"],
        ["a", "<T>", "a"],
    ] {
        let more = [&texts[..], &["a"; 5]].concat();
        assert_eq!(must(&behind(&tagged, &more)), None, "{more:?}");
    }
}

#[test]
fn a_character_is_written_to_its_end() {
    let opened = budget(1, None);
    assert_eq!(must(&behind(&opened, &["<0xE3>"])), None);
    assert_eq!(must(&behind(&opened, &["<0xE3>", "<0x80>"])), None);
    let whole = ["<0xE3>", "<0x80>", "<0x80>"];
    assert_eq!(must(&behind(&opened, &whole)), Some("</"));
    // No character at all.
    assert_eq!(must(&behind(&opened, &["<0x80>"])), Some("</"));
    assert_eq!(must(&behind(&opened, &["<0xE3>", "a"])), Some("</"));
}

#[test]
fn a_grammar_s_mask_counts_where_it_does_not_allow_the_tag() {
    let limits = limits();
    let mask = |texts: &[&str]| Mask::of(texts.iter().map(|it| token(it)), WORDS.len());
    let (with, without) = (mask(&["</", "a"]), mask(&["a", "x</"]));
    let mut reasoning = behind(&budget(1, None), &["a"]);
    assert_eq!(
        reasoning.allowed(Some(with.words())),
        Some(mask(&["</"]).words())
    );
    let by_grammar = Some(without.words());
    assert_eq!(reasoning.allowed(by_grammar), by_grammar);
    reasoning.learn(token("a"), &limits);
    assert_eq!(must(&reasoning), Some("</"), "it is tried again");
    reasoning.learn(token("</"), &limits);
    reasoning.learn(token("x</"), &limits);
    assert_eq!(must(&reasoning), Some("</"), "and from its beginning");
    let free = behind(&budget(9, None), &["a"]);
    assert_eq!(free.allowed(by_grammar), by_grammar);
}

#[test]
fn what_may_come_next_is_known_until_the_bound_is_near() {
    let decided = |tokens: u32, open: Option<&str>, texts: &[&str], unknown: usize| {
        unknown <= behind(&budget(tokens, open), texts).decided()
    };
    assert!(decided(3, None, &["a"], 1) && !decided(3, None, &["a"], 2));
    assert!(decided(3, None, &["a", "a"], 0) && !decided(3, None, &["a", "a"], 1));
    assert!(!decided(0, Some(OPEN), &[], 1) && decided(1, Some(OPEN), &[], 1));
    assert!(!decided(1, Some(OPEN), &[], 2));
    assert!(decided(0, None, &["</", "T", ">"], 9) && !decided(0, None, &["</"], 1));
}

#[test]
fn a_bound_that_cannot_be_written_is_known() {
    let limits = limits();
    let sound = budget(1, Some(OPEN));
    let is_sound = |budget: &ThinkingBudget| {
        ReasoningBudget::new(budget.clone().into(), &[token("a")], &limits).is_sound(&limits)
    };
    assert!(is_sound(&sound));
    let changes: [fn(&mut ThinkingBudget); 5] = [
        |it| it.closing.clear(),
        |it| it.closing[0] = TokenId(WORDS.len() as u32),
        |it| it.closing = vec![TokenId(0); 65],
        |it| it.close.clear(),
        |it| it.open = Some(String::new()),
    ];
    for change in changes {
        let mut wrong = sound.clone();
        change(&mut wrong);
        assert!(!is_sound(&wrong), "{wrong:?}");
    }
}
