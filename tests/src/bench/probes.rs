//! Latency of probes and new requests while a child or the program is replaced, beside streams and a client that sends
//! the head of a request and no body.
//!
//! ```text
//! nothing ─ POST /restart ─ an upgrade with a rehearsal that fails after 2 s ─ an upgrade that succeeds
//!    └ beside each: GET /livez, GET /readyz and POST /execute of one token, repeated, each on its own connection
//! ```
//!
//! The child is scripted, so that no model uses the cores: the supervisor alone is measured.

use super::Latencies;
use super::pause::ms;
use crate::Worker;
use crate::script::{Script, scripted_text};
use crate::stage::{Stage, real};
use crate::worker::request;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;
use worker_orcd_harness::client::Connection;

const STREAMS: usize = 4;

const TOKENS: usize = 100;

/// 5 ms between a response and the next request.
const PAUSE: Duration = Duration::from_millis(5);

/// 2 s without an event, for comparison.
const CALM: Duration = Duration::from_secs(2);

const REFUSES: &[u8] = b"#!/bin/sh\nsleep 2\nexit 1\n";

/// Name of an event, and the function that causes it.
type Event = (&'static str, fn(&Worker, &Stage));

const EVENTS: [Event; 4] = [
    ("nothing", |_, _| thread::sleep(CALM)),
    ("POST /restart", |worker, _| worker.restart()),
    ("a refused upgrade", |worker, stage| {
        stage.place(REFUSES);
        let refused = worker.log.events("upgrade_refused").len() + 1;
        worker.signal(Signal::SIGUSR2);
        worker.log.wait_for_many("upgrade_refused", refused);
    }),
    ("an upgrade", |worker, stage| {
        stage.place_real();
        worker.upgrade();
    }),
];

/// Response times of one worker, with `rounds` of every event.
///
/// # Panics
/// A stream differs from one without the events.
#[must_use]
pub fn measure(rounds: usize) -> Vec<Value> {
    let real = real();
    let stage = Stage::below(real.parent().expect("a directory of programs"));
    let worker = Worker::scripted(Script::behave().token_interval_ms(10))
        .program_at(&stage.program)
        .arg("--read-timeout", "300s")
        .start();
    let client = worker.client();
    let _slow = slow_client(&client).expect("a connection");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (client, is_over) = (&client, &is_over);
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| scope.spawn(|| read_streams(client, is_over)))
            .collect();
        let rows = EVENTS.map(|(name, happen)| {
            let mut asked = Asked::default();
            for _ in 0..rounds {
                asked.beside(client, || happen(&worker, &stage));
            }
            asked.row(name, rounds)
        });
        is_over.store(true, Ordering::Release);
        for stream in streams {
            stream.join().expect("it is whole");
        }
        rows.into()
    })
}

fn slow_client(client: &Client) -> io::Result<Connection> {
    let mut connection = client.connect()?;
    connection
        .send(b"POST /execute HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")?;
    Ok(connection)
}

fn read_streams(client: &Client, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        let told = client
            .execute(&request("a stream ", TOKENS as u32))
            .transcript();
        told.end();
        assert_eq!(told.text(), scripted_text("a stream ", TOKENS));
    }
}

/// Times from a connection to the complete response.
#[derive(Default)]
struct Asked {
    livez: Latencies,
    readyz: Latencies,
    execute: Latencies,
}

impl Asked {
    /// Sends requests until `happen` returns.
    fn beside(&mut self, client: &Client, happen: impl FnOnce()) {
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                again_and_again(&mut self.livez, is_over, || {
                    assert_eq!(client.get("/livez").status, 200);
                });
            });
            // 503 is a valid response here.
            scope.spawn(|| {
                again_and_again(&mut self.readyz, is_over, || drop(client.get("/readyz")))
            });
            scope.spawn(|| {
                again_and_again(&mut self.execute, is_over, || {
                    client.execute(&request("a", 1)).transcript().end();
                });
            });
            happen();
            is_over.store(true, Ordering::Release);
        });
    }

    fn row(&self, name: &str, rounds: usize) -> Value {
        let longest = |latencies: &Latencies| ms(latencies.quantile(1.0));
        json!({
            "while": name,
            "times": rounds,
            "livez_p50_ms": ms(self.livez.quantile(0.5)),
            "livez_max_ms": longest(&self.livez),
            "readyz_max_ms": longest(&self.readyz),
            "execute_p50_ms": ms(self.execute.quantile(0.5)),
            "execute_max_ms": longest(&self.execute),
        })
    }
}

fn again_and_again(latencies: &mut Latencies, is_over: &AtomicBool, ask: impl Fn()) {
    while !is_over.load(Ordering::Acquire) {
        let asked_at = Instant::now();
        ask();
        latencies.push(asked_at.elapsed());
        thread::sleep(PAUSE);
    }
}
