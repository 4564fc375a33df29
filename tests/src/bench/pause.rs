//! Pause of streams at the death of their child, and comparison of their bytes.

use super::Latencies;
use crate::worker::request;
use crate::{Worker, WorkerBuilder, process, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;

/// Tokens of every stream before the child dies.
pub(super) const TOKENS_BEFORE: usize = 8;
pub(super) const TOKENS_AFTER: usize = 24;

/// Additional tokens in an upgrade, so that streams outlast its rehearsal.
const TOKENS_OF_AN_UPGRADE: usize = 200;

/// 5 min for the prompts of a case.
const PROMPTS_WITHIN: Duration = Duration::from_secs(300);

/// Way of a child's death.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    pub name: &'static str,
    cause: Cause,
    /// Time before the death can be detected.
    pub deadline: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Cause {
    Signal(Signal),
    /// Injected fault of that name in the grammar.
    Fault,
}

impl Death {
    const fn of_signal(name: &'static str, signal: Signal, deadline: Duration) -> Self {
        let cause = Cause::Signal(signal);
        Self {
            name,
            cause,
            deadline,
        }
    }

    const fn of_fault(name: &'static str, deadline: Duration) -> Self {
        let cause = Cause::Fault;
        Self {
            name,
            cause,
            deadline,
        }
    }

    /// Entry of [`FAULTS`] by name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        FAULTS.into_iter().find(|death| death.name == name)
    }

    /// Causes the death, of this process or of the child that computes.
    fn strike(self, victim: u32) {
        match self.cause {
            Cause::Signal(signal) => process::signal(victim, signal),
            Cause::Fault => {
                std::fs::write(self.trigger(), "").expect("a file in the temporary directory");
            }
        }
    }

    /// File that triggers the child's fault.
    fn trigger(self) -> PathBuf {
        let name = format!("bench-recovery-{}-{}", std::process::id(), self.name);
        std::env::temp_dir().join(name)
    }
}

/// Deaths by signals. The hang ends at the heartbeat deadline of a worker that [`worker`] starts.
pub const DEATHS: [Death; 3] = [
    Death::of_signal("SIGKILL", Signal::SIGKILL, Duration::ZERO),
    Death::of_signal("abort", Signal::SIGABRT, Duration::ZERO),
    Death::of_signal(
        "hang, beyond its deadline",
        Signal::SIGSTOP,
        HEARTBEAT_DEADLINE,
    ),
];

/// Upgrade: not a death, but it ends both the child and the supervisor.
pub const UPGRADE: Death = Death::of_signal("upgrade", Signal::SIGUSR2, Duration::ZERO);

/// Deaths that need a child with fault injection.
pub const FAULTS: [Death; 7] = [
    Death::of_fault("nan", Duration::ZERO),
    Death::of_fault("panic", Duration::ZERO),
    Death::of_fault("illegal-address", Duration::ZERO),
    Death::of_fault("misaligned", Duration::ZERO),
    Death::of_fault("trap", Duration::ZERO),
    Death::of_fault("device-out-of-memory", Duration::ZERO),
    Death::of_fault("endless-kernel", STEP_DEADLINE),
];

const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(1);
const STEP_DEADLINE: Duration = Duration::from_secs(2);

/// How streams come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// The whole worker is killed and started again by a shell, and its clients ask again.
    Cold,
    /// The worker is told to let another program take over.
    Upgrade,
    /// As before, and the next child adopts keys and values.
    UpgradeWithStandby,
    /// The next child takes over the weights.
    WeightsKept,
    /// A child stands by, and computes again what the dead one had computed.
    StandbyWithoutAdoption,
    /// A child stands by, and adopts keys and values.
    Standby,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold, asked again",
            Self::Upgrade => "upgrade",
            Self::UpgradeWithStandby => "upgrade with standby",
            Self::WeightsKept => "weights kept",
            Self::StandbyWithoutAdoption => "standby without adoption",
            Self::Standby => "standby",
        }
    }

    /// Whether the supervisor is replaced.
    pub const fn is_upgrade(self) -> bool {
        matches!(self, Self::Upgrade | Self::UpgradeWithStandby)
    }

    const fn has_standby(self) -> bool {
        matches!(
            self,
            Self::UpgradeWithStandby | Self::StandbyWithoutAdoption | Self::Standby
        )
    }
}

/// Row of the matrix.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub death: Death,
    /// Words of each prompt; in most models a token each.
    pub context: usize,
    pub streams: usize,
    pub deaths: usize,
}

/// Worker that allows any number of deaths, also by these faults.
#[must_use]
pub fn worker(device: &str, mode: Mode, faults: &[Death]) -> WorkerBuilder {
    let mut builder = Worker::real()
        .arg("--device", device)
        .arg("--max-running", 32)
        .arg(
            "--heartbeat-timeout",
            format!("{}ms", HEARTBEAT_DEADLINE.as_millis()),
        )
        .arg("--max-restart-delay", "1ms");
    if !faults.is_empty() {
        let rule = |fault: &Death| format!("{}@file={}", fault.name, fault.trigger().display());
        let rules: Vec<_> = faults.iter().map(rule).collect();
        let step_deadline = format!("{}ms", STEP_DEADLINE.as_millis());
        builder = builder
            .faults(&rules.join(";"))
            .arg("--step-timeout", step_deadline)
            // The same prompts are in flight at every death.
            .arg("--quarantine-for", "0s");
    }
    match mode {
        Mode::Cold | Mode::Upgrade | Mode::WeightsKept => builder,
        Mode::StandbyWithoutAdoption => builder.flag("--standby").flag("--no-prefix-cache"),
        Mode::UpgradeWithStandby | Mode::Standby => builder.flag("--standby"),
    }
}

/// Stream as its client saw it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub text: String,
    pub arrivals: Vec<Instant>,
    /// Deaths of its child, or repeated requests.
    pub interruptions: u64,
    pub prompt_tokens: u64,
}

impl Seen {
    /// Gaps between tokens.
    fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.arrivals.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// True if it was interrupted and then continued. `behind` is the time of the interruption, if known.
    fn went_on(&self, behind: Option<Instant>) -> bool {
        match behind {
            Some(moment) => self.arrivals.last() > Some(&moment),
            None => self.interruptions > 0,
        }
    }

    /// Longest gap between two tokens of which the second came after `moment`.
    fn pause_after(&self, moment: Instant) -> Option<Duration> {
        let gaps = self.arrivals.windows(2).filter(|pair| pair[1] > moment);
        gaps.map(|pair| pair[1] - pair[0]).max()
    }
}

/// Kills the child of `worker` in the middle of streams, or upgrades the worker, `count` times.
#[must_use]
pub fn measure(worker: &Worker, mode: Mode, case: Case) -> Value {
    let client = worker.client();
    let ready = || match (ready_child(&client, mode), mode.is_upgrade()) {
        (_, true) => worker.pid(),
        (child, false) => child,
    };
    // Answers after an upgrade count no recovery.
    let went_on = |killed_at| {
        let ready = || worker.log.next("ready", killed_at);
        mode.is_upgrade()
            .then(|| wait::until("the next program", ready).0)
    };
    let deaths = kill_amid(case, ready, |begun| read(&client, case, begun), went_on);
    deaths.row(case, mode.name())
}

/// Effect of a case's deaths on its streams.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    /// Tokens of the longest prompt, by the server's count.
    prompt_tokens: u64,
    /// Gaps between tokens without a death.
    undisturbed: Latencies,
    pauses: Latencies,
    differing: usize,
    /// Streams that had ended before the death, and had no pause.
    ended: usize,
}

impl Deaths {
    pub(super) fn row(&self, case: Case, mode: &str) -> Value {
        json!({
            "death": case.death.name,
            "mode": mode,
            "context": self.prompt_tokens,
            "streams": case.streams,
            "deaths": case.deaths,
            "p50_ms_undisturbed": ms(self.undisturbed.quantile(0.5)),
            "p50_ms": ms(self.pauses.quantile(0.5)),
            "p99_ms": ms(self.pauses.quantile(0.99)),
            "streams_that_differ": self.differing,
            "streams_that_ended_before": self.ended,
        })
    }
}

/// Kills a process in the middle of streams, `count` times: the one that `ready` returns. `went_on` returns true when
/// another one served after the given moment, for streams that do not count interruptions.
pub(super) fn kill_amid(
    case: Case,
    ready: impl Fn() -> u32,
    read: impl Fn(&AtomicUsize) -> Vec<Seen> + Sync,
    went_on: impl Fn(Instant) -> Option<Instant>,
) -> Deaths {
    let expected = read(&AtomicUsize::new(0));
    let prompt_tokens = expected.iter().map(|seen| seen.prompt_tokens).max();
    let mut deaths = Deaths {
        // llama.cpp's server is not queried; a word is a token of its model too.
        prompt_tokens: prompt_tokens
            .filter(|it| *it > 0)
            .unwrap_or(case.context as u64),
        ..Deaths::default()
    };
    let gaps = expected.iter().flat_map(Seen::gaps);
    gaps.for_each(|gap| deaths.undisturbed.push(gap));
    for _ in 0..case.deaths {
        let victim = ready();
        let begun = AtomicUsize::new(0);
        let (killed_at, seen) = thread::scope(|scope| {
            let seen = scope.spawn(|| read(&begun));
            wait::within(PROMPTS_WITHIN, "every stream to have tokens", || {
                (begun.load(Ordering::SeqCst) >= case.streams).then_some(())
            });
            let killed_at = Instant::now();
            case.death.strike(victim);
            (killed_at, seen.join().expect("it reads"))
        });
        let behind = went_on(killed_at);
        for (seen, expected) in seen.iter().zip(&expected) {
            let pause = seen.pause_after(killed_at);
            match pause.filter(|_| seen.went_on(behind)) {
                Some(pause) => deaths
                    .pauses
                    .push(pause.saturating_sub(case.death.deadline)),
                None => deaths.ended += 1,
            }
            deaths.differing += usize::from(seen.text != expected.text);
        }
    }
    let measures = deaths.ended == 0 || deaths.ended < case.deaths * case.streams;
    assert!(measures, "{}: no stream was interrupted", case.death.name);
    deaths
}

/// Child that serves, once it does and the standby, if any, is ready.
pub(super) fn ready_child(client: &Client, mode: Mode) -> u32 {
    wait::until("everybody to be ready", || {
        let health = client.health();
        let is_ready = !mode.has_standby() || health["standby"]["state"] == "standing_by";
        let child = health["child"]["pid"].as_u64().map(|pid| pid as u32);
        child.filter(|_| is_ready && health["state"] == "serving")
    })
}

pub(super) fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// Reads all streams of a case, and counts in `begun` those that have their first tokens.
fn read(client: &Client, case: Case, begun: &AtomicUsize) -> Vec<Seen> {
    at_once(case, |place| read_one(client, &body(case, place), begun))
}

/// Reads each stream of a case in its own thread.
pub(super) fn at_once(case: Case, read: impl Fn(usize) -> Seen + Sync) -> Vec<Seen> {
    thread::scope(|scope| {
        let streams = (0..case.streams).map(|place| {
            let read = &read;
            scope.spawn(move || read(place))
        });
        let streams: Vec<_> = streams.collect();
        streams
            .into_iter()
            .map(|stream| stream.join().expect("it is whole"))
            .collect()
    })
}

/// Prompt with a beginning of its own, so that no prefix is shared.
pub(super) fn prompt(case: Case, place: usize) -> String {
    let first = char::from(b'A' + (place % 26) as u8).to_string();
    first + &" a".repeat(case.context - 1 - place / 26) + &" b".repeat(place / 26)
}

fn body(case: Case, place: usize) -> Value {
    let more = match case.death.cause {
        Cause::Signal(Signal::SIGUSR2) => TOKENS_OF_AN_UPGRADE,
        _ => 0,
    };
    let max_tokens = TOKENS_BEFORE + TOKENS_AFTER + more;
    let mut body = request(&prompt(case, place), max_tokens as u32);
    body["ignore_eos"] = json!(true);
    body["temperature"] = json!(0.0);
    body
}

fn read_one(client: &Client, body: &Value, begun: &AtomicUsize) -> Seen {
    let mut stream = client.execute(body);
    let mut seen = Seen::default();
    loop {
        let event = stream.try_next().expect("the stream goes on");
        let event = event.expect("the stream has an end");
        match event.name.as_str() {
            "token" => {
                seen.arrivals.push(Instant::now());
                if seen.arrivals.len() == TOKENS_BEFORE {
                    begun.fetch_add(1, Ordering::SeqCst);
                }
                seen.text += event.json()["t"].as_str().unwrap_or_default();
            }
            "end" => {
                let end = event.json();
                seen.prompt_tokens = end["tokens_in"].as_u64().unwrap_or_default();
                seen.interruptions = end["recoveries"].as_u64().unwrap_or_default();
                return seen;
            }
            "error" => panic!("{}", event.json()),
            _ => {}
        }
    }
}
