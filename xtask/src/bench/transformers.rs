//! Logits of tiny random models against Hugging Face's `transformers`: `tests/oracle/transformers_logits.py`.

use super::report;
use crate::{paths, process, python};
use anyhow::{Context as _, Result};
use std::process::Command;

pub fn run() -> Result<()> {
    let python = python::transformers()?;
    process::run(
        process::cargo()
            .args(["build", "--quiet", "-p", "worker-orcd-tests"])
            .args(["--bin", "orcd-logits"]),
    )?;
    let mut compare = Command::new(python);
    compare
        .arg(paths::oracle_script("transformers_logits.py"))
        .arg(paths::built("debug", "orcd-logits"));
    println!("$ {}", process::shown(&compare));
    let tables = process::output(&mut compare).context("not all logits agree")?;
    report::write("transformers", &report::typed_command(), &(tables + "\n"))
}
