//! Bounded queue of log lines, and a thread that writes them to standard error.
//!
//! A line without room is dropped and counted; the alternative would block the whole program on a stalled reader. The
//! count is reported after the next successful write.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Queue size in bytes: some thousands of lines. A stalled reader costs twice this.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// A buffer that grew beyond this in a burst is freed.
const KEPT_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Complete lines.
    waiting: Vec<u8>,
    /// The thread has taken lines that are not all written yet.
    writing: bool,
}

/// Starts the thread. It calls `report` with the number of dropped lines after a later write.
pub(super) fn start(file: File, report: impl Fn(u64) + Send + 'static) -> io::Result<Arc<Queue>> {
    let queue = Arc::new(Queue::default());
    let ours = Arc::clone(&queue);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || ours.write_for_ever(&file, report))?;
    Ok(queue)
}

impl Queue {
    /// Never blocks.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.state.lock();
        if state.waiting.len() + line.len() > MAX_WAITING_BYTES {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.waiting.extend_from_slice(line);
        self.filled.notify_one();
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, for at most `patience`.
    pub(super) fn settle(&self, patience: Duration) {
        let mut state = self.state.lock();
        let unsettled = |state: &mut State| state.writing || !state.waiting.is_empty();
        self.emptied.wait_while_for(&mut state, unsettled, patience);
    }

    fn write_for_ever(&self, file: &File, report: impl Fn(u64)) {
        let mut batch = Vec::new();
        let mut reported = 0;
        loop {
            self.take(&mut batch);
            let written = write_all(file, &batch);
            if written.is_err() {
                // Lines that failed to be written are counted as dropped.
                let lines = batch.iter().filter(|byte| **byte == b'\n').count();
                self.dropped.fetch_add(lines as u64, Ordering::Relaxed);
            }
            let dropped = self.dropped();
            if written.is_ok() && dropped > reported {
                report(dropped - reported);
                reported = dropped;
            }
        }
    }

    /// Waits for lines and exchanges them for the written buffer.
    fn take(&self, batch: &mut Vec<u8>) {
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
        let mut state = self.state.lock();
        state.writing = false;
        if state.waiting.is_empty() {
            self.emptied.notify_all();
        }
        self.filled
            .wait_while(&mut state, |state| state.waiting.is_empty());
        state.writing = true;
        std::mem::swap(&mut state.waiting, batch);
    }
}

/// Writes everything, also if another process made the shared descriptor non-blocking.
fn write_all(mut file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let room = PollFd::new(file.as_fd(), PollFlags::POLLOUT);
                poll(&mut [room], PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::io::{BufRead, BufReader};
    use std::sync::mpsc;

    const LINES: usize = 100_000;

    /// The reader's end, a queue that writes to the other end, and its reports.
    fn piped() -> (io::PipeReader, Arc<Queue>, mpsc::Receiver<u64>) {
        let (reader, writer) = io::pipe().unwrap();
        let (sender, reports) = mpsc::channel();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let queue = start(file, move |count| sender.send(count).unwrap()).unwrap();
        (reader, queue, reports)
    }

    fn fill(queue: &Queue) {
        for number in 0..LINES {
            queue.push(format!("line number {number} of too many\n").as_bytes());
        }
    }

    #[test]
    fn a_reader_that_does_not_read_stops_nobody_and_is_told_what_it_missed() {
        let (reader, queue, reports) = piped();
        fill(&queue);
        let dropped = queue.dropped();
        assert!(dropped > 0, "everything fitted");
        let whole = LINES - usize::try_from(dropped).unwrap();
        let mut next = 0;
        for line in BufReader::new(reader).lines().take(whole) {
            let line = line.unwrap();
            let number = line.strip_prefix("line number ");
            let number = number.and_then(|it| it.strip_suffix(" of too many"));
            let number: usize = number.expect("no line is torn").parse().unwrap();
            assert!(number >= next, "{number} after {next}");
            next = number + 1;
        }
        assert_eq!(reports.recv().unwrap(), dropped);
    }

    #[test]
    fn the_last_lines_get_their_time_and_no_more() {
        let (reader, queue, _reports) = piped();
        queue.push(b"one\n");
        queue.settle(Duration::from_secs(60));
        assert_eq!(
            BufReader::new(&reader).lines().next().unwrap().unwrap(),
            "one"
        );
        fill(&queue);
        // Returns although the pipe has no reader.
        queue.settle(Duration::from_millis(50));
        let state = queue.state.lock();
        assert!(state.writing || !state.waiting.is_empty());
    }

    #[test]
    fn a_reader_that_is_gone_is_counted_and_never_told() {
        let (reader, queue, reports) = piped();
        drop(reader);
        queue.push(b"one\n");
        queue.settle(Duration::from_secs(60));
        assert_eq!(queue.dropped(), 1);
        assert!(reports.try_recv().is_err());
    }

    #[test]
    fn a_pipe_that_somebody_made_non_blocking_loses_nothing() {
        let (reader, writer) = io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let queue = start(file, |_| {}).unwrap();
        let line = [vec![b'x'; 1 << 19], vec![b'\n']].concat();
        queue.push(&line);
        let mut read = Vec::new();
        BufReader::new(reader).read_until(b'\n', &mut read).unwrap();
        assert_eq!(read.len(), line.len());
        assert_eq!(queue.dropped(), 0);
    }
}
