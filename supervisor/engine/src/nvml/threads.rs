//! Threads: one samples, another waits for Xids. Any call may block forever on a hung device.

#![expect(
    clippy::disallowed_methods,
    reason = "threads of their own, which wait for NVIDIA's library"
)]

use super::library::{Gpu, Opener};
use super::reckoning::Examination;
use super::{GpuSample, Order, SeenXid};
use nix::time::{ClockId, clock_gettime};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;
use worker_orcd_lifecycle::Xid;

/// Time between two samples. Temperatures and ECC counts change slowly, and a call costs a few hundred microseconds.
const GAUGES_EVERY: Duration = Duration::from_secs(1);

/// Time between two memory samples after a death. It is the resolution of "freed after".
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Time by which a thread may outlive its last reader.
const LISTEN_SLICE: Duration = Duration::from_millis(500);

pub(super) fn ask(open: Opener, orders: &Receiver<Order>, outbox: &UnboundedSender<GpuSample>) {
    let gpu = match open() {
        Ok(gpu) => gpu,
        Err(reason) => {
            // The reader may be gone.
            drop(outbox.send(GpuSample::Absent(reason)));
            return;
        }
    };
    // Gauges come first, before a child allocates memory.
    let gauges = gpu.gauges();
    drop(outbox.send(GpuSample::Gauges(gauges, Instant::now())));
    drop(outbox.send(GpuSample::Opened(gpu.identity())));
    start_listening(&gpu, outbox);
    Asking {
        gpu: &*gpu,
        orders,
        outbox,
        ongoing: Vec::new(),
        gauges_at: Instant::now() + GAUGES_EVERY,
    }
    .run();
}

fn start_listening(gpu: &Arc<dyn Gpu>, outbox: &UnboundedSender<GpuSample>) {
    let (gpu, outbox) = (Arc::clone(gpu), outbox.clone());
    let refused = outbox.clone();
    let thread = std::thread::Builder::new().name("nvml-events".to_owned());
    if let Err(error) = thread.spawn(move || listen(&*gpu, &outbox)) {
        warn!(%error, "xid_thread_failed");
        drop(refused.send(GpuSample::Deaf(error.to_string())));
    }
}

fn listen(gpu: &dyn Gpu, outbox: &UnboundedSender<GpuSample>) {
    let heard = gpu.listen(LISTEN_SLICE, &mut |xid| {
        if let Some(xid) = xid {
            drop(outbox.send(GpuSample::Xid(seen_now(xid))));
        }
        match outbox.is_closed() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    if let Err(reason) = heard {
        drop(outbox.send(GpuSample::Deaf(reason)));
    }
}

fn seen_now(xid: Xid) -> SeenXid {
    let kernel = clock_gettime(ClockId::CLOCK_MONOTONIC).ok();
    SeenXid {
        xid,
        at: Instant::now(),
        wall: SystemTime::now(),
        kernel: kernel.map(Duration::from),
    }
}

struct Asking<'a> {
    gpu: &'a dyn Gpu,
    orders: &'a Receiver<Order>,
    outbox: &'a UnboundedSender<GpuSample>,
    ongoing: Vec<Examination>,
    gauges_at: Instant,
}

impl Asking<'_> {
    fn run(mut self) {
        while !self.outbox.is_closed() {
            match self.orders.recv_timeout(self.patience()) {
                Ok(Order::Examine(examination)) => self.begin(examination),
                Ok(Order::Look) => self.gauges_at = Instant::now(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
            if Instant::now() >= self.gauges_at {
                let gauges = self.gpu.gauges();
                self.send(GpuSample::Gauges(gauges, Instant::now()));
                self.gauges_at = Instant::now() + GAUGES_EVERY;
            }
        }
    }

    fn patience(&self) -> Duration {
        match self.ongoing.is_empty() {
            true => self.gauges_at.saturating_duration_since(Instant::now()),
            false => LOOK_EVERY,
        }
    }

    /// Starts an examination. The recovery action comes first: it may end the worker, and its time limit is short.
    fn begin(&mut self, examination: Examination) {
        self.send(GpuSample::Examined {
            generation: examination.generation,
            action: self.gpu.recovery_action(),
        });
        self.ongoing.push(examination);
    }

    fn look(&mut self) {
        if self.ongoing.is_empty() {
            return;
        }
        let memory = self.gpu.memory();
        let now = Instant::now();
        let outbox = self.outbox;
        self.ongoing
            .retain(|examination| match examination.look(memory.as_ref(), now) {
                Some(measure) => {
                    let generation = examination.generation;
                    drop(outbox.send(GpuSample::Measured {
                        generation,
                        measure,
                    }));
                    false
                }
                None => true,
            });
    }

    fn send(&self, sample: GpuSample) {
        // The loop ends once the reader is gone.
        drop(self.outbox.send(sample));
    }
}
