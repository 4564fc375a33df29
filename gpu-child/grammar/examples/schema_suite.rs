//! Runs JSON Schema's own test suite, and reports the texts that a grammar accepts:
//!
//! ```text
//! schema_suite FOLDER…      a folder of https://github.com/json-schema-org/JSON-Schema-Test-Suite, as tests/draft7
//! ```
//!
//! Prints each invalid text that is accepted and each valid one that is not, and exits with 1 if there is one of the
//! first. An object is tried in each order of its members, up to [`MAX_ORDERED`] of them: the order of a grammar is its
//! schema's.

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use worker_orcd_grammar::Compiler;
use worker_orcd_grammar::limits::STACK_BYTES;
use worker_orcd_ipc::Grammar;

#[path = "../tests/vocabulary/mod.rs"]
mod vocabulary;

use vocabulary::{facts, ids};

const MAX_ORDERED: usize = 4;

/// Dialect of each folder, which the suite's files do not name.
const DIALECTS: [(&str, &str); 3] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
];

#[derive(Default)]
struct Counts {
    schemas: usize,
    refused: usize,
    valid: usize,
    valid_refused: usize,
    invalid: usize,
    invalid_let_through: usize,
}

fn main() -> ExitCode {
    let work = || {
        let compiler = Compiler::new(&facts()).expect("a vocabulary");
        let mut counts = Counts::default();
        for folder in std::env::args().skip(1) {
            let mut files = Vec::new();
            find(Path::new(&folder), &mut files);
            files.sort_unstable();
            for file in files {
                judge(&compiler, &file, &mut counts);
            }
        }
        println!(
            "{} schemas, {} refused; {} valid texts, {} not let through; {} invalid texts, {} let through",
            counts.schemas,
            counts.refused,
            counts.valid,
            counts.valid_refused,
            counts.invalid,
            counts.invalid_let_through
        );
        ExitCode::from(u8::from(counts.invalid_let_through > 0))
    };
    let builder = thread::Builder::new().stack_size(STACK_BYTES);
    builder
        .spawn(work)
        .expect("a thread")
        .join()
        .expect("no panic")
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

fn judge(compiler: &Compiler, file: &Path, counts: &mut Counts) {
    let text = std::fs::read_to_string(file).expect("a file");
    let groups: Vec<Value> = serde_json::from_str(&text).expect("groups of tests");
    let name = file.display().to_string();
    for group in groups {
        let mut schema = group["schema"].clone();
        let dialect = DIALECTS.iter().find(|(draft, _)| name.contains(draft));
        if let (Some(keywords), Some((_, dialect))) = (schema.as_object_mut(), dialect) {
            keywords.entry("$schema").or_insert(json!(dialect));
        }
        let at = format!("{name}: {}", group["description"]);
        counts.schemas += 1;
        let grammar = Grammar::JsonSchema(schema.to_string());
        if let Err(error) = compiler.compile(&grammar) {
            counts.refused += 1;
            println!("refused: {at}: {error}");
            continue;
        }
        for test in group["tests"].as_array().expect("tests") {
            let orders = orders(&test["data"]);
            let is_allowed = orders.iter().any(|text| allows(compiler, &grammar, text));
            let shown = format!("{at}: {}: {}", test["description"], test["data"]);
            if test["valid"] == json!(true) {
                counts.valid += 1;
                if !is_allowed {
                    counts.valid_refused += 1;
                    println!("not let through: {shown}");
                }
            } else {
                counts.invalid += 1;
                if is_allowed {
                    counts.invalid_let_through += 1;
                    println!("INVALID: {shown}");
                }
            }
        }
    }
}

fn orders(value: &Value) -> Vec<String> {
    let Some(members) = value
        .as_object()
        .filter(|it| (2..=MAX_ORDERED).contains(&it.len()))
    else {
        return vec![value.to_string()];
    };
    let mut out = Vec::new();
    for (name, member) in members {
        let rest: Map<String, Value> = members
            .clone()
            .into_iter()
            .filter(|it| it.0 != *name)
            .collect();
        for rest in orders(&Value::Object(rest)) {
            let first = format!("{}:{member}", json!(name));
            out.push(format!("{{{first},{}", &rest[1..]));
        }
    }
    out
}

fn allows(compiler: &Compiler, grammar: &Grammar, text: &str) -> bool {
    let mut matcher = compiler.compile(grammar).expect("it was compiled before");
    let taken = ids(text)
        .into_iter()
        .try_for_each(|token| matcher.accept(token));
    taken.is_ok() && matcher.is_complete().unwrap_or(false)
}
