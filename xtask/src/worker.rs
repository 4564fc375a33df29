//! A worker that is running: built, started on a free port, and ended with its child.

use crate::process::Running;
use crate::{http, paths, process};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A drain waits 5 s for streams by default; the rest is for the child to go.
const DRAIN_PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

/// Log lines kept for the message of a failure.
const KEPT_LINES: usize = 20;

pub struct Worker {
    running: Running,
    pub address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

/// What is read off the worker's log while it runs.
struct Log {
    address: Option<SocketAddr>,
    last_lines: VecDeque<String>,
    watch: Watch,
}

/// Called with each record of the worker's log.
pub type Watch = Box<dyn FnMut(&Value) + Send>;

pub fn build() -> Result<()> {
    process::run(process::cargo().args([
        "build",
        "--release",
        "-p",
        "worker-orcd",
        "-p",
        "worker-orcd-gpu",
    ]))
}

impl Worker {
    /// Starts a worker that [`build`] built and returns once it serves.
    pub fn start(model: &Path, flags: &[String], watch: Watch) -> Result<Self> {
        let mut command = Command::new(paths::built("release", "worker-orcd"));
        command
            .args(["--host", "127.0.0.1", "--port", "0", "--log-format", "json"])
            .args(["--device", "cpu", "--model"])
            .arg(model)
            .args(flags)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let log = Log {
            address: None,
            last_lines: VecDeque::new(),
            watch,
        };
        let log = Arc::new(Mutex::new(log));
        let pipe = running
            .child()
            .stderr
            .take()
            .context("standard error is piped")?;
        follow(pipe, Arc::clone(&log));
        let mut worker = Self {
            running,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            log,
        };
        worker.wait_until_ready()?;
        Ok(worker)
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub fn health(&self) -> Result<Value> {
        http::get(self.address, "/health")?.json()
    }

    /// Drains it and insists on a clean end.
    pub fn stop(self) -> Result<()> {
        let status = self.running.terminate(DRAIN_PATIENCE)?;
        if !status.success() {
            bail!("worker-orcd ended with {status}");
        }
        Ok(())
    }

    /// Until somebody ends it.
    pub fn wait(mut self) -> Result<()> {
        let status = self.running.wait()?;
        if !status.success() && !process::interrupted() {
            bail!("worker-orcd ended with {status}:\n{}", self.log_tail());
        }
        Ok(())
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        loop {
            if let Some(status) = self.running.try_wait()? {
                // Its last words are still on their way through the pipe.
                std::thread::sleep(POLL * 2);
                bail!("worker-orcd ended with {status}:\n{}", self.log_tail());
            }
            let address = self.log.lock().expect("no holder panics").address;
            if let Some(address) = address {
                self.address = address;
                if http::get(address, "/readyz").is_ok_and(|answer| answer.status == 200) {
                    return Ok(());
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn log_tail(&self) -> String {
        let log = self.log.lock().expect("no holder panics");
        log.last_lines
            .iter()
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    }
}

fn follow(pipe: impl Read + Send + 'static, log: Arc<Mutex<Log>>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            log.lock().expect("no holder panics").take(line);
        }
    });
}

impl Log {
    fn take(&mut self, line: String) {
        if let Ok(record) = serde_json::from_str::<Value>(&line) {
            if event_name(&record) == Some("listening") {
                self.address = record["address"]
                    .as_str()
                    .and_then(|text| text.parse().ok());
            }
            (self.watch)(&record);
        }
        self.last_lines.push_back(line);
        if self.last_lines.len() > KEPT_LINES {
            self.last_lines.pop_front();
        }
    }
}

/// What a record of the log is about.
pub fn event_name(record: &Value) -> Option<&str> {
    record
        .get("event")
        .or_else(|| record.get("message"))?
        .as_str()
}
