//! Runner of the workspace's test programs, two at a time: most of them wait for other processes more than they
//! compute.
//!
//! One build gives all the same features, so each dependency is compiled once. Each module of the program `end_to_end`
//! runs as a program, in a process of its own. The output of a program is shown whole, after its end. Tests of a
//! stream's pace run alone on the machine, and so does a program with short deadlines of its children: beside them
//! there are only programs that give way.

use crate::lanes;
use crate::paths;
use crate::process::{self, Running};
use anyhow::{Context, Result, bail};
use rustix::process::setpriority_process;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

const AT_ONCE: usize = 2;

/// Module of the tests of a stream's pace (`tests/src/beside.rs`).
const MEASURES: &str = "pace";

/// Programs that run alone: they start children that are killed where a step takes two seconds.
const ALONE: [&str; 4] = ["chaos.rs", "endurance.rs", "escapes.rs", "faults.rs"];

/// Programs that compute, and have no deadlines. They run beside those that run alone, which leave most of a core idle, at
/// the lowest priority.
const GIVE_WAY: [&str; 2] = [
    "tests/tests/oracle_logits.rs",
    "gpu-child/tests/cuda/main.rs",
];

/// Lowest priority, as of attackers (`tests/src/beside.rs`).
const LOWEST: i32 = 19;

/// Programs that begin before others: one of them at the end would run with nothing beside it.
const LONG: [&str; 4] = [
    "gpu-child/grammar/tests/hostile.rs",
    "gpu-child/src/lib.rs",
    "gpu-child/tests/cpu/main.rs",
    "tests/tests/systemd.rs",
];

/// Program that runs module by module.
const OF_MODULES: &str = "tests/tests/main.rs";

/// Number of tests in the list of the slowest.
const SLOWEST: usize = 10;

/// Environment variables with paths.
pub type Settings<'a> = [(&'a str, &'a Path)];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    source: PathBuf,
    executable: PathBuf,
    package: PathBuf,
    /// Names of the selected tests; empty for all.
    tests: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, OsString)>,
}

/// Ended run of a program.
pub struct Ended {
    pub passed: bool,
    /// Output of the program.
    pub output: Vec<u8>,
    /// Duration in seconds.
    took: f64,
}

/// Lints of a build.
#[derive(Debug, Clone, Copy)]
pub enum Lints {
    Off,
    /// Every warning of the compiler and of clippy is an error.
    Denied,
}

impl Lints {
    /// Clippy's driver is a compiler with more lints. `cargo clippy` would analyse each crate, dependencies included, which
    /// the build then compiles.
    fn apply(self, cargo: &mut Command) {
        if let Self::Denied = self {
            cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
            // As `cargo clippy` passes flags to the driver.
            let separator = "__CLIPPY_HACKERY__";
            cargo.env(
                "CLIPPY_ARGS",
                format!("--deny{separator}warnings{separator}"),
            );
        }
    }
}

/// Builds test programs of the workspace: all, or those of `selection` (flags of `cargo test`).
///
/// # Errors
/// The build fails.
pub fn build(selection: &[String], lints: Lints) -> Result<Vec<Program>> {
    let all = ["--tests".to_owned()];
    let selection = if selection.is_empty() {
        &all
    } else {
        selection
    };
    let mut command = process::cargo();
    command
        .args(["test", "--no-run", "--workspace"])
        .args(selection)
        .args(["--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped());
    lints.apply(&mut command);
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
        bail!("there are no tests");
    }
    let by_module = programs.into_iter().map(Program::by_module);
    Ok(by_module.collect::<Result<Vec<_>>>()?.concat())
}

/// Runs programs, and prints the slowest of their tests.
///
/// # Errors
/// Names of the programs that failed, after all have run.
pub fn run(programs: &[Program], settings: &Settings) -> Result<()> {
    let (alone, others): (Vec<_>, Vec<_>) = programs.iter().partition(|it| it.runs_alone());
    let (beside, mut others): (Vec<_>, Vec<_>) = others.into_iter().partition(|it| it.gives_way());
    others.sort_by_key(|it| !LONG.contains(&it.name().as_str()));
    let mut ended = run_all(&others, AT_ONCE, settings)?;
    let (first, second) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            setpriority_process(None, LOWEST).context("the lowest priority")?;
            run_all(&beside, 1, settings)
        });
        let alone = run_all(&alone, 1, settings);
        (alone, beside.join().expect("it does not panic"))
    });
    ended.extend(first?);
    ended.extend(second?);
    let of_program = |(name, it): &(String, Ended)| {
        let text = String::from_utf8_lossy(&it.output).into_owned();
        let tests = text.lines().filter_map(time_of_test);
        let named = tests.map(|(seconds, test)| (seconds, format!("{name}: {test}")));
        named.collect::<Vec<_>>()
    };
    let mut tests: Vec<_> = ended.iter().flat_map(of_program).collect();
    tests.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    for (seconds, name) in tests.iter().take(SLOWEST) {
        println!("{seconds:8.1} s  {name}");
    }
    let failed = ended.iter().filter(|(_, it)| !it.passed);
    let failed: Vec<_> = failed.map(|(name, _)| name.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Test program in a message of cargo: <https://doc.rust-lang.org/cargo/reference/external-tools.html>.
fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    Some(Program {
        source: path(&message["target"]["src_path"])?,
        executable: path(&message["executable"])?,
        package: path(&message["manifest_path"])?.parent()?.to_owned(),
        tests: Vec::new(),
        arguments: Vec::new(),
        environment: Vec::new(),
    })
}

fn run_all(
    programs: &[&Program],
    at_once: usize,
    settings: &Settings,
) -> Result<Vec<(String, Ended)>> {
    let ended = Mutex::new(Vec::new());
    lanes::run(programs, at_once, |program| {
        // Before its end too: a hanging program shows nothing else.
        println!("     Running {}", program.name());
        let run = program.run(settings)?;
        program.show(&run)?;
        let mut ended = ended.lock().expect("no holder panics");
        ended.push((program.name(), run));
        Ok(())
    })?;
    Ok(ended.into_inner().expect("no holder panics"))
}

impl Program {
    /// Root source file, from the repository's root.
    pub fn name(&self) -> String {
        let name = self.source.strip_prefix(paths::root());
        let name = name.unwrap_or(&self.source).display().to_string();
        match self.measures() {
            true => format!("{name} ({MEASURES})"),
            false => name,
        }
    }

    /// Folder of the program and its libraries.
    pub fn folder(&self) -> &Path {
        self.executable.parent().unwrap_or(Path::new("."))
    }

    #[must_use]
    pub fn with_arguments<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        Self {
            arguments,
            ..self.clone()
        }
    }

    #[must_use]
    pub fn with_variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// The program itself, or one for each of its modules.
    fn by_module(self) -> Result<Vec<Self>> {
        if self.name() != OF_MODULES {
            return Ok(vec![self]);
        }
        let mut command = Command::new(&self.executable);
        let listed = process::output(command.args(["--list", "--format", "terse"]))?;
        let modules = modules(&listed).into_iter();
        let programs = modules.map(|((module, _), tests)| Self {
            source: self.source.with_file_name(format!("{module}.rs")),
            tests,
            ..self.clone()
        });
        Ok(programs.collect())
    }

    /// Whether no other program runs beside it.
    pub fn runs_alone(&self) -> bool {
        self.measures() || ALONE.iter().any(|name| self.source.ends_with(name))
    }

    /// Whether it runs beside programs that run alone.
    fn gives_way(&self) -> bool {
        GIVE_WAY.contains(&self.name().as_str())
    }

    fn measures(&self) -> bool {
        self.tests.first().is_some_and(|test| measures(test))
    }

    /// Runs the program in the package's folder, like cargo.
    ///
    /// # Errors
    /// It does not start.
    pub fn run(&self, settings: &Settings) -> Result<Ended> {
        let mut printed = tempfile::tempfile()?;
        let mut command = Command::new(&self.executable);
        if !self.tests.is_empty() {
            command.arg("--exact").args(&self.tests);
        }
        command
            .args(&self.arguments)
            // Durations of the tests; stable programs need the variable for it.
            .args(["-Z", "unstable-options", "--report-time"])
            .env("RUSTC_BOOTSTRAP", "1")
            .current_dir(&self.package)
            .envs(settings.iter().copied())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("CARGO_MANIFEST_DIR", &self.package)
            .stdout(printed.try_clone()?)
            .stderr(printed.try_clone()?);
        let start = Instant::now();
        let status = Running::start(&mut command)?.wait()?;
        let took = start.elapsed().as_secs_f64();
        printed.rewind()?;
        let mut output = Vec::new();
        printed.read_to_end(&mut output)?;
        Ok(Ended {
            passed: status.success(),
            output,
            took,
        })
    }

    fn show(&self, ended: &Ended) -> io::Result<()> {
        let mut shown = io::stdout().lock();
        writeln!(shown, "       Ended {} in {:.0} s", self.name(), ended.took)?;
        shown.write_all(&ended.output)
    }
}

/// Tests by module and by whether they measure a pace, from lines such as `module::name: test`.
fn modules(listed: &str) -> BTreeMap<(String, bool), Vec<String>> {
    let mut modules = BTreeMap::<_, Vec<_>>::new();
    for test in listed.lines().filter_map(|it| it.strip_suffix(": test")) {
        let (module, _) = test.split_once("::").unwrap_or((test, ""));
        let tests = modules.entry((module.to_owned(), measures(test)));
        tests.or_default().push(test.to_owned());
    }
    modules
}

fn measures(test: &str) -> bool {
    test.split("::").any(|part| part == MEASURES)
}

/// Seconds and name, from a line such as `test module::name ... ok <1.234s>`.
fn time_of_test(line: &str) -> Option<(f64, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, time) = outcome.split_once('<')?;
    Some((time.strip_suffix("s>")?.parse().ok()?, name))
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
            tests: vec![],
            arguments: vec![],
            environment: vec![],
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
    fn modules_are_those_of_the_names_that_a_program_lists() {
        let found = modules("chat::first: test\nchat::pace::second: test\npace::third: test\n");
        let expected = [
            (("chat", false), "chat::first"),
            (("chat", true), "chat::pace::second"),
            (("pace", true), "pace::third"),
        ];
        let expected =
            expected.map(|((name, alone), test)| ((name.to_owned(), alone), vec![test.to_owned()]));
        assert_eq!(found, expected.into());
    }

    #[test]
    fn tests_that_measure_and_programs_with_short_deadlines_run_alone() {
        let program = |name: &str, test: &str| {
            let source = paths::root().join("tests/tests").join(name);
            assert!(source.exists(), "{name}");
            let message = message(true, &source.display().to_string());
            let program = program(&message).expect("a program");
            Program {
                tests: vec![test.to_owned()],
                ..program
            }
        };
        assert!(program("logs.rs", "logs::pace::it_is_held").runs_alone());
        assert!(
            ALONE
                .iter()
                .all(|name| program(name, "a::test").runs_alone())
        );
        assert!(!program("logs.rs", "logs::it_is_long").runs_alone());
        let computes = program("oracle_logits.rs", "oracle_logits::a_test");
        assert!(computes.gives_way() && !computes.runs_alone());
    }

    #[test]
    fn all_programs_run_and_those_that_fail_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let like = |(name, executable): (&str, &str)| Program {
            source: name.into(),
            executable: executable.into(),
            package: folder.path().to_owned(),
            tests: vec![],
            arguments: vec![],
            environment: vec![],
        };
        let programs = [
            ("first", "false"),
            ("second", "true"),
            ("third", "true"),
            ("last", "false"),
        ];
        let error = run(&programs.map(like), &[]).expect_err("two fail");
        let mut failed: Vec<_> = error.to_string().split(", ").map(str::to_owned).collect();
        failed.sort();
        assert!(failed.concat().contains("first") && failed.concat().contains("last"));
        assert!(!failed.concat().contains("second"), "{failed:?}");
        assert!(
            run(
                &programs[1..3].iter().copied().map(like).collect::<Vec<_>>(),
                &[]
            )
            .is_ok()
        );
    }

    #[test]
    fn a_test_has_the_time_that_its_line_ends_with() {
        assert_eq!(
            time_of_test("test a::b ... ok <1.250s>"),
            Some((1.25, "a::b"))
        );
        assert_eq!(time_of_test("test c ... FAILED <0.1s>"), Some((0.1, "c")));
        assert_eq!(time_of_test("test d ... ignored, needs a card"), None);
        assert_eq!(time_of_test("running 3 tests"), None);
    }
}
