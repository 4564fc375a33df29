//! `worker-orcd serve`, the default command: serves until it is stopped.
//!
//! ```text
//! handoff state ─→ listen ─→ download ─→ devices ─→ start the engine ─→ ready ─→ callback ─→ … ─→ drain ─→ end
//!                  (answers /health)                      └─→ upgrade: another program continues
//! ```

mod announce;
mod doors;
mod fetch;
mod handoff;
pub mod lifeline;
pub mod rehearsal;
mod settings;
mod sockets;
mod store;
pub mod upgrade;

use crate::commands::reload::reload;
use crate::commands::{end_with, usage};
use crate::config::Config;
use crate::config::device::{AUTO_ORDINAL, DecidedDevices, DeviceChoice};
use crate::config::environment::Environment;
use crate::descriptors;
use crate::exit::WorkerExit;
use crate::http::admin_socket::{AdminServer, Name};
use crate::http::handed::{self, HandedDescriptors};
use crate::http::listen::Server;
use crate::http::{App, probe_router, router};
use crate::logging;
use crate::signals::{Signals, Word};
use announce::announce;
use clap::ArgMatches;
use doors::Doors;
use fetch::fetch;
use futures_util::future::BoxFuture;
use handoff::{Found, Predecessor, Sockets};
use lifeline::Received;
use settings::engine_settings;
use sockets::sockets;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use store::Stored;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use upgrade::{Holdings, Program, Report};
use worker_orcd_engine::Ended;
use worker_orcd_engine::child::spawn::Spawner;
use worker_orcd_engine::nvml::device_nodes_are_there;
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_lifecycle::SupervisorExit;
use worker_orcd_process::probe;

/// Time for connections to send the last events of their streams.
const FAREWELL: Duration = Duration::from_secs(2);

/// Time to write the last lines of the log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Longest time from the engine's end to the process's end: connections, driver, crash reports, then the log.
pub const LONGEST_END: Duration = FAREWELL.saturating_mul(3).saturating_add(LAST_LINES);

/// Serves until the end. The log has the reason; the exit code is returned.
#[must_use]
pub fn run(arguments: &ArgMatches, received: io::Result<Option<Received>>) -> WorkerExit {
    let exit = run_logged(arguments, received);
    lifeline::end(&format!(
        "it ended with code {} ({})",
        exit.code(),
        exit.name()
    ));
    logging::settle(LAST_LINES);
    exit
}

fn run_logged(arguments: &ArgMatches, received: io::Result<Option<Received>>) -> WorkerExit {
    // Must precede threads and children.
    let handed = handed::descriptors();
    let has_room = descriptors::make_room();
    let program = Program::of_this_process();
    let environment = Environment::of_this_process();
    let mut config = match Config::gather(arguments, &environment) {
        Ok(config) => config,
        Err(mistakes) => return usage::refuse(arguments, &environment, &mistakes),
    };
    let (handed, bundles) = match handed {
        Ok(HandedDescriptors { listeners, bundles }) => (Ok(listeners), bundles),
        Err(error) => (Err(error), Vec::new()),
    };
    let found = received.and_then(|received| handoff::find(received, &bundles));
    if let Ok(Found {
        last: Some(last), ..
    }) = &found
    {
        last.settle(&mut config);
    }
    if let Err(error) = logging::start(config.log_format, &config.log_level, Some(config.worker_id))
    {
        eprintln!("the log cannot be started: {error}");
        return WorkerExit::Startup;
    }
    lifeline::guard_against_panics();
    if let Err(error) = has_room {
        tracing::warn!(%error, "no_room_for_descriptors");
    }
    let handed = match handed {
        Ok(handed) => handed,
        Err(error) => return end_with(WorkerExit::Listen, &error),
    };
    let (program, found) = match (program, found) {
        (Ok(program), Ok(found)) => (program, found),
        (Err(error), _) | (_, Err(error)) => return end_with(WorkerExit::Startup, &error),
    };
    for reason in &found.unreadable {
        tracing::warn!(reason, "handoff_unreadable");
    }
    let mut inherited = found.last;
    let sockets = match sockets(&mut config, handed, &mut inherited) {
        Ok(sockets) => sockets,
        Err(reason) => return end_with(WorkerExit::Usage, &reason),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return end_with(WorkerExit::Startup, &error),
    };
    let arguments = Arc::new(arguments.clone());
    let (spawner, orders) = Spawner::new();
    lifeline::reach_main_by(&spawner);
    let serving = thread::Builder::new()
        .name("serve".to_owned())
        .spawn(move || {
            let _over = Over(spawner.clone());
            let serve = serve(config, sockets, arguments, program, inherited, spawner);
            let exit = runtime.block_on(serve);
            // Threads that still block (a tokenizer, a lookup) have no request to answer.
            runtime.shutdown_background();
            exit
        });
    match serving {
        Ok(serving) => {
            orders.carry_out();
            serving
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }
        Err(error) => end_with(WorkerExit::Startup, &error),
    }
}

/// Releases the main thread when dropped.
struct Over(Spawner);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn serve(
    mut config: Config,
    sockets: Sockets,
    arguments: Arc<ArgMatches>,
    program: Program,
    mut before: Option<Predecessor>,
    spawner: Spawner,
) -> WorkerExit {
    let mut signals = match Signals::open() {
        Ok(signals) => signals,
        Err(error) => return end_with(WorkerExit::Startup, &error),
    };
    let report = Report::new();
    let goes_on = before.as_ref().is_some_and(Predecessor::is_of_an_upgrade);
    let given = sockets.given;
    let doors = match Doors::open(&mut config.http, sockets, goes_on).await {
        Ok(doors) => doors,
        Err(exit) => return exit,
    };
    let known = before.as_ref().and_then(Predecessor::devices);
    let devices = match prepare(&mut config, &mut signals, known).await {
        Ok(devices) => devices,
        Err(exit) => return exit,
    };
    log_startup(&config, &devices);
    let settings = engine_settings(&config, &devices);
    let previous = before.as_mut().map(Predecessor::engine);
    let previous = previous.unwrap_or_default();
    let engine = worker_orcd_engine::driver::start(settings, previous, &spawner);
    let app = Arc::new(App::new(&config, engine.clone(), devices));
    let server = Arc::new(Server::new(
        router(Arc::clone(&app)),
        probe_router(Arc::clone(&app)),
        Arc::clone(&app.slots),
        app.tls.clone(),
        &config.http,
    ));
    let (close, closing) = watch::channel(false);
    let stored = Stored::behind(before.as_ref().map_or(0, |it| it.number));
    if let Some(before) = before {
        engine.wait_begun().await;
        report_upgrade(&before, &report);
        before.go_on(&app, &server, &closing);
    }
    let admin = AdminServer::new(router(Arc::clone(&app)), &config.http);
    // Held to the end: dropping it removes the socket.
    let accept_admin = |door| accept_admin(door, &admin, &closing);
    let _name = doors.admin.map(accept_admin);
    accept(doors.listeners, &server, &closing);
    tokio::spawn(store::keep(
        Arc::clone(&app),
        Arc::clone(&doors.duplicates),
        stored.clone(),
    ));
    let holdings = Holdings {
        program,
        spawner,
        app: Arc::clone(&app),
        server: Arc::clone(&server),
        listeners: doors.duplicates,
        listeners_given: given,
        admin_socket: config.http.admin_socket.clone(),
        stored,
        report,
        read_timeout: config.http.read_timeout,
    };
    let exit = live(
        &config,
        &holdings,
        &doors.addresses,
        &mut signals,
        &arguments,
    )
    .await;
    // Closed last, so that /health answers to the end.
    close.send_replace(true);
    finish_connections(&app, &server, &admin).await;
    tracing::info!(exit_code = exit.code(), "shutdown_complete");
    exit
}

/// Reports the outcome of an upgrade to `worker-orcd upgrade`.
fn report_upgrade(inherited: &Predecessor, report: &Report) {
    match &inherited.undone {
        Some(reason) => {
            tracing::error!(reason, "resumed_after_failed_upgrade");
            report.send(&format!("undone: {reason}"));
        }
        None if inherited.is_of_an_upgrade() => report.send(upgrade::TAKEN_OVER),
        None => {}
    }
}

fn accept_admin(
    (listener, name): (UnixListener, Name),
    admin: &Arc<AdminServer>,
    closing: &watch::Receiver<bool>,
) -> Name {
    tracing::info!(path = %name.path().display(), "admin_socket");
    tokio::spawn(Arc::clone(admin).run(listener, closing.clone()));
    name
}

fn accept(listeners: Vec<TcpListener>, server: &Arc<Server>, closing: &watch::Receiver<bool>) {
    for listener in listeners {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(address = %address, port = address.port(), "listening");
        }
        tokio::spawn(Arc::clone(server).run(listener, closing.clone()));
    }
}

async fn finish_connections(app: &App, server: &Server, admin: &AdminServer) {
    tokio::join!(server.wait_idle(FAREWELL), admin.wait_idle(FAREWELL));
    // A hanging driver does not block the end.
    let _ = tokio::time::timeout(FAREWELL, app.engine.wait_gone()).await;
    let crashes = Arc::clone(app.engine.crashes());
    // A failed task has no more reports to write.
    let _ = tokio::task::spawn_blocking(move || crashes.flush(FAREWELL)).await;
}

/// Slow preparations before the load of a model.
async fn prepare(
    config: &mut Config,
    signals: &mut Signals,
    known: Option<Vec<DeviceSelector>>,
) -> Result<DecidedDevices, WorkerExit> {
    fetch(config, signals).await?;
    decide(config, known).await
}

/// Selects the devices once, for all children of this worker.
async fn decide(
    config: &Config,
    known: Option<Vec<DeviceSelector>>,
) -> Result<DecidedDevices, WorkerExit> {
    let program = &config.child_binary;
    let known = known.map(DecidedDevices::as_before);
    if let Some(devices) = config.device.named().or(known) {
        for card in devices.cards() {
            if !device_nodes_are_there() {
                // The probe makes NVIDIA's driver create device nodes, through a program that confined children may not
                // start.
                drop(probe::ask(program, card).await);
            }
        }
        return Ok(devices);
    }
    match config.device {
        DeviceChoice::All => {
            let all = DecidedDevices::all(probe::count_devices(program).await);
            let exit = WorkerExit::Engine(SupervisorExit::DeviceUnavailable);
            all.map_err(|reason| end_with(exit, &reason))
        }
        _ => Ok(DecidedDevices::auto(
            probe::ask(program, AUTO_ORDINAL).await,
        )),
    }
}

/// Serves from the first child to the engine's end.
async fn live(
    config: &Config,
    holdings: &Holdings,
    addresses: &[SocketAddr],
    signals: &mut Signals,
    arguments: &Arc<ArgMatches>,
) -> WorkerExit {
    let app = &holdings.app;
    let engine = &app.engine;
    let mut announced = std::pin::pin!(announce(config, app, addresses));
    let mut announcing = true;
    let mut undelivered = false;
    let mut stops_seen = 0;
    let mut preparing: Option<BoxFuture<'_, Result<(), String>>> = None;
    loop {
        let prepared = async {
            match &mut preparing {
                Some(preparing) => preparing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            prepared = prepared => {
                preparing = None;
                match prepared {
                    Ok(()) if engine.is_closed() => holdings.call_off("the worker is ending"),
                    Ok(()) => if let Some(exit) = holdings.hand_over().await {
                        return exit;
                    },
                    Err(reason) => holdings.refuse(&reason),
                }
            }
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
            word = signals.recv() => {
                if word.ends() && preparing.take().is_some() {
                    holdings.call_off("the worker is shutting down");
                }
                match word {
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
                    Word::Upgrade if preparing.is_some() => tracing::info!("upgrade_under_way"),
                    Word::Upgrade => preparing = Some(Box::pin(holdings.prepare())),
                    Word::Ignored(signal) => tracing::warn!(signal, "signal_ignored"),
                }
            }
        }
    }
}

fn log_startup(config: &Config, devices: &DecidedDevices) {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        model = config.model_ref,
        device = %devices,
        device_chosen_because = devices.reason,
        child_binary = %config.child_binary.display(),
        api_keys = config.http.keys.clients.len(),
        admin_keys = config.http.keys.admins.len(),
        "startup"
    );
    if let Some(option) = config.load.without_use_on(&devices.selectors) {
        tracing::warn!(option, because = %devices.reason, "option_without_use");
    }
}

fn log_order(signal: &str, at_once: bool) {
    tracing::info!(reason = signal, at_once, "shutdown");
}

/// `engine_end` and `shutdown_complete` report a clean end.
fn log_failure(ended: &Ended) {
    if ended.exit != SupervisorExit::Clean {
        end_with(WorkerExit::Engine(ended.exit), &ended.reason);
    }
}
