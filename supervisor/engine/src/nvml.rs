//! GPU monitor without a CUDA context: NVIDIA's management library (NVML), on its own threads.
//!
//! ```text
//! driver ── Order ──► ask ───► library ──► the kernel's driver         (may block forever)
//!    ▲                  │         ▲
//!    └── Sighting ──────┴─ listen ┘
//! ```
//!
//! * [`library`]: interface to one GPU. [`real`]: NVML, which is loaded at run time and may be missing. Tests have an
//!   implementation of their own.
//! * [`selection`]: mapping of `cuda:N` to a GPU of the machine.
//! * [`threads`]: one thread samples once a second and, after a death, measures until the memory is free. Another waits
//!   for Xids. [`reckoning`]: the measurement.
//!
//! A call of NVML on a hung GPU may never return, and its thread is then lost. No task waits for such a thread: orders
//! go into a bounded queue, samples arrive asynchronously, and values older than [`SILENT_AFTER`] are unknown.
//!
//! Deliberately absent: decisions. The lifecycle interprets the samples.

pub mod library;
mod real;
pub mod reckoning;
mod selection;
mod threads;

/// True if NVIDIA's kernel module is loaded.
#[must_use]
pub fn driver_is_loaded() -> bool {
    std::path::Path::new("/proc/driver/nvidia/version").exists()
}

/// True if the device nodes exist that NVIDIA's driver needs. The second one is created on first use.
#[must_use]
pub fn device_nodes_are_there() -> bool {
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

/// Age limit of samples. They are taken once a second, so five are missing.
pub const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Queue length of deaths to examine. A full queue indicates a lost thread.
const ORDERS: usize = 8;

/// The driver's ends of both channels. A drop ends the threads unless they are blocked.
#[derive(Debug)]
pub struct NvmlMonitor {
    orders: SyncSender<Order>,
    samples: UnboundedReceiver<GpuSample>,
}

/// Order to the sampling thread, besides its regular samples.
#[derive(Debug)]
pub(crate) enum Order {
    /// Take a sample now.
    Look,
    Examine(Examination),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum GpuSample {
    /// Last sample: there is no library, no kernel driver, or no such device.
    Absent(String),
    Opened(Identity),
    Gauges(Gauges, Instant),
    Xid(SeenXid),
    /// Xid events are unavailable, from the start or from now on.
    Deaf(String),
    /// Recovery action of NVIDIA's driver after the death of this generation.
    Examined {
        generation: u32,
        action: Option<RecoveryAction>,
    },
    /// Result of the memory measurement after the death of this generation.
    Measured {
        generation: u32,
        measure: Measure,
    },
}

/// Xid with the times of its arrival here. NVML reports only the number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeenXid {
    pub xid: Xid,
    pub at: Instant,
    pub wall: SystemTime,
    /// Time since boot, on the clock of the kernel's log, to find the matching line.
    pub kernel: Option<Duration>,
}

impl NvmlMonitor {
    /// Starts the threads. Returns at once. The first sample shows whether there is a GPU.
    ///
    /// # Errors
    /// If the machine has no thread.
    pub(crate) fn start(open: Opener) -> io::Result<Self> {
        let (orders, inbox) = sync_channel(ORDERS);
        let (outbox, samples) = unbounded_channel();
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .spawn(move || threads::ask(open, &inbox, &outbox))?;
        Ok(Self { orders, samples })
    }

    /// Monitor by NVML of the child's GPU `cuda:{ordinal}`.
    ///
    /// # Errors
    /// If the machine has no thread.
    pub(crate) fn of_device(ordinal: u32) -> io::Result<Self> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        Self::start(Box::new(move || {
            let address = selection::Address::of(ordinal, visible.as_deref())?;
            real::open(&address)
        }))
    }

    /// Takes one sample, with a time limit of `patience`.
    ///
    /// # Errors
    /// The reason why there is no sample.
    pub fn look(ordinal: u32, patience: Duration) -> Result<(Identity, Gauges), String> {
        let (answer, wait) = sync_channel(1);
        let thread = std::thread::Builder::new().name("nvml".to_owned());
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let look = move || {
            let gpu = selection::Address::of(ordinal, visible.as_deref())
                .and_then(|address| real::open(&address));
            // The receiver may have timed out.
            drop(answer.send(gpu.map(|gpu| (gpu.identity(), gpu.gauges()))));
        };
        thread.spawn(look).map_err(|error| error.to_string())?;
        let silence = |_| format!("no answer within {} s", patience.as_secs());
        wait.recv_timeout(patience).map_err(silence)?
    }

    /// Next sample. `None`: there will be none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<GpuSample> {
        self.samples.recv().await
    }

    /// Orders an examination. Does not wait. False: the thread accepts no orders.
    pub(crate) fn examine(&self, examination: Examination) -> bool {
        self.orders.try_send(Order::Examine(examination)).is_ok()
    }

    /// Orders a sample. Does not wait. With a full queue, the next regular sample must do.
    pub(crate) fn look_now(&self) {
        drop(self.orders.try_send(Order::Look));
    }
}
