//! Grammars designed to be expensive. Each ends: compiled or refused, and so does each of its masks.

mod vocabulary;

use std::thread;
use vocabulary::{ENDS, Random, facts, ids, walk};
use worker_orcd_grammar::limits::{
    ITEMS_OF_A_ROW, MAX_GRAMMAR_BYTES, MAX_KEPT_ITEMS, MAX_LARK_ALTERNATIVES, MAX_LARK_LINES,
    MAX_LEXER_BYTES, MAX_MESSAGE_BYTES, STACK_BYTES,
};
use worker_orcd_grammar::{Compiler, GrammarError, Mask, Matcher};
use worker_orcd_ipc::{Grammar, TokenId, TokenKind, TokenizerFacts};

/// Runs with the stack size of the limits.
fn on_its_stack<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(run);
    thread.unwrap().join().unwrap()
}

/// Compiles, and accepts some tokens. An error has a short message.
fn outcome(grammar: Grammar) -> Result<(), GrammarError> {
    let outcome = on_its_stack(move || {
        let mut matcher = Compiler::new(&facts()).unwrap().compile(&grammar)?;
        for _ in 0..20 {
            let mask = matcher.mask()?;
            let next = mask.tokens().find(|token| !ENDS.contains(token));
            let Some(next) = next else { break };
            matcher.accept(next)?;
        }
        Ok(())
    });
    if let Err(error) = &outcome {
        let words: GrammarError = Clone::clone(error);
        let words = words.to_string();
        assert!(
            !words.is_empty() && words.len() <= MAX_MESSAGE_BYTES,
            "{words}"
        );
        assert!(
            !words.contains("backtrace") && !words.contains("non-verbose"),
            "{words}"
        );
    }
    outcome
}

fn refused(grammar: Grammar) -> String {
    let shown = format!("{grammar:?} is accepted");
    outcome(grammar).expect_err(&shown).to_string()
}

fn schema(text: impl Into<String>) -> Grammar {
    Grammar::JsonSchema(text.into())
}

fn regex(text: impl Into<String>) -> Grammar {
    Grammar::Regex(text.into())
}

fn lark(text: impl Into<String>) -> Grammar {
    Grammar::Lark(text.into())
}

#[test]
fn what_is_malformed_is_refused_in_the_parsers_own_words() {
    for (grammar, part) in [
        (schema("{"), "EOF while parsing"),
        (schema("[]"), "an object, true or false"),
        (schema("false"), "nothing is valid"),
        (schema(r#"{"type": "strin"}"#), "strin"),
        (
            schema(r#"{"type": "string", "pattern": "("}"#),
            "unclosed group",
        ),
        (
            schema(r#"{"$ref": "https://example.org/x"}"#),
            "example.org",
        ),
        (schema(r##"{"$ref": "#/$defs/none"}"##), "none"),
        (regex("("), "unclosed group"),
        (lark("start: other"), "other"),
        (lark(""), ""),
        (Grammar::Choice(vec![]), "at least one text"),
        (Grammar::Choice(vec![String::new()]), "none that is empty"),
    ] {
        let shown = format!("{grammar:?}");
        let words = refused(grammar);
        assert!(words.contains(part), "{shown}: {words}");
    }
}

#[test]
fn a_keyword_that_would_not_be_followed_is_refused_by_name() {
    for keyword in [
        "uniqueItems",
        "contains",
        "unevaluatedProperties",
        "unevaluatedItems",
        "minContains",
        "x-guidance",
    ] {
        let words = refused(schema(format!(r#"{{"type": "array", "{keyword}": {{}}}}"#)));
        assert!(words.contains(keyword), "{keyword}: {words}");
    }
}

#[test]
fn a_capture_is_refused_by_name() {
    // Each byte would be the end of another, longer text.
    for rule in [
        "s[capture=\"all\"]: s \"a\" | \"a\"",
        "s: all\nall[capture]: s \"a\" | \"a\"",
        "s: \"a\" (all | \"b\")*\nall[stop_capture=\"all\", stop=\"x\"]: /a*/",
    ] {
        let words = refused(lark(format!("start: s \"c\"\n{rule}")));
        assert!(
            words.contains("a capture is not implemented: \"all\""),
            "{words}"
        );
    }
}

#[test]
fn text_beyond_the_limits_is_refused_before_it_is_parsed() {
    let words = refused(regex("a".repeat(MAX_GRAMMAR_BYTES + 1)));
    assert!(words.contains(&MAX_GRAMMAR_BYTES.to_string()), "{words}");
    let words = refused(Grammar::Choice(vec!["a".repeat(1000); 300]));
    assert!(words.contains(&MAX_GRAMMAR_BYTES.to_string()), "{words}");
    let words = refused(lark("\n".repeat(MAX_LARK_LINES + 1)));
    assert!(words.contains(&MAX_LARK_LINES.to_string()), "{words}");
    let bars = |count| lark(format!("start: A\nA: \"a\"{}", " | \"a\"".repeat(count)));
    let words = refused(bars(MAX_LARK_ALTERNATIVES + 1));
    assert!(
        words.contains(&MAX_LARK_ALTERNATIVES.to_string()),
        "{words}"
    );
    assert!(outcome(bars(MAX_LARK_ALTERNATIVES)).is_ok());
}

#[test]
fn deep_nesting_is_refused_or_survived() {
    let nested = |open: &str, depth: usize, close: &str| {
        format!("{}{}{}", open.repeat(depth), "{}", close.repeat(depth))
    };
    for depth in [20, 100, 10_000] {
        drop(outcome(schema(nested(r#"{"not": "#, depth, "}"))));
        drop(outcome(schema(nested(r#"{"items": "#, depth, "}"))));
        drop(outcome(schema(nested(r#"{"anyOf": ["#, depth, "]}"))));
        drop(outcome(regex(format!(
            "{}a{}",
            "(".repeat(depth),
            ")*".repeat(depth)
        ))));
        drop(outcome(lark(format!(
            "start: {}\"a\"{}",
            "(".repeat(depth),
            ")*".repeat(depth)
        ))));
    }
    let deep = format!("start: {}\"a\"{}", "(".repeat(2000), ")".repeat(2000));
    let words = refused(lark(deep));
    assert!(words.contains("nest 2000 deep"), "{words}");
    assert!(
        outcome(lark(format!("start: /{}/", r"\(".repeat(2000)))).is_ok(),
        "these are no brackets"
    );
}

#[test]
fn long_chains_fit_the_stack() {
    let rules = MAX_LARK_LINES - 2;
    for name in ["r", "R"] {
        let chain: String = (0..rules)
            .map(|i| format!("{name}{i}: {name}{}\n", i + 1))
            .collect();
        drop(outcome(lark(format!(
            "start: {name}0\n{chain}{name}{rules}: \"a\"\n"
        ))));
    }
    for keyword in ["$ref", "allOf"] {
        let link = |i: usize| {
            let next = format!(r##"{{"$ref": "#/$defs/{i}"}}"##);
            match keyword {
                "allOf" => format!(r#"{{"allOf": [{next}, {{"type": "object"}}]}}"#),
                _ => next,
            }
        };
        let count = 4000;
        let chain: String = (0..count)
            .map(|i| format!(r#""{i}": {}, "#, link(i + 1)))
            .collect();
        drop(outcome(schema(format!(
            r##"{{"$defs": {{{chain} "{count}": {{}}}}, "$ref": "#/$defs/0"}}"##
        ))));
    }
}

#[test]
fn repetition_is_bounded() {
    for text in [
        "a{1,100000}",
        "(a{1,1000}){1,1000}",
        "((a{0,100}){0,100}){0,100}b",
        "(a|b|ab){1,9999}c",
    ] {
        drop(outcome(regex(text)));
    }
    drop(outcome(schema(
        r#"{"type": "string", "minLength": 100000, "maxLength": 1000000}"#,
    )));
    drop(outcome(schema(r#"{"type": "array", "minItems": 1000000}"#)));
    drop(outcome(lark("start: (\"a\" | \"b\"){1,1000000}")));
}

#[test]
fn an_exponential_automaton_is_bounded() {
    // The minimal automaton of each has 2 to the power of the count states.
    drop(outcome(regex("(a|b)*a(a|b){200}")));
    drop(outcome(regex("(.*a.{30}){5}")));
    drop(outcome(lark("start: /(?s:.*)a.{18}/ & ~/(?s:.*)b.{19}/")));
    drop(outcome(schema(
        r#"{"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}"#,
    )));
}

#[test]
fn an_ambiguous_grammar_is_bounded() {
    drop(outcome(lark("start: s\ns: s s | s s s | \"a\" | \"\"")));
    drop(outcome(lark("start: a*\na: b*\nb: \"x\"* \"y\"* \"x\"*")));
    let alternatives: Vec<String> = (0..3000).map(|i| format!("s \"{i}\" s")).collect();
    drop(outcome(lark(format!(
        "start: s\ns: \"a\" | {}",
        alternatives.join(" | ")
    ))));
}

#[test]
fn many_alternatives_are_bounded() {
    let texts: Vec<String> = (0..20_000).map(|i| format!("text {i}")).collect();
    drop(outcome(Grammar::Choice(texts)));
    let properties: Vec<String> = (0..5000)
        .map(|i| format!(r#""p{i}": {{"type": "string"}}"#))
        .collect();
    drop(outcome(schema(format!(
        r#"{{"properties": {{{}}}}}"#,
        properties.join(", ")
    ))));
    let branches: Vec<String> = (0..200)
        .map(|i| {
            format!(r#"{{"properties": {{"a{i}": {{}}, "b{i}": {{}}}}, "required": ["a{i}"]}}"#)
        })
        .collect();
    let all = format!(
        r#"{{"anyOf": [{0}], "allOf": [{{"anyOf": [{0}]}}]}}"#,
        branches.join(", ")
    );
    drop(outcome(schema(all)));
}

#[test]
fn a_limit_that_is_met_on_the_way_is_an_error_and_stays_one() {
    let grammar = regex("(a|b)*a(a|b){200}c");
    let ends = on_its_stack(move || {
        let mut matcher = Compiler::new(&facts()).unwrap().compile(&grammar).unwrap();
        let mut first = None;
        let mut random = Random(1);
        for _ in 0..100_000 {
            let token = ids(["a", "b"][random.below(2)])[0];
            let step = matcher.mask().and_then(|_| matcher.accept(token));
            if let Err(error) = step {
                first = Some(error);
                break;
            }
        }
        Some((first?, matcher.mask().unwrap_err()))
    });
    let (first, later) = ends.expect("states are limited");
    assert!(first.to_string().contains("lexer"), "{first}");
    assert_eq!(first, later);
}

#[test]
fn a_walk_through_an_ordinary_grammar_meets_no_limit() {
    let ended = on_its_stack(|| {
        let grammar = lark("start: (WORD \" \")* \"end\"\nWORD: /[a-z]{1,8}/");
        let mut matcher = Compiler::new(&facts()).unwrap().compile(&grammar).unwrap();
        walk(&mut matcher, 1, 2000).0.len()
    });
    assert!(ended > 0);
}

/// Accepts bytes of a text until a limit is reached. Returns the error, and the number of tokens before it.
fn until_refused(
    text: impl Fn(usize, &mut Random) -> u8,
    mut take: impl FnMut(TokenId) -> Result<(), GrammarError>,
) -> (GrammarError, Vec<TokenId>) {
    let mut random = Random(1);
    let mut taken = Vec::new();
    loop {
        let token = TokenId(text(taken.len(), &mut random).into());
        if let Err(error) = take(token) {
            return (error, taken);
        }
        taken.push(token);
        let most = MAX_KEPT_ITEMS / ITEMS_OF_A_ROW;
        assert!(taken.len() <= most, "an answer without an end");
    }
}

#[test]
fn what_a_matcher_keeps_of_an_answer_is_bounded() {
    // A row for four bytes, and in each row all words.
    let letters = || 'a'..='l';
    let pairs = letters().flat_map(|first| letters().map(move |second| format!("{first}{second}")));
    let words = pairs.flat_map(|pair| letters().map(move |third| format!("\"{pair}{third}.\"")));
    let words: Vec<String> = words.collect();
    let grammar = lark(format!("start: word*\nword: {}", words.join(" | ")));
    let text = |index, random: &mut Random| match index % 4 {
        3 => b'.',
        _ => b'a' + random.below(12) as u8,
    };
    on_its_stack(move || {
        let compiler = Compiler::new(&facts()).unwrap();
        let mut lived = compiler.compile(&grammar).unwrap();
        // Masks leave no states behind.
        let (error, tokens) = until_refused(text, |token| lived.accept(token));
        let words = error.to_string();
        assert!(words.contains(&MAX_KEPT_ITEMS.to_string()), "{words}");
        assert!(tokens.len() > 1000, "{} tokens", tokens.len());
        assert_eq!(lived.mask().unwrap_err(), error);
        assert_eq!(lived.accept(ENDS[0]).unwrap_err(), error);
        // Another child reaches the same limit at the same token.
        let mut replayed = compiler.compile(&grammar).unwrap();
        let again = until_refused(text, |token| replayed.replay(&[token]));
        assert_eq!(again, (error, tokens));
    });
}

#[test]
fn a_row_is_counted_however_few_its_items_are() {
    // A row for each byte.
    let grammar = lark("start: (\"a\" | \"b\")*");
    let text = |_, random: &mut Random| b'a' + random.below(2) as u8;
    on_its_stack(move || {
        let mut matcher = Compiler::new(&facts()).unwrap().compile(&grammar).unwrap();
        let (error, _) = until_refused(text, |token| matcher.accept(token));
        assert!(
            error.to_string().contains(&MAX_KEPT_ITEMS.to_string()),
            "{error}"
        );
    });
}

#[test]
fn what_a_lexer_keeps_is_bounded() {
    // A state for each set of positions after an `a`, and an expression for each position.
    let grammar = regex("(a|b)*a(a|b){800}c");
    let text = |_, random: &mut Random| b'a' + random.below(2) as u8;
    on_its_stack(move || {
        let compiler = Compiler::new(&facts()).unwrap();
        let run = || {
            let mut matcher = compiler.compile(&grammar).unwrap();
            until_refused(text, |token| matcher.replay(&[token]))
        };
        let (error, tokens) = run();
        let words = error.to_string();
        assert!(words.contains(&MAX_LEXER_BYTES.to_string()), "{words}");
        assert_eq!(run(), (error, tokens));
    });
}

/// A vocabulary with words of 12 letters: tokens that lead to many states from each position. Returns the first of
/// them, and their number.
fn wide(letters: &[&str], words: usize) -> (TokenizerFacts, usize, usize) {
    let mut wide = facts();
    let ends = wide.tokens.split_off(wide.tokens.len() - ENDS.len());
    wide.kinds.truncate(wide.tokens.len());
    let mut random = Random(3);
    let word = |_| {
        let letters = (0..12).map(|_| letters[random.below(letters.len())]);
        letters.collect::<String>()
    };
    let words: Vec<String> = (0..words).map(word).collect();
    wide.kinds
        .resize(wide.tokens.len() + words.len(), TokenKind::Normal);
    wide.kinds.extend([TokenKind::Control; 2]);
    let (first, words_count) = (wide.tokens.len(), words.len());
    wide.tokens.extend(words.into_iter().chain(ends));
    let last = wide.tokens.len() as u32;
    wide.end_of_generation = vec![TokenId(last - 2), TokenId(last - 1)];
    wide.eos = None;
    wide.scores = vec![0.0; wide.tokens.len()];
    (wide, first, words_count)
}

/// Names of any letters up to a length, beside unrestricted names.
#[test]
fn names_that_are_counted_are_followed_to_the_end_of_an_answer() {
    let letters = ["a", "é", "日", "n", "\\n", "B", " ", "_", "\u{1F600}"];
    let (wide, first, words) = wide(&letters, 20_000);
    on_its_stack(move || {
        let compiler = Compiler::new(&wide).unwrap();
        let grammar = schema(r#"{"type": "object", "patternProperties": {"^.{1,255}$": {}}}"#);
        let mut random = Random(5);
        let mut matcher = compiler.compile(&grammar).unwrap();
        matcher.replay(&ids("{\"")).unwrap();
        for _ in 0..12 {
            let mask = matcher.mask().unwrap();
            let word = TokenId((first + random.below(words)) as u32);
            if mask.allows(word) {
                matcher.accept(word).unwrap();
            }
        }
    });
}

/// `limits::NARROW_TOKENS`.
const NARROW_TOKENS: usize = 32;

/// A token of an answer, sampled from the mask with a fixed sequence of numbers.
fn drawn(matcher: &mut Matcher, random: &mut Random) -> Result<TokenId, GrammarError> {
    Ok(of_mask(&matcher.mask()?, random))
}

fn of_mask(mask: &Mask, random: &mut Random) -> TokenId {
    let count: u32 = mask.words().iter().map(|word| word.count_ones()).sum();
    let token = mask.tokens().nth(random.below(count as usize));
    token.expect("a mask allows a token")
}

#[test]
fn an_answer_goes_on_when_masks_have_filled_the_lexer() {
    let letters = ["a", "é", "日", "n", "b", "B", " ", "_", "\u{1F600}"];
    let (wide, ..) = wide(&letters, 3000);
    on_its_stack(move || {
        let compiler = Compiler::new(&wide).unwrap();
        // A state for each character that is left, and for each byte of a character.
        let grammar = regex("[^x]{1,50000}x");
        let mut random = Random(5);
        let mut matcher = compiler.compile(&grammar).unwrap();
        let (mut most, mut renewed) = (0, 0);
        while renewed < 2 {
            let token = drawn(&mut matcher, &mut random).unwrap();
            if wide.tokens[token.0 as usize].contains('x') {
                continue;
            }
            matcher.accept(token).unwrap();
            let bytes = matcher.lexer_bytes();
            if bytes < most {
                renewed += 1;
                most = 0;
            }
            most = most.max(bytes);
        }
    });
}

#[test]
fn an_answer_goes_on_by_single_bytes_where_a_mask_of_all_tokens_is_too_much() {
    let letters = ["a", "é", "日", "n", "b", "B", " ", "_", "\u{1F600}"];
    let (wide, first, words) = wide(&letters, 20_000);
    on_its_stack(move || {
        let compiler = Compiler::new(&wide).unwrap();
        let lines: Vec<_> = (90..110)
            .map(|count| format!("[^;]*a[^;]{{{count}}}"))
            .collect();
        let grammar = regex(format!("(({});)*", lines.join("|")));
        let is_narrow = |mask: &Mask| {
            let mut words = (first..first + words).map(|word| TokenId(word as u32));
            !words.any(|word| mask.allows(word))
        };
        let semicolon = wide
            .tokens
            .iter()
            .position(|token| token == "<0x3B>")
            .unwrap();
        let semicolon = TokenId(semicolon as u32);
        // A line that ends as soon as it may, and its successor.
        let run = || {
            let mut matcher = compiler.compile(&grammar).unwrap();
            let (mut random, mut taken, mut masks) = (Random(1), Vec::new(), Vec::new());
            let mut line_end = usize::MAX;
            while taken.len() < line_end.saturating_add(NARROW_TOKENS) {
                let mask = matcher.mask().unwrap();
                let token = match mask.allows(semicolon) {
                    true => semicolon,
                    false => of_mask(&mask, &mut random),
                };
                masks.push(mask);
                matcher.accept(token).unwrap();
                taken.push(token);
                if token == semicolon && line_end == usize::MAX {
                    line_end = taken.len();
                }
            }
            (taken, masks, line_end)
        };
        let (taken, masks, line_end) = run();
        let narrow: Vec<_> = masks.iter().map(is_narrow).collect();
        assert!(!narrow[0] && narrow[line_end - 1], "{narrow:?}");
        // After a line a full mask would be possible, but the narrow masks are not over.
        assert!(
            narrow[line_end] && narrow[line_end..].contains(&false),
            "{narrow:?}"
        );
        // Another child makes the same masks, from the beginning and after a death at any token.
        for (died_behind, mask) in masks.iter().enumerate().skip(line_end) {
            let mut replayed = compiler.compile(&grammar).unwrap();
            replayed.replay(&taken[..died_behind]).unwrap();
            assert_eq!(replayed.mask().as_ref(), Ok(mask), "{died_behind}");
        }
        assert_eq!(run(), (taken, masks, line_end));
    });
}

/// Otherwise its answer would end in the middle.
#[test]
fn a_schema_whose_lexer_has_too_much_work_is_refused_when_it_is_compiled() {
    let letters = ["a", "é", "日", "n", "b", "B", " ", "_", "\u{1F600}"];
    let (wide, ..) = wide(&letters, 20_000);
    on_its_stack(move || {
        let compiler = Compiler::new(&wide).unwrap();
        for text in [
            r#"{"type": "object", "patternProperties": {"^(.{1,255}a.{1,255}b){1,255}$": {}}}"#,
            r#"{"type": "object", "patternProperties": {"^(.*a.{30}){5}$": {}}}"#,
        ] {
            let refused = compiler.compile(&schema(text)).map(drop);
            let refused = refused.expect_err(text).to_string();
            assert!(refused.contains("could not go on"), "{text}: {refused}");
        }
    });
}

/// Maximum work of one mask by its fuel and its states, far below the limit of a whole lexer.
const MOST_OF_ONE_MASK: usize = 4 << 20;

#[test]
fn one_mask_adds_a_bounded_part_to_a_lexer() {
    let (wide, first, words_count) = wide(&["a", "b"], 5000);
    on_its_stack(move || {
        let compiler = Compiler::new(&wide).unwrap();
        let (mut most, mut random) = (0, Random(3));
        for text in [
            "(a|b)*a(a|b){800}c",
            "(a|b)*a(a|b){11}c",
            "(.*a.{30}){5}",
            "(.*a.{6}){3}",
            "(a|b){200}(a|b)*a(a|b){800}c",
            "((a{1,100}b{1,100}){1,100}c?){1,100}",
            "((a|b)*a(a|b|c){300}){20}",
        ] {
            let Ok(mut matcher) = compiler.compile(&regex(text)) else {
                continue;
            };
            for _ in 0..60 {
                let before = matcher.lexer_bytes();
                let word = first + random.below(words_count);
                if matcher.replay(&[TokenId(word as u32)]).is_err() {
                    break;
                }
                most = most.max(matcher.lexer_bytes().saturating_sub(before));
            }
        }
        assert!(most > 100_000, "{most} bytes: nothing was tried");
        assert!(most <= MOST_OF_ONE_MASK, "{most} bytes of one mask");
    });
}
