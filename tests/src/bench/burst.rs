//! Streams that begin at the same moment, and the arrival of each of their tokens.
//!
//! [`Pump`](super::Pump) measures throughput over minutes; this measures one batch: 256 streams begin together, and
//! only tokens that arrived while all of them ran are counted.

use super::Latencies;
use super::pump::{Lane, number_after};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Streams of one reader thread; more threads would only wake each other.
const LANES_A_THREAD: usize = 64;
/// 60 s in milliseconds: a longer silence of a stream is a hang.
const SILENCE: u16 = 60_000;

/// Arrivals of one answer.
#[derive(Debug, Clone)]
pub struct Stream {
    pub asked_at: Instant,
    /// Time of each read, and its number of token events. Never empty.
    pub arrivals: Vec<(Instant, u64)>,
    pub tokens_in: u64,
    pub tokens_out: u64,
}

/// Answers to requests that were sent together.
#[derive(Debug, Clone)]
pub struct Burst {
    pub streams: Vec<Stream>,
}

impl Burst {
    /// Sends all of `requests` and reads all answers.
    ///
    /// # Errors
    /// A connection is refused, or a stream breaks or ends without an `end`.
    ///
    /// # Panics
    /// A reader thread panics.
    pub fn run(address: SocketAddr, requests: &[Value]) -> io::Result<Self> {
        let groups: Vec<_> = requests.chunks(LANES_A_THREAD).collect();
        let together = Barrier::new(groups.len());
        let read = thread::scope(|scope| {
            let threads: Vec<_> = groups
                .iter()
                .map(|group| scope.spawn(|| Group::connect(address, group, &together)?.read()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no reader panics"))
                .collect::<io::Result<Vec<_>>>()
        })?;
        Ok(Self {
            streams: read.concat(),
        })
    }

    /// Time from the first request to the last token.
    #[must_use]
    pub fn whole(&self) -> Duration {
        let from = self.streams.iter().map(|stream| stream.asked_at).min();
        let to = self.streams.iter().map(Stream::last).max();
        from.zip(to).map_or(Duration::ZERO, |(from, to)| to - from)
    }

    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.streams.iter().map(|stream| stream.tokens_out).sum()
    }

    /// Period in which every stream ran: from the first token of the last to begin to the end of the first to end.
    /// `None` when there is no such time.
    fn together(&self) -> Option<(Instant, Instant)> {
        let from = self.streams.iter().map(Stream::first).max()?;
        let to = self.streams.iter().map(Stream::last).min()?;
        (from < to).then_some((from, to))
    }

    /// Gaps between reads of tokens, of every stream, while all ran.
    #[must_use]
    pub fn gaps(&self) -> Option<Latencies> {
        let (from, to) = self.together()?;
        let mut gaps = Latencies::default();
        for stream in &self.streams {
            for pair in stream.arrivals.windows(2) {
                let (before, after) = (pair[0].0, pair[1].0);
                if before >= from && after <= to {
                    gaps.push(after - before);
                }
            }
        }
        Some(gaps)
    }

    /// Tokens per second while every stream ran. `None` when there is no such time.
    #[must_use]
    pub fn decode_rate(&self) -> Option<f64> {
        let (from, to) = self.together()?;
        let within = |stream: &Stream| -> f64 {
            let events = |arrivals: &[(Instant, u64)]| -> u64 {
                arrivals.iter().map(|(_, events)| events).sum()
            };
            let inside: Vec<_> = stream
                .arrivals
                .iter()
                .copied()
                .filter(|(at, _)| (from..to).contains(at))
                .collect();
            // A token that is half a character has no event.
            let tokens_an_event = stream.tokens_out as f64 / events(&stream.arrivals) as f64;
            events(&inside) as f64 * tokens_an_event
        };
        Some(self.streams.iter().map(within).sum::<f64>() / (to - from).as_secs_f64())
    }
}

impl Stream {
    #[must_use]
    pub fn first(&self) -> Instant {
        self.arrivals[0].0
    }

    #[must_use]
    pub fn last(&self) -> Instant {
        self.arrivals[self.arrivals.len() - 1].0
    }

    /// Time from each request to its first token.
    #[must_use]
    pub fn time_to_first(&self) -> Duration {
        self.first() - self.asked_at
    }
}

/// Streams of one thread.
struct Group {
    lanes: Vec<(Lane, Stream)>,
}

impl Group {
    /// Connects, waits until all groups have connected, and sends the requests.
    fn connect(address: SocketAddr, requests: &[Value], together: &Barrier) -> io::Result<Self> {
        let lanes: io::Result<Vec<_>> = requests.iter().map(|_| Lane::connect(address)).collect();
        // Also after a failure: the others wait.
        together.wait();
        let mut group = Self { lanes: Vec::new() };
        for (mut lane, request) in lanes?.into_iter().zip(requests) {
            let stream = Stream {
                asked_at: Instant::now(),
                arrivals: Vec::new(),
                tokens_in: 0,
                tokens_out: 0,
            };
            lane.start(request)?;
            group.lanes.push((lane, stream));
        }
        Ok(group)
    }

    fn read(mut self) -> io::Result<Vec<Stream>> {
        let mut buffer = vec![0; 64 << 10];
        while self.lanes.iter().any(|(lane, _)| lane.busy) {
            for index in self.readable()? {
                let (lane, stream) = &mut self.lanes[index];
                lane.take(stream, &mut buffer)?;
            }
        }
        Ok(self.lanes.into_iter().map(|(_, stream)| stream).collect())
    }

    /// Lanes with readable data.
    fn readable(&self) -> io::Result<Vec<usize>> {
        let busy: Vec<_> = (0..self.lanes.len())
            .filter(|index| self.lanes[*index].0.busy)
            .collect();
        let mut polled: Vec<_> = busy
            .iter()
            .map(|index| PollFd::new(self.lanes[*index].0.socket.as_fd(), PollFlags::POLLIN))
            .collect();
        poll(&mut polled, PollTimeout::from(SILENCE))?;
        let ready: Vec<_> = busy
            .iter()
            .zip(&polled)
            .filter(|(_, fd)| fd.any().unwrap_or(true))
            .map(|(index, _)| *index)
            .collect();
        if ready.is_empty() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(ready)
    }
}

impl Lane {
    /// Reads once.
    fn take(&mut self, stream: &mut Stream, buffer: &mut [u8]) -> io::Result<()> {
        let before = self.token_events;
        self.read_on(buffer)?;
        if self.token_events > before {
            let arrival = (Instant::now(), self.token_events - before);
            stream.arrivals.push(arrival);
        }
        let was_refused =
            self.tail.starts_with(b"HTTP/1.1 ") && !self.tail.starts_with(b"HTTP/1.1 200");
        if was_refused {
            let answer = String::from_utf8_lossy(&self.tail).into_owned();
            return Err(io::Error::other(answer));
        }
        if self.busy {
            return Ok(());
        }
        let number = |key: &[u8]| number_after(&self.tail, key);
        let counts = number(b"\"tokens_in\":").zip(number(b"\"tokens_out\":"));
        match counts {
            Some((tokens_in, tokens_out)) if !stream.arrivals.is_empty() => {
                (stream.tokens_in, stream.tokens_out) = (tokens_in, tokens_out);
                Ok(())
            }
            _ => Err(io::Error::other(format!(
                "a stream ended without tokens or without an end: {}",
                String::from_utf8_lossy(&self.tail)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(start: Instant, times: &[(u64, u64)]) -> Stream {
        let at = |ms| start + Duration::from_millis(ms);
        Stream {
            asked_at: start,
            arrivals: times
                .iter()
                .map(|(ms, events)| (at(*ms), *events))
                .collect(),
            tokens_in: 1,
            tokens_out: times.iter().map(|(_, events)| events).sum(),
        }
    }

    #[test]
    fn only_tokens_that_came_while_all_streams_ran_are_counted() {
        let start = Instant::now();
        let burst = Burst {
            streams: vec![
                stream(start, &[(100, 1), (200, 1), (300, 2), (1200, 1)]),
                stream(start, &[(200, 1), (250, 1), (1000, 5), (1300, 1)]),
            ],
        };
        // From 200 to 1200 ms: 1 + 2 of the first stream, 1 + 1 + 5 of the second.
        assert_eq!(burst.decode_rate(), Some(10.0));
        assert_eq!(burst.whole(), Duration::from_millis(1300));
        assert_eq!(burst.tokens(), 13);
        assert_eq!(burst.streams[1].time_to_first(), Duration::from_millis(200));
        // Up to the last token of the first: 200 to 300 to 1200; and 200 to 250 to 1000.
        let mut gaps = Vec::new();
        burst.gaps().unwrap().each(|gap| gaps.push(gap.as_millis()));
        assert_eq!(gaps, [100, 900, 50, 750]);
    }

    #[test]
    fn streams_that_never_ran_together_have_no_rate() {
        let start = Instant::now();
        let burst = Burst {
            streams: vec![
                stream(start, &[(100, 1), (200, 1)]),
                stream(start, &[(300, 1), (400, 1)]),
            ],
        };
        assert_eq!(burst.decode_rate(), None);
        assert!(burst.gaps().is_none());
    }
}
