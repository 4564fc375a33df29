//! Worker under test: start, log, stop, and a check for leftovers.

use super::devices::Device;
use super::report::Adopted;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker_orcd_harness::launch::AT_A_FREE_PORT;
use worker_orcd_harness::log::event_name;
use worker_orcd_harness::{Client, Launched, Log};
use worker_orcd_tests::process;

/// 60 s for events that take a second or two, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// 10 min: an unstreamed answer has no bytes before its end, and several deaths may precede it. The deadline of the
/// whole run detects hangs.
const CLIENT_PATIENCE: Duration = Duration::from_secs(600);

const SETTINGS: [&str; 6] = [
    // One for each death; the verdict reads them all.
    "--max-crash-reports",
    "10000",
    // Faults strike at random: a convicted request is innocent, and repeats of it must go on.
    "--quarantine-for",
    "0s",
    // The model has no pooling type; with the mean every token counts.
    "--pooling",
    "mean",
];
/// Short, so that a run contains many faults; the run without faults has the worker's default.
pub const HEARTBEAT_SECONDS: u32 = 1;
pub const STEP_SECONDS: u32 = 2;

/// Cache for each running request. Its fixed size, independent of free memory, makes the usage of device memory the
/// same after every start.
const KV_CACHE_MIB: usize = 8;
/// Model, device and options.
#[derive(Debug, Clone)]
pub struct Setup {
    pub model: PathBuf,
    pub device: String,
    pub max_running: usize,
    pub max_context: u32,
    pub standby: bool,
    /// Factor of the deadlines of workers with faults.
    pub slowness: u32,
    /// Directory of crash reports and a logits trace: a disk that is soon full.
    pub small_disk: Option<PathBuf>,
    /// Program of the supervisor, if it is not the one beside this program.
    pub program: Option<PathBuf>,
    /// Socket on which the supervisor stores descriptors for the next one.
    pub notified: Option<PathBuf>,
}

/// Injected faults, by chance.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Kinds in the child's grammar.
    pub kinds: String,
    /// Probability at each step.
    pub chance: f64,
    pub seed: u64,
}

impl Faults {
    /// Faults of the `nth` worker of a run. A child's draws depend on its generation and step, so workers with one seed
    /// would lose their first children in the same ways.
    #[must_use]
    pub fn of_worker(&self, nth: u64) -> Self {
        Self {
            seed: self.seed.wrapping_add(nth),
            ..self.clone()
        }
    }

    fn rule(&self) -> String {
        let Self {
            kinds,
            chance,
            seed,
        } = self;
        format!("{kinds}@chance={chance},seed={seed}")
    }
}

#[derive(Debug)]
pub struct Worker {
    launched: Launched,
    pub pid: u32,
    pub client: Client,
    /// Time from the start of the process to readiness.
    pub cold_start: Duration,
    seen: Arc<Mutex<Seen>>,
    /// Crash reports of this run alone.
    _crashes: TempDir,
}

/// Fault that a child announced.
#[derive(Debug, Clone)]
pub struct Injection {
    pub kind: String,
    pub generation: u64,
    /// Time at which its log line was read.
    pub at: Instant,
}

impl Worker {
    /// Starts the worker with `faults` for its children, and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start(setup: &Setup, faults: Option<&Faults>) -> Result<Self> {
        let began = Instant::now();
        let crashes = tempfile::tempdir()?;
        let mut command = match &setup.program {
            Some(program) => Command::new(program),
            None => Command::new(beside_this("tested-worker-orcd")?),
        };
        if let Some(socket) = &setup.notified {
            command.env("NOTIFY_SOCKET", socket);
        }
        command
            .args(AT_A_FREE_PORT)
            .args(SETTINGS)
            .arg("--accept-fault-injection")
            .args(["--device", &setup.device])
            .args(["--max-running", &setup.max_running.to_string()])
            .args(["--max-context", &setup.max_context.to_string()])
            .args([
                "--kv-cache-size",
                &format!("{}MiB", KV_CACHE_MIB * setup.max_running),
            ])
            .arg("--model")
            .arg(&setup.model)
            .arg("--crash-dir")
            .arg(setup.small_disk.as_deref().unwrap_or(crashes.path()));
        if setup.standby {
            command.arg("--standby");
        }
        if let Some(disk) = &setup.small_disk {
            command.arg("--trace-logits").arg(disk.join("trace.jsonl"));
        }
        let child = match faults {
            Some(_) => "faulty-worker-orcd-gpu",
            None => "tested-worker-orcd-gpu",
        };
        command.arg("--child-binary").arg(beside_this(child)?);
        if let Some(faults) = faults {
            // The answers of a worker without drafts are the reference. A trace excludes drafts.
            if setup.small_disk.is_none() {
                command.args(["--speculation", "text"]);
            }
            for (name, seconds) in [("heartbeat", HEARTBEAT_SECONDS), ("step", STEP_SECONDS)] {
                command.arg(format!("--{name}-timeout"));
                command.arg(format!("{}s", seconds * setup.slowness));
            }
            command.env(worker_orcd_gpu::fault_injection::VARIABLE, faults.rule());
        }
        let seen = Arc::new(Mutex::new(Seen::default()));
        let noted = Arc::clone(&seen);
        let log = Log::watched(Box::new(move |record, at| {
            noted.lock().expect("no holder panics").note(record, at);
        }));
        let launched = Launched::start(&mut command, log).context("worker-orcd does not start")?;
        let mut client = launched.listening(PATIENCE)?;
        client.patience = CLIENT_PATIENCE;
        launched.ready(&client, PATIENCE)?;
        Ok(Self {
            pid: launched.pid(),
            launched,
            client,
            cold_start: began.elapsed(),
            seen,
            _crashes: crashes,
        })
    }

    /// # Errors
    /// The worker has ended. It may restart children, but must not need a restart itself.
    pub fn assert_alive(&self) -> Result<()> {
        Ok(self.launched.assert_running()?)
    }

    /// Upgrades the supervisor to its own program, and waits until that serves.
    ///
    /// # Errors
    /// It does not serve.
    pub fn upgrade(&self) -> Result<()> {
        let before = self.seen().supervisors;
        process::signal(self.pid, Signal::SIGUSR2);
        let served = || (self.seen().supervisors > before).then_some(());
        Ok(self.launched.wait(PATIENCE, "to be replaced", served)?)
    }

    pub fn kill(&self) {
        self.launched.kill();
    }

    /// Reads the log, or leaves it in its pipes until they are full.
    pub fn read_log(&self, read: bool) {
        match read {
            true => self.launched.log.release(),
            false => self.launched.log.hold(),
        }
    }

    /// # Errors
    /// The worker does not answer.
    pub fn health(&self) -> Result<Value> {
        Ok(self.client.try_get("/health")?.try_json()?)
    }

    /// # Errors
    /// The worker does not answer.
    pub fn adopted(&self) -> Result<Adopted> {
        let [tokens, changed_pages] = self.client.try_metrics([
            "worker_orcd_kv_adopted_tokens_total",
            "worker_orcd_kv_changed_pages_total",
        ])?;
        Ok(Adopted {
            tokens,
            changed_pages,
        })
    }

    pub fn deaths(&self) -> u64 {
        self.seen().deaths
    }

    /// Deaths of children and new serving ones, in order.
    pub fn changes(&self) -> Vec<(Change, Instant)> {
        self.seen().changes.clone()
    }

    /// Faults that children announced.
    pub fn injected(&self) -> Vec<Injection> {
        self.seen().injected.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder panics")
    }

    /// Waits until a child serves on each device and no request runs.
    ///
    /// # Errors
    /// That does not happen.
    pub fn wait_idle(&self) -> Result<()> {
        let idle = || {
            let health = self.health().ok()?;
            let devices = Device::all(&health);
            let is_whole = !devices.is_empty() && devices.iter().all(Device::is_whole);
            (is_whole && health["load"]["live"] == 0).then_some(())
        };
        Ok(self.launched.wait(PATIENCE, "to serve and be idle", idle)?)
    }

    /// Drains the worker and checks for leftovers.
    ///
    /// # Errors
    /// It ends with another code than 0, or leaves a process behind.
    pub fn stop(&self) -> Result<()> {
        self.assert_alive()?;
        process::signal(self.pid, Signal::SIGTERM);
        let status = self.launched.exit_within(PATIENCE)?;
        ensure!(
            status.success(),
            "the worker drained with {status}:\n{}",
            self.launched.log.text()
        );
        // Each was killed and reaped; the kernel's figures follow with a delay.
        thread::sleep(Duration::from_millis(200));
        let left = offspring(self.pid);
        ensure!(left.is_empty(), "processes {left:?} outlived the worker");
        Ok(())
    }
}

/// Change of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Death,
    Ready,
}

/// Relevant records of the log.
#[derive(Debug, Default)]
struct Seen {
    deaths: u64,
    /// Supervisors that became ready.
    supervisors: u64,
    changes: Vec<(Change, Instant)>,
    injected: Vec<Injection>,
}

impl Seen {
    fn note(&mut self, record: &Value, at: Instant) {
        match event_name(record) {
            Some("child_death") => {
                self.deaths += 1;
                self.changes.push((Change::Death, at));
            }
            Some("ready") => self.supervisors += 1,
            Some("child_ready") => self.changes.push((Change::Ready, at)),
            Some("child_output") => {
                let words = record["line"].as_str().unwrap_or_default();
                let kind = words.split_once("injected fault ").map(|(_, rest)| rest);
                if let Some(kind) = kind.and_then(|rest| rest.split(' ').next()) {
                    self.injected.push(Injection {
                        kind: kind.to_owned(),
                        generation: record["generation"].as_u64().unwrap_or(0),
                        at,
                    });
                }
            }
            _ => {}
        }
    }
}

fn beside_this(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(
        path.is_file(),
        "{name} is not built; start this through `cargo xtask chaos`"
    );
    Ok(path)
}

/// Processes that were started with this parent, wherever they are in the tree now, and those below it, zombies
/// included.
pub fn offspring(supervisor: u32) -> Vec<u32> {
    let argument = format!("--parent\0{supervisor}\0");
    let is_offspring = |pid: u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&argument)
            || process::parent(pid) == Some(supervisor)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_offspring(*pid)).collect()
}
