//! Client of `tests/systemd/endurance.sh`: many streams of a worker under systemd. The supervisor is killed and
//! upgraded while its children die of injected faults.
//!
//! After the end of its connection a client requests the rest. Each stream is compared with that of an undisturbed
//! worker for the same request. Other responses in between (a refusal, an unknown answer) are counted.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::client::{Client, EventStream, Streaming};
use worker_orcd_tests::{Worker, wait};

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    unit: String,
    #[arg(long)]
    requests: u64,
    /// At any time.
    #[arg(long, default_value_t = 32)]
    streams: usize,
    /// Log of the unit.
    #[arg(long)]
    log: PathBuf,
    /// Gets what was counted, as JSON.
    #[arg(long)]
    report: PathBuf,
    /// Served by the other worker too.
    #[arg(long, env = "MODEL")]
    model: PathBuf,
}

/// Different requests.
const KINDS: u64 = 48;

/// 2 min for a stream to complete, whatever happens to the worker.
const PATIENCE: Duration = Duration::from_secs(120);

const RETRY: Duration = Duration::from_millis(20);

/// Deaths and upgrades of the supervisor, in order and evenly over the run.
const EVENTS: [Event; 4] = [
    Event::Killed,
    Event::Upgraded,
    Event::Killed,
    Event::Upgraded,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Killed,
    Upgraded,
}

fn body(job: &str, kind: u64) -> Value {
    json!({
        "job_id": job,
        "prompt": format!("{kind} times the same"),
        "max_tokens": 8 + kind % 17,
        "temperature": if kind.is_multiple_of(3) { 0.0 } else { 0.9 },
        "seed": kind,
        "ignore_eos": true,
    })
}

/// Stream as its client received it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Assembled {
    text: String,
    tokens: u64,
    ended: bool,
}

/// Responses that are no stream, and their number.
#[derive(Debug, Default)]
struct Counts(Mutex<BTreeMap<String, u64>>);

impl Counts {
    fn count(&self, what: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.to_owned()).or_default() += 1;
    }

    fn of(&self, what: &str) -> u64 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(what).copied().unwrap_or(0)
    }
}

impl Assembled {
    /// Reads until the connection ends.
    ///
    /// # Errors
    /// Description of an event that no stream may contain.
    fn read(&mut self, answer: Streaming) -> Result<(), String> {
        let mut events = EventStream::new(answer);
        while let Ok(Some(event)) = events.try_next() {
            if self.ended {
                return Err(format!("{} behind the end", event.name));
            }
            match event.name.as_str() {
                "token" => {
                    let data = event.json();
                    if data["i"].as_u64() != Some(self.tokens) {
                        return Err(format!("token {} where {} was due", data["i"], self.tokens));
                    }
                    self.text.push_str(data["t"].as_str().unwrap_or_default());
                    self.tokens += 1;
                }
                "end" => self.ended = true,
                "started" => {}
                other => return Err(format!("{other}: {}", event.data)),
            }
        }
        Ok(())
    }
}

/// Sends the request, and requests the rest until it is complete.
fn follow(client: &Client, job: &str, kind: u64, counts: &Counts) -> Result<Assembled, String> {
    let body = body(job, kind);
    let mut told = Assembled::default();
    let mut has_asked = false;
    let until = Instant::now() + PATIENCE;
    while !told.ended {
        if Instant::now() > until {
            return Err(format!("no end within {PATIENCE:?}"));
        }
        let answer = match has_asked {
            false => client.open("/execute", &body),
            true => open_rest(client, job, told.tokens),
        };
        // From now on the worker may have the job.
        has_asked = true;
        match answer.map(|answer| (answer.status, answer)) {
            Ok((200, answer)) => {
                told.read(answer)?;
                if !told.ended {
                    counts.count("connections broken");
                }
            }
            // Its first token was lost with the supervisor.
            Ok((404, _)) if told.tokens == 0 => {
                counts.count("asked again");
                has_asked = false;
            }
            Ok((404, _)) => return Err(format!("forgotten behind {} tokens", told.tokens)),
            Ok((status, refusal)) => {
                let refusal = refusal.into_response().map(|it| it.text());
                let refusal = refusal.unwrap_or_default();
                if !matches!(status, 429 | 503) {
                    return Err(format!("{status} {refusal}"));
                }
                counts.count(&format!("refused {status}"));
                has_asked = told.tokens > 0;
                thread::sleep(RETRY);
            }
            Err(_) => {
                counts.count("connections broken");
                thread::sleep(RETRY);
            }
        }
    }
    Ok(told)
}

fn open_rest(client: &Client, job: &str, from: u64) -> io::Result<Streaming> {
    let mut connection = client.connect()?;
    let path = format!("/execute/{job}?from={from}");
    connection.send(&client.request("GET", &path, &[], &[]))?;
    connection.read_head()
}

fn main_pid(unit: &str) -> Result<Pid> {
    let show = ["show", unit, "--property=MainPID", "--value"];
    let output = Command::new("systemctl").args(show).output()?;
    let pid = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    ensure!(pid > 1, "the unit has no process");
    Ok(Pid::from_raw(pid))
}

/// Kills or upgrades the supervisor, and waits until another one serves.
fn happen(what: Event, arguments: &Arguments) -> Result<()> {
    let signal = match what {
        Event::Killed => Signal::SIGKILL,
        Event::Upgraded => Signal::SIGUSR2,
    };
    let served = || {
        let log = fs::read_to_string(&arguments.log).unwrap_or_default();
        log.matches("\"event\":\"ready\"").count()
    };
    let before = served();
    kill(main_pid(&arguments.unit)?, signal).context("the supervisor")?;
    wait::until("the next supervisor", || (served() > before).then_some(()));
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let reference = Worker::with_model(&arguments.model).start();
    let counts = Counts::default();
    let expected: Vec<_> = (0..KINDS)
        .map(|kind| follow(&reference.client(), "reference", kind, &counts))
        .collect::<Result<_, _>>()
        .map_err(anyhow::Error::msg)?;
    drop(reference);

    let client = Client::new(SocketAddr::from(([127, 0, 0, 1], arguments.port)));
    wait::until("the unit to serve", || {
        (client.try_get("/readyz").ok()?.status == 200).then_some(())
    });
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let wrong = Mutex::new(Vec::new());
    let ask = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && number < arguments.requests
        {
            let kind = number % KINDS;
            let job = format!("job-{number}");
            let told = follow(&client, &job, kind, &counts);
            if told.as_ref() != Ok(&expected[usize::try_from(kind).expect("small")]) {
                let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                wrong.push(format!("{job}: {told:?}"));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let began = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..arguments.streams).map(|_| scope.spawn(ask)).collect();
        let events = EVENTS.iter().zip(1..);
        let conduct = || {
            for (event, number) in events {
                let due = arguments.requests * number / (EVENTS.len() as u64 + 1);
                while done.load(Ordering::Relaxed) < due {
                    thread::sleep(RETRY);
                }
                happen(*event, &arguments)?;
            }
            anyhow::Ok(())
        };
        let outcome = conduct();
        if outcome.is_err() {
            next.store(arguments.requests, Ordering::Relaxed);
        }
        for client in clients {
            client.join().expect("no client panics");
        }
        outcome
    })?;
    let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    let happened = |what| EVENTS.iter().filter(|it| **it == what).count();
    let report = json!({
        "requests": arguments.requests,
        "told": done.load(Ordering::Relaxed),
        "wrong": wrong.len(),
        "first_wrong": wrong.iter().take(8).collect::<Vec<_>>(),
        "supervisors_killed": happened(Event::Killed),
        "supervisors_replaced": happened(Event::Upgraded),
        "connections_broken": counts.of("connections broken"),
        "asked_again": counts.of("asked again"),
        "counts": *counts.0.lock().unwrap_or_else(PoisonError::into_inner),
        "seconds": began.elapsed().as_secs(),
    });
    fs::write(&arguments.report, report.to_string())?;
    println!("{report}");
    Ok(())
}
