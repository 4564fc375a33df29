//! Gaps between tokens of some streams, alone and beside a crowd: thousands of idle connections, and hundreds of
//! clients that send or read a byte at a time. Prints one JSON object.
//!
//! Every step of the null child takes the same time, so the rest of a gap belongs to the supervisor and to the client,
//! which shares its cores. Measurements alone and beside the crowd alternate, because other load of the machine
//! changes.

use anyhow::{Context, ensure};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::net::sockopt;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{iter, thread};
use worker_orcd_tests::bench::{Burst, Latencies};
use worker_orcd_tests::{Client, Worker, process, worker};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 32)]
    streams: usize,
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// Half of them send a request that never ends, half read answers to questions without end.
    #[arg(long, default_value_t = 200)]
    slow: usize,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 1000)]
    tokens: u32,
    /// Time of a step: a small model on a fast card.
    #[arg(long, default_value_t = 10_000)]
    step_micros: u64,
    /// Measurements alone, and as many beside the crowd.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Descriptors of this program without the crowd and the streams.
const OWN_DESCRIPTORS: usize = 64;

/// Pause between two bytes of a slow client.
const BEAT: Duration = Duration::from_millis(100);

/// Receive buffer of a slow reader. Its pipelined requests have larger responses than all buffers between both sides.
const RECEIVE_BUFFER: usize = 4 << 10;
const QUESTIONS: usize = 64;

/// 2 s between two checks whether the supervisor has filled all buffers. After that all clients are slow.
const LOOK: Duration = Duration::from_secs(2);

/// Longer than the benchmark, so that idle clients stay connected.
const READ_TIMEOUT: &str = "30min";

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let connections = options.idle + options.slow + options.streams;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let needed = connections + OWN_DESCRIPTORS;
    ensure!(
        hard as usize >= needed,
        "{needed} file descriptors are needed, and {hard} are allowed (ulimit -Hn)"
    );
    let worker = Worker::null()
        .env("NULL_CHILD_STEP_MICROS", &options.step_micros.to_string())
        .arg("--max-running", options.streams)
        .arg("--max-connections", needed)
        .arg("--read-timeout", READ_TIMEOUT)
        .start();
    let client = worker.client();
    let limit = client.health()["connections"]["limit"].as_u64();
    ensure!(
        limit.is_some_and(|limit| limit as usize >= connections),
        "the worker has places for {limit:?} connections"
    );
    measure(&client, &options, 1)?;
    let (mut alone, mut beside) = (Latencies::default(), Latencies::default());
    let mut rounds = Vec::new();
    let mut fewest_open = u64::MAX;
    for round in 0..options.rounds {
        let calm = measure(&client, &options, options.tokens)?;
        let crowd = Crowd::gather(&worker, &options)?;
        let (busy, open) = crowd.beside(|| {
            let busy = measure(&client, &options, options.tokens)?;
            let open = client.health()["connections"]["open"].as_u64();
            Ok((busy, open.context("no number of connections")?))
        })?;
        fewest_open = fewest_open.min(open);
        drop(crowd);
        rounds.push(json!({
            "round": round + 1,
            "alone_p50_ms": ms(&calm, 0.5), "alone_p99_ms": ms(&calm, 0.99),
            "beside_p50_ms": ms(&busy, 0.5), "beside_p99_ms": ms(&busy, 0.99),
            "p99_ratio": ms(&busy, 0.99) / ms(&calm, 0.99),
        }));
        calm.each(|gap| alone.push(gap));
        busy.each(|gap| beside.push(gap));
    }
    // Idle clients stay connected; slow ones reconnect when they are dropped.
    ensure!(
        fewest_open as usize >= options.idle,
        "only {fewest_open} connections were open"
    );
    println!(
        "{}",
        result(&options, &alone, &beside, fewest_open, &rounds)
    );
    Ok(())
}

fn result(
    options: &Options,
    alone: &Latencies,
    beside: &Latencies,
    fewest_open: u64,
    rounds: &[Value],
) -> Value {
    json!({
        "bench": "crowd",
        "build": if cfg!(debug_assertions) { "debug" } else { "release" },
        "streams": options.streams,
        "idle": options.idle,
        "slow": options.slow,
        "step_ms": options.step_micros as f64 / 1e3,
        "connections_open_at_least": fewest_open,
        "gaps_alone": alone.summary(),
        "gaps_beside": beside.summary(),
        "p99_beside_to_alone": ms(beside, 0.99) / ms(alone, 0.99),
        "rounds": rounds,
    })
}

fn ms(gaps: &Latencies, share: f64) -> f64 {
    gaps.quantile(share).as_secs_f64() * 1e3
}

/// Gaps between the tokens of all streams. Tokens of one read have no gap between them.
fn measure(client: &Client, options: &Options, tokens: u32) -> anyhow::Result<Latencies> {
    let requests: Vec<_> = iter::repeat_with(|| worker::request("x", tokens))
        .take(options.streams)
        .collect();
    let burst = Burst::run(client.address, &requests)?;
    let mut gaps = Latencies::default();
    for stream in &burst.streams {
        for pair in stream.arrivals.windows(2) {
            let [(before, _), (at, tokens)] = pair else {
                continue;
            };
            gaps.push(*at - *before);
            (1..*tokens).for_each(|_| gaps.push(Duration::ZERO));
        }
    }
    Ok(gaps)
}

/// Idle and slow clients.
struct Crowd {
    address: SocketAddr,
    /// Connections that are only held open.
    _idle: Vec<TcpStream>,
    slow: usize,
    supervisor: u32,
}

impl Crowd {
    fn gather(worker: &Worker, options: &Options) -> io::Result<Self> {
        let address = worker.client().address;
        let idle = iter::repeat_with(|| connect(address)).take(options.idle);
        Ok(Self {
            address,
            _idle: idle.collect::<io::Result<_>>()?,
            slow: options.slow,
            supervisor: worker.pid(),
        })
    }

    /// Waits until the supervisor is almost idle.
    fn settle(&self) {
        let mut before = process::cpu_time(self.supervisor);
        loop {
            thread::sleep(LOOK);
            let now = process::cpu_time(self.supervisor);
            if now.saturating_sub(before) < LOOK / 8 {
                return;
            }
            before = now;
        }
    }

    /// Runs `work` while the slow clients send and read.
    fn beside<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut slow = (0..self.slow)
            .map(|place| Slow::connect(self.address, place % 2 == 0))
            .collect::<io::Result<Vec<_>>>()?;
        let (over, beats) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let crowd = scope.spawn(|| -> io::Result<()> {
                while !over.load(Ordering::Relaxed) {
                    for one in &mut slow {
                        one.beat(self.address)?;
                    }
                    beats.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(BEAT);
                }
                Ok(())
            });
            self.settle();
            let done = work();
            over.store(true, Ordering::Relaxed);
            crowd.join().expect("no slow client panics")?;
            ensure!(beats.load(Ordering::Relaxed) > 1, "nobody was slow");
            done
        })
    }
}

/// Slow client.
struct Slow {
    socket: TcpStream,
    sends: bool,
}

impl Slow {
    fn connect(address: SocketAddr, sends: bool) -> io::Result<Self> {
        const QUESTION: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut socket = connect(address)?;
        socket.write_all(match sends {
            true => b"POST /execute HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            false => QUESTION,
        })?;
        if !sends {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
            socket.write_all(&QUESTION.repeat(QUESTIONS - 1))?;
        }
        socket.set_nonblocking(true)?;
        Ok(Self { socket, sends })
    }

    /// Sends or reads one byte. Reconnects if it was dropped.
    fn beat(&mut self, address: SocketAddr) -> io::Result<()> {
        let done = match self.sends {
            true => self.socket.write(b"a"),
            false => self.socket.read(&mut [0]),
        };
        match done {
            Ok(1) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            _ => {
                *self = Self::connect(address, self.sends)?;
                Ok(())
            }
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_secs(10))
}
