//! Benchmark of masks and compilations, for a vocabulary of today's size. Prints a table.
//!
//!     cargo run --release -p worker-orcd-grammar --example mask_speed -- [tokens]
//!
//! Random walks through grammars of several kinds. The vocabulary is synthetic: bytes, then words of up to eight
//! letters, most with a space before them, and runs of digits and brackets as in JSON.

use std::time::{Duration, Instant};
use worker_orcd_grammar::Compiler;
use worker_orcd_ipc::{Grammar, TokenId, TokenKind, TokenizerFacts, TokenizerKind};

#[path = "../tests/vocabulary/mod.rs"]
mod vocabulary;

use vocabulary::Random;

const WALKS: u64 = 20;
const LENGTH: usize = 200;

const PERSON: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip":
        {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"]}},
    "required": ["name", "age", "tags", "address"], "additionalProperties": false}"#;

const ROWS: &str = r#"{"type": "array", "minItems": 20, "items": {"type": "object", "properties": {
    "id": {"type": "string", "format": "uuid"}, "at": {"type": "string", "format": "date-time"},
    "price": {"type": "number"}, "state": {"enum": ["open", "paid", "sent", "returned", null]},
    "note": {"type": "string", "maxLength": 200}}, "required": ["id", "at", "price"]}}"#;

const TREE: &str = r##"{"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
    "name": {"type": "string"}, "value": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}]},
    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["name", "children"]}}}"##;

const EXPRESSION: &str = "start: sum\nsum: product (/[+-]/ product)*\nproduct: atom (/[*\\/]/ atom)*\n\
    atom: NUMBER | NAME | \"(\" sum \")\"\nNUMBER: /[0-9]+/\nNAME: /[a-z]+/\n%ignore / /";

fn main() {
    let size = std::env::args().nth(1).and_then(|it| it.parse().ok());
    let facts = facts(size.unwrap_or(152_000));
    let began = Instant::now();
    let compiler = Compiler::new(&facts).expect("a vocabulary");
    println!(
        "{} tokens, whose compiler takes {:.0?}. Times on one core, in microseconds:\n",
        facts.tokens.len(),
        began.elapsed()
    );
    println!("| grammar | to compile | again | first mask | token and mask p50 | p99 | longest |");
    println!("|---|---|---|---|---|---|---|");
    let (mut all, mut newest) = (Vec::new(), Vec::new());
    for (name, grammar) in [
        (
            "json object",
            Grammar::JsonSchema(r#"{"type": "object"}"#.to_owned()),
        ),
        ("json schema", Grammar::JsonSchema(PERSON.to_owned())),
        ("rows", Grammar::JsonSchema(ROWS.to_owned())),
        ("tree", Grammar::JsonSchema(TREE.to_owned())),
        (
            "regex",
            Grammar::Regex("([A-Z][a-z ]*, )*[0-9]{4}".to_owned()),
        ),
        ("lark", Grammar::Lark(EXPRESSION.to_owned())),
    ] {
        let masks = measure(&compiler, name, &grammar);
        newest.extend_from_slice(&masks[..LENGTH - 1]);
        all.extend(masks);
    }
    for (name, masks) in [("all", &all), ("first answer under each", &newest)] {
        println!(
            "| {name} | | | | {} | {} | {} |",
            quantile(masks, 50),
            quantile(masks, 99),
            quantile(masks, 100)
        );
    }
}

/// Times of all tokens but the first, answer by answer.
fn measure(compiler: &Compiler, name: &str, grammar: &Grammar) -> Vec<Duration> {
    let (mut compiled, mut first, mut masks) = (vec![], vec![], vec![]);
    for seed in 0..WALKS {
        let began = Instant::now();
        let mut matcher = compiler.compile(grammar).expect(name);
        compiled.push(began.elapsed());
        let mut random = Random(seed);
        for index in 0..LENGTH {
            let began = Instant::now();
            let mask = matcher.mask().expect(name);
            let took = began.elapsed();
            if index == 0 {
                first.push(took)
            } else {
                masks.push(took)
            }
            let allowed: Vec<TokenId> = mask.tokens().collect();
            let began = Instant::now();
            matcher
                .accept(allowed[random.below(allowed.len())])
                .expect(name);
            if let Some(mask) = masks.last_mut().filter(|_| index > 0) {
                *mask += began.elapsed();
            }
        }
    }
    println!(
        "| {name} | {} | {} | {} | {} | {} | {} |",
        compiled[0].as_micros(),
        quantile(&compiled, 50),
        quantile(&first, 50),
        quantile(&masks, 50),
        quantile(&masks, 99),
        quantile(&masks, 100),
    );
    masks
}

fn quantile(times: &[Duration], percent: usize) -> u128 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)].as_micros()
}

fn facts(size: usize) -> TokenizerFacts {
    let mut random = Random(7);
    let mut seen = std::collections::HashSet::new();
    let mut facts = vocabulary::facts();
    let ends = facts.tokens.split_off(facts.tokens.len() - 2);
    facts.kinds.truncate(facts.tokens.len());
    while facts.tokens.len() + ends.len() < size {
        let word = word(&mut random);
        if seen.insert(word.clone()) {
            facts.tokens.push(word);
            facts.kinds.push(TokenKind::Normal);
        }
    }
    facts.end_of_generation = (0..2)
        .map(|i| TokenId((facts.tokens.len() + i) as u32))
        .collect();
    facts.tokens.extend(ends);
    facts.kinds.extend([TokenKind::Control; 2]);
    facts.scores = vec![0.0; facts.tokens.len()];
    facts.kind = TokenizerKind::SentencePiece;
    facts
}

fn word(random: &mut Random) -> String {
    let alphabet: &[u8] = match random.below(20) {
        0 => b"0123456789",
        1 => b"{}[]\",: ",
        2..6 => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        _ => b"eeeaaiioounnrrsttlldchmpgbfywkvxzjq",
    };
    let letters =
        (0..2 + random.below(7)).map(|_| char::from(alphabet[random.below(alphabet.len())]));
    let letters: String = letters.collect();
    match random.below(2) {
        0 => letters,
        _ => format!("▁{letters}"),
    }
}
