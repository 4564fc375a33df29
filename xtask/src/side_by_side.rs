//! The test programs of a package, two at a time: most of them wait for other processes more than they compute.
//!
//! What a program says is shown when it has ended, whole. One that holds streams to a pace has the machine to itself, and so has
//! one that computes on all cores.

use crate::paths;
use crate::process::{self, Running};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fs;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

const AT_ONCE: usize = 2;

/// The call by which a test measures (`tests/src/beside.rs`).
const MEASURES: &str = "keeps_pace";

/// The program that computes on all cores: it compares many models, some at a time.
const COMPUTES: &str = "oracle_logits.rs";

/// Variables of the environment, and what they name.
pub type Settings<'a> = [(&'a str, &'a Path)];

#[derive(Debug, PartialEq, Eq)]
struct Program {
    source: PathBuf,
    executable: PathBuf,
    package: PathBuf,
}

/// Builds all tests of a package, and runs them.
///
/// # Errors
/// When they cannot be built; at the end, with their names, when some of them fail.
pub fn test(package: &str, settings: &Settings) -> Result<()> {
    let programs = build(package)?;
    let (alone, others): (Vec<_>, Vec<_>) = programs.iter().partition(|it| it.runs_alone());
    let mut failed = run_all(&others, AT_ONCE, settings)?;
    failed.extend(run_all(&alone, 1, settings)?);
    let mut documentation = process::cargo();
    documentation.args(["test", "--doc", "--package", package]);
    process::run(&mut documentation)?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn build(package: &str) -> Result<Vec<Program>> {
    let mut command = process::cargo();
    command
        .args(["test", "--no-run", "--package", package])
        .args(["--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped());
    println!("$ {}", process::shown(&command));
    let mut cargo = Running::start(&mut command)?;
    let output = cargo.child().stdout.take().context("cargo's output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program(&serde_json::from_str(&line?)?));
    }
    let status = cargo.wait()?;
    if !status.success() {
        bail!("cargo ended with {status}");
    }
    if programs.is_empty() {
        bail!("{package} has no tests");
    }
    Ok(programs)
}

/// The test program of a message of cargo's: <https://doc.rust-lang.org/cargo/reference/external-tools.html>.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    Some(Program {
        source: path(&message["target"]["src_path"])?,
        executable: path(&message["executable"])?,
        package: path(&message["manifest_path"])?.parent()?.to_owned(),
    })
}

/// The names of those that failed.
fn run_all(programs: &[&Program], at_once: usize, settings: &Settings) -> Result<Vec<String>> {
    let left = Mutex::new(programs.iter());
    let failed = Mutex::new(Vec::new());
    let lane = || -> Result<()> {
        loop {
            let next = left.lock().expect("no holder panics").next();
            let Some(program) = next else {
                return Ok(());
            };
            if !program.run(settings)? {
                failed
                    .lock()
                    .expect("no holder panics")
                    .push(program.name());
            }
        }
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..at_once).map(|_| scope.spawn(lane)).collect();
        let mut lanes = lanes.into_iter();
        lanes.try_for_each(|it| it.join().expect("a lane does not panic"))
    })?;
    Ok(failed.into_inner().expect("no holder panics"))
}

impl Program {
    fn name(&self) -> String {
        let name = self.source.strip_prefix(paths::root());
        name.unwrap_or(&self.source).display().to_string()
    }

    fn runs_alone(&self) -> bool {
        let measures = |text: String| text.contains(MEASURES);
        self.source.ends_with(COMPUTES) || fs::read_to_string(&self.source).is_ok_and(measures)
    }

    /// Whether all its tests passed. In the package's folder, as cargo would.
    fn run(&self, settings: &Settings) -> Result<bool> {
        let mut said = tempfile::tempfile()?;
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.package)
            .envs(settings.iter().copied())
            .env("CARGO_MANIFEST_DIR", &self.package)
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?);
        // Now too: of one that hangs nothing else is seen.
        println!("     Running {}", self.name());
        let start = Instant::now();
        let status = Running::start(&mut command)?.wait()?;
        let seconds = start.elapsed().as_secs();
        said.rewind()?;
        let mut shown = io::stdout().lock();
        writeln!(shown, "       Ended {} in {seconds} s", self.name())?;
        io::copy(&mut said, &mut shown)?;
        Ok(status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(test: bool, source: &str) -> Value {
        json!({
            "reason": "compiler-artifact", "manifest_path": "/work/tests/Cargo.toml",
            "target": { "kind": ["test"], "src_path": source }, "profile": { "test": test },
            "executable": "/work/target/debug/deps/pace-1",
        })
    }

    #[test]
    fn programs_of_tests_are_told_from_what_else_is_built() {
        let found = program(&message(true, "/work/tests/tests/pace.rs"));
        let expected = Program {
            source: "/work/tests/tests/pace.rs".into(),
            executable: "/work/target/debug/deps/pace-1".into(),
            package: "/work/tests".into(),
        };
        assert_eq!(found, Some(expected));
        assert_eq!(
            program(&message(false, "/work/tests/src/bin/chaos.rs")),
            None
        );
        assert_eq!(
            program(&json!({ "reason": "build-finished", "success": true })),
            None
        );
    }

    #[test]
    fn what_holds_streams_to_a_pace_or_computes_runs_alone() {
        let runs_alone = |name: &str| {
            let source = paths::root().join("tests/tests").join(name);
            assert!(source.exists(), "{name}");
            let message = message(true, &source.display().to_string());
            program(&message).expect("a program").runs_alone()
        };
        assert!(runs_alone("pace.rs") && runs_alone(COMPUTES));
        assert!(!runs_alone("cancel.rs"));
    }

    #[test]
    fn all_of_them_run_and_those_that_fail_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let like = |(name, executable): (&str, &str)| Program {
            source: name.into(),
            executable: executable.into(),
            package: folder.path().to_owned(),
        };
        let programs = [
            ("first", "false"),
            ("second", "true"),
            ("third", "true"),
            ("last", "false"),
        ];
        let programs = programs.map(like);
        for at_once in [1, AT_ONCE] {
            let mut failed = run_all(&programs.each_ref(), at_once, &[]).expect("all start");
            failed.sort();
            assert_eq!(failed, ["first", "last"]);
        }
    }
}
