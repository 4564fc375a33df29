//! Many `/execute` streams read by one thread, at low cost.
//!
//! On two cores the client competes with the server under test, so it does little: it counts events, and accepts a
//! stream only if the number of `token` events equals the `tokens_out` of its `end`.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Size that holds the `end` event and the last chunk.
const TAIL_BYTES: usize = 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub requests: u64,
    pub tokens: u64,
    pub bytes: u64,
}

/// Fixed number of connections, each with one request after another.
#[derive(Debug)]
pub struct Pump {
    lanes: Vec<Lane>,
    next_request: Box<dyn RequestSource>,
    buffer: Vec<u8>,
    pub totals: Totals,
}

/// Function that returns the body of the n-th request.
pub trait RequestSource: Fn(u64) -> Value {}
impl<F: Fn(u64) -> Value> RequestSource for F {}

impl std::fmt::Debug for dyn RequestSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestSource")
    }
}

/// Connection, and the state of its stream.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) socket: TcpStream,
    pub(super) busy: bool,
    pub(super) token_events: u64,
    /// End of the last read: a partial `event: token`, and the last events.
    pub(super) tail: Vec<u8>,
}

impl Pump {
    /// # Errors
    /// A connection is refused.
    pub fn new(
        address: SocketAddr,
        lanes: usize,
        next_request: impl RequestSource + 'static,
    ) -> io::Result<Self> {
        let lanes = (0..lanes)
            .map(|_| Lane::connect(address))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            lanes,
            next_request: Box::new(next_request),
            buffer: vec![0; 256 << 10],
            totals: Totals::default(),
        })
    }

    /// Keeps every lane busy until `enough`, then finishes the running streams.
    ///
    /// # Errors
    /// A stream breaks, is refused, or lacks tokens that its end counts.
    pub fn run(&mut self, mut enough: impl FnMut(&Totals) -> bool) -> io::Result<()> {
        let mut started = self.totals.requests;
        loop {
            let stop = enough(&self.totals);
            for lane in &mut self.lanes {
                if !lane.busy && !stop {
                    lane.start(&(self.next_request)(started))?;
                    started += 1;
                }
            }
            if self.lanes.iter().all(|lane| !lane.busy) {
                return Ok(());
            }
            self.read_what_is_there()?;
        }
    }

    fn read_what_is_there(&mut self) -> io::Result<()> {
        let mut polled: Vec<PollFd<'_>> = self
            .lanes
            .iter()
            .map(|lane| {
                let wanted = if lane.busy {
                    PollFlags::POLLIN
                } else {
                    PollFlags::empty()
                };
                PollFd::new(lane.socket.as_fd(), wanted)
            })
            .collect();
        poll(&mut polled, PollTimeout::from(60_000_u16))?;
        let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        if !ready.contains(&true) {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                "no stream said anything for 60 s",
            ));
        }
        for (lane, _) in self.lanes.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            lane.read(&mut self.buffer, &mut self.totals)?;
        }
        Ok(())
    }
}

impl Lane {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            busy: false,
            token_events: 0,
            tail: Vec::new(),
        })
    }

    /// Sends a request. A long prompt may exceed the socket's buffer: writing blocks, reading does not.
    pub(super) fn start(&mut self, request: &Value) -> io::Result<()> {
        let body = request.to_string();
        let head =
            "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        let message = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        self.socket.set_nonblocking(false)?;
        self.socket.write_all(message.as_bytes())?;
        self.socket.set_nonblocking(true)?;
        self.busy = true;
        self.token_events = 0;
        self.tail.clear();
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], totals: &mut Totals) -> io::Result<()> {
        let was_busy = self.busy;
        totals.bytes += self.read_on(buffer)?;
        if was_busy && !self.busy {
            self.finish(totals)?;
        }
        Ok(())
    }

    /// Counts the available data, and clears `busy` after the end. Returns the number of bytes.
    pub(super) fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<u64> {
        let read = match self.socket.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        self.count(&buffer[..read]);
        self.busy = !self.tail.ends_with(LAST_CHUNK);
        Ok(read as u64)
    }

    fn count(&mut self, bytes: &[u8]) {
        const MARK: &[u8] = b"event: token";
        // The seam catches a mark that is split over two reads.
        let seam_start = self.tail.len().saturating_sub(MARK.len() - 1);
        let mut seam = self.tail[seam_start..].to_vec();
        seam.extend_from_slice(&bytes[..bytes.len().min(MARK.len() - 1)]);
        self.token_events += (occurrences(&seam, MARK) + occurrences(bytes, MARK)) as u64;
        let keep = bytes.len().min(TAIL_BYTES);
        self.tail.extend_from_slice(&bytes[bytes.len() - keep..]);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    fn finish(&mut self, totals: &mut Totals) -> io::Result<()> {
        let told = tokens_out(&self.tail).ok_or_else(|| {
            let tail = String::from_utf8_lossy(&self.tail);
            io::Error::other(format!("a stream ended without an end: {tail}"))
        })?;
        if told != self.token_events {
            let seen = self.token_events;
            return Err(io::Error::other(format!(
                "{seen} token events seen, {told} told"
            )));
        }
        totals.requests += 1;
        totals.tokens += told;
        Ok(())
    }
}

fn occurrences(haystack: &[u8], needle: &[u8]) -> usize {
    memchr::memmem::find_iter(haystack, needle).count()
}

fn tokens_out(tail: &[u8]) -> Option<u64> {
    number_after(tail, b"\"tokens_out\":")
}

/// Last number behind `key`.
pub(super) fn number_after(tail: &[u8], key: &[u8]) -> Option<u64> {
    let at = memchr::memmem::rfind(tail, key)? + key.len();
    let digits: Vec<u8> = tail[at..]
        .iter()
        .copied()
        .take_while(u8::is_ascii_digit)
        .collect();
    String::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_counted_once_wherever_it_is_cut() {
        let text = b"event: token\ndata: {}\n\nevent: token\ndata: {}\n\n";
        for cut in 0..text.len() {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut lane = Lane::connect(listener.local_addr().unwrap()).unwrap();
            lane.count(&text[..cut]);
            lane.count(&text[cut..]);
            assert_eq!(lane.token_events, 2, "cut at {cut}");
        }
    }

    #[test]
    fn the_last_count_told_is_the_one_that_counts() {
        assert_eq!(
            tokens_out(br#"{"tokens_out":3} {"tokens_out":12,"x":1}"#),
            Some(12)
        );
        assert_eq!(tokens_out(b"nothing"), None);
    }
}
