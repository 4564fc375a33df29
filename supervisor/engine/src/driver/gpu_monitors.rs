//! GPU monitors of a worker, one for each device.

use crate::crash::CrashLog;
use crate::driver::gpu_monitor::GpuMonitor;
use crate::nvml::GpuSample;
use futures_util::future::select_all;
use std::ops::{Index, IndexMut};
use std::time::Instant;
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_lifecycle::{DeviceId, GpuVerdict, SeatId};

#[derive(Debug)]
pub(super) struct GpuMonitors(Vec<GpuMonitor>);

impl GpuMonitors {
    pub(super) fn of(devices: &[DeviceSelector], now: Instant) -> Self {
        let devices = (0..).map(DeviceId).zip(devices);
        let watch =
            |(device, selector): (_, &DeviceSelector)| GpuMonitor::new(device, *selector, now);
        Self(devices.map(watch).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &GpuMonitor> {
        self.0.iter()
    }

    /// Next sample of any monitor. Cancel-safe.
    pub(super) async fn next(&mut self) -> (DeviceId, GpuSample) {
        let next = |watch| Box::pin(next_of(watch));
        let (first, ..) = select_all(self.0.iter_mut().map(next)).await;
        first
    }

    /// Time at which [`Self::overdue`] is due.
    pub(super) fn next_deadline(&self, crashes: &CrashLog) -> Option<Instant> {
        let deadlines = self.iter().filter_map(|it| it.next_deadline(crashes));
        deadlines.min()
    }

    /// Verdicts on deaths without a timely recovery action.
    pub(super) fn overdue(
        &self,
        now: Instant,
        crashes: &mut CrashLog,
    ) -> Vec<(DeviceId, GpuVerdict)> {
        let mut overdue = Vec::new();
        for watch in self.iter() {
            let verdicts = watch.overdue(now, crashes).into_iter();
            overdue.extend(verdicts.map(|it| (watch.device, it)));
        }
        overdue
    }
}

async fn next_of(watch: &mut GpuMonitor) -> (DeviceId, GpuSample) {
    (watch.device, watch.next().await)
}

impl Index<DeviceId> for GpuMonitors {
    type Output = GpuMonitor;

    fn index(&self, device: DeviceId) -> &GpuMonitor {
        &self.0[usize::from(device.0)]
    }
}

impl IndexMut<DeviceId> for GpuMonitors {
    fn index_mut(&mut self, device: DeviceId) -> &mut GpuMonitor {
        &mut self.0[usize::from(device.0)]
    }
}

/// Index by a seat of the device.
impl Index<SeatId> for GpuMonitors {
    type Output = GpuMonitor;

    fn index(&self, seat: SeatId) -> &GpuMonitor {
        &self[seat.device()]
    }
}

impl IndexMut<SeatId> for GpuMonitors {
    fn index_mut(&mut self, seat: SeatId) -> &mut GpuMonitor {
        &mut self[seat.device()]
    }
}
