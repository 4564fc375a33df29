//! Answers of a random model under realistic schemas (`real/`, written for this test), judged by two independent
//! validators: `tests/oracle/schema_answers.py`, which also judges the walks over thousands of others
//! (`cargo xtask bench schemas`).

mod vocabulary;

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vocabulary::{ENDS, Random, facts, text};
use worker_orcd_grammar::{Compiler, Mask, Matcher};
use worker_orcd_ipc::{Grammar, TokenId, TokenKind};

const ANSWERS: u64 = 40;

/// Minimum number of complete answers of [`ANSWERS`] for each schema: otherwise the judgement covers too little.
const LEAST_ENDED: usize = 10;

/// Maximum tokens of an answer.
const LENGTH: usize = 600;

/// Number of sampled candidates, of which the one that closes most is taken.
const CANDIDATES: usize = 6;

/// The random model. It has the words of its schema: random letters would seldom form one.
struct Model {
    compiler: Compiler,
    words: Vec<String>,
    first_word: u32,
}

impl Model {
    fn new(schema: &Value) -> Self {
        let mut words = BTreeSet::new();
        note_words(schema, &mut words);
        let mut facts = facts();
        let first_word = facts.tokens.len() as u32;
        facts.tokens.extend(words.iter().cloned());
        facts.kinds.resize(facts.tokens.len(), TokenKind::Normal);
        facts.scores.resize(facts.tokens.len(), 0.0);
        Self {
            compiler: Compiler::new(&facts).expect("a vocabulary"),
            words: words.into_iter().collect(),
            first_word,
        }
    }

    fn is_word(&self, token: TokenId) -> bool {
        token.0 >= self.first_word
    }

    fn bytes(&self, token: TokenId) -> Vec<u8> {
        match u8::try_from(token.0) {
            Ok(byte) => vec![byte],
            Err(_) if !self.is_word(token) => text(&[token]).into_bytes(),
            Err(_) => self.words[(token.0 - self.first_word) as usize]
                .clone()
                .into_bytes(),
        }
    }

    /// Half of the time a word if one is allowed, or a further member. Every fourth answer samples all other tokens
    /// uniformly.
    fn drawn(&self, mask: &Mask, seed: u64, random: &mut Random) -> TokenId {
        let is_text = mask.allows(TokenId(b'"'.into()));
        let is_further = |it: TokenId| it.0 == u32::from(b',') && !is_text;
        let is_word = |it: &TokenId| self.is_word(*it) || is_further(*it);
        let (words, others): (Vec<_>, Vec<_>) = mask.tokens().partition(is_word);
        if others.is_empty() || !words.is_empty() && random.below(2) == 0 {
            return words[random.below(words.len())];
        }
        let mut one = || others[random.below(others.len())];
        let candidates = if seed.is_multiple_of(4) {
            1
        } else {
            CANDIDATES
        };
        let drawn = (0..candidates).map(|_| one());
        drawn
            .max_by_key(|token| worth(&self.bytes(*token)))
            .expect("a token")
    }
}

/// Collects names of properties and constants, in JSON notation.
fn note_words(schema: &Value, words: &mut BTreeSet<String>) {
    match schema {
        Value::Object(members) => {
            let properties = members.get("properties").and_then(Value::as_object);
            let names = properties.into_iter().flat_map(|it| it.keys());
            words.extend(names.map(|name| json!(name).to_string()));
            words.extend(members.get("const").map(Value::to_string));
            members.values().for_each(|it| note_words(it, words));
        }
        Value::Array(members) => {
            let texts = members.iter().filter(|it| it.is_string());
            words.extend(texts.map(Value::to_string));
            members.iter().for_each(|it| note_words(it, words));
        }
        _ => {}
    }
}

#[test]
fn what_is_drawn_under_schemas_as_people_write_them_is_valid() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(here.join("tests/real")).expect("a folder");
    let files = files.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort_unstable();
    assert!(files.len() >= 10, "{files:?}");
    let read = |file| serde_json::from_str(&fs::read_to_string(file).expect("a file"));
    let schemas = files.iter().map(|file| read(file).expect("a schema"));
    let schemas: Vec<Value> = schemas.collect();
    let walks = files.iter().zip(&schemas).map(|it| walked(it.0, it.1));
    let lines: Vec<String> = walks.map(|walk| walk.to_string()).collect();
    let walks = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("real_schemas.jsonl");
    fs::write(&walks, lines.join("\n")).expect("a file");
    let judge = here.join("../../tests/oracle/schema_answers.py");
    let mut command = Command::new(python());
    // A checkout may be read-only, and a cache in it is unexpected.
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(judge)
        .arg(walks);
    let judged = command.output().expect("Python starts");
    let words = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success(), "{words}");
    let figures: Value = serde_json::from_slice(&judged.stdout).expect("figures");
    assert_eq!(figures["invalid"], 0, "{words}");
    assert_eq!(figures["accepted"], json!(files.len()), "{figures}");
    assert_eq!(figures["schemas without a validator"], 0, "{figures}");
}

/// The line that `examples/schema_walks.rs` prints.
fn walked(file: &Path, schema: &Value) -> Value {
    let model = Model::new(schema);
    let grammar = Grammar::JsonSchema(schema.to_string());
    let answers = (0..ANSWERS).filter_map(|seed| {
        let matcher = model.compiler.compile(&grammar);
        let mut matcher = matcher.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        answer(&model, &mut matcher, seed)
    });
    let answers: Vec<String> = answers.collect();
    let ended = answers.len();
    assert!(
        ended >= LEAST_ENDED,
        "{}: {ended} came to an end",
        file.display()
    );
    json!({"file": file, "answers": answers, "compile_us": 0, "mask_us": [0], "cut": 0, "failed": []})
}

/// Text of an answer; `None`: cut by its length.
fn answer(model: &Model, matcher: &mut Matcher, seed: u64) -> Option<String> {
    let mut random = Random(seed);
    let mut answer = Vec::new();
    for _ in 0..LENGTH {
        let mask = matcher.mask().expect("no limit is near");
        if mask.allows(ENDS[0]) {
            return Some(String::from_utf8(answer).expect("a text"));
        }
        let token = model.drawn(&mask, seed, &mut random);
        matcher.accept(token).expect("an allowed token");
        answer.extend(model.bytes(token));
    }
    None
}

/// Number of open brackets that a text closes.
fn worth(text: &[u8]) -> i32 {
    let bytes = text.iter().map(|byte| match byte {
        b'}' | b']' => 2,
        b'"' => 1,
        b'{' | b'[' => -2,
        b' ' | b'\n' | b'\t' => -1,
        _ => 0,
    });
    bytes.sum()
}

fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("WORKER_ORCD_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| root.join(".venv/bin/python"));
    let shown = python.display();
    assert!(
        python.is_file(),
        "no Python with the oracles at {shown}: run `cargo xtask test` once, or set WORKER_ORCD_PYTHON"
    );
    python
}
