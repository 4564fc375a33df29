//! Head of every result file.

use crate::{paths, process};
use anyhow::Result;
use std::fs;
use std::process::Command;

/// Writes `bench/results/NAME.md` and prints the table.
pub fn write(name: &str, command: &str, table: &str) -> Result<()> {
    let text = format!("{}\n{table}", head(name, command)?);
    fs::create_dir_all(paths::bench_results())?;
    let path = paths::bench_results().join(format!("{name}.md"));
    fs::write(&path, &text)?;
    println!(
        "\n{table}\nwritten to {}",
        path.strip_prefix(paths::root())?.display()
    );
    Ok(())
}

/// Title and origin of a result.
pub fn head(name: &str, command: &str) -> Result<String> {
    Ok(format!(
        "# {name}\n\n\
         - command: `{command}`\n\
         - date: {}\n\
         - commit: {}\n\
         - machine: {}, {} threads\n",
        date()?,
        commit()?,
        cpu_model(),
        std::thread::available_parallelism()?,
    ))
}

/// Command as typed after `cargo`.
pub fn typed_command() -> String {
    let words: Vec<_> = std::env::args().skip(1).collect();
    format!("cargo xtask {}", words.join(" "))
}

/// Present time, in minutes of UTC.
pub fn date() -> Result<String> {
    process::output(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
}

/// Present commit, with `+` when the tree has uncommitted changes.
pub fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        process::output(
            Command::new("git")
                .args(arguments)
                .current_dir(paths::root()),
        )
    };
    let id = git(&["rev-parse", "--short=12", "HEAD"])?;
    // Results that other benchmarks have just written are not a change of the measured code.
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let measured = [".", ":(exclude)bench/results"];
    let changed = !git(&[&status[..], &measured[..]].concat())?.is_empty();
    Ok(if changed { format!("{id}+") } else { id })
}

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    line.and_then(|line| line.split_once(':')).map_or_else(
        || "unknown CPU".to_owned(),
        |(_, name)| name.trim().to_owned(),
    )
}
