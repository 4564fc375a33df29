//! Rehearsal of an upgrade: a start of the new program on a copy of the handoff state, without visible effects.
//!
//! A running worker starts it in a new process, with a bundle in descriptor 0. It runs every fallible step of the true
//! start: settings, the bundle, paths, sockets, the model if it changed, requests that must fit, threads and an
//! interpreter. Then it writes [`answer_to`] and ends.

use super::handoff::{Found, Predecessor, find};
use super::sockets::check_addresses;
use super::upgrade::answer_to;
use crate::config::environment::Environment;
use crate::config::{Config, ConfigErrors};
use crate::exit::WorkerExit;
use crate::http::admin_socket;
use crate::http::listen::listeners;
use clap::{ArgMatches, Command as Cli};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use worker_orcd_engine::interpreter::Interpreter;
use worker_orcd_lifecycle::SupervisorExit;
use worker_orcd_process::probe;
use worker_orcd_requests::wal::Restored;
use worker_orcd_text::template::TemplateSource;

pub const COMMAND: &str = "rehearses";

/// Time for an interpreter to start.
const INTERPRETER: Duration = Duration::from_secs(5);

#[must_use]
pub fn command_line() -> Cli {
    Cli::new(COMMAND)
        .about("Rehearses to take over from a running worker with these settings")
        .args_override_self(true)
        .hide(true)
}

/// Runs a rehearsal for a running worker.
#[must_use]
pub fn run(arguments: &ArgMatches) -> WorkerExit {
    match rehearse(arguments) {
        Ok(answer) => {
            println!("{answer}");
            WorkerExit::Engine(SupervisorExit::Clean)
        }
        Err(reason) => {
            eprintln!("{reason}");
            WorkerExit::Usage
        }
    }
}

fn rehearse(arguments: &ArgMatches) -> Result<String, String> {
    let environment = Environment::of_this_process();
    let gathered = Config::gather(arguments, &environment);
    let mut config = gathered.map_err(|ConfigErrors(mistakes)| mistakes.join("; "))?;
    if config.must_be_got {
        let model = &config.model_ref;
        return Err(format!("{model} is not here: streams would wait for it"));
    }
    let mut inherited = inherited()?;
    inherited.settle(&mut config);
    check_addresses(&config)?;
    let requests = inherited.requests().map_err(|error| error.to_string())?;
    check_that_requests_fit(&config, &requests)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("threads cannot be started: {error}"))?;
    runtime.block_on(check_sockets(&mut config, &mut inherited))?;
    runtime.block_on(check_model(&config, &inherited))?;
    let template = TemplateSource {
        jinja: String::new(),
        begin: String::new(),
        end: String::new(),
    };
    let interpreter = Interpreter::start(template, INTERPRETER);
    interpreter.map_err(|error| format!("no interpreter can be started: {error}"))?;
    Ok(answer_to(inherited.nonce))
}

fn inherited() -> Result<Predecessor, String> {
    let bundle = io::stdin().as_fd().try_clone_to_owned();
    let bundle = UnixDatagram::from(bundle.map_err(|error| error.to_string())?);
    let Found { last, unreadable } = find(None, &[bundle]).map_err(|error| error.to_string())?;
    let reason = || format!("nothing to rehearse with: {}", unreadable.join("; "));
    last.ok_or_else(reason)
}

/// Binds new addresses and closes them.
async fn check_sockets(config: &mut Config, inherited: &mut Predecessor) -> Result<(), String> {
    let sockets = inherited.sockets(&config.http);
    if sockets.given {
        let addresses: io::Result<Vec<_>> = sockets
            .listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect();
        let addresses = addresses.map_err(|error| error.to_string())?;
        config.http.listen_at(&addresses)?;
    }
    if sockets.listeners.is_empty() {
        let bound = listeners(&config.http, Vec::new()).await;
        drop(bound.map_err(|error| error.to_string())?);
    }
    let admin = config.http.admin_socket.as_deref();
    match admin.filter(|path| inherited.admin_socket.as_deref() != Some(path)) {
        Some(path) => admin_socket::listen(path)
            .map(drop)
            .map_err(|error| error.to_string()),
        None => Ok(()),
    }
}

async fn check_model(config: &Config, inherited: &Predecessor) -> Result<(), String> {
    let path = config.model.to_string_lossy();
    if *path == *inherited.model_path() {
        return Ok(());
    }
    let checked = probe::check_model(&config.child_binary, &config.model).await;
    checked
        .map(drop)
        .map_err(|reason| format!("--model {path}: {reason}"))
}

fn check_that_requests_fit(config: &Config, requests: &[Restored]) -> Result<(), String> {
    let Some(context) = config.load.max_context_tokens else {
        return Ok(());
    };
    let running = requests.iter().filter(|request| request.end.is_none());
    let longest = running.map(Restored::most_tokens).max().unwrap_or(0);
    match longest <= u64::from(context) {
        true => Ok(()),
        false => Err(format!(
            "--max-context {context}: a running request needs {longest} tokens"
        )),
    }
}
