//! Benchmarks of everything but the model: the `bench-*` programs of the tests crate, which has the harness and the
//! null child. Each prints one JSON object.

use super::report;
use crate::{fetch_model, paths, process, python};
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::thread::available_parallelism;

#[derive(clap::Args)]
pub struct Arguments {
    /// Flags for the benchmark program, after `--`; `-- --help` lists them.
    #[arg(last = true)]
    flags: Vec<String>,
}

pub fn run(name: &str, arguments: &Arguments) -> Result<()> {
    let table = measured(name, arguments, &fetch_model::run()?, &[])?;
    write(name, &table)
}

/// Runs the benchmark, with the times of masks for a synthetic vocabulary.
pub fn run_grammar(arguments: &Arguments) -> Result<()> {
    let mut masks = process::cargo();
    masks.args(["run", "--quiet", "--release", "-p", "worker-orcd-grammar"]);
    masks.args(["--example", "mask_speed"]);
    println!("$ {}", process::shown(&masks));
    let masks = process::output(&mut masks)?;
    let table = measured("grammar", arguments, &fetch_model::run()?, &[])?;
    write("grammar", &format!("{masks}\n\n{table}"))
}

/// Runs the benchmark, with llama.cpp's server in a shell loop for comparison.
pub fn run_recovery(arguments: &Arguments) -> Result<()> {
    let model = fetch_model::run()?;
    let (python, script) = (
        python::interpreter()?,
        paths::oracle_script("llama_server.py"),
    );
    let threads = available_parallelism()?;
    let (python, script, file) = (python.display(), script.display(), model.display());
    let server = format!("{python} {script} {file} --threads {threads}");
    let table = measured("recovery", arguments, &model, &["--llama-server", &server])?;
    write("recovery", &table)
}

fn write(name: &str, table: &str) -> Result<()> {
    report::write(name, &report::typed_command(), table)
}

fn measured(name: &str, arguments: &Arguments, model: &Path, more: &[&str]) -> Result<String> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "-p",
        "worker-orcd-tests",
        "--bins",
    ]))?;
    let mut command = process::cargo();
    command
        .args(["run", "--quiet", "--release", "-p", "worker-orcd-tests"])
        .args(["--bin", &format!("bench-{name}"), "--"])
        .args(more)
        .args(&arguments.flags)
        .env("WORKER_ORCD_MODEL", model);
    println!("$ {}", process::shown(&command));
    let printed = process::output(&mut command)?;
    let last = printed
        .lines()
        .last()
        .context("the benchmark printed nothing")?;
    let result: Value = serde_json::from_str(last).context("the benchmark printed no JSON")?;
    Ok(table(&result))
}

/// Scalars as rows; a list of objects as a table of its own; an object as rows under its name.
pub(super) fn table(result: &Value) -> String {
    let mut rows = String::from("| figure | value |\n|---|---|\n");
    let mut lists = String::new();
    for (key, value) in result.as_object().into_iter().flatten() {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    let _ = writeln!(rows, "| {key}: {field} | {value} |");
                }
            }
            Value::Array(items) => lists.push_str(&list(key, items)),
            scalar => {
                let _ = writeln!(rows, "| {key} | {scalar} |");
            }
        }
    }
    rows + &lists
}

fn list(name: &str, items: &[Value]) -> String {
    let Some(first) = items.first().and_then(Value::as_object) else {
        return String::new();
    };
    let keys: Vec<_> = first.keys().cloned().collect();
    let mut text = format!(
        "\n{name}\n\n| {} |\n|{}\n",
        keys.join(" | "),
        "---|".repeat(keys.len())
    );
    for item in items {
        let cells: Vec<_> = keys.iter().map(|key| item[key].to_string()).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}
