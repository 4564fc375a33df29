//! A witness of the GPU that needs no context on it: NVIDIA's management library, on threads of
//! its own.
//!
//! ```text
//! driver ── Order ──► asks ──► library ──► the kernel's driver         (may block for good)
//!    ▲                  │         ▲
//!    └── Sighting ──────┴─ listens┘
//! ```
//!
//! * [`library`] is the seam: what is asked of one GPU. [`real`] asks NVML, which is loaded at run
//!   time and may be missing; tests play the part.
//! * [`selection`] says which of the machine's GPUs `cuda:N` is.
//! * [`threads`] ask once a second, listen for Xids all the time, and after each death measure
//!   until the memory is back. [`reckoning`] is what they measure.
//!
//! NVML can block on a wedged GPU, and a thread that does is lost. So nobody waits for one:
//! orders go into a bounded queue, sightings come when they come, and what has not been sighted
//! for [`SILENT_AFTER`] is unknown.
//!
//! Deliberately absent: decisions. What a sighting means is the lifecycle's business.

pub(crate) mod library;
mod real;
pub(crate) mod reckoning;
mod selection;
mod threads;

/// The kernel module says so itself.
#[must_use]
pub(crate) fn driver_is_loaded() -> bool {
    std::path::Path::new("/proc/driver/nvidia/version").exists()
}

/// Those without which NVIDIA's driver opens no device. The last one is made when it is first asked for.
pub(crate) fn device_nodes_are_there() -> bool {
    let nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm"];
    nodes.iter().all(|node| std::path::Path::new(node).exists())
}

#[cfg(test)]
pub(crate) mod played;

use library::{Gauges, Identity, Opener};
use reckoning::{Examination, Measure};
pub(crate) use selection::same_uuid;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use worker_orcd_lifecycle::{RecoveryAction, Xid};

/// Figures are taken once a second; five that are missing are no coincidence.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Deaths that wait to be examined, each for as long as the driver takes to answer. A queue that is full belongs to
/// a thread that is lost.
const ORDERS: usize = 8;

/// The driver's end of both channels. The threads end when it is dropped, if they can.
#[derive(Debug)]
pub(crate) struct Witness {
    orders: SyncSender<Order>,
    sightings: UnboundedReceiver<Sighting>,
}

/// Orders to the thread that asks, beyond its regular questions.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take figures now.
    Look,
    Examine(Examination),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sighting {
    /// The last sighting, because there is no library, no kernel driver, or no such device.
    Absent(String),
    Opened(Identity),
    Gauges(Gauges, Instant),
    Xid(SeenXid),
    /// Xids cannot be heard, or no longer.
    Deaf(String),
    /// The recovery action that NVIDIA's driver asks for since this generation died.
    Examined {
        generation: u32,
        action: Option<RecoveryAction>,
    },
    /// The result of looking for the memory of a generation that died.
    Measured {
        generation: u32,
        measure: Measure,
    },
}

/// The library tells the number alone; the times are those of its arrival here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeenXid {
    pub xid: Xid,
    pub at: Instant,
    pub wall: SystemTime,
    /// Since boot, as the kernel's own log counts: the line that belongs to it is near.
    pub kernel: Option<Duration>,
}

impl Witness {
    /// Returns at once; whether there is anything to see is the first sighting.
    ///
    /// # Errors
    /// When the machine has no thread to give.
    pub(crate) fn start(open: Opener) -> io::Result<Self> {
        let (orders, inbox) = sync_channel(ORDERS);
        let (outbox, sightings) = unbounded_channel();
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || threads::ask(open, &inbox, &outbox))?;
        Ok(Self { orders, sightings })
    }

    /// NVML itself, and the GPU that the child will know as `cuda:{ordinal}`.
    ///
    /// # Errors
    /// When the machine has no thread to give.
    pub(crate) fn of_device(ordinal: u32) -> io::Result<Self> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        Self::start(Box::new(move || {
            let address = selection::Address::of(ordinal, visible.as_deref())?;
            real::open(&address)
        }))
    }

    /// One look, for a person who waits `patience` at most.
    ///
    /// # Errors
    /// Why there is nothing to see.
    pub(crate) fn look(ordinal: u32, patience: Duration) -> Result<(Identity, Gauges), String> {
        let (answer, wait) = sync_channel(1);
        let thread = std::thread::Builder::new().name("nvml".to_owned());
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let look = move || {
            let gpu = selection::Address::of(ordinal, visible.as_deref())
                .and_then(|address| real::open(&address));
            // By now nobody may wait any more.
            drop(answer.send(gpu.map(|gpu| (gpu.identity(), gpu.gauges()))));
        };
        thread.spawn(look).map_err(|error| error.to_string())?;
        let silence = |_| format!("no answer within {} s", patience.as_secs());
        wait.recv_timeout(patience).map_err(silence)?
    }

    /// `None` when no sighting will ever come again. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Sighting> {
        self.sightings.recv().await
    }

    /// Does not wait. False when the thread has stopped taking orders.
    pub(crate) fn examine(&self, examination: Examination) -> bool {
        self.orders.try_send(Order::Examine(examination)).is_ok()
    }

    /// Does not wait. Where the queue is full, figures come with the next second.
    pub(crate) fn look_now(&self) {
        drop(self.orders.try_send(Order::Look));
    }
}
