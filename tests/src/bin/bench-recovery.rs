//! Cost of a death: its detection time and the pause of its streams, beside a cold start of the worker in the same run.
//! Prints one JSON object.
//!
//! Child and model are the real ones; the model is in the page cache after the first start. A pause is the longest gap
//! between two tokens of a stream that lost its child in between, as its client sees it. Times are those at which log
//! lines arrive through the pipe: the line about a death comes after the process was reaped, and the crash report has
//! the lead of the detection; the line about a hang comes with the kill. A process is dead when its pidfd, which this
//! program watches too, becomes readable: before that the kernel spends some milliseconds on reclaiming its memory.

use clap::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::Latencies;
use worker_orcd_tests::bench::pause::{self, Case, Death, Mode};
use worker_orcd_tests::bench::probes;
use worker_orcd_tests::bench::shell_loop::ShellLoop;
use worker_orcd_tests::bench::steady;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Worker, process, wait};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 50)]
    kills: usize,
    #[arg(long, default_value_t = 10)]
    stops: usize,
    #[arg(long, default_value_t = 10)]
    endless_steps: usize,
    #[arg(long, default_value_t = 10)]
    cold_starts: usize,
    /// Deaths of each kind in each mode, for the table of pauses.
    #[arg(long, default_value_t = 10)]
    deaths: usize,
    /// Tokens of prompts in that table.
    #[arg(long, value_delimiter = ',', default_value = "100,1000")]
    contexts: Vec<usize>,
    /// Streams at once in that table.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    streams: Vec<usize>,
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A command that starts llama.cpp's server, to be measured as well; its port and sizes are added.
    #[arg(long)]
    llama_server: Option<String>,
    /// Ways to come back, of that table. `cold` is measured with SIGKILL and abort only.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cold,upgrade,upgrade-with-standby,weights-kept,standby-without-adoption,standby"
    )]
    modes: Vec<Mode>,
    /// Faults of the child's own in that table, instead of signals, and no steady stream.
    #[arg(long, value_delimiter = ',', value_parser = fault, requires = "pauses_only", conflicts_with = "llama_server")]
    faults: Vec<Death>,
    /// Rounds of a stream that nothing happens to, with a standby and without.
    #[arg(long, default_value_t = 20)]
    steady: usize,
    /// Nothing but the table of pauses, and the steady stream.
    #[arg(long)]
    pauses_only: bool,
    /// Restarts, refused upgrades and upgrades beside which probes and new requests are timed.
    #[arg(long, default_value_t = 10)]
    probed: usize,
    /// Nothing but those.
    #[arg(long, conflicts_with = "pauses_only")]
    probes_only: bool,
}

/// Together with the tokens before the kill, 200.
const PROMPT_TOKENS: usize = 192;
const TOKENS_BEFORE: usize = 8;
const MAX_TOKENS: u32 = 32;

const STEP_DEADLINE: Duration = Duration::from_secs(1);

fn main() {
    let options = Options::parse();
    if options.probes_only {
        let answers = probes::measure(options.probed);
        println!("{}", json!({"bench": "recovery", "answers": answers}));
        return;
    }
    if options.pauses_only {
        let pauses = pauses(&options);
        // Its workers have the released child.
        let is_measured = options.steady > 0 && options.faults.is_empty();
        let steady = is_measured.then(|| steady::measure(&options.device, options.steady));
        let result = json!({"bench": "recovery", "steady": steady, "pauses": pauses});
        println!("{result}");
        return;
    }
    let cold_starts = cold_starts(options.cold_starts);
    // Restarts of a child that is killed before it serves are delayed on purpose.
    let worker = Worker::real().arg("--max-restart-delay", "1ms").start();
    let kills = kills(&worker, options.kills);
    let stopped = stops(&worker, options.stops);
    let result = json!({
        "bench": "recovery",
        "context_tokens": PROMPT_TOKENS + TOKENS_BEFORE,
        "kill_to_dead": kills.dead.summary(),
        "kill_to_noticed": kills.killed_to_noticed.summary(),
        "noticed_to_next_child_ready": kills.ready.summary(),
        "pause_of_the_stream": kills.pauses.summary(),
        "cold_start_to_ready": cold_starts.summary(),
        "stop_to_noticed_with_a_deadline_of_2_s": stopped.summary(),
        "endless_step_noticed_after_its_deadline_of_1_s": endless(options.endless_steps).summary(),
        "steady": steady::measure(&options.device, options.steady),
        "answers": probes::measure(options.probed),
        "pauses": pauses(&options),
    });
    println!("{result}");
}

fn fault(name: &str) -> Result<Death, String> {
    let names = || pause::FAULTS.map(|death| death.name).join(", ");
    Death::named(name).ok_or_else(|| format!("there are {}", names()))
}

fn deaths(options: &Options) -> Vec<Death> {
    match &options.faults[..] {
        [] => pause::DEATHS.to_vec(),
        faults => faults.to_vec(),
    }
}

/// Pause of streams for each recovery mode, kind of death, and load.
fn pauses(options: &Options) -> Vec<Value> {
    let mut rows = Vec::new();
    for &mode in &options.modes {
        let worker = pause::worker(&options.device, mode, &options.faults);
        rows.extend(match mode {
            Mode::Cold => of_shell_loop(options, &ShellLoop::of_worker(worker)),
            _ => {
                let worker = worker.start();
                let measure = |case| pause::measure(&worker, mode, case);
                let deaths = match mode.is_upgrade() {
                    true => vec![pause::UPGRADE],
                    false => deaths(options),
                };
                of_each_case(options, &deaths, measure)
            }
        });
    }
    if let Some(command) = &options.llama_server {
        let slots = options.streams.iter().max().copied().unwrap_or(1);
        let context = options.contexts.iter().max().copied().unwrap_or(1);
        let server = ShellLoop::of_llama_server(command, slots, context);
        rows.extend(of_shell_loop(options, &server));
    }
    rows
}

/// Deaths in a shell loop, which detects no hang; faults need the child.
fn of_shell_loop(options: &Options, server: &ShellLoop) -> Vec<Value> {
    let deaths = pause::DEATHS.iter().filter(|it| it.deadline.is_zero());
    let deaths: Vec<_> = deaths.copied().collect();
    of_each_case(options, &deaths, |case| server.measure(case))
}

fn of_each_case(
    options: &Options,
    deaths: &[Death],
    measure: impl Fn(Case) -> Value,
) -> Vec<Value> {
    let mut rows = Vec::new();
    for &death in deaths {
        for &context in &options.contexts {
            for &streams in &options.streams {
                let row = measure(Case {
                    death,
                    context,
                    streams,
                    deaths: options.deaths,
                });
                eprintln!("{row}");
                rows.push(row);
            }
        }
    }
    rows
}

fn cold_starts(count: usize) -> Latencies {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let start = Instant::now();
        let worker = Worker::real().start();
        // The HTTP probe may succeed before the log line arrives.
        let (ready, _) = wait::until("the word that it is ready", || {
            worker.log.next("ready", start)
        });
        latencies.push(ready - start);
    }
    latencies
}

fn body() -> Value {
    let prompt = "a".to_owned() + &" a".repeat(PROMPT_TOKENS - 1);
    let mut body = request(&prompt, MAX_TOKENS);
    body["ignore_eos"] = json!(true);
    body["temperature"] = json!(0.0);
    body
}

#[derive(Default)]
struct Kills {
    dead: Latencies,
    killed_to_noticed: Latencies,
    ready: Latencies,
    pauses: Latencies,
}

fn kills(worker: &Worker, count: usize) -> Kills {
    let mut kills = Kills::default();
    for _ in 0..count {
        let Killed {
            killed_at,
            dead_at,
            pause,
        } = kill_in_mid_stream(worker);
        let (reaped, _) = wait::until("the word of the death", || {
            worker.log.next("child_death", killed_at)
        });
        let timeline = last_timeline(worker);
        let after_noticing = |name: &str| {
            let ms = timeline[name].as_f64().expect("a complete timeline");
            Duration::from_secs_f64(ms / 1e3)
        };
        let noticed = reaped - after_noticing("reaped_ms");
        kills.dead.push(dead_at - killed_at);
        kills.killed_to_noticed.push(noticed - killed_at);
        kills.ready.push(after_noticing("ready_ms"));
        kills.pauses.push(pause);
    }
    kills
}

struct Killed {
    killed_at: Instant,
    dead_at: Instant,
    /// Longest gap between two tokens of the stream.
    pause: Duration,
}

fn kill_in_mid_stream(worker: &Worker) -> Killed {
    let child = worker.child_pid().expect("a child serves");
    let pid = Pid::from_raw(child.cast_signed()).expect("a pid is not 0");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("the child lives");
    let mut stream = worker.client().execute(&body());
    let mut arrivals = Vec::new();
    let mut killed = None;
    let end = loop {
        let event = stream.try_next().expect("the stream goes on");
        let event = event.expect("the stream has an end");
        match event.name.as_str() {
            "token" => arrivals.push(Instant::now()),
            "end" => break event.json(),
            _ => {}
        }
        if arrivals.len() == TOKENS_BEFORE && killed.is_none() {
            let killed_at = Instant::now();
            process::signal(child, Signal::SIGKILL);
            let mut death = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
            poll(&mut death, PollTimeout::from(10_000_u16)).expect("it can be polled");
            killed = Some((killed_at, Instant::now()));
        }
    };
    assert_eq!(end["recoveries"], 1, "{end}");
    assert_eq!(end["tokens_in"], PROMPT_TOKENS, "{end}");
    let gaps = arrivals.windows(2).map(|pair| pair[1] - pair[0]);
    let pause = gaps.max().expect("there are many");
    let (killed_at, dead_at) = killed.expect("it had enough tokens");
    Killed {
        killed_at,
        dead_at,
        pause,
    }
}

fn last_timeline(worker: &Worker) -> Value {
    let client = worker.client();
    wait::until("a complete crash report", || {
        let list = client.get("/crashes").json();
        let id = list["crashes"][0]["id"].as_str()?.to_owned();
        let timeline = client.get(&format!("/crashes/{id}")).json()["timeline"].clone();
        timeline["first_token_ms"].is_f64().then_some(timeline)
    })
}

/// Time from SIGSTOP to the decision to kill. The deadline counts from the last heartbeat, up to 25 ms earlier.
fn stops(worker: &Worker, count: usize) -> Latencies {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        worker.assert_serves();
        let stopped_at = Instant::now();
        process::signal(worker.child_pid().expect("a child serves"), Signal::SIGSTOP);
        let (noticed, _) = wait::until("the silence to be noticed", || {
            worker.log.next("child_kill", stopped_at)
        });
        latencies.push(noticed - stopped_at);
    }
    latencies
}

/// Time from the request that makes the step to the decision to kill, less the deadline.
fn endless(count: usize) -> Latencies {
    let mut latencies = Latencies::default();
    let worker = Worker::null()
        .env("NULL_CHILD_STEP_MICROS", "30000000")
        .arg("--step-timeout", format!("{}ms", STEP_DEADLINE.as_millis()))
        .arg("--on-fault", "fail")
        // None of its children ever delivers a token.
        .arg("--max-restarts", 1000)
        .arg("--max-restart-delay", "1ms")
        .arg("--quarantine-for", "0s")
        .start();
    for _ in 0..count {
        let asked_at = Instant::now();
        let transcript = worker.client().execute(&request("x", 1)).transcript();
        let (noticed, _) = wait::until("the word of the kill", || {
            worker.log.next("child_kill", asked_at)
        });
        assert_eq!(transcript.last().name, "error");
        latencies.push((noticed - asked_at).saturating_sub(STEP_DEADLINE));
    }
    latencies
}
