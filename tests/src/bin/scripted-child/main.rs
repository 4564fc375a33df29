//! Child that speaks the protocol and misbehaves by its script.
//!
//! Without a script it is a well-behaved child with a vocabulary of bytes, which repeats the prompt. It links
//! `ipc-protocol` and nothing of the real child, so that it can send messages that the real one cannot. [`serve`] has
//! the regular behaviour, [`faults`] the faults.

mod faults;
mod link;
mod serve;

use link::Link;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use serve::Child;
use std::process::{Command, Stdio};
use worker_orcd_ipc::{Command as Order, ExitCode, FaultKind, PROBE_FLAG};
use worker_orcd_tests::script::SCRIPT_VARIABLE;
use worker_orcd_tests::{Moment, Script};

fn main() {
    let script = match std::env::var(SCRIPT_VARIABLE) {
        Ok(json) => serde_json::from_str(&json).expect("the script is JSON"),
        Err(_) => Script::behave(),
    };
    if std::env::args().nth(1).as_deref() == Some(PROBE_FLAG) {
        std::process::exit(answer(&script).code());
    }
    if script.ignore_sigterm {
        // Before any thread starts, so that all of them inherit it.
        SigSet::from(Signal::SIGTERM)
            .thread_block()
            .expect("a signal can be blocked");
    }
    // Like the real child it does not outlive its parent, whatever the script says.
    prctl::set_pdeathsig(Signal::SIGKILL).expect("a process may ask for this");
    let link = Link::connect();
    if script.fork {
        start_grandchild(&link);
    }
    std::process::exit(live(Child::new(link, script)).code());
}

/// Holds stdout, stderr and the control socket open long after its parent is gone.
#[expect(
    clippy::zombie_processes,
    reason = "an orphan is what the supervisor is to be given"
)]
fn start_grandchild(link: &Link) {
    Command::new("sleep")
        .arg("600")
        .stdin(Stdio::from(link.duplicate()))
        .spawn()
        .expect("sleep starts");
}

/// Answers the probe that precedes any child.
fn answer(script: &Script) -> ExitCode {
    match &script.could_use {
        Some(device) => {
            println!("{device}");
            ExitCode::Clean
        }
        None => {
            println!("a script has no CUDA device");
            ExitCode::Fault(FaultKind::DeviceUnavailable)
        }
    }
}

fn live(mut child: Child) -> ExitCode {
    child.reach(Moment::BeforeHello);
    child.send_hello();
    child.reach(Moment::Handshaking);
    let order = loop {
        match child.next_command(None) {
            Some(Order::Load(order)) => break order,
            Some(Order::Shutdown) => return child.end(),
            Some(_) => return ExitCode::Fault(FaultKind::Protocol),
            None => {}
        }
    };
    child.send_progress(50);
    child.reach(Moment::Loading);
    child.send_progress(100);
    child.send_ready(&order);
    child.reach(Moment::Serving);
    child.serve()
}
