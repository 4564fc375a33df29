//! The worker under test: started, listened to, stopped, and nothing of it left behind.

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

/// For what takes a second or two, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing is said before an answer in one piece is there, and several deaths may come before that. What hangs is
/// found by who waits for the end of all.
const CLIENT_PATIENCE: Duration = Duration::from_secs(600);

const SETTINGS: [&str; 6] = [
    // One for each death; a run's verdict reads them all.
    "--max-crash-reports",
    "10000",
    // Faults strike at random: whoever is convicted had bad luck, and its like goes on.
    "--quarantine-for",
    "0s",
    // The model says nothing of embeddings; with the mean every token counts.
    "--pooling",
    "mean",
];
/// Short, so that a run holds many faults; the run without faults has the worker's own.
pub const HEARTBEAT_SECONDS: u32 = 1;
pub const STEP_SECONDS: u32 = 2;

/// For each request that runs. A size of its own, whatever is free, so that device memory in use
/// is the same after every start.
const KV_CACHE_MIB: usize = 8;
/// What is served, and where.
#[derive(Debug, Clone)]
pub struct Setup {
    pub model: PathBuf,
    pub device: String,
    pub max_running: usize,
    pub max_context: u32,
    pub standby: bool,
    /// The deadlines of workers with faults are so many times as long.
    pub slowness: u32,
    /// Where crash reports and a logits trace go: a disk that is soon full.
    pub small_disk: Option<PathBuf>,
    /// The supervisor's program, where it is not the one beside this.
    pub program: Option<PathBuf>,
    /// Where the supervisor says what is to be kept for the next one.
    pub notified: Option<PathBuf>,
}

/// What children do to themselves, by chance.
#[derive(Debug, Clone)]
pub struct Faults {
    /// As in the child's grammar.
    pub kinds: String,
    /// At each step, as a probability.
    pub chance: f64,
    pub seed: u64,
}

impl Faults {
    /// The faults of the `nth` worker of a run. The draws of a child depend on its generation and its step, so workers
    /// with one seed would lose their first children in the same ways.
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
    /// From starting the process to being ready.
    pub cold_start: Duration,
    seen: Arc<Mutex<Seen>>,
    /// Crash reports of this run alone.
    _crashes: TempDir,
}

/// What a child did to itself, by its own word.
#[derive(Debug, Clone)]
pub struct Injection {
    pub kind: String,
    pub generation: u64,
    /// When its line was read.
    pub at: Instant,
}

impl Worker {
    /// Starts it and waits until it is ready; `faults` goes to its children.
    ///
    /// # Errors
    /// When it does not become ready.
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
    /// When the worker has ended: it may restart children, and nobody may have to restart it.
    pub fn assert_alive(&self) -> Result<()> {
        Ok(self.launched.assert_running()?)
    }

    /// Has the supervisor replaced by its own program, and waits until that serves.
    ///
    /// # Errors
    /// When it does not.
    pub fn upgrade(&self) -> Result<()> {
        let before = self.seen().supervisors;
        process::signal(self.pid, Signal::SIGUSR2);
        let served = || (self.seen().supervisors > before).then_some(());
        Ok(self.launched.wait(PATIENCE, "to be replaced", served)?)
    }

    /// Kills the supervisor.
    pub fn kill(&self) {
        self.launched.kill();
    }

    /// Whether what it says is read, or left in its pipes until they are full.
    pub fn read_log(&self, read: bool) {
        match read {
            true => self.launched.log.release(),
            false => self.launched.log.hold(),
        }
    }

    /// # Errors
    /// When it does not answer.
    pub fn health(&self) -> Result<Value> {
        Ok(self.client.try_get("/health")?.try_json()?)
    }

    /// # Errors
    /// When it does not answer.
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

    /// Deaths of children and new ones that serve, in their order.
    pub fn changes(&self) -> Vec<(Change, Instant)> {
        self.seen().changes.clone()
    }

    /// What children did to themselves.
    pub fn injected(&self) -> Vec<Injection> {
        self.seen().injected.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder panics")
    }

    /// Waits until a child serves on each device and nothing runs.
    ///
    /// # Errors
    /// When that does not come about.
    pub fn wait_idle(&self) -> Result<()> {
        let idle = || {
            let health = self.health().ok()?;
            let devices = Device::all(&health);
            let is_whole = !devices.is_empty() && devices.iter().all(Device::is_whole);
            (is_whole && health["load"]["live"] == 0).then_some(())
        };
        Ok(self.launched.wait(PATIENCE, "to serve and be idle", idle)?)
    }

    /// Drains it and looks for anything that is left.
    ///
    /// # Errors
    /// When it does not end with 0, or leaves a process behind.
    pub fn stop(&self) -> Result<()> {
        self.assert_alive()?;
        process::signal(self.pid, Signal::SIGTERM);
        let status = self.launched.exit_within(PATIENCE)?;
        ensure!(
            status.success(),
            "the worker drained with {status}:\n{}",
            self.launched.log.text()
        );
        // Each was killed and waited for; a moment for the kernel's own book-keeping.
        thread::sleep(Duration::from_millis(200));
        let left = offspring(self.pid);
        ensure!(left.is_empty(), "processes {left:?} outlived the worker");
        Ok(())
    }
}

/// What became of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Death,
    Ready,
}

/// What the log said, as far as it matters here.
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

/// Processes that were started with this parent, wherever they hang now; and those that hang
/// below it, zombies included.
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
