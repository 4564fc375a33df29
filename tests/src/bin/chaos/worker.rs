//! The worker under test: started, listened to, stopped, and nothing of it left behind.

use super::stream::get;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For what takes a second or two, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Short deadlines, so that a run holds many faults; restarts without limit; and prompts short
/// enough to be computed again between two deaths.
const SETTINGS: [&str; 18] = [
    "--host",
    "127.0.0.1",
    "--port",
    "0",
    "--log-format",
    "json",
    "--max-context",
    "512",
    "--heartbeat-timeout",
    "1s",
    "--step-timeout",
    "2s",
    "--max-restarts",
    "1000",
    // One for each death; a run's verdict reads them all.
    "--max-crash-reports",
    "10000",
    // Faults strike at random: whoever is convicted had bad luck, and its like goes on.
    "--quarantine-for",
    "0s",
];
/// For each request that runs. A size of its own, whatever is free, so that device memory in use
/// is the same after every start.
const KV_CACHE_MIB: usize = 8;
const NO_DELAY: [&str; 3] = ["--max-restart-delay", "50ms", "--accept-fault-injection"];

/// What is served, and where.
#[derive(Debug, Clone)]
pub struct Setup {
    pub model: PathBuf,
    pub device: String,
    pub max_running: usize,
    /// Where crash reports and a logits trace go: a disk that is soon full.
    pub small_disk: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Worker {
    process: Mutex<Child>,
    pub pid: u32,
    pub address: SocketAddr,
    /// From starting the process to being ready.
    pub cold_start: Duration,
    log: Log,
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
    pub fn start(setup: &Setup, faults: Option<&str>) -> Result<Self> {
        let began = Instant::now();
        let crashes = tempfile::tempdir()?;
        let mut command = Command::new(beside_this("tested-worker-orcd")?);
        command
            .args(SETTINGS)
            .args(NO_DELAY)
            .args(["--device", &setup.device])
            .args(["--max-running", &setup.max_running.to_string()])
            .args([
                "--kv-cache-size",
                &format!("{}MiB", KV_CACHE_MIB * setup.max_running),
            ])
            .arg("--model")
            .arg(&setup.model)
            .arg("--crash-dir")
            .arg(setup.small_disk.as_deref().unwrap_or(crashes.path()));
        if let Some(disk) = &setup.small_disk {
            command.arg("--trace-logits").arg(disk.join("trace.jsonl"));
        }
        command
            .arg("--child-binary")
            .arg(beside_this("tested-worker-orcd-gpu")?);
        command.env_remove(worker_orcd_gpu::fault_injection::VARIABLE);
        if let Some(faults) = faults {
            command.env(worker_orcd_gpu::fault_injection::VARIABLE, faults);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().context("worker-orcd does not start")?;
        let log = Log::default();
        log.follow(process.stdout.take().context("piped")?);
        log.follow(process.stderr.take().context("piped")?);
        let pid = process.id();
        let mut worker = Self {
            process: Mutex::new(process),
            pid,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            cold_start: Duration::ZERO,
            log,
            _crashes: crashes,
        };
        worker.address = worker.wait("it to listen", |worker| worker.log.address())?;
        worker.wait("it to be ready", |worker| {
            get(worker.address, "/readyz")
                .is_ok_and(|(status, _)| status == 200)
                .then_some(())
        })?;
        worker.cold_start = began.elapsed();
        Ok(worker)
    }

    /// # Errors
    /// When the worker has ended: it may restart children, and nobody may have to restart it.
    pub fn assert_alive(&self) -> Result<()> {
        match self.process.lock().expect("no holder panics").try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the worker ended with {status}:\n{}", self.log.tail()),
        }
    }

    /// Whether what it says is read, or left in its pipes until they are full.
    pub fn read_log(&self, read: bool) {
        self.log.unread.store(!read, Ordering::Relaxed);
    }

    /// # Errors
    /// When it does not answer.
    pub fn health(&self) -> Result<Value> {
        let (_, body) = get(self.address, "/health").map_err(anyhow::Error::msg)?;
        serde_json::from_str(&body).context("/health is no JSON")
    }

    /// The child of the moment, if its process runs.
    pub fn child(&self) -> Option<u32> {
        let pid = u32::try_from(self.health().ok()?["child"]["pid"].as_u64()?).ok()?;
        (parent(pid) == Some(self.pid)).then_some(pid)
    }

    pub fn deaths(&self) -> u64 {
        self.log.state.lock().expect("no holder panics").deaths
    }

    /// Deaths of children and new ones that serve, in their order.
    pub fn changes(&self) -> Vec<(Change, Instant)> {
        self.log
            .state
            .lock()
            .expect("no holder panics")
            .changes
            .clone()
    }

    /// What children did to themselves.
    pub fn injected(&self) -> Vec<Injection> {
        self.log
            .state
            .lock()
            .expect("no holder panics")
            .injected
            .clone()
    }

    /// Waits until a child serves and nothing runs.
    ///
    /// # Errors
    /// When that does not come about.
    pub fn wait_idle(&self) -> Result<()> {
        self.wait("it to serve and be idle", |worker| {
            let health = worker.health().ok()?;
            (health["state"] == "serving" && health["load"]["live"] == 0).then_some(())
        })
    }

    /// Drains it and looks for anything that is left.
    ///
    /// # Errors
    /// When it does not end with 0, or leaves a process behind.
    pub fn stop(&self) -> Result<()> {
        self.assert_alive()?;
        kill(Pid::from_raw(self.pid.cast_signed()), Signal::SIGTERM)?;
        let status = self.wait_exit()?;
        ensure!(
            status.success(),
            "the worker drained with {status}:\n{}",
            self.log.tail()
        );
        // Each was killed and waited for; a moment for the kernel's own book-keeping.
        thread::sleep(Duration::from_millis(200));
        let left = offspring(self.pid);
        ensure!(left.is_empty(), "processes {left:?} outlived the worker");
        Ok(())
    }

    fn wait_exit(&self) -> Result<std::process::ExitStatus> {
        let began = Instant::now();
        loop {
            let status = self.process.lock().expect("no holder panics").try_wait()?;
            match status {
                Some(status) => return Ok(status),
                None if began.elapsed() > PATIENCE => bail!("the worker does not end"),
                None => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn wait<T>(&self, what: &str, probe: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = probe(self) {
                return Ok(found);
            }
            self.assert_alive()?;
            ensure!(
                began.elapsed() < PATIENCE,
                "waited in vain for {what}:\n{}",
                self.log.tail()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both may have happened already.
        let process = self.process.get_mut().expect("no holder panics");
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// What became of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Death,
    Ready,
}

/// What the log said, as far as it matters here.
#[derive(Debug, Clone, Default)]
struct Log {
    state: Arc<Mutex<LogState>>,
    unread: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct LogState {
    address: Option<SocketAddr>,
    deaths: u64,
    changes: Vec<(Change, Instant)>,
    injected: Vec<Injection>,
    tail: std::collections::VecDeque<String>,
}

const TAIL_LINES: usize = 40;

impl Log {
    fn follow(&self, pipe: impl Read + Send + 'static) {
        let log = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let Ok(line) = line else { return };
                while log.unread.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(50));
                }
                log.state.lock().expect("no holder panics").read(line);
            }
        });
    }

    fn address(&self) -> Option<SocketAddr> {
        self.state.lock().expect("no holder panics").address
    }

    fn tail(&self) -> String {
        let state = self.state.lock().expect("no holder panics");
        state
            .tail
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl LogState {
    fn read(&mut self, line: String) {
        let record: Value = serde_json::from_str(&line).unwrap_or_default();
        match record["event"].as_str() {
            Some("listening") => {
                self.address = record["address"]
                    .as_str()
                    .and_then(|text| text.parse().ok());
            }
            Some("child_death") => {
                self.deaths += 1;
                self.changes.push((Change::Death, Instant::now()));
            }
            Some("child_ready") => self.changes.push((Change::Ready, Instant::now())),
            Some("child_output") => {
                let words = record["line"].as_str().unwrap_or_default();
                let kind = words.split_once("injected fault ").map(|(_, rest)| rest);
                if let Some(kind) = kind.and_then(|rest| rest.split(' ').next()) {
                    self.injected.push(Injection {
                        kind: kind.to_owned(),
                        generation: record["generation"].as_u64().unwrap_or(0),
                        at: Instant::now(),
                    });
                }
            }
            _ => {}
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
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

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Processes that were started with this parent, wherever they hang now; and those that hang
/// below it, zombies included.
pub fn offspring(supervisor: u32) -> Vec<u32> {
    let argument = format!("--parent\0{supervisor}\0");
    let is_offspring = |pid: u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&argument) || parent(pid) == Some(supervisor)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_offspring(*pid)).collect()
}
