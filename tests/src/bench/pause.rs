//! The pause that streams see when their child dies in their midst, and whether they keep their bytes.

use super::Latencies;
use crate::worker::request;
use crate::{Worker, WorkerBuilder, process, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;

/// Tokens that every stream has before the child dies.
pub(super) const TOKENS_BEFORE: usize = 8;
pub(super) const TOKENS_AFTER: usize = 24;

/// How a child dies.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    pub name: &'static str,
    pub signal: Signal,
    /// Time that passes before anybody may notice it.
    pub deadline: Duration,
}

/// Deaths that a signal makes; the hang ends at the heartbeat deadline of a worker that is started by
/// [`worker`].
pub const DEATHS: [Death; 3] = [
    Death {
        name: "SIGKILL",
        signal: Signal::SIGKILL,
        deadline: Duration::ZERO,
    },
    Death {
        name: "abort",
        signal: Signal::SIGABRT,
        deadline: Duration::ZERO,
    },
    Death {
        name: "hang, beyond its deadline",
        signal: Signal::SIGSTOP,
        deadline: HEARTBEAT_DEADLINE,
    },
];

const HEARTBEAT_DEADLINE: Duration = Duration::from_secs(1);

/// One row of the matrix.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub death: Death,
    pub standby: bool,
    /// Tokens of each prompt.
    pub context: usize,
    pub streams: usize,
    pub deaths: usize,
}

/// A worker whose children may die as often as they like.
#[must_use]
pub fn worker(device: &str, standby: bool) -> WorkerBuilder {
    let builder = Worker::real()
        .arg("--device", device)
        .arg("--max-running", 32)
        .arg(
            "--heartbeat-timeout",
            format!("{}ms", HEARTBEAT_DEADLINE.as_millis()),
        )
        .arg("--max-restarts", 1000)
        .arg("--max-restart-delay", "1ms");
    match standby {
        true => builder.flag("--standby"),
        false => builder,
    }
}

/// What a client saw of a stream.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub text: String,
    pub arrivals: Vec<Instant>,
    pub recoveries: u64,
}

impl Seen {
    /// The longest time between two tokens of which the second came after that moment.
    pub(super) fn pause_after(&self, moment: Instant) -> Duration {
        let gaps = self.arrivals.windows(2).filter(|pair| pair[1] > moment);
        gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

/// Kills the child of a `worker` in the midst of streams, so many times.
#[must_use]
pub fn measure(worker: &Worker, case: Case) -> Value {
    let client = worker.client();
    let expected: Vec<_> = read(&client, case, &AtomicUsize::new(0))
        .into_iter()
        .map(|seen| seen.text)
        .collect();
    let (mut pauses, mut differing, mut unhurt) = (Latencies::default(), 0, 0);
    for _ in 0..case.deaths {
        let child = ready_child(&client, case.standby);
        let begun = AtomicUsize::new(0);
        let (killed_at, seen) = thread::scope(|scope| {
            let seen = scope.spawn(|| read(&client, case, &begun));
            wait::until("every stream to have tokens", || {
                (begun.load(Ordering::SeqCst) >= case.streams).then_some(())
            });
            let killed_at = Instant::now();
            process::signal(child, case.death.signal);
            (killed_at, seen.join().expect("it reads"))
        });
        for (seen, expected) in seen.iter().zip(&expected) {
            let pause = seen.pause_after(killed_at);
            pauses.push(pause.saturating_sub(case.death.deadline));
            differing += usize::from(seen.text != *expected);
            unhurt += usize::from(seen.recoveries == 0);
        }
    }
    json!({
        "death": case.death.name,
        "mode": if case.standby { "standby" } else { "weights kept" },
        "context": case.context,
        "streams": case.streams,
        "deaths": case.deaths,
        "p50_ms": ms(pauses.quantile(0.5)),
        "p99_ms": ms(pauses.quantile(0.99)),
        "streams_that_differ": differing,
        "streams_that_ended_before": unhurt,
    })
}

/// The child, once it serves and, where there is to be one, another stands by.
pub(super) fn ready_child(client: &Client, standby: bool) -> u32 {
    wait::until("everybody to be ready", || {
        let health = client.health();
        let is_ready = !standby || health["standby"]["state"] == "standing_by";
        let child = health["child"]["pid"].as_u64().map(|pid| pid as u32);
        child.filter(|_| is_ready && health["status"] == "healthy")
    })
}

pub(super) fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// Reads all streams of a case, and counts in `begun` those that have their first tokens.
fn read(client: &Client, case: Case, begun: &AtomicUsize) -> Vec<Seen> {
    at_once(case, |place| read_one(client, &body(case, place), begun))
}

/// Reads each stream of a case in a thread of its own.
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

/// No two prompts of a case begin alike, so that no prefix is shared.
pub(super) fn prompt(case: Case, place: usize) -> String {
    let first = char::from(b'A' + (place % 26) as u8).to_string();
    first + &" a".repeat(case.context - 1 - place / 26) + &" b".repeat(place / 26)
}

fn body(case: Case, place: usize) -> Value {
    let max_tokens = (TOKENS_BEFORE + TOKENS_AFTER) as u32;
    let mut body = request(&prompt(case, place), max_tokens);
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
                assert_eq!(end["tokens_in"], case_tokens(body), "{end}");
                seen.recoveries = end["recoveries"].as_u64().unwrap_or_default();
                return seen;
            }
            "error" => panic!("{}", event.json()),
            _ => {}
        }
    }
}

/// A prompt has a token for each word.
fn case_tokens(body: &Value) -> usize {
    body["prompt"]
        .as_str()
        .map_or(0, |prompt| prompt.split(' ').count())
}
