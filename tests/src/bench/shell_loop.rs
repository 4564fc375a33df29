//! The same deaths for a server that a shell loop restarts, as users of llama.cpp run it: after the end of its
//! connection a client repeats its request, with the text that it has, until it gets a response.

use super::pause::{Case, Mode, Seen, TOKENS_AFTER, TOKENS_BEFORE, at_once, kill_amid, prompt};
use crate::{WorkerBuilder, process, wait};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker_orcd_harness::Client;

/// 5 ms between two attempts of a client.
const RETRY: Duration = Duration::from_millis(5);

/// Shell that restarts a server each time that it ends.
#[derive(Debug)]
pub struct ShellLoop {
    shell: Child,
    client: Client,
    mode: &'static str,
    /// Path that returns 200 once the server is ready.
    ready: &'static str,
    /// Directory for the server's files.
    _directory: TempDir,
}

impl ShellLoop {
    /// Starts `command` with `--port`, `--slots` and `--context`, and waits until it responds. `context` is the length
    /// of the longest prompt.
    ///
    /// # Panics
    /// It does not respond.
    #[must_use]
    pub fn of_llama_server(command: &str, slots: usize, context: usize) -> Self {
        let address = free_address();
        let port = address.port();
        let context = context + TOKENS_BEFORE + TOKENS_AFTER;
        let options = format!("--port {port} --slots {slots} --context {context}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("while :; do {command} {options}; done")]);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mode = "llama-server in a shell loop, asked again";
        Self::start(shell, directory, address, mode, "/health")
    }

    /// Starts a worker, and waits until it responds.
    ///
    /// # Panics
    /// It does not respond.
    #[must_use]
    pub fn of_worker(worker: WorkerBuilder) -> Self {
        let address = free_address();
        let worker = worker.port(address.port()).in_a_loop();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let shell = worker.command(directory.path());
        Self::start(shell, directory, address, Mode::Cold.name(), "/readyz")
    }

    fn start(
        mut shell: Command,
        directory: TempDir,
        address: SocketAddr,
        mode: &'static str,
        ready: &'static str,
    ) -> Self {
        shell.process_group(0).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        let started = Self {
            shell: shell.spawn().expect("a shell"),
            client: Client::new(address),
            mode,
            ready,
            _directory: directory,
        };
        started.wait();
        started
    }

    fn wait(&self) {
        wait::until(self.mode, || {
            let answer = self.client.try_get(self.ready).ok()?;
            (answer.status == 200).then_some(())
        });
    }

    /// Process of the server, the shell's only child.
    fn server(&self) -> u32 {
        process::children(self.shell.id())[0]
    }

    /// Kills the server in the middle of streams, `count` times.
    #[must_use]
    pub fn measure(&self, case: Case) -> Value {
        let ready = || {
            self.wait();
            self.server()
        };
        let deaths = kill_amid(case, ready, |begun| self.read(case, begun), |_| None);
        deaths.row(case, self.mode)
    }

    fn read(&self, case: Case, begun: &AtomicUsize) -> Vec<Seen> {
        at_once(case, |place| {
            let prompt = prompt(case, place);
            let mut seen = Seen::default();
            while !self.ask(&prompt, &mut seen, begun) {
                seen.interruptions += 1;
                thread::sleep(RETRY);
            }
            seen
        })
    }

    /// Requests the missing tokens; true when the stream is complete.
    fn ask(&self, prompt: &str, seen: &mut Seen, begun: &AtomicUsize) -> bool {
        let wanted = TOKENS_BEFORE + TOKENS_AFTER;
        let body = json!({
            "prompt": format!("{prompt}{}", seen.text),
            "max_tokens": wanted - seen.arrivals.len(),
            "temperature": 0.0, "ignore_eos": true, "stream": true,
        });
        let Ok(mut stream) = self.client.try_stream("/v1/completions", &body) else {
            return false;
        };
        while let Ok(Some(event)) = stream.try_next() {
            if event.data == "[DONE]" {
                break;
            }
            let said = event.json();
            let text = said["choices"][0]["text"].as_str().unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            seen.arrivals.push(Instant::now());
            seen.text += text;
            if seen.arrivals.len() == TOKENS_BEFORE {
                begun.fetch_add(1, Ordering::SeqCst);
            }
        }
        seen.arrivals.len() >= wanted
    }
}

impl Drop for ShellLoop {
    fn drop(&mut self) {
        // The shell's process group includes everything that it has started.
        let _ = killpg(
            Pid::from_raw(self.shell.id().cast_signed()),
            Signal::SIGKILL,
        );
        let _ = self.shell.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address")
}
