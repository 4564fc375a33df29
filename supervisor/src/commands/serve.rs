//! `worker-orcd` without a word: serve until told otherwise.
//!
//! ```text
//! listen ─→ which device ─→ start the engine ─→ ready ─→ callback ─→ … ─→ drain ─→ end
//!                             (answers /health)
//! ```

use crate::callback::{Registration, register};
use crate::child::probe;
use crate::child::socket::PrivateDir;
use crate::commands::{end_with, usage};
use crate::config::again::Again;
use crate::config::device::{AUTO_ORDINAL, DecidedDevice};
use crate::config::environment::Environment;
use crate::config::{Config, ConfigErrors, DEFAULT_MEMORY_PERMILLE, HttpConfig};
use crate::descriptors::{self, TooFew};
use crate::engine::{Deadlines, Ended, EngineSettings, RestartPolicy, SupervisorExit};
use crate::exit::WorkerExit;
use crate::http::handed;
use crate::http::listen::{Server, listeners};
use crate::http::{App, probe_router, router};
use crate::logging;
use crate::signals::{self, Word};
use clap::ArgMatches;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use worker_orcd_ipc::{DeviceSelector, LoadOrder, ModelFile, Role, TraceOrder};

/// Time for connections to take the last events of their streams.
const FAREWELL: Duration = Duration::from_secs(2);

/// Time for the log's last lines to be read.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Runs until the end; the log says why, the number says how.
#[must_use]
pub fn run(arguments: &ArgMatches) -> WorkerExit {
    let exit = run_logged(arguments);
    logging::settle(LAST_LINES);
    exit
}

fn run_logged(arguments: &ArgMatches) -> WorkerExit {
    // Before there are threads.
    let handed = handed::listeners();
    let environment = Environment::of_this_process();
    let mut config = match Config::gather(arguments, &environment) {
        Ok(config) => config,
        Err(mistakes) => return usage::refuse(arguments, &environment, &mistakes),
    };
    if let Err(error) = logging::start(config.log_format, &config.log_level, Some(config.worker_id))
    {
        eprintln!("the log cannot be started: {error}");
        return WorkerExit::Startup;
    }
    let handed = match handed {
        Ok(handed) => handed,
        Err(error) => return end_with(WorkerExit::Listen, &error),
    };
    if let Err(reason) = listen_at(&mut config.http, &handed).and_then(|()| check_places(&config)) {
        return end_with(WorkerExit::Usage, &reason);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return end_with(WorkerExit::Startup, &error),
    };
    let exit = runtime.block_on(serve(config, handed, Arc::new(arguments.clone())));
    // What still blocks a thread (a tokenizer, a lookup) owes nobody an answer any more.
    runtime.shutdown_background();
    exit
}

/// Checks the places that every child will need, and for whose lack no child can be blamed.
fn check_places(config: &Config) -> Result<(), String> {
    PrivateDir::create().map_err(|error| error.to_string())?;
    let Some(trace) = &config.load.trace else {
        return Ok(());
    };
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        // Nobody may be reading a FIFO yet.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(&trace.path);
    let named = |error| format!("--trace-logits {}: {error}", trace.path.display());
    opened.map(drop).map_err(named)
}

/// Where sockets were handed over, they say where the worker listens.
fn listen_at(http: &mut HttpConfig, handed: &[StdListener]) -> Result<(), String> {
    if handed.is_empty() {
        return Ok(());
    }
    let addresses: io::Result<Vec<_>> = handed.iter().map(StdListener::local_addr).collect();
    let addresses = addresses.map_err(|error| format!("a socket that was handed over: {error}"))?;
    http.listen_at(&addresses)
}

async fn serve(
    mut config: Config,
    handed: Vec<StdListener>,
    arguments: Arc<ArgMatches>,
) -> WorkerExit {
    let signals = match signals::watch() {
        Ok(signals) => signals,
        Err(error) => return end_with(WorkerExit::Startup, &error),
    };
    let listeners = match listeners(&config.http, handed).await {
        Ok(listeners) => listeners,
        Err(error) => return end_with(WorkerExit::Listen, &error),
    };
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .filter_map(|listener| listener.local_addr().ok())
        .collect();
    if let Err(error) = bound_connections(&mut config.http, listeners.len()) {
        return end_with(WorkerExit::Startup, &error);
    }
    let device = decide(&config).await;
    log_startup(&config, &device);
    if let Some(option) = config.load.without_use_on(device.selector) {
        tracing::warn!(option, because = %device.reason, "option_without_use");
    }
    let engine = crate::driver::start(engine_settings(&config, &device));
    let app = Arc::new(App::new(&config, engine.clone(), device));
    let server = Arc::new(Server::new(
        router(Arc::clone(&app)),
        probe_router(Arc::clone(&app)),
        Arc::clone(&app.places),
        &config.http,
    ));
    let (close, closing) = watch::channel(false);
    for listener in listeners {
        tokio::spawn(Arc::clone(&server).run(listener, closing.clone()));
    }
    for address in &addresses {
        tracing::info!(address = %address, port = address.port(), "listening");
    }

    let exit = live(&config, &app, &addresses, signals, &arguments).await;
    // Closed only now, so that /health answers to the end.
    close.send_replace(true);
    server.wait_idle(FAREWELL).await;
    // A driver that hangs is no reason not to end.
    let _ = tokio::time::timeout(FAREWELL, app.engine.wait_gone()).await;
    let crashes = Arc::clone(app.engine.crashes());
    // A task that is lost has nothing left to write.
    let _ = tokio::task::spawn_blocking(move || crashes.flush(FAREWELL)).await;
    tracing::info!(exit_code = exit.code(), "shutdown_complete");
    exit
}

/// Bounds connections by the process's descriptors that are left once children have theirs.
fn bound_connections(http: &mut HttpConfig, listeners: usize) -> Result<(), TooFew> {
    let wanted = http.max_connections;
    let budget = descriptors::budget(descriptors::raise_limit(), listeners, wanted.get())?;
    http.max_connections = NonZeroUsize::new(budget.connections).unwrap_or(wanted);
    tracing::info!(
        limit = budget.connections,
        wanted,
        descriptors = budget.descriptors,
        kept_back = budget.kept_back,
        "connections"
    );
    Ok(())
}

/// Decides the device once: every child of this worker computes there.
async fn decide(config: &Config) -> DecidedDevice {
    match config.device.named() {
        Some(device) => device,
        None => DecidedDevice::auto(probe::ask(&config.child_binary, AUTO_ORDINAL).await),
    }
}

/// Serves from the first child to the engine's end.
async fn live(
    config: &Config,
    app: &Arc<App>,
    addresses: &[SocketAddr],
    mut signals: mpsc::UnboundedReceiver<Word>,
    arguments: &Arc<ArgMatches>,
) -> WorkerExit {
    let engine = &app.engine;
    let mut announced = std::pin::pin!(announce(config, app, addresses));
    let mut announcing = true;
    let mut undelivered = false;
    let mut stops_seen = 0;
    loop {
        tokio::select! {
            ended = engine.wait_ended() => {
                log_failure(&ended);
                return match undelivered {
                    true => WorkerExit::Callback,
                    false => WorkerExit::Engine(ended.exit),
                };
            }
            delivered = announced.as_mut(), if announcing => {
                announcing = false;
                if !delivered {
                    undelivered = true;
                    engine.drain(config.life.drain_timeout);
                }
            }
            Some(word) = signals.recv() => match word {
                Word::Stop(signal) => {
                    stops_seen += 1;
                    log_order(signal, stops_seen > 1);
                    if stops_seen > 1 {
                        engine.stop_now();
                    } else {
                        engine.drain(config.life.drain_timeout);
                    }
                }
                Word::StopWithoutWaiting => {
                    log_order("SIGQUIT", true);
                    engine.drain(Duration::ZERO);
                }
                Word::Reload => {
                    tokio::spawn(reload(Arc::clone(app), Arc::clone(arguments)));
                }
                Word::Ignored(signal) => tracing::warn!(signal, "signal_ignored"),
            }
        }
    }
}

/// SIGHUP: keys and log level are read again. What is wrong now leaves everything as it was.
async fn reload(app: Arc<App>, arguments: Arc<ArgMatches>) {
    // A disk may take its time.
    let read = tokio::task::spawn_blocking(move || {
        Again::read(&arguments, &Environment::of_this_process())
    });
    let Ok(read) = read.await else { return };
    let taken = match read {
        Ok(again) => take_over(&app, &again).map_err(|reason| vec![reason]),
        Err(ConfigErrors(mistakes)) => Err(mistakes),
    };
    for reason in taken.err().into_iter().flatten() {
        tracing::error!(reason, "reload_failed");
    }
}

fn take_over(app: &App, again: &Again) -> Result<(), String> {
    // First, because it may be refused: then the level stays, too.
    let before = app.keys.replace(&again.api_keys);
    let before = before.ok_or("no key file is named any more; the old keys stay")?;
    logging::reload(&again.log_level)?;
    tracing::info!(
        api_keys = again.api_keys.len(),
        before,
        log_level = again.log_level,
        "reload"
    );
    Ok(())
}

/// Says that the model is ready: in the log, and to whoever asked to be called. False when
/// nobody took the call.
async fn announce(config: &Config, app: &App, addresses: &[SocketAddr]) -> bool {
    if app.engine.wait_ready().await.is_err() {
        // The engine has ended, and says why itself.
        return true;
    }
    let Some(model) = app.engine.model() else {
        return true;
    };
    let uri = config.advertise_url.clone().unwrap_or_else(|| {
        let first = addresses.first();
        first.map_or_else(String::new, |address| format!("http://{address}"))
    });
    tracing::info!(
        model = app.model_id,
        architecture = model.facts.architecture,
        quant_kind = model.facts.quant_kind,
        device = model.device.id,
        device_name = model.device.name,
        generation = app.engine.snapshot().child().map(|child| child.generation),
        uri,
        "ready"
    );
    logging::tell_a_person(&first_request(addresses, app.keys.are_asked_for()));
    let Some(url) = &config.callback_url else {
        return true;
    };
    let registration = Registration {
        worker_id: app.worker_id.to_string(),
        model_ref: app.model_ref.clone(),
        memory_bytes: app.device_bytes_in_use().unwrap_or(model.facts.file_bytes),
        memory_architecture: match app.device.selector {
            DeviceSelector::Cpu => "host",
            DeviceSelector::Cuda(_) => "vram-only",
        },
        uri,
        worker_type: "worker-orcd",
        capabilities: capabilities(model.has_chat_template()),
    };
    match register(url, &registration).await {
        Ok(()) => {
            tracing::info!("callback_delivered");
            true
        }
        Err(error) => {
            end_with(WorkerExit::Callback, &error);
            false
        }
    }
}

/// A command to type next.
fn first_request(addresses: &[SocketAddr], with_key: bool) -> String {
    let host = match addresses.first() {
        Some(address) if address.ip().is_loopback() || address.ip().is_unspecified() => {
            format!("localhost:{}", address.port())
        }
        Some(address) => address.to_string(),
        None => return String::new(),
    };
    let key = if with_key {
        " -H 'Authorization: Bearer KEY'"
    } else {
        ""
    };
    format!(
        "\nTry it, from another terminal:\n  curl -N {host}/v1/completions{key} \
         -H 'Content-Type: application/json' -d '{{\"prompt\": \"Once upon a time\", \
         \"max_tokens\": 64, \"stream\": true}}'\n"
    )
}

fn capabilities(chat: bool) -> Vec<&'static str> {
    let mut capabilities = vec!["text-gen", "streaming", "cancel"];
    if chat {
        capabilities.push("chat");
    }
    capabilities
}

fn engine_settings(config: &Config, device: &DecidedDevice) -> EngineSettings {
    let load = &config.load;
    EngineSettings {
        child_binary: config.child_binary.clone(),
        load: LoadOrder {
            model_path: config.model.to_string_lossy().into_owned(),
            model_file: ModelFile::AtPath,
            weights: None,
            // Pages are found again by what they hold.
            shares_kv: config.life.standby && load.prefix_cache,
            adopts_from: None,
            device: device.selector,
            kv_cache_bytes: load.kv_cache_bytes,
            memory_permille: load.memory_permille.unwrap_or(DEFAULT_MEMORY_PERMILLE),
            max_running: load.max_running,
            max_sequence_tokens: load.max_context_tokens,
            prefill_chunk_tokens: load.prefill_chunk_tokens,
            threads: load.threads,
            prefix_cache: load.prefix_cache,
            trace: load.trace.as_ref().map(|trace| TraceOrder {
                path: trace.path.to_string_lossy().into_owned(),
                first_values: trace.first_values,
            }),
            role: Role::Active,
        },
        deadlines: Deadlines {
            heartbeat: config.life.heartbeat_timeout,
            step: config.life.step_timeout,
            load: config.life.load_timeout,
            ..Deadlines::default()
        },
        restart: RestartPolicy {
            max_deaths: config.life.max_restarts,
            max_delay: config.life.max_restart_delay,
            ..RestartPolicy::default()
        },
        on_fault: config.limits.on_fault,
        max_queue: config.life.max_queue,
        quarantine_for: config.life.quarantine_for,
        template_timeout: config.life.template_timeout,
        model_sampling: config.model_sampling,
        accept_fault_injection: config.accept_fault_injection,
        standby: config.life.standby,
        crashes: config.crashes.clone(),
    }
}

fn log_startup(config: &Config, device: &DecidedDevice) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        model = config.model_ref,
        device = %device,
        device_chosen_because = device.reason,
        child_binary = %config.child_binary.display(),
        api_keys = config.http.api_keys.len(),
        "startup"
    );
}

fn log_order(signal: &str, at_once: bool) {
    tracing::info!(reason = signal, at_once, "shutdown");
}

/// A clean end is said by `engine_end` and `shutdown_complete` already.
fn log_failure(ended: &Ended) {
    if ended.exit != SupervisorExit::Clean {
        end_with(WorkerExit::Engine(ended.exit), &ended.reason);
    }
}
