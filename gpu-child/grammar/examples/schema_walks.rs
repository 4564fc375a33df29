//! Answers of a random model under many schemas, one JSON line for each schema, for judgement by independent
//! validators.
//!
//!     cargo run --release -p worker-orcd-grammar --example schema_walks -- VOCABULARY.json [--tokens N] [--answers N] \
//!         [--length N] [--most-schemas N] FILE-OR-FOLDER…
//!
//! `tests/oracle/tokenizer_facts.py` writes the vocabulary of a model's file. `--tokens` enlarges it to this number,
//! each further token made of two of its own. Each schema is compiled as in a request, with the first mask. Then
//! answers are sampled: every fourth uniformly from each mask, the others by a model that prefers closing tokens, so
//! that more of them are complete. `xtask/src/bench/schemas.rs` runs this, `tests/oracle/schema_answers.py` judges.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;
use worker_orcd_grammar::limits::STACK_BYTES;
use worker_orcd_grammar::{Compiler, GrammarError, Mask};
use worker_orcd_ipc::{Grammar, TokenId, TokenKind, TokenizerFacts, Vocabulary};

/// Number of sampled candidates, of which the one that closes most is taken.
const CANDIDATES: usize = 12;

#[path = "../tests/vocabulary/mod.rs"]
mod vocabulary;

use vocabulary::Random;

struct Options {
    vocabulary: PathBuf,
    tokens: usize,
    answers: u64,
    length: usize,
    most_schemas: usize,
    files: Vec<PathBuf>,
}

fn main() {
    let options = options();
    let facts = std::fs::read_to_string(&options.vocabulary).expect("a file");
    let facts: TokenizerFacts = serde_json::from_str(&facts).expect("facts of a tokenizer");
    let facts = larger(facts, options.tokens);
    let compiler = Compiler::new(&facts).expect("a vocabulary");
    let vocabulary = Vocabulary::from_facts(&facts).expect("a vocabulary");
    let (next, out) = (AtomicUsize::new(0), Mutex::new(()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let work = || {
                while let Some(path) = options.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let line = walked(&compiler, &vocabulary, &facts, &options, path);
                    let _one_at_a_time = out.lock().expect("no panic");
                    println!("{line}");
                }
            };
            builder.spawn_scoped(scope, work).expect("a thread");
        }
    });
}

fn options() -> Options {
    let mut options = Options {
        vocabulary: PathBuf::new(),
        tokens: 0,
        answers: 4,
        length: 400,
        most_schemas: usize::MAX,
        files: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    options.vocabulary = words.next().expect("a vocabulary").into();
    let mut folders = Vec::new();
    while let Some(word) = words.next() {
        let mut number = || {
            let number = words.next().and_then(|it| it.parse().ok());
            number.expect("a number")
        };
        match word.as_str() {
            "--tokens" => options.tokens = number(),
            "--answers" => options.answers = number() as u64,
            "--length" => options.length = number(),
            "--most-schemas" => options.most_schemas = number(),
            _ => folders.push(PathBuf::from(word)),
        }
    }
    for folder in &folders {
        find(folder, &mut options.files);
    }
    options.files.sort_unstable();
    let step = options.files.len().div_ceil(options.most_schemas).max(1);
    options.files = options.files.into_iter().step_by(step).collect();
    options
}

fn find(path: &Path, files: &mut Vec<PathBuf>) {
    if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries.flatten() {
            find(&entry.path(), files);
        }
    } else if path.extension().is_some_and(|it| it == "json") {
        files.push(path.to_owned());
    }
}

/// Enlarges the vocabulary: each further token is the concatenation of two of the first.
fn larger(mut facts: TokenizerFacts, tokens: usize) -> TokenizerFacts {
    let own = facts.tokens.len();
    let mut random = Random(7);
    let mut one = || random.below(own);
    while facts.tokens.len() < tokens {
        let parts = [one(), one()];
        if parts.iter().all(|it| facts.kinds[*it] == TokenKind::Normal) {
            let pair = parts.map(|it| facts.tokens[it].clone()).concat();
            facts.tokens.push(pair);
            facts.kinds.push(TokenKind::Normal);
            if !facts.scores.is_empty() {
                facts.scores.push(0.0);
            }
        }
    }
    facts
}

fn walked(
    compiler: &Compiler,
    vocabulary: &Vocabulary,
    facts: &TokenizerFacts,
    options: &Options,
    path: &Path,
) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let grammar = Grammar::JsonSchema(text);
    let mut line = json!({"file": path});
    let began = Instant::now();
    let first = compiler
        .compile(&grammar)
        .and_then(|mut matcher| matcher.mask());
    line["compile_us"] = micros(began);
    if let Err(error) = first {
        line["refused"] = json!(error.to_string());
        return line;
    }
    let (mut answers, mut masks, mut cut, mut failed) = (vec![], vec![], 0, vec![]);
    for seed in 0..options.answers {
        let walk = Walk {
            vocabulary,
            facts,
            closes: seed % 4 > 0,
            length: options.length,
        };
        match walk.run(compiler, &grammar, seed, &mut masks) {
            Ok(Some(answer)) => answers.push(String::from_utf8_lossy(&answer).into_owned()),
            Ok(None) => cut += 1,
            Err(error) => failed.push(error.to_string()),
        }
    }
    line["answers"] = json!(answers);
    line["cut"] = json!(cut);
    line["failed"] = json!(failed);
    line["mask_us"] = json!(masks);
    line
}

fn micros(began: Instant) -> Value {
    json!(began.elapsed().as_nanos() as f64 / 1000.0)
}

struct Walk<'a> {
    vocabulary: &'a Vocabulary,
    facts: &'a TokenizerFacts,
    closes: bool,
    length: usize,
}

impl Walk<'_> {
    /// The bytes of an answer; `None`: cut by its length.
    fn run(
        &self,
        compiler: &Compiler,
        grammar: &Grammar,
        seed: u64,
        masks: &mut Vec<Value>,
    ) -> Result<Option<Vec<u8>>, GrammarError> {
        let mut matcher = compiler.compile(grammar)?;
        let mut answer = Vec::new();
        let mut mask = matcher.mask()?;
        let mut random = Random(seed);
        for _ in 0..self.length {
            let token = self.drawn(&mask, &mut random);
            if self.facts.end_of_generation.contains(&token) {
                return Ok(Some(answer));
            }
            answer.extend_from_slice(self.vocabulary.bytes(token));
            let began = Instant::now();
            matcher.accept(token)?;
            mask = matcher.mask()?;
            masks.push(micros(began));
        }
        Ok(None)
    }

    fn drawn(&self, mask: &Mask, random: &mut Random) -> TokenId {
        let count: u32 = mask.words().iter().map(|word| word.count_ones()).sum();
        let ends = &self.facts.end_of_generation;
        if self.closes
            && let Some(end) = ends.iter().find(|end| mask.allows(**end))
        {
            return *end;
        }
        let mut one = || nth(mask, random.below(count as usize));
        let first = one();
        if !self.closes {
            return first;
        }
        let others = (1..CANDIDATES).map(|_| one());
        others.fold(first, |best, it| {
            if self.worth(it) > self.worth(best) {
                it
            } else {
                best
            }
        })
    }

    /// Number of open brackets that a token closes.
    fn worth(&self, token: TokenId) -> i32 {
        let bytes = self.vocabulary.bytes(token).iter();
        bytes
            .map(|byte| match byte {
                b'"' | b'}' | b']' => 2,
                b'{' | b'[' => -2,
                b',' => -1,
                _ => 0,
            })
            .sum()
    }
}

/// The token with this index in the mask.
fn nth(mask: &Mask, mut index: usize) -> TokenId {
    for (place, word) in mask.words().iter().enumerate() {
        let ones = word.count_ones() as usize;
        if index < ones {
            let mut bits = (0..32).filter(|bit| word & 1 << bit != 0);
            return TokenId((place * 32) as u32 + bits.nth(index).unwrap_or_default());
        }
        index -= ones;
    }
    TokenId(0)
}
