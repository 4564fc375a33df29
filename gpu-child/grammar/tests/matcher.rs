//! Masks of a matcher, over a small vocabulary with overlapping tokens.

mod vocabulary;

use proptest::prelude::*;
use serde_json::Value;
use vocabulary::{ENDS, NAMED, Random, facts, ids, text, walk};
use worker_orcd_grammar::{Compiler, Mask, Matcher};
use worker_orcd_ipc::{Grammar, TokenId};

fn compiler() -> Compiler {
    Compiler::new(&facts()).expect("a vocabulary")
}

fn matcher(grammar: &Grammar) -> Matcher {
    compiler().compile(grammar).expect("a grammar")
}

fn schema(text: &str) -> Grammar {
    Grammar::JsonSchema(text.to_owned())
}

fn allowed_texts(mask: &Mask) -> Vec<String> {
    mask.tokens().map(|token| text(&[token])).collect()
}

const PERSON: &str = r##"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", true, null]}, "maxItems": 3},
        "boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    },
    "required": ["name", "age"],
    "additionalProperties": false
}"##;

/// Handwritten equivalent of [`PERSON`].
fn is_person(value: &Value) -> bool {
    let Some(fields) = value.as_object() else {
        return false;
    };
    let name = fields.get("name").and_then(Value::as_str);
    let age = fields.get("age").and_then(Value::as_i64);
    let tags = fields
        .get("tags")
        .map_or(Some(&vec![]), Value::as_array)
        .cloned();
    let is_tag = |tag: &Value| {
        matches!(
            tag.to_string().as_str(),
            r#""a""# | r#""ab""# | "true" | "null"
        )
    };
    let known = ["name", "age", "tags", "boss"];
    name.is_some_and(|name| (1..=9).contains(&name.chars().count()))
        && age.is_some_and(|age| (0..=130).contains(&age))
        && tags.is_some_and(|tags| tags.len() <= 3 && tags.iter().all(is_tag))
        && fields.keys().all(|key| known.contains(&key.as_str()))
        && fields
            .get("boss")
            .is_none_or(|boss| boss.is_null() || is_person(boss))
}

#[test]
fn a_walk_through_a_schema_that_ends_is_a_valid_text() {
    let compiler = compiler();
    let mut ended = 0;
    for seed in 0..200 {
        let mut matcher = compiler.compile(&schema(PERSON)).unwrap();
        let (tokens, is_complete) = walk(&mut matcher, seed, 400);
        let text = text(&tokens);
        if is_complete {
            ended += 1;
            let value: Value = serde_json::from_str(&text).expect(&text);
            assert!(is_person(&value), "{text}");
        }
    }
    assert!(ended > 100, "{ended} of 200 came to an end");
}

#[test]
fn every_token_that_ends_generation_is_allowed_exactly_where_the_grammar_is_complete() {
    let mut matcher = matcher(&Grammar::Regex("a(b|bc)?".to_owned()));
    for (next, is_complete) in [("a", false), ("b", true), ("c", true)] {
        let mask = matcher.mask().unwrap();
        for end in ENDS {
            assert_eq!(mask.allows(end), is_complete, "before {next:?}");
        }
        assert_eq!(matcher.is_complete().unwrap(), is_complete);
        matcher.accept(ids(next)[0]).unwrap();
    }
    assert_eq!(matcher.mask().unwrap().tokens().collect::<Vec<_>>(), ENDS);
    for end in ENDS {
        // A request may continue past the end.
        matcher.accept(end).unwrap();
        assert_eq!(matcher.mask().unwrap().tokens().collect::<Vec<_>>(), ENDS);
    }
}

#[test]
fn what_is_not_allowed_is_not_accepted() {
    for token in [ids("x")[0], ENDS[0], NAMED, TokenId(1 << 20)] {
        let mut matcher = matcher(&Grammar::Regex("a+".to_owned()));
        assert!(!matcher.mask().unwrap().allows(token));
        assert!(matcher.accept(token).is_err(), "{token}");
        assert!(matcher.mask().is_err(), "it goes on after {token}");
    }
}

#[test]
fn choices_are_these_texts_and_no_others() {
    let choices = ["yes", "yes/no", "\"q\"\n", "é (1)"];
    let grammar = Grammar::Choice(choices.map(str::to_owned).to_vec());
    let compiler = compiler();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let (tokens, is_complete) = walk(&mut compiler.compile(&grammar).unwrap(), seed, 40);
        assert!(is_complete);
        seen.insert(text(&tokens));
    }
    assert_eq!(seen, choices.map(str::to_owned).into());
}

#[test]
fn a_control_token_comes_only_where_a_grammar_names_it() {
    let mut any = matcher(&Grammar::Regex("(.|\n)*".to_owned()));
    let mask = any.mask().unwrap();
    assert!(!mask.allows(NAMED) && mask.allows(ids("a")[0]));
    let mut named = matcher(&Grammar::Lark("start: \"a\" <|tool|> \"b\"".to_owned()));
    for next in [ids("a")[0], NAMED, ids("b")[0]] {
        assert!(named.mask().unwrap().allows(next));
        named.accept(next).unwrap();
    }
    assert!(named.is_complete().unwrap());
}

#[test]
fn what_is_forced_is_what_masks_would_leave_one_at_a_time() {
    let compiler = compiler();
    let grammar = schema(PERSON);
    let mut all = 0;
    for (seed, most) in (0..100).zip([0, 1, 3, 16].into_iter().cycle()) {
        let mut at_once = compiler.compile(&grammar).unwrap();
        let mut one_by_one = compiler.compile(&grammar).unwrap();
        let mut random = Random(seed);
        loop {
            let (forced, mask) = at_once.forced(most);
            assert!(forced.len() <= most);
            for token in &forced {
                let only: Vec<_> = one_by_one.mask().unwrap().tokens().collect();
                assert_eq!(only, [*token]);
                one_by_one.accept(*token).unwrap();
            }
            all += forced.len();
            let mask = mask.unwrap();
            assert_eq!(one_by_one.mask().as_ref(), Ok(&mask));
            let may_stop = forced.len() == most;
            assert!(may_stop || mask.only().is_none(), "a choice, or enough");
            let allowed: Vec<_> = mask.tokens().collect();
            let drawn = allowed[random.below(allowed.len())];
            at_once.accept(drawn).unwrap();
            one_by_one.accept(drawn).unwrap();
            if ENDS.contains(&drawn) {
                break;
            }
        }
    }
    assert!(all > 100, "{all} tokens were forced");
}

#[test]
fn a_token_that_ends_an_answer_is_not_forced() {
    let mut facts = facts();
    facts.end_of_generation = vec![ENDS[1]];
    let grammar = Grammar::Choice(vec!["q".to_owned()]);
    let mut matcher = Compiler::new(&facts).unwrap().compile(&grammar).unwrap();
    let (forced, mask) = matcher.forced(16);
    assert_eq!(forced, ids("q"));
    assert_eq!(mask.unwrap().only(), Some(ENDS[1]));
}

#[test]
fn white_space_of_a_json_text_has_an_end() {
    let mut matcher = matcher(&schema(r#"{"type": "object"}"#));
    matcher.accept(ids("{")[0]).unwrap();
    assert!(allowed_texts(&matcher.mask().unwrap()).contains(&"\n".to_owned()));
    matcher.accept(ids("\n")[0]).unwrap();
    let mut spaces = 0;
    while matcher.mask().unwrap().allows(ids(" ")[0]) {
        matcher.accept(ids(" ")[0]).unwrap();
        spaces += 1;
    }
    assert_eq!(spaces, 32);
    assert!(matcher.mask().unwrap().allows(ids("}")[0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_matcher_that_replays_a_history_is_the_one_that_lived_it(seed: u64, length in 0_usize..60) {
        let compiler = compiler();
        for grammar in [schema(PERSON), Grammar::Lark(EXPRESSION.to_owned())] {
            let mut lived = compiler.compile(&grammar).unwrap();
            let (mut tokens, is_complete) = walk(&mut lived, seed, length);
            tokens.extend(is_complete.then_some(ENDS[0]));
            let mut replayed = compiler.compile(&grammar).unwrap();
            replayed.replay(&tokens).unwrap();
            prop_assert_eq!(lived.mask(), replayed.mask());
            prop_assert_eq!(lived.is_complete(), replayed.is_complete());
        }
    }
}

#[test]
fn a_copy_goes_on_as_the_original_would_and_has_no_effect_on_it() {
    let compiler = compiler();
    for (seed, grammar) in (0..60).zip(
        [schema(PERSON), Grammar::Lark(EXPRESSION.to_owned())]
            .iter()
            .cycle(),
    ) {
        let [mut original, mut alone] = [0; 2].map(|_| compiler.compile(grammar).unwrap());
        walk(&mut original, seed, 10);
        walk(&mut alone, seed, 10);
        assert_eq!(original.mask(), alone.mask());
        let mut copy = original.copy(usize::MAX).expect("a copy");
        let (tokens, _) = walk(&mut copy, seed + 1000, 9);
        let size = original.lexer_bytes();
        assert_eq!(original.mask(), alone.mask());
        assert_eq!(
            size,
            alone.lexer_bytes(),
            "a mask of the copy is in its lexer"
        );
        if tokens.is_empty() {
            continue;
        }
        original.catch_up(&tokens).unwrap();
        tokens.iter().for_each(|token| {
            alone.accept(*token).unwrap();
            alone.mask().unwrap();
        });
        assert_eq!(original.mask(), alone.mask());
        assert_eq!(original.lexer_bytes(), alone.lexer_bytes());
        assert_eq!(
            original.copy(size.min(1)).map(drop),
            None,
            "it is too large"
        );
    }
}

const EXPRESSION: &str = r#"
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,4}/
%ignore / /
"#;

#[test]
fn a_matcher_goes_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&matcher(&Grammar::Regex("a".to_owned())));
    fn is_sync<T: Sync + Send>(_: &T) {}
    is_sync(&compiler());
}

#[test]
fn without_a_token_that_ends_generation_nothing_is_compiled() {
    let mut facts = facts();
    facts.end_of_generation.clear();
    let error = Compiler::new(&facts).unwrap_err().to_string();
    assert!(
        error.contains("no token of this model ends generation"),
        "{error}"
    );
    facts.end_of_generation = vec![TokenId(1 << 20)];
    let error = Compiler::new(&facts).unwrap_err().to_string();
    assert!(error.contains("outside the vocabulary"), "{error}");
}

#[test]
fn a_token_longer_than_the_trie_can_hold_is_never_allowed() {
    let mut facts = facts();
    // After the bytes, one that is not a byte.
    let long = 256;
    facts.tokens[long] = "a".repeat(100_000);
    let mut matcher = Compiler::new(&facts)
        .unwrap()
        .compile(&Grammar::Regex("a*b".to_owned()))
        .unwrap();
    let mask = matcher.mask().unwrap();
    assert!(!mask.allows(TokenId(long as u32)) && mask.allows(ids("b")[0]));
}
