//! Process of a worker: start, readiness, and end, at the latest when it is dropped.

use crate::client::Client;
use crate::log::Log;
use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Options for a free port and a machine-readable log.
pub const AT_A_FREE_PORT: [&str; 6] =
    ["--host", "127.0.0.1", "--port", "0", "--log-format", "json"];

const POLL: Duration = Duration::from_millis(10);

/// Log lines in the message of a failure.
const TOLD_LINES: usize = 40;

#[derive(Debug)]
pub struct Launched {
    process: Mutex<Child>,
    pid: u32,
    pub log: Log,
}

impl Launched {
    /// # Errors
    /// There is no such program.
    pub fn start(command: &mut Command, log: Log) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = spawn(command)?;
        log.follow(process.stdout.take().expect("piped"));
        log.follow(process.stderr.take().expect("piped"));
        Ok(Self {
            pid: process.id(),
            process: Mutex::new(process),
            log,
        })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Exit status; `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut process = self.process.lock().expect("no holder panics");
        process.try_wait().expect("our own child can be waited for")
    }

    /// # Errors
    /// The process has ended. The message has the end of the log.
    pub fn assert_running(&self) -> io::Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => {
                self.log.wait_end();
                Err(self.failure(&format!("the worker ended with {status}")))
            }
        }
    }

    /// Kills the process if it still runs.
    pub fn kill(&self) {
        let mut process = self.process.lock().expect("no holder panics");
        // Both may have happened already.
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Client of the address in the log.
    ///
    /// # Errors
    /// The process ends first, or exceeds `patience`.
    pub fn listening(&self, patience: Duration) -> io::Result<Client> {
        self.wait(patience, "to listen", || {
            self.log.address().map(Client::new)
        })
    }

    /// # Errors
    /// The process ends first, or exceeds `patience`.
    pub fn ready(&self, client: &Client, patience: Duration) -> io::Result<()> {
        self.wait(patience, "to be ready", || {
            let answer = client.try_get("/readyz");
            answer.is_ok_and(|it| it.status == 200).then_some(())
        })
    }

    /// # Errors
    /// The process still runs after that time.
    pub fn exit_within(&self, patience: Duration) -> io::Result<ExitStatus> {
        self.wait_for(patience, "to end", || self.ended())
    }

    /// Value of `probe`, unless the worker ends first.
    ///
    /// # Errors
    /// The worker ends first, or `patience` is exceeded.
    pub fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        mut probe: impl FnMut() -> Option<T>,
    ) -> io::Result<T> {
        self.wait_for(patience, what, || match probe() {
            Some(found) => Some(Ok(found)),
            None => self.assert_running().err().map(Err),
        })?
    }

    fn wait_for<T>(
        &self,
        patience: Duration,
        what: &str,
        mut probe: impl FnMut() -> Option<T>,
    ) -> io::Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = probe() {
                return Ok(found);
            }
            if began.elapsed() > patience {
                let told = format!("waited {patience:?} in vain for the worker {what}");
                return Err(self.failure(&told));
            }
            thread::sleep(POLL);
        }
    }

    fn failure(&self, what: &str) -> io::Error {
        io::Error::other(format!("{what}:\n{}", self.log.tail(TOLD_LINES)))
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a program, which a test may have copied just now. A process that another thread has forked meanwhile holds
/// the copy open for writing until it executes its own program, and the kernel executes no such file.
fn spawn(command: &mut Command) -> io::Result<Child> {
    const TRIES: u32 = 500;
    for _ in 1..TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
    command.spawn()
}
