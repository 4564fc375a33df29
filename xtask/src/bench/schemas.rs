//! Many schemas, each compiled like a request's, and answers of a random model checked by two validators:
//! `gpu-child/grammar/examples/schema_walks.rs` draws, `tests/oracle/schema_answers.py` validates.

use super::{report, service};
use crate::{fetch_model, paths, process, python};
use anyhow::{Context as _, Result};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Schemas, or folders of them.
    #[arg(required = true)]
    schemas: Vec<PathBuf>,
    /// What they are, with a version.
    #[arg(long)]
    named: String,
    /// Answers for each schema.
    #[arg(long, default_value_t = 4)]
    answers: u32,
    /// Tokens of an answer, at most.
    #[arg(long, default_value_t = 400)]
    length: u32,
    /// Schemas of all, evenly chosen.
    #[arg(long)]
    most_schemas: Option<u32>,
    /// Tokens of the vocabulary; more than the model's own are made of those.
    #[arg(long, default_value_t = 0)]
    tokens: u32,
    /// Without optimisation of what is built here.
    #[arg(long)]
    debug: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let python = python::interpreter()?;
    let mut facts = Command::new(&python);
    facts
        .arg(paths::oracle_script("tokenizer_facts.py"))
        .arg(fetch_model::run()?);
    let vocabulary = paths::target().join("vocabulary.json");
    fs::write(&vocabulary, process::output(&mut facts)?)?;
    let mut command = process::cargo();
    command.args([
        "run",
        "--quiet",
        "-p",
        "worker-orcd-grammar",
        "--example",
        "schema_walks",
    ]);
    if !arguments.debug {
        command.arg("--release");
    }
    command.arg("--").arg(&vocabulary);
    let numbers = [
        ("--answers", Some(arguments.answers)),
        ("--length", Some(arguments.length)),
        ("--tokens", Some(arguments.tokens)),
        ("--most-schemas", arguments.most_schemas),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            command.arg(name).arg(number.to_string());
        }
    }
    command.args(&arguments.schemas);
    println!("$ {}", process::shown(&command));
    let walks = process::output(&mut command)?;
    let path = paths::target().join("schema-walks.jsonl");
    fs::write(&path, walks)?;
    let mut judge = Command::new(&python);
    judge
        .arg(paths::oracle_script("schema_answers.py"))
        .arg(&path);
    let judged = process::output(&mut judge).context("an answer was invalid")?;
    let figures: Value =
        serde_json::from_str(judged.trim()).context("the judge printed no JSON")?;
    let table = format!(
        "Schemas: {}.\n\n{}",
        arguments.named,
        service::table(&figures)
    );
    report::write("schemas", &report::typed_command(), &table)
}
