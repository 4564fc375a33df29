//! `cargo xtask chaos`: many streams of the real worker while its children die of every kind of fault. Every finished
//! stream is compared with a run without faults.
//!
//! ```text
//! mix ── clients ─┐                 ┌─ stream (one request, as its client sees it)
//!                 ├─ worker ◄───────┘
//! storm ──────────┤  (signals from outside; the child's own faults come from WORKER_ORCD_FAULTS)
//! wear ───────────┤  (devices that are taken out of use and readmitted)
//! watch ──────────┤  (descriptors, threads, memory, zombies of the supervisor)
//! siege ──────────┤  (hostile requests, clients, logs and disks, with --siege)
//! vram ───────────┘  (device memory, on a GPU)
//!                        └──── deaths ── verdict ── report
//! ```
//!
//! * [`mix`]: requests and behaviour of clients, from the seed. [`stream`]: one answer. [`api`]: its format.
//!   [`clients`]: concurrent streams. [`tally`]: comparison and counts. [`worker`]: process under test and its log.
//! * [`devices`]: its devices. [`storm`]: signals. [`wear`]: devices out of use. [`watch`]: figures of `/proc`.
//!   [`vram`]: figures of nvidia-smi. [`siege`]: attacks. [`handover`]: upgrades and deaths of supervisors.
//! * [`deaths`]: crash reports. [`pauses`]: cost of faults. [`report`]: summary.
//!
//! The seed fixes the requests, the behaviour of clients and the injected faults; the times of signals from outside
//! vary. Exit code 0 means no violation.

mod api;
mod clients;
mod deaths;
mod devices;
mod handover;
mod mix;
mod pauses;
mod report;
mod siege;
mod storm;
mod stream;
mod tally;
mod vram;
mod watch;
mod wear;
mod worker;

use anyhow::{Context, Result, bail};
use clap::Parser;
use clients::{Clients, References, RunningClients};
use deaths::Deaths;
use handover::Handovers;
use mix::kinds::{self, Kind};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use report::Report;
use serde_json::Value;
use siege::{Ground, Ledger, Siege};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use storm::{Storm, Weather};
use watch::Watch;
use wear::{Wear, Worn};
use worker::{Change, Faults, Setup, Worker};
use worker_orcd_tests::model::first_layers_of;

/// Streams against the real worker while its children die.
#[derive(Debug, Parser)]
#[command(name = "chaos", args_override_self = true)]
pub struct Arguments {
    /// How long faults and new streams come.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Repeats the requests and the children's own faults of another run [default: a fresh one].
    #[arg(long)]
    seed: Option<u64>,
    /// End as soon as so many children have died.
    #[arg(long)]
    faults: Option<u64>,
    /// Streams at any time.
    #[arg(long, default_value_t = 32)]
    streams: usize,
    /// Different requests of each kind, and of each way to tell the answer.
    #[arg(long, default_value_t = 2)]
    requests: usize,
    /// Kinds of requests: all, or execute alone. On a GPU some of the others keep steps from being
    /// launched ahead.
    #[arg(long, value_enum, default_value_t = Mix::All)]
    mix: Mix,
    /// Seconds between signals from outside, on average; 0 sends none.
    #[arg(long, default_value_t = 8.0)]
    signal_seconds: f64,
    /// Which signals, with commas between.
    #[arg(long, value_delimiter = ',', default_value = "SIGKILL,SIGTERM,SIGSTOP")]
    signals: Vec<Signal>,
    /// Send each signal again while the next child starts and loads.
    #[arg(long)]
    chase: bool,
    /// What a child does to itself at each step, as a probability.
    #[arg(long, default_value_t = 0.01)]
    fault_chance: f64,
    /// Which of the child's own faults, as in its grammar: any, device, or names, with | between.
    #[arg(long, default_value = "any")]
    kinds: String,
    /// As the worker's own flag: cpu, cuda:N, or several with commas between. On one GPU its memory is watched too.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Requests decoded in one step.
    #[arg(long, default_value_t = 8)]
    max_running: usize,
    /// Tokens of a conversation. Prompts are computed again after each death, and are short; a vocabulary that knows few
    /// words makes more tokens of them, as those of bench/gpu/models.py, which want 2048.
    #[arg(long, default_value_t = 512)]
    max_context: u32,
    /// The deadlines of heartbeat and step are so many times as long, for a machine that has much else to do.
    #[arg(long, default_value_t = 1)]
    slowness: u32,
    /// Again and again one of several devices goes out of use while streams run, drained or worn out, and comes back.
    #[arg(long)]
    worn_devices: bool,
    /// A child stands by, and takes over when another one dies.
    #[arg(long)]
    standby: bool,
    /// Hostile bodies, clients, templates, disks and signals beside the streams, a log that is left
    /// unread, and 1,024 descriptors: `cargo xtask siege`.
    #[arg(long)]
    siege: bool,
    /// Afterwards, supervisors are replaced and killed under requests of each kind, and who has lost the connection
    /// asks for the rest.
    #[arg(long)]
    successors: bool,
    /// Every client reads to the end, and quickly: none cancels, vanishes or dawdles.
    #[arg(long)]
    steady: bool,
    /// Write the report there, as Markdown.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Named in the report.
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// What was typed to start this, for the report [default: this program and its arguments].
    #[arg(long)]
    command: Option<String>,
    #[arg(
        long,
        env = "WORKER_ORCD_MODEL",
        default_value = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    )]
    model: PathBuf,
    /// Compute with the first layers of the model: a minute has more requests and deaths.
    #[arg(long)]
    shallow: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Mix {
    All,
    Execute,
}

impl Mix {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::All => &kinds::ALL,
            Self::Execute => &kinds::EXECUTE,
        }
    }
}

/// 3 min for running streams to finish after the storm.
const CALM: Duration = Duration::from_secs(180);

/// Default limit of a shell, which a besieged worker keeps.
const DESCRIPTORS: u64 = 1024;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(fresh_seed);
    println!("chaos: seed {seed}");
    let outcome = run(&arguments, seed).and_then(|report| {
        println!("\n{}", report.markdown());
        if let Some(path) = &arguments.report {
            std::fs::write(path, report.markdown())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(report.violations.len())
    });
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(count) => {
            eprintln!("chaos: {count} violations; again with --seed {seed}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("chaos: {error:#}; again with --seed {seed}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, seed: u64) -> Result<Report> {
    if !arguments.model.is_file() {
        bail!(
            "no model at {}: run `cargo xtask fetch-model`",
            arguments.model.display()
        );
    }
    let requests = mix::requests(seed, arguments.requests.max(1), arguments.mix.kinds());
    println!("chaos: {} requests once, without faults", requests.len());
    let model = match arguments.shallow {
        true => &first_layers_of(&arguments.model),
        false => &arguments.model,
    };
    let ground = Ground::prepare(model, arguments.siege)?;
    let setup = Setup {
        model: ground.model.clone(),
        device: arguments.device.clone(),
        max_running: arguments.max_running,
        max_context: arguments.max_context,
        standby: arguments.standby,
        slowness: arguments.slowness,
        small_disk: ground.small_disk.clone(),
        program: None,
        notified: None,
    };
    if arguments.siege {
        setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS)?;
    }
    let mut vram = vram::Vram::of(&arguments.device)?;
    // The reference is computed on one device only.
    let first = arguments.device.split(',').next().unwrap_or_default();
    let alone = Setup {
        device: first.to_owned(),
        ..setup.clone()
    };
    let calm = Worker::start(&alone, None)?;
    let references = References::take(&calm, requests)?;
    let mut cold_starts = vec![calm.cold_start];
    calm.stop()?;

    let faults = Faults {
        kinds: arguments.kinds.clone(),
        chance: arguments.fault_chance,
        seed,
    };
    let worker = Arc::new(Worker::start(&setup, Some(&faults))?);
    cold_starts.push(worker.cold_start);
    references.warm(&worker)?;
    let idle = Watch::settled(&worker)?;
    let vram_served = vram.as_mut().map(vram::Vram::in_use).transpose()?;
    let clients = Clients {
        count: arguments.streams,
        steady: arguments.steady,
        seed,
    };
    let running = RunningClients::start(&worker, &references, clients);
    let weather = Weather {
        mean_seconds: arguments.signal_seconds,
        signals: arguments.signals.clone(),
        chase: arguments.chase,
        seed,
    };
    let storm = Storm::start(&worker, weather);
    let wear = arguments.worn_devices.then(|| Wear::start(&worker, seed));
    let siege = arguments.siege.then(|| Siege::start(&worker, seed));
    let (began, mut watch) = (Instant::now(), Watch::new(&idle));
    let limit = Duration::from_secs_f64(arguments.minutes * 60.0);
    while began.elapsed() < limit
        && arguments
            .faults
            .is_none_or(|enough| worker.deaths() < enough)
    {
        worker.assert_alive()?;
        watch.look(&worker);
        running.show_progress(&worker, began.elapsed());
        std::thread::sleep(Duration::from_millis(500));
    }
    let mut signals = storm.stop();
    let worn = wear.map(Wear::stop);
    signals.extend(worn.iter().flat_map(|worn| worn.kills.clone()));
    let ledger = siege.map(Siege::stop);
    println!(
        "chaos: calm after {} s; what runs may finish",
        began.elapsed().as_secs()
    );
    let stormed_for = began.elapsed();
    let tally = running.finish(&worker, CALM)?;
    let mut violations = tally.verdict();
    violations.extend(watch.verdict(&worker, &idle));
    violations.extend(worn.iter().flat_map(Worn::verdict));
    violations.extend(ledger.iter().flat_map(Ledger::verdict));
    if ledger.is_some() && watch.peak_bytes() > siege::MEMORY_BYTES {
        violations.push(format!(
            "the supervisor grew to {} bytes",
            watch.peak_bytes()
        ));
    }
    let health = worker.health()?;
    violations.extend(honesty(&health));
    let (told, deaths) = (health["faults"].clone(), worker.deaths());
    let (injected, changes) = (worker.injected(), worker.changes());
    let adopted = worker.adopted()?;
    if arguments.standby && adopted.tokens == 0 {
        violations.push("no page was adopted, so nothing was shown of that".to_owned());
    }
    let reports = Deaths::read(&worker, &injected)?;
    // On a card a fault of one child may hit the other while that one loads.
    let has_neighbour = arguments.standby && arguments.device.contains("cuda");
    violations.extend(reports.violations(has_neighbour || !signals.is_empty()));
    let fills = injected.iter().filter(|it| it.kind == "device-full");
    let filled: Vec<_> = fills.map(|it| it.at).collect();
    let of_child = injected.iter().map(|it| (it.kind.clone(), it.at));
    let hits: Vec<_> = of_child.chain(signals).collect();
    violations.extend(worker.stop().err().map(|error| format!("{error:#}")));
    let wanted = arguments.faults.unwrap_or(1);
    if deaths < wanted {
        violations.push(format!(
            "{deaths} of {wanted} children died, so less was shown"
        ));
    }
    let handovers = match arguments.successors {
        true => Some(Handovers::run(&setup, &faults, &references)?),
        false => None,
    };
    violations.extend(handovers.iter().flat_map(Handovers::verdict));
    let vram = match (vram, vram_served) {
        (Some(vram), Some(served)) => Some(vram.verdict(served, &changes, &filled)?),
        _ => None,
    };
    violations.extend(vram.iter().flat_map(|vram| vram.violations.clone()));
    Ok(Report {
        command: arguments.command.clone().unwrap_or_else(typed),
        commit: arguments.commit.clone(),
        seed,
        stormed_for,
        cold_starts,
        pauses: pauses::Pauses::find(&tally.gaps, &hits),
        hits,
        deaths,
        reports,
        deaths_by_cause: told["deaths_by_cause"].clone(),
        recoveries: told["recoveries"].clone(),
        adopted,
        memory: watch.summary(&idle),
        vram: vram.map(|vram| vram.summary),
        worn: worn.map(|worn| worn.markdown()),
        siege: ledger.map(|ledger| ledger.markdown(&ground)),
        handovers: handovers.map(|it| it.markdown()),
        died: died(&changes),
        tally,
        slowness: arguments.slowness,
        violations,
    })
}

/// Missing deaths in `/health`.
fn honesty(health: &Value) -> Option<String> {
    let faults = &health["faults"];
    let figure = |name: &str| faults[name].as_u64();
    let is_burst = figure("deaths_in_window") > figure("degraded_above");
    let is_told = health["status"] == "degraded" || !is_burst;
    (!is_told).then(|| format!("it says {} behind these: {faults}", health["status"]))
}

fn died(changes: &[(Change, Instant)]) -> Vec<Instant> {
    let deaths = changes
        .iter()
        .filter(|(change, _)| *change == Change::Death);
    deaths.map(|(_, at)| *at).collect()
}

fn fresh_seed() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::from(since.subsec_nanos()) ^ since.as_secs()
}

/// Command line of this program, without the commit, which is printed elsewhere.
fn typed() -> String {
    let mut arguments: Vec<_> = std::env::args().skip(1).collect();
    if let Some(commit) = arguments.iter().position(|it| it == "--commit") {
        arguments.drain(commit..arguments.len().min(commit + 2));
    }
    format!("chaos {}", arguments.join(" "))
}
