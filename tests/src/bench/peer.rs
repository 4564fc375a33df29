//! The same deaths for llama.cpp's server in a shell loop that starts it again, as its users run it: a
//! client whose connection ends asks again, with the text that it has, until it is answered.

use super::pause::{Case, Seen, TOKENS_AFTER, TOKENS_BEFORE, at_once, kill_amid, prompt};
use crate::{process, wait};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;

/// Time between two attempts of a client that is not answered.
const RETRY: Duration = Duration::from_millis(5);

/// The shell that starts the server again each time that it ends.
#[derive(Debug)]
pub struct Peer {
    shell: Child,
    client: Client,
}

impl Peer {
    /// Starts `command`, which is told `--port`, `--slots` and `--context`, and waits until it answers.
    /// `context` is that of the longest prompt.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn start(command: &str, slots: usize, context: usize) -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address: SocketAddr = free.local_addr().expect("an address");
        drop(free);
        let port = address.port();
        let context = context + TOKENS_BEFORE + TOKENS_AFTER;
        let options = format!("--port {port} --slots {slots} --context {context}");
        let again = format!("while :; do {command} {options}; done");
        let mut shell = Command::new("sh");
        shell.args(["-c", &again]).process_group(0);
        shell.stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        let peer = Self {
            shell: shell.spawn().expect("a shell"),
            client: Client::new(address),
        };
        peer.wait();
        peer
    }

    fn wait(&self) {
        wait::until("llama.cpp's server", || {
            let health = self.client.try_get("/health").ok()?;
            (health.status == 200).then_some(())
        });
    }

    /// The server, which is the shell's only child.
    fn server(&self) -> u32 {
        process::children(self.shell.id())[0]
    }

    /// Kills the server in the midst of streams, so many times.
    #[must_use]
    pub fn measure(&self, case: Case) -> Value {
        let ready = || {
            self.wait();
            self.server()
        };
        let toll = kill_amid(case, ready, |begun| self.read(case, begun));
        toll.row(case, "llama-server in a shell loop, asked again")
    }

    fn read(&self, case: Case, begun: &AtomicUsize) -> Vec<Seen> {
        at_once(case, |place| {
            let prompt = prompt(case, place);
            let mut seen = Seen::default();
            while !self.ask(&prompt, &mut seen, begun) {
                thread::sleep(RETRY);
            }
            seen
        })
    }

    /// Asks for the tokens that are missing; true when they are all there.
    fn ask(&self, prompt: &str, seen: &mut Seen, begun: &AtomicUsize) -> bool {
        let wanted = TOKENS_BEFORE + TOKENS_AFTER;
        let body = json!({
            "prompt": format!("{prompt}{}", seen.text),
            "n_predict": wanted - seen.arrivals.len(),
            "temperature": 0.0, "ignore_eos": true, "stream": true,
        });
        let Ok(mut stream) = self.client.try_stream("/completion", &body) else {
            return false;
        };
        while let Ok(Some(event)) = stream.try_next() {
            let said = event.json();
            if said["stop"] == true {
                break;
            }
            seen.arrivals.push(Instant::now());
            seen.text += said["content"].as_str().unwrap_or_default();
            if seen.arrivals.len() == TOKENS_BEFORE {
                begun.fetch_add(1, Ordering::SeqCst);
            }
        }
        seen.arrivals.len() >= wanted
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The group is the shell's: with it ends whatever it has started.
        let _ = killpg(
            Pid::from_raw(self.shell.id().cast_signed()),
            Signal::SIGKILL,
        );
        let _ = self.shell.wait();
    }
}
