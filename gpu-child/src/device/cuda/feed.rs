//! Transfer of a model file to the device, through a few buffers.
//!
//! ```text
//! file ── readers, a thread each ──→ filled buffers ── the caller's thread ──→ device
//!                ↑                                            │
//!                └──────── free again, once copied ───────────┘
//! ```
//!
//! NVIDIA's driver copies unregistered memory through its own buffers, several times slower. Registration of the
//! whole mapped file would pin all of it. So the file is read into pinned buffers while others
//! are copied, and only those are pinned.
//!
//! Deliberately absent: the device. The caller supplies the copy of a chunk and the wait for its end.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use worker_orcd_ipc::Fault;

/// Buffers per reader: one is filled while the other is copied.
pub const BUFFERS: usize = 2;

/// Source of chunks: reads the bytes of a slice of the file into a buffer of equal length.
pub type Read<'a> = &'a (dyn Fn(&[u8], &mut [u8]) -> io::Result<()> + Sync);

/// Destination of chunks. `T` stands for a copy in flight.
pub trait Sink {
    type Copy;

    /// Begins the copy of a chunk, by its number. The buffer is unchanged until the wait for the copy ends.
    fn send(&mut self, chunk: usize, bytes: &[u8]) -> Result<Self::Copy, Fault>;
    fn wait(&mut self, copy: Self::Copy) -> Result<(), Fault>;
}

struct Filled<B> {
    chunk: usize,
    reader: usize,
    buffer: B,
    outcome: io::Result<()>,
}

/// Sends every chunk once, in no particular order, and waits for all copies. Each reader has its own buffers,
/// as long as the longest chunk.
///
/// # Errors
/// The sink's, or [`Fault::ModelLoad`] when the file cannot be read.
pub fn feed<B: AsMut<[u8]> + Send, S: Sink>(
    chunks: &[&[u8]],
    read: Read<'_>,
    buffers: Vec<[B; BUFFERS]>,
    sink: &mut S,
) -> Result<(), Fault> {
    let mut under_way = VecDeque::new();
    let most = buffers.len();
    let next = AtomicUsize::new(0);
    let sent = thread::scope(|scope| {
        let (filled, news) = mpsc::channel();
        let mut returns = Vec::new();
        for (reader, own) in buffers.into_iter().enumerate() {
            let (back, free) = mpsc::channel();
            for buffer in own {
                // The other end is below.
                let _ = back.send(buffer);
            }
            returns.push(back);
            let (next, filled) = (&next, filled.clone());
            scope.spawn(move || read_chunks(chunks, read, next, reader, &free, &filled));
        }
        drop(filled);
        for _ in chunks {
            // With fewer copies in flight than readers, at least one reader has a buffer.
            if under_way.len() == most {
                give_back(&mut under_way, &returns, sink)?;
            }
            let Filled {
                chunk,
                reader,
                mut buffer,
                outcome,
            } = news.recv().map_err(|_| failed("a reader is gone"))?;
            outcome.map_err(|error| failed(&error.to_string()))?;
            let copy = sink.send(chunk, &buffer.as_mut()[..chunks[chunk].len()])?;
            under_way.push_back((reader, buffer, copy));
        }
        Ok(())
    });
    // Also after an error: no buffer is freed while it is read.
    let ended = under_way.into_iter().map(|(_, buffer, copy)| {
        let ended = sink.wait(copy);
        drop(buffer);
        ended
    });
    let ended: Vec<_> = ended.collect();
    sent.and(ended.into_iter().collect())
}

fn give_back<B, S: Sink>(
    under_way: &mut VecDeque<(usize, B, S::Copy)>,
    returns: &[Sender<B>],
    sink: &mut S,
) -> Result<(), Fault> {
    if let Some((reader, buffer, copy)) = under_way.pop_front() {
        sink.wait(copy)?;
        // A reader ends when no chunk is left.
        let _ = returns[reader].send(buffer);
    }
    Ok(())
}

/// Takes a buffer first, then a chunk: a reader that waits for a buffer blocks no chunk.
fn read_chunks<B: AsMut<[u8]>>(
    chunks: &[&[u8]],
    read: Read<'_>,
    next: &AtomicUsize,
    reader: usize,
    free: &Receiver<B>,
    filled: &Sender<Filled<B>>,
) {
    while let Ok(mut buffer) = free.recv() {
        let chunk = next.fetch_add(1, Ordering::Relaxed);
        let Some(bytes) = chunks.get(chunk) else {
            return;
        };
        let outcome = read(bytes, &mut buffer.as_mut()[..bytes.len()]);
        let is_over = outcome.is_err();
        let news = Filled {
            chunk,
            reader,
            buffer,
            outcome,
        };
        if filled.send(news).is_err() || is_over {
            return;
        }
    }
}

fn failed(why: &str) -> Fault {
    Fault::ModelLoad {
        message: format!("the file cannot be read: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies end late: at the wait for them.
    #[derive(Default)]
    struct Played {
        sent: Vec<(usize, Vec<u8>)>,
        waited: usize,
        most_under_way: usize,
        fails_at: Option<usize>,
    }

    impl Sink for Played {
        type Copy = ();

        fn send(&mut self, chunk: usize, bytes: &[u8]) -> Result<(), Fault> {
            if self.fails_at == Some(self.sent.len()) {
                return Err(failed("as ordered"));
            }
            self.sent.push((chunk, bytes.to_vec()));
            self.most_under_way = self.most_under_way.max(self.sent.len() - self.waited);
            Ok(())
        }

        fn wait(&mut self, (): ()) -> Result<(), Fault> {
            self.waited += 1;
            Ok(())
        }
    }

    fn buffers(readers: usize, bytes: usize) -> Vec<[Vec<u8>; BUFFERS]> {
        (0..readers)
            .map(|_| [vec![0; bytes], vec![0; bytes]])
            .collect()
    }

    fn copied(from: &[u8], to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(from);
        Ok(())
    }

    #[test]
    fn every_chunk_is_sent_once_whole_however_many_read() {
        let file: Vec<u8> = (0..9973_u32).map(|i| (i * 31 % 251) as u8).collect();
        for readers in [1, 2, 5] {
            for length in [7, 100, 9973] {
                let chunks: Vec<_> = file.chunks(length).collect();
                let mut sink = Played::default();
                feed(&chunks, &copied, buffers(readers, length), &mut sink).unwrap();
                assert_eq!(sink.waited, chunks.len());
                assert!(sink.most_under_way <= readers);
                sink.sent.sort();
                let sent: Vec<_> = sink.sent.iter().map(|(_, bytes)| &bytes[..]).collect();
                assert_eq!(sent, chunks, "{readers} readers, {length} bytes");
            }
        }
    }

    #[test]
    fn nothing_to_send_is_no_error() {
        let mut sink = Played::default();
        feed(&[], &copied, buffers(3, 1), &mut sink).unwrap();
        assert_eq!(sink.sent, []);
    }

    #[test]
    fn what_cannot_be_read_or_sent_ends_it_and_all_that_was_sent_is_waited_for() {
        let file = [1_u8; 100];
        let chunks: Vec<_> = file.chunks(1).collect();
        let next = AtomicUsize::new(0);
        let fails_once = |from: &[u8], to: &mut [u8]| match next.fetch_add(1, Ordering::Relaxed) {
            50 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => copied(from, to),
        };
        let mut sink = Played::default();
        let outcome = feed(&chunks, &fails_once, buffers(4, 1), &mut sink);
        let Err(Fault::ModelLoad { message }) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(message.contains("end of file"), "{message}");
        assert_eq!(sink.waited, sink.sent.len());

        let mut sink = Played {
            fails_at: Some(20),
            ..Played::default()
        };
        assert!(feed(&chunks, &copied, buffers(4, 1), &mut sink).is_err());
        assert_eq!((sink.sent.len(), sink.waited), (20, 20));
    }
}
