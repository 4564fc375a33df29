//! A worker that is running: built, started on a free port, and ended with its child.

use crate::process::Running;
use crate::{http, paths, process};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A drain waits 5 s for streams by default; the rest is for the child to go.
const DRAIN_PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

/// Log lines kept for the message of a failure.
const KEPT_LINES: usize = 20;

#[derive(Debug)]
pub struct Worker {
    running: Running,
    pub address: SocketAddr,
    last_lines: Arc<Mutex<VecDeque<String>>>,
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
        let port = free_port()?;
        let mut command = Command::new(paths::built("release", "worker-orcd"));
        command
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--log-format",
                "json",
            ])
            .args(["--device", "cpu", "--model"])
            .arg(model)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        let watch = Arc::new(Mutex::new(watch));
        let child = running.child();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        follow(out.context("piped")?, last_lines.clone(), watch.clone());
        follow(err.context("piped")?, last_lines.clone(), watch);
        let mut worker = Self {
            running,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            last_lines,
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
            if http::get(self.address, "/readyz").is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    fn log_tail(&self) -> String {
        let lines = self.last_lines.lock().expect("no holder panics");
        lines.iter().cloned().collect::<Vec<_>>().join("\n")
    }
}

/// A port that was free a moment ago. Between this and the worker's bind another program may
/// take it; the worker then says so and ends.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn follow(
    pipe: impl Read + Send + 'static,
    lines: Arc<Mutex<VecDeque<String>>>,
    watch: Arc<Mutex<Watch>>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Ok(record) = serde_json::from_str::<Value>(&line) {
                watch.lock().expect("no holder panics")(&record);
            }
            let mut kept = lines.lock().expect("no holder panics");
            kept.push_back(line);
            if kept.len() > KEPT_LINES {
                kept.pop_front();
            }
        }
    });
}
