//! Thread for slow calls of NVIDIA's driver. While the driver creates or destroys a process, on any card, all other
//! calls into the kernel block, and with them a stream (`bench/results/devices.md`). Launches make no such
//! calls.
//!
//! This thread maps and unmaps the KV caches of other children, instantiates recorded graphs, and queries the free
//! memory of the device.

use super::context::Context;
use super::graph::{self, Executable, Recording};
use super::memory::{Arena, Purpose};
use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;
use worker_orcd_ipc::Fault;

/// Interval between two queries of free memory while there is no other job.
const READING_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct DriverThread {
    jobs: Sender<Job>,
    free_bytes: Arc<AtomicU64>,
    total_bytes: u64,
}

#[derive(Debug)]
enum Job {
    Map {
        memory: OwnedFd,
        bytes: u64,
        mapped: SyncSender<Arena>,
    },
    LetGo(OtherKv),
    Instantiate {
        recording: Recording,
        made: SyncSender<Result<Executable, Fault>>,
    },
    Drop(Executable),
}

/// KV cache of another process, mapped or being mapped.
#[derive(Debug)]
pub struct OtherKv {
    coming: Receiver<Arena>,
    /// Result of the mapping, after the wait for it.
    arena: OnceCell<Option<Arena>>,
}

impl DriverThread {
    /// # Errors
    /// If the thread cannot be created, or NVIDIA's driver returns an error.
    pub fn start(context: &Context) -> Result<Self, Fault> {
        let (free, total_bytes) = context.memory()?;
        let free_bytes = Arc::new(AtomicU64::new(free));
        let (jobs, orders) = channel();
        let context = context.with_a_stream_of_its_own()?;
        let reading = Arc::downgrade(&free_bytes);
        let thread = thread::Builder::new().name("cuda-driver".to_owned());
        let started = thread.spawn(move || work(&context, &orders, &reading));
        started.map_err(|error| Fault::Io {
            message: format!("a thread cannot be started: {error}"),
        })?;
        Ok(Self {
            jobs,
            free_bytes,
            total_bytes,
        })
    }

    /// Free and total bytes of the device at the latest query.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        (self.free_bytes.load(Ordering::Relaxed), self.total_bytes)
    }

    /// Orders a read-only mapping of a KV cache.
    #[must_use]
    pub fn map(&self, memory: OwnedFd, bytes: u64) -> OtherKv {
        let (mapped, coming) = sync_channel(1);
        self.order(Job::Map {
            memory,
            bytes,
            mapped,
        });
        OtherKv {
            coming,
            arena: OnceCell::new(),
        }
    }

    /// Orders its unmapping. No launch in flight reads it.
    pub fn let_go(&self, other: OtherKv) {
        self.order(Job::LetGo(other));
    }

    /// Orders the instantiation of a recording.
    #[must_use]
    pub fn instantiate(&self, recording: Recording) -> Receiver<Result<Executable, Fault>> {
        let (made, coming) = sync_channel(1);
        self.order(Job::Instantiate { recording, made });
        coming
    }

    /// Drops a graph without a launch in flight.
    pub fn drop_executable(&self, executable: Executable) {
        self.order(Job::Drop(executable));
    }

    fn order(&self, job: Job) {
        // The thread lives as long as this end of the channel.
        let _ = self.jobs.send(job);
    }
}

impl OtherKv {
    /// Waits for the memory; `None` if the mapping failed.
    pub fn arena(&self) -> Option<&Arena> {
        let wait = || self.coming.recv().ok();
        self.arena.get_or_init(wait).as_ref()
    }

    fn into_arena(self) -> Option<Arena> {
        let arena = self.arena.into_inner().flatten();
        arena.or_else(|| self.coming.recv().ok())
    }
}

/// Runs jobs until the executor is dropped.
fn work(context: &Context, orders: &Receiver<Job>, free_bytes: &Weak<AtomicU64>) {
    loop {
        let job = match orders.recv_timeout(READING_INTERVAL) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some(place), Ok((free, _))) = (free_bytes.upgrade(), context.memory()) {
                    place.store(free, Ordering::Relaxed);
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if let Err(fault) = job.done(context) {
            // A lost context is reported by the next step.
            eprintln!("worker-orcd-gpu: beside the steps: {fault}");
        }
    }
}

impl Job {
    fn done(self, context: &Context) -> Result<(), Fault> {
        match self {
            // Tokens of a cache that cannot be mapped are computed again.
            Self::Map {
                memory,
                bytes,
                mapped,
            } => {
                let arena = Arena::import(context, Purpose::OfAnother, bytes, &memory)?;
                drop(mapped.send(arena));
                Ok(())
            }
            Self::LetGo(other) => other
                .into_arena()
                .map_or(Ok(()), |mut arena| arena.release()),
            Self::Instantiate { recording, made } => {
                drop(made.send(graph::instantiate(context, recording)));
                Ok(())
            }
            Self::Drop(executable) => executable.destroy(context),
        }
    }
}
