//! Download of a missing model at start. Clients wait in the sockets' queues.
//!
//! Progress is logged and sent to the service manager, with an extension of the start timeout. A stop signal also
//! cancels the download. Partial files remain, and the next start resumes from them.

#![expect(
    clippy::disallowed_methods,
    reason = "a thread of its own, which waits"
)]

use crate::commands::end_with;
use crate::commands::serve::log_order;
use crate::config::Config;
use crate::exit::WorkerExit;
use crate::signals::{Signals, Word};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use worker_orcd_cli::model_name::cache_directory;
use worker_orcd_cli::pull::progress::ProgressEvent;
use worker_orcd_cli::pull::{self, Download, Transfer};
use worker_orcd_engine::driver::service_manager::ServiceManager;
use worker_orcd_lifecycle::SupervisorExit;

/// Retries in a row without a byte: with their pauses, about one minute.
const RETRIES: u32 = 5;

/// Time for the download thread to end after its program was killed. It may take longer only if a disk hangs.
const REMOVES_WITHIN: Duration = Duration::from_secs(1);

/// Result of the download thread.
type Got = Result<anyhow::Result<PathBuf>, oneshot::error::RecvError>;

/// Downloads the model if it is missing.
///
/// # Errors
/// Exit code of the worker: it was stopped, or the model is not available.
pub(super) async fn fetch(config: &mut Config, signals: &mut Signals) -> Result<(), WorkerExit> {
    if !config.must_be_got {
        return Ok(());
    }
    let name = config.model_ref.clone();
    let child = config.child_binary.clone();
    let transfer = Transfer::in_groups();
    let of_getter = transfer.clone();
    let (words, sent) = channel();
    let (done, got) = oneshot::channel();
    let manager = thread::Builder::new().name("fetch-progress".to_owned());
    let getter = thread::Builder::new().name("fetch".to_owned());
    let started = manager
        .spawn(move || notify_service_manager(&sent))
        .and_then(|_| {
            getter.spawn(move || {
                // The receiver is gone if the worker was stopped.
                let _ = done.send(get(&name, child, words, of_getter));
            })
        });
    started.map_err(|error| end_with(WorkerExit::Startup, &error))?;
    let mut got = std::pin::pin!(got);
    loop {
        tokio::select! {
            got = &mut got => {
                let why = match got {
                    Ok(Ok(path)) => {
                        (config.model, config.must_be_got) = (path, false);
                        return Ok(());
                    }
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(_) => "it was given up".to_owned(),
                };
                let why = format!("{} is not here and cannot be got: {why}", config.model_ref);
                return Err(end_with(WorkerExit::Fetch, &why));
            }
            word = signals.recv() => match word {
                Word::Stop(signal) => return Err(stopped(signal, &transfer, &mut got).await),
                Word::StopWithoutWaiting => return Err(stopped("SIGQUIT", &transfer, &mut got).await),
                Word::Reload | Word::Upgrade | Word::Ignored(_) => {
                    tracing::warn!(?word, "signal_before_model_ready");
                }
            }
        }
    }
}

async fn stopped(signal: &str, transfer: &Transfer, got: impl Future<Output = Got>) -> WorkerExit {
    log_order(signal, true);
    transfer.kill();
    // The thread removes temporary files. Its error is expected.
    let _ = tokio::time::timeout(REMOVES_WITHIN, got).await;
    WorkerExit::Engine(SupervisorExit::Clean)
}

fn get(
    name: &str,
    child: PathBuf,
    words: Sender<String>,
    transfer: Transfer,
) -> anyhow::Result<PathBuf> {
    let none = || anyhow::anyhow!("there is no place for it: HOME and XDG_CACHE_HOME are not set");
    let directory = cache_directory().ok_or_else(none)?;
    tracing::info!(model = name, directory = %directory.display(), "model_fetch");
    let download = Download {
        child,
        on_progress: Box::new(move |event| {
            // The receiver may be gone.
            let _ = words.send(event.to_string());
            log(&event);
        }),
        retries: Some(RETRIES),
        transfer,
    };
    pull::get(name, &directory, &download)
}

fn log(event: &ProgressEvent) {
    match event {
        ProgressEvent::Kept(path) => tracing::info!(path = %path.display(), "model_fetch_kept"),
        ProgressEvent::Begins { what, at } => {
            tracing::info!(
                from = what,
                bytes = at.whole,
                have = at.have,
                "model_fetch_begins"
            );
        }
        ProgressEvent::Goes { what, progress } => tracing::info!(
            file = what,
            %progress,
            percent = progress.at.percent(),
            bytes_per_second = progress.rate,
            "model_fetch_goes_on"
        ),
        ProgressEvent::Again { why, after } => {
            tracing::warn!(reason = why, after_s = after.as_secs(), "model_fetch_again");
        }
        ProgressEvent::Came { what, progress } => tracing::info!(
            file = what,
            bytes = progress.at.whole,
            bytes_per_second = progress.rate,
            "model_fetched"
        ),
        ProgressEvent::Checked(words) => tracing::info!(is = words, "model_checked"),
    }
}

/// Sends progress to the service manager until the download ends.
fn notify_service_manager(words: &Receiver<String>) {
    /// Timeout without a service manager.
    const NEVER: Duration = Duration::from_secs(3600);
    let mut manager = ServiceManager::of_this_process();
    loop {
        let now = Instant::now();
        manager.turn(now);
        let due = manager.deadline();
        let wait = due.map_or(NEVER, |at| at.saturating_duration_since(now));
        match words.recv_timeout(wait) {
            Ok(words) => manager.report_start(&words),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
