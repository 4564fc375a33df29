//! Streams and the arrival of each of their tokens, beside expensive grammars.
//!
//! Windows with and without grammars alternate in one run, so that other load of the machine affects both.

use super::Latencies;
use super::pump::Lane;
use crate::process;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;

/// 60 s in milliseconds: a longer silence of a stream is a hang.
const SILENCE: u16 = 60_000;

/// 50 ms between two samples of the memory of all processes.
const LOOK: Duration = Duration::from_millis(50);

/// Arrival of a token, and the gap before it.
#[derive(Debug, Clone, Copy)]
struct Gap {
    at: Instant,
    long: Duration,
}

/// Streams, one after another on each connection.
#[derive(Debug, Default)]
pub struct Streams {
    gaps: Mutex<Vec<Gap>>,
    begun: AtomicUsize,
    over: AtomicBool,
}

impl Streams {
    /// Runs concurrent streams until [`Self::end`].
    ///
    /// # Errors
    /// A stream is refused, breaks, or is silent.
    pub fn run(
        &self,
        address: SocketAddr,
        streams: usize,
        body: impl Fn() -> Value,
    ) -> io::Result<()> {
        let lanes = (0..streams).map(|_| Lane::connect(address));
        let mut lanes = lanes.collect::<io::Result<Vec<_>>>()?;
        let mut last: Vec<Option<Instant>> = vec![None; streams];
        let mut buffer = vec![0; 64 << 10];
        while !self.over.load(Ordering::Relaxed) {
            for (lane, last) in lanes.iter_mut().zip(&mut last) {
                if !lane.busy {
                    lane.start(&body())?;
                    *last = None;
                }
            }
            for index in readable(&lanes)? {
                self.take(&mut lanes[index], &mut last[index], &mut buffer)?;
            }
        }
        Ok(())
    }

    /// Waits until each stream has begun.
    pub fn wait_begun(&self, streams: usize) {
        while self.begun.load(Ordering::Relaxed) < streams && !self.over.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
    }

    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Gaps in a window.
    ///
    /// # Panics
    /// A reader thread has panicked.
    #[must_use]
    pub fn within(&self, (from, to): (Instant, Instant)) -> Latencies {
        let mut inside = Latencies::default();
        let all = self.gaps.lock().expect("no reader panics");
        let lies = |gap: &&Gap| gap.at - gap.long >= from && gap.at <= to;
        for gap in all.iter().filter(lies) {
            inside.push(gap.long);
        }
        inside
    }

    fn take(
        &self,
        lane: &mut Lane,
        last: &mut Option<Instant>,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let before = lane.token_events;
        lane.read_on(buffer)?;
        let refused =
            lane.tail.starts_with(b"HTTP/1.1 ") && !lane.tail.starts_with(b"HTTP/1.1 200");
        if refused {
            let answer = String::from_utf8_lossy(&lane.tail).into_owned();
            return Err(io::Error::other(answer));
        }
        if lane.token_events > before {
            let at = Instant::now();
            match last.replace(at) {
                Some(last) => self.push(Gap {
                    at,
                    long: at - last,
                }),
                None => drop(self.begun.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(())
    }

    fn push(&self, gap: Gap) {
        self.gaps.lock().expect("no reader panics").push(gap);
    }
}

fn readable(lanes: &[Lane]) -> io::Result<Vec<usize>> {
    let mut polled: Vec<_> = lanes
        .iter()
        .map(|lane| PollFd::new(lane.socket.as_fd(), PollFlags::POLLIN))
        .collect();
    poll(&mut polled, PollTimeout::from(SILENCE))?;
    let ready = (0..)
        .zip(&polled)
        .filter(|(_, fd)| fd.any().unwrap_or(true));
    let ready: Vec<usize> = ready.map(|(index, _)| index).collect();
    match ready.is_empty() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(ready),
    }
}

/// Outcome of one request.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub family: &'static str,
    /// Zero if the client left before the response.
    pub status: u16,
    pub text: String,
    pub took: Duration,
}

/// Sends all requests, `at_once` of them in flight.
///
/// # Errors
/// A connection breaks.
///
/// # Panics
/// A sender thread panics.
pub fn send(
    client: &Client,
    at_once: usize,
    all: &[(&'static str, Vec<u8>)],
) -> io::Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let ask = || {
        let mut told = Vec::new();
        while let Some((family, body)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let asked = Instant::now();
            let answer = client.try_request("POST", "/v1/completions", &[], body);
            let (status, text) = match answer {
                Ok(answer) => (answer.status, answer.text()),
                Err(error) if is_late(&error) => (0, String::new()),
                Err(error) => return Err(error),
            };
            told.push(Outcome {
                family,
                status,
                text,
                took: asked.elapsed(),
            });
        }
        Ok(told)
    };
    thread::scope(|scope| {
        let senders: Vec<_> = (0..at_once).map(|_| scope.spawn(ask)).collect();
        let told = senders
            .into_iter()
            .map(|it| it.join().expect("no sender panics"));
        Ok(told.collect::<io::Result<Vec<_>>>()?.concat())
    })
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Peak of each kind of process's own memory, files excluded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peaks {
    supervisor: u64,
    child: u64,
    /// Peak of the largest process that checks grammars or interprets templates.
    checker: u64,
    checkers: usize,
    all: u64,
}

impl Peaks {
    /// Samples the memory until `is_over`.
    #[must_use]
    pub fn while_not(over: &AtomicBool, supervisor: u32) -> Self {
        let mut most = Self::default();
        let rss = |pid: u32| process::anonymous_rss_bytes(pid).unwrap_or(0);
        while !over.load(Ordering::Relaxed) {
            let children: Vec<u64> = process::model_children(supervisor)
                .into_iter()
                .map(rss)
                .collect();
            let checkers: Vec<u64> = process::interpreters(supervisor)
                .into_iter()
                .map(rss)
                .collect();
            let own = rss(supervisor);
            most = most.or(Self {
                supervisor: own,
                child: children.iter().sum(),
                checker: checkers.iter().copied().max().unwrap_or(0),
                checkers: checkers.len(),
                all: own + children.iter().chain(&checkers).sum::<u64>(),
            });
            thread::sleep(LOOK);
        }
        most
    }

    /// Maximum of each.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            supervisor: self.supervisor.max(other.supervisor),
            child: self.child.max(other.child),
            checker: self.checker.max(other.checker),
            checkers: self.checkers.max(other.checkers),
            all: self.all.max(other.all),
        }
    }

    /// Peaks in MiB.
    #[must_use]
    pub fn summary(&self, side: &str) -> Value {
        let mib = |bytes: u64| bytes >> 20;
        json!({
            "side": side, "supervisor_mib": mib(self.supervisor), "child_mib": mib(self.child),
            "largest_checker_mib": mib(self.checker), "checkers": self.checkers, "all_mib": mib(self.all),
        })
    }
}
