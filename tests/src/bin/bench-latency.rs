//! Latency of `/health`, cancel and disconnect while every slot is busy, and how long requests block threads of the
//! runtime. Prints one JSON object.
//!
//! The default is the real child with compute threads on every core: the load under which the contract's figures must
//! hold. `--null` selects a child that computes nothing and so makes many small steps instead of few long ones.
//!
//! A cancelled or abandoned job must also stop decoding. The proof is external: a request that waited for the slot gets
//! its first token.

use clap::Parser;
use serde_json::{Value, json};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::Latencies;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, EventStream, SseEvent, Worker};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long)]
    null: bool,
    /// Slots of the child, all of them kept busy.
    #[arg(long, default_value_t = 8)]
    slots: usize,
    #[arg(long, default_value_t = 1000)]
    health_requests: usize,
    #[arg(long, default_value_t = 50)]
    cancels: usize,
    #[arg(long, default_value_t = 50)]
    disconnects: usize,
}

const PROMPT: &str = "Tell me a very long story about a lighthouse and the sea. Once upon a time,";
/// Limit of one request.
const MAX_TOKENS: u32 = 2048;
const PATIENCE: Duration = Duration::from_secs(60);

/// 32 KiB: the largest body that is read, and the longest text that is tokenized, on a thread of the runtime
/// (`http/body.rs`, `http/blocking_pool.rs`). Longer ones go to other threads.
const INLINE_BODY: usize = 32 << 10;
const INLINE_TEXT: usize = 1 << 10;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let builder = if options.null {
        // 2 ms a step: a small model on a fast card.
        Worker::null().env("NULL_CHILD_STEP_MICROS", "2000")
    } else {
        Worker::real()
    };
    let held = json!({
        "body_of_mistakes": measure_inline(&json!({"messages": vec![0; INLINE_BODY / 2 - 16]}))?.summary(),
        "prompt_of_spaces": measure_inline(&json!({"prompt": " ".repeat(INLINE_TEXT)}))?.summary(),
        "prompt_of_digits": measure_inline(&json!({"prompt": "7".repeat(INLINE_TEXT)}))?.summary(),
        "prompt_of_words": measure_inline(&json!({"prompt": "a b ".repeat(INLINE_TEXT / 4)}))?.summary(),
    });
    let worker = builder.arg("--max-running", options.slots).start();
    let client = worker.client();
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 1..options.slots {
        keep_a_slot_busy(client.clone(), Arc::clone(&stop));
    }
    let mut slot = LastSlot::take(client.clone());
    let health = measure_health(&client, options.health_requests)?;
    let cancels = slot.measure(options.cancels, |client, running| {
        let body = json!({ "job_id": running.job_id });
        assert_eq!(client.post("/cancel", &body).status, 202);
    });
    let disconnects = slot.measure(options.disconnects, |_, running| running.leave());
    stop.store(true, Ordering::Relaxed);
    let result = json!({
        "bench": "latency",
        "child": if options.null { "null" } else { "real" },
        "slots": options.slots,
        "inline": held,
        "health": health.summary(),
        "cancel_to_terminal_event": cancels.ended.summary(),
        "cancel_to_slot_reused": cancels.reused.summary(),
        "disconnect_to_slot_reused": disconnects.reused.summary(),
        "samples_dropped": cancels.dropped + disconnects.dropped,
    });
    println!("{result}");
    Ok(())
}

/// Latency of requests that are refused after they were read, or after their text was tokenized. No child takes part,
/// so the round trip is an upper bound of the time that a thread of the runtime is blocked.
fn measure_inline(body: &Value) -> std::io::Result<Latencies> {
    const ROUNDS: usize = 500;
    let worker = Worker::real().arg("--max-tokens-in", 1).start();
    let client = worker.client();
    let bytes = client.request("POST", "/v1/completions", &[], body.to_string().as_bytes());
    let mut latencies = Latencies::default();
    for _ in 0..ROUNDS {
        let mut connection = client.connect()?;
        let start = Instant::now();
        connection.send(&bytes)?;
        let response = connection.read_response()?;
        latencies.push(start.elapsed());
        assert_eq!(response.status, 400, "{}", response.text());
    }
    Ok(latencies)
}

/// Request of the maximum length.
fn endless() -> Value {
    let mut body = request(PROMPT, MAX_TOKENS);
    body["ignore_eos"] = json!(true);
    body
}

fn keep_a_slot_busy(client: Client, stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        // Ends with the worker, after the measurement.
        while let Ok(streaming) = client.open("/execute", &endless()) {
            let mut events = EventStream::new(streaming);
            while let Ok(Some(_)) = events.try_next() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
}

/// Latency on one connection, one request after another.
fn measure_health(client: &Client, count: usize) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    for _ in 0..count {
        let mut connection = client.connect()?;
        let bytes = client.request("GET", "/health", &[], &[]);
        let start = Instant::now();
        connection.send(&bytes)?;
        let response = connection.read_response()?;
        latencies.push(start.elapsed());
        assert_eq!(response.status, 200, "{}", response.text());
        // Spread over time, to cover every phase of a step.
        std::thread::sleep(Duration::from_millis(3));
    }
    Ok(latencies)
}

/// Stream with a channel of its events and their times.
struct Job {
    job_id: String,
    events: Receiver<(Instant, SseEvent)>,
    socket: TcpStream,
}

impl Job {
    fn start(client: &Client) -> Self {
        let body = endless();
        let mut stream = client.execute(&body);
        let socket = stream
            .socket()
            .try_clone()
            .expect("a socket can be duplicated");
        let (sender, events) = channel();
        std::thread::spawn(move || {
            while let Ok(Some(event)) = stream.try_next() {
                if sender.send((Instant::now(), event)).is_err() {
                    return;
                }
            }
        });
        Self {
            job_id: body["job_id"].as_str().expect("it is ours").to_owned(),
            events,
            socket,
        }
    }

    fn leave(&self) {
        // An error means that the server closed first.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Time of the next event of this name; `None` when the stream ends without one.
    fn wait_for(&self, name: &str) -> Option<Instant> {
        loop {
            let (at, event) = self.events.recv_timeout(PATIENCE).ok()?;
            if event.name == name {
                return Some(at);
            }
        }
    }

    fn has_token(&self) -> bool {
        self.events
            .try_iter()
            .any(|(_, event)| event.name == "token")
    }
}

/// Slot that the other jobs leave free: one job runs in it, the next waits for it.
struct LastSlot {
    client: Client,
    running: Job,
}

#[derive(Default)]
struct Measured {
    ended: Latencies,
    reused: Latencies,
    /// Invalid samples: the next job got a slot before this one was ended.
    dropped: usize,
}

impl LastSlot {
    fn take(client: Client) -> Self {
        let running = Job::start(&client);
        running.wait_for("token").expect("a slot is free");
        Self { client, running }
    }

    fn measure(&mut self, count: usize, end: impl Fn(&Client, &Job)) -> Measured {
        let mut measured = Measured::default();
        for _ in 0..count {
            let next = Job::start(&self.client);
            std::thread::sleep(Duration::from_millis(20));
            let spoiled = next.has_token();
            let start = Instant::now();
            end(&self.client, &self.running);
            let ended = self.running.wait_for("error");
            let reused = if spoiled {
                Some(start)
            } else {
                next.wait_for("token")
            };
            let reused = reused.expect("the slot is free for the next");
            if spoiled {
                measured.dropped += 1;
            } else {
                measured
                    .reused
                    .push(reused.saturating_duration_since(start));
                if let Some(ended) = ended {
                    measured.ended.push(ended.saturating_duration_since(start));
                }
            }
            self.running = next;
        }
        measured
    }
}
