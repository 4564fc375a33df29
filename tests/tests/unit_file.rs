//! Agreement of the unit, its page and the worker's constants.
//!
//! Each line of the unit is in a table of `systemd/README.md`, and the tables have no other entries. Values that depend
//! on the worker are compared with its own. `systemd-analyze`, where installed, rates the exposure.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;
use worker_orcd::commands::command_line;
use worker_orcd::commands::serve::LONGEST_END;
use worker_orcd::config::options;
use worker_orcd::descriptors;
use worker_orcd::exit::WorkerExit;
use worker_orcd_lifecycle::{Deadlines, RestartPolicy, SupervisorExit};
use worker_orcd_tests::model::repository_root;

const UNIT: &str = "systemd/worker-orcd@.service";
const PAGE: &str = "systemd/README.md";

/// Limit of the exposure by `systemd-analyze security`.
const EXPOSURE: f64 = 3.0;

fn read(path: &str) -> String {
    let text = fs::read_to_string(repository_root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `Key=value` of each effective line, in order.
fn settings() -> Vec<String> {
    let unit = read(UNIT);
    let lines = unit.lines().filter(|line| {
        let is_for_people = ["Description=", "Documentation=", "WantedBy="];
        line.contains('=')
            && !line.starts_with('#')
            && !is_for_people.iter().any(|it| line.starts_with(it))
    });
    lines.map(str::to_owned).collect()
}

/// Value of a setting that occurs once.
fn value(key: &str) -> String {
    let settings = settings();
    let values = settings
        .iter()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let values: Vec<_> = values.collect();
    assert_eq!(values.len(), 1, "{key}: {values:?}");
    values[0].to_owned()
}

fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').unwrap_or(text);
    Duration::from_secs(number.parse().unwrap_or_else(|_| panic!("{text}")))
}

/// Default in `--help`.
fn default_of(option: &str) -> &'static str {
    let spec = options::spec(option).unwrap_or_else(|| panic!("--{option}"));
    spec.default
        .unwrap_or_else(|| panic!("--{option} has no default"))
}

/// Words between backticks in the first cells of the rows under a heading.
fn first_cells(heading: &str) -> Vec<String> {
    let page = read(PAGE);
    let (_, section) = page
        .split_once(heading)
        .unwrap_or_else(|| panic!("{heading}"));
    let rows = section
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.replace("\\|", "\u{0}"));
    let words = cells.flat_map(|row| {
        let cell = row
            .split('|')
            .nth(1)
            .unwrap_or_default()
            .replace('\u{0}', "|");
        let words = cell.split('`').skip(1).step_by(2).map(str::to_owned);
        words.collect::<Vec<_>>()
    });
    words.collect()
}

#[test]
fn every_line_of_the_unit_is_on_the_page_and_no_other() {
    let mut told = first_cells("\n## What agrees with what\n");
    told.extend(first_cells("\n## Confinement\n"));
    let told: BTreeSet<_> = told.into_iter().collect();
    let set: BTreeSet<_> = settings().into_iter().collect();
    assert!(set.len() > 40, "{set:?}");
    assert_eq!(
        told.difference(&set).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "only on the page"
    );
    assert_eq!(
        set.difference(&told).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "only in the unit"
    );
}

#[test]
fn every_file_and_word_of_code_that_the_page_names_is_there() {
    let page = read(PAGE);
    let words: Vec<_> = page.split('`').skip(1).step_by(2).collect();
    let files = words.iter().filter(|word| word.ends_with(".rs"));
    assert!(files.clone().count() > 8, "{words:?}");
    for file in files {
        assert!(repository_root().join(file).is_file(), "{file}");
    }
    for flag in words.iter().filter_map(|word| word.strip_prefix("--")) {
        let name = flag.split(' ').next().unwrap_or_default();
        assert!(options::spec(name).is_some(), "--{name}");
    }
    for (file, word) in [
        (
            "supervisor/engine/src/driver/service_manager.rs",
            "const EXTENSION: Duration = Duration::from_secs(10)",
        ),
        (
            "supervisor/engine/src/driver/service_manager.rs",
            "within / 2",
        ),
        (
            "supervisor/engine/src/crash/store.rs",
            "\"STATE_DIRECTORY\"",
        ),
        ("supervisor/engine/src/child/socket.rs", "\"TMPDIR\""),
        ("supervisor/cli/src/model_name.rs", "\"XDG_CACHE_HOME\""),
        ("supervisor/src/commands/doctor/gpu.rs", "/dev/nvidiactl"),
        (
            "supervisor/src/http/blocking_pool.rs",
            "setpriority_process",
        ),
    ] {
        assert!(read(file).contains(word), "{file}: {word}");
    }
}

/// Whether a restart of the same unit would end in the same way.
fn would_end_again(exit: WorkerExit) -> bool {
    match exit {
        WorkerExit::Usage => true,
        // Memory, an address, a callback's receiver, a hub: they may recover.
        WorkerExit::Startup | WorkerExit::Listen | WorkerExit::Callback | WorkerExit::Fetch => {
            false
        }
        WorkerExit::Engine(exit) => match exit {
            SupervisorExit::ModelLoad
            | SupervisorExit::InsufficientMemory
            | SupervisorExit::DeviceUnavailable
            | SupervisorExit::ChildIncompatible
            | SupervisorExit::SpawnImpossible
            | SupervisorExit::GpuNeedsReset
            | SupervisorExit::NodeNeedsReboot => true,
            // The stuck process may end after all; the start limit stops the restarts otherwise.
            SupervisorExit::CrashLoop | SupervisorExit::Unreapable => false,
            SupervisorExit::ModelChanged => false,
            // No restart is requested.
            SupervisorExit::Clean
            | SupervisorExit::DrainIncomplete
            | SupervisorExit::StoppedAtOnce => false,
        },
    }
}

#[test]
fn the_unit_restarts_only_what_another_start_may_mend() {
    let prevented = value("RestartPreventExitStatus");
    let hopeless = WorkerExit::all()
        .into_iter()
        .filter(|exit| would_end_again(*exit));
    let hopeless: Vec<_> = hopeless.map(|exit| exit.code().to_string()).collect();
    assert_eq!(prevented, hopeless.join(" "));
    assert_eq!(value("Restart"), "on-failure");
}

#[test]
fn the_times_of_the_unit_leave_room_for_those_of_the_worker() {
    let deadlines = Deadlines::default();
    let load = seconds(default_of("load-timeout"));
    let first_child = deadlines.spawn + deadlines.handshake + load;
    assert!(
        seconds(&value("TimeoutStartSec")) > first_child,
        "{first_child:?}"
    );

    let child = deadlines.dismiss + deadlines.terminate + deadlines.kill;
    let stop = seconds(default_of("drain-timeout")) + child + LONGEST_END;
    assert!(seconds(&value("TimeoutStopSec")) > stop, "{stop:?}");

    let silence = seconds(&value("WatchdogSec")) / 2;
    assert!(silence > LONGEST_END, "{silence:?}");
    // A driver that is delayed under load is no reason: its child would be killed first.
    assert!(silence > deadlines.heartbeat);
}

#[test]
fn the_limit_of_starts_can_be_reached_by_a_worker_that_always_gives_up() {
    let policy = RestartPolicy::default();
    assert_eq!(default_of("max-restarts"), policy.max_deaths.to_string());
    let burst: u32 = value("StartLimitBurst").parse().expect("a number");
    let one_start = policy.window + seconds(&value("RestartSec"));
    assert!(seconds(&value("StartLimitIntervalSec")) > burst * one_start);
}

#[test]
fn the_unit_has_descriptors_for_all_connections_and_children() {
    let limit: u64 = value("LimitNOFILE").parse().expect("a number");
    let connections: u64 = default_of("max-connections").parse().expect("a number");
    // A unit has a few sockets at most.
    assert!(limit >= connections + descriptors::kept_back(8));
}

#[test]
fn the_command_line_of_the_unit_is_one_that_the_worker_takes() {
    let line = value("ExecStart");
    let taken = command_line().try_get_matches_from(line.split(' '));
    let taken = taken.expect("every flag is known");
    let config = taken.get_one::<String>(options::CONFIG_FILE);
    assert_eq!(config.map(String::as_str), Some("/etc/worker-orcd/%i.toml"));
    for line in settings()
        .iter()
        .filter_map(|it| it.strip_prefix("Environment="))
    {
        let (name, _) = line.split_once('=').expect("a value");
        let is_option = |spec: &options::Spec| options::variable(spec.name) == name;
        let is_ours = name.starts_with(options::PREFIX);
        assert!(!is_ours || options::all().any(is_option), "{name}");
    }
}

/// Result of `systemd-analyze security`: the counted points, the others, and the sum.
fn exposure() -> Result<([Vec<String>; 2], f64), String> {
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let unit = directory.path().join("worker-orcd@0.service");
    fs::copy(repository_root().join(UNIT), &unit).expect("the directory is ours");
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(&unit)
        .output()
        .map_err(|error| format!("systemd-analyze: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let sum = said.lines().find_map(|line| {
        let (_, behind) = line.split_once("exposure level for ")?;
        behind.split_whitespace().nth(1)?.parse().ok()
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    let sum = sum.ok_or_else(|| format!("systemd-analyze says no level: {errors}"))?;
    let marked = |mark| {
        let lines = said.lines().filter_map(|line| line.strip_prefix(mark));
        let names = lines.filter_map(|line| line.split_whitespace().next());
        names.map(str::to_owned).collect()
    };
    Ok((['✗', '✓'].map(marked), sum))
}

#[test]
fn what_the_unit_leaves_open_is_little_and_explained() {
    let ([open, closed], sum) = match exposure() {
        Ok(told) => told,
        Err(lack) => return println!("SKIPPED: {lack}"),
    };
    assert!(sum <= EXPOSURE, "{sum}: {open:?}");
    let explained = first_cells("\nEach point that ");
    let unexplained: Vec<_> = open.iter().filter(|it| !explained.contains(it)).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    let mended: Vec<_> = explained.iter().filter(|it| closed.contains(it)).collect();
    assert!(mended.is_empty(), "explained, and not open: {mended:?}");
}
