//! Stdout and stderr of a child, as log lines.
//!
//! The output is the child's own, such as a panic message or a driver's error. It never contains prompts or
//! completions. Lines are cut at [`MAX_LINE_BYTES`], and lines beyond [`MAX_LINES_PER_SECOND`] are dropped, so memory
//! and log are bounded.

#![expect(
    clippy::disallowed_methods,
    reason = "lines of a child are counted by the second where they are read"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tracing::{info, warn};
use worker_orcd_ipc::Generation;

const MAX_LINE_BYTES: usize = 4096;

/// Enough for any backtrace.
const MAX_LINES_PER_SECOND: u32 = 200;

/// Read ends of a child's output pipes, kept for a handover to another supervisor.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl Outputs {
    /// Logs all output until the last process with a write end is gone.
    ///
    /// # Errors
    /// If a pipe cannot be read asynchronously, or there is no descriptor for it.
    pub(crate) fn log(&self, generation: Generation) -> io::Result<()> {
        for (pipe, stream) in [(&self.stdout, "stdout"), (&self.stderr, "stderr")] {
            if let Some(pipe) = pipe {
                log_lines(pipe.try_clone()?, stream, generation)?;
            }
        }
        Ok(())
    }
}

fn log_lines(pipe: OwnedFd, stream: &'static str, generation: Generation) -> io::Result<()> {
    let mut pipe = Receiver::from_owned_fd(pipe)?;
    tokio::spawn(async move {
        let mut lines = Lines::default();
        let mut limit = Limit::new();
        let mut chunk = [0; MAX_LINE_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
            lines.push(&chunk[..count], |line| limit.log(line, stream, generation));
        }
        lines.finish(|line| limit.log(line, stream, generation));
    });
    Ok(())
}

/// Splits bytes into lines of bounded length.
#[derive(Debug, Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = MAX_LINE_BYTES - self.partial.len();
            self.partial
                .extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.flush(&mut each);
            }
        }
    }

    fn finish(&mut self, mut each: impl FnMut(&str)) {
        self.flush(&mut each);
    }

    fn flush(&mut self, each: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.partial);
        if !line.trim().is_empty() {
            each(line.trim_end());
        }
        self.partial.clear();
    }
}

#[derive(Debug)]
struct Limit {
    second: Instant,
    lines: u32,
    dropped: u64,
}

impl Limit {
    fn new() -> Self {
        Self {
            second: Instant::now(),
            lines: 0,
            dropped: 0,
        }
    }

    fn log(&mut self, line: &str, stream: &'static str, generation: Generation) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            if self.dropped > 0 {
                warn!(
                    generation = generation.0,
                    stream,
                    dropped = self.dropped,
                    "child_output_dropped"
                );
            }
            *self = Self::new();
        }
        if self.lines < MAX_LINES_PER_SECOND {
            self.lines += 1;
            info!(generation = generation.0, stream, line, "child_output");
        } else {
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out = vec![];
        for chunk in chunks {
            lines.push(chunk, |line| out.push(line.to_owned()));
        }
        lines.finish(|line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_cut_where_they_end_whatever_the_chunks() {
        assert_eq!(
            cut(&[b"one\ntw", b"o\n\nthr", b"ee"]),
            ["one", "two", "three"]
        );
    }

    #[test]
    fn an_endless_line_is_cut_off_and_the_next_one_is_whole() {
        let long = vec![b'x'; 3 * MAX_LINE_BYTES];
        let lines = cut(&[&long, b"y\nnext\n"]);
        assert_eq!(lines[0].len(), MAX_LINE_BYTES);
        assert_eq!(lines[1], "next");
    }

    #[test]
    fn invalid_utf8_is_shown_and_not_fatal() {
        assert_eq!(cut(&[b"\xff!\n"]), ["\u{fffd}!"]);
    }
}
