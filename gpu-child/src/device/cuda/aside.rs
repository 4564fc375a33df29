//! A thread for what NVIDIA's driver may take long for: while it takes a process down or sets one up, on whatever card, it
//! lets nobody else into the kernel, and a stream would wait for that (`bench/results/devices.md`). Launches need
//! nobody there.
//!
//! Here the KV caches of other children are mapped and let go, recorded steps are made executable, and the device is asked
//! how much of its memory is free.

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

/// Time between two readings of the memory that is free, where there is nothing else to do.
const READING_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Aside {
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

/// The KV cache of another process, which is being mapped, or is.
#[derive(Debug)]
pub struct OtherKv {
    coming: Receiver<Arena>,
    /// What came, once that was waited for.
    arena: OnceCell<Option<Arena>>,
}

impl Aside {
    /// # Errors
    /// When there is no thread to be had, or NVIDIA's driver refuses.
    pub fn start(context: &Context) -> Result<Self, Fault> {
        let (free, total_bytes) = context.memory()?;
        let free_bytes = Arc::new(AtomicU64::new(free));
        let (jobs, orders) = channel();
        let context = context.with_a_stream_of_its_own()?;
        let reading = Arc::downgrade(&free_bytes);
        let thread = thread::Builder::new().name("aside".to_owned());
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

    /// Free and total bytes of the device, as they were when it answered last.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        (self.free_bytes.load(Ordering::Relaxed), self.total_bytes)
    }

    /// Has a KV cache mapped, to be read.
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

    /// Has it let go. Nothing that was launched reads it any more.
    pub fn let_go(&self, other: OtherKv) {
        self.order(Job::LetGo(other));
    }

    /// Has a recording made executable.
    #[must_use]
    pub fn instantiate(&self, recording: Recording) -> Receiver<Result<Executable, Fault>> {
        let (made, coming) = sync_channel(1);
        self.order(Job::Instantiate { recording, made });
        coming
    }

    /// Drops what no launch on its way needs any more.
    pub fn drop_executable(&self, executable: Executable) {
        self.order(Job::Drop(executable));
    }

    fn order(&self, job: Job) {
        // The thread is there as long as this end is.
        let _ = self.jobs.send(job);
    }
}

impl OtherKv {
    /// Its memory, which is waited for; `None` where it cannot be had.
    pub fn arena(&self) -> Option<&Arena> {
        let wait = || self.coming.recv().ok();
        self.arena.get_or_init(wait).as_ref()
    }

    fn into_arena(self) -> Option<Arena> {
        let arena = self.arena.into_inner().flatten();
        arena.or_else(|| self.coming.recv().ok())
    }
}

/// Until the executor is gone.
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
            // A context that is lost says so at the next step.
            eprintln!("worker-orcd-gpu: beside the steps: {fault}");
        }
    }
}

impl Job {
    fn done(self, context: &Context) -> Result<(), Fault> {
        match self {
            // Tokens of one that cannot be mapped are computed again.
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
