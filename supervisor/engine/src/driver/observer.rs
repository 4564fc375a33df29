//! Observer of children: log lines, snapshots, crash reports, and GPU evidence.
//!
//! Deliberately absent: decisions.

use crate::crash::CrashLog;
use crate::driver::gpu_monitors::GpuMonitors;
use crate::driver::post_mortem;
use crate::driver::seat::Seat;
use crate::driver::seats::Seats;
use crate::driver::snapshot_builder::{SnapshotBuilder, Sources};
use crate::engine::{EngineSettings, EngineSnapshot, LoadedModel, Shared};
use crate::nvml::GpuSample;
use std::sync::Arc;
use std::time::Instant;
use worker_orcd_ipc::{Generation, Heartbeat, ReadyReport, Role};
use worker_orcd_lifecycle::{DeathCause, DeviceId, GpuVerdict, SeatId, Worker};
use worker_orcd_requests::Requests;
use worker_orcd_requests::scene::Scene;

#[derive(Debug)]
pub(super) struct Observer {
    pub(super) snapshots: SnapshotBuilder,
    pub(super) crashes: CrashLog,
    pub(super) gpu: GpuMonitors,
}

impl Observer {
    pub(super) fn new(started: Instant, settings: &EngineSettings, shared: &Shared) -> Self {
        Self {
            snapshots: SnapshotBuilder::new(started, &settings.load.model_path, &settings.devices),
            crashes: CrashLog::new(Arc::clone(&shared.crashes), &settings.devices),
            gpu: GpuMonitors::of(&settings.devices, started),
        }
    }

    pub(super) fn spawned(&mut self, now: Instant, seat: SeatId, generation: Generation, pid: u32) {
        self.snapshots.spawned(generation, pid);
        self.crashes.respawned(seat, now);
    }

    /// Records the adoption of another supervisor's child.
    pub(super) fn adopted(&mut self, generation: Generation, pid: u32) {
        self.snapshots.adopted(generation, pid);
    }

    pub(super) fn loaded(&mut self, now: Instant, seat: &mut Seat, report: &ReadyReport) {
        if let Some(stats) = &mut seat.stats {
            stats.loaded(now, report.memory, report.model.file_bytes);
            stats.drafts_with(report.draft_model.clone());
            let generation = Generation(stats.known().generation);
            self.snapshots.loaded(generation, report);
        }
        if seat.role == Role::Active {
            self.snapshots
                .remember(now, seat.id.device(), report.memory);
        }
        self.crashes.loaded(seat.id, report.memory);
        self.gpu[seat.id].child_computes_on(report.device.uuid.as_deref());
    }

    pub(super) fn ready(
        &mut self,
        now: Instant,
        seat: &mut Seat,
        generation: Generation,
        model: &LoadedModel,
    ) {
        if let Some(stats) = &mut seat.stats {
            stats.ready(now);
        }
        let pause = self.crashes.ready(seat.id, now);
        self.snapshots.ready(generation, model, pause);
    }

    /// Size in bytes of the KV cache of the device's serving child, or of its last one.
    pub(super) fn kv_bytes(&self, device: DeviceId) -> Option<u64> {
        let memory = self.snapshots.memory(device);
        memory.map(|memory| memory.kv_capacity_bytes)
    }

    pub(super) fn load_begins(&mut self, now: Instant, device: DeviceId) {
        self.gpu[device].load_begins(now);
    }

    pub(super) fn stands_by(&mut self, now: Instant, seat: &mut Seat, generation: Generation) {
        if let Some(stats) = &mut seat.stats {
            stats.ready(now);
        }
        self.crashes.ready(seat.id, now);
        self.snapshots.stands_by(generation);
    }

    pub(super) fn heartbeat(&mut self, now: Instant, seat: &mut Seat, heartbeat: &Heartbeat) {
        if let Some(stats) = &mut seat.stats {
            let more = stats.heartbeat(now, heartbeat);
            self.snapshots.heartbeat(more);
        }
        if seat.role == Role::Active {
            self.snapshots
                .remember(now, seat.id.device(), heartbeat.memory);
        }
    }

    /// Records the end of a step with `tokens` accepted tokens.
    pub(super) fn stepped(&mut self, now: Instant, seat: &mut Seat, tokens: u64) {
        if let Some(stats) = &mut seat.stats {
            stats.stepped(now, tokens);
        }
        if tokens > 0 && self.crashes.tokens(seat.id, now) {
            self.snapshots.touch();
        }
    }

    /// Records the start of a child's end.
    pub(super) fn noticed(
        &mut self,
        now: Instant,
        seat: SeatId,
        generation: Generation,
        state: &'static str,
        served: bool,
    ) {
        self.crashes.noticed(seat, generation, now, state);
        if served {
            self.snapshots.interrupted(now);
        }
    }

    /// Records the requests that continue before their child is reaped.
    pub(super) fn released(
        &mut self,
        now: Instant,
        seat: &mut Seat,
        generation: Generation,
        requests: &Requests,
    ) {
        let released = post_mortem::note(seat, requests);
        let waits = released.silent_since;
        self.crashes.released(seat.id, generation, now, waits);
        seat.released = released;
    }

    /// Records a reaping and returns the position of each request at the death.
    pub(super) fn reaped(
        &mut self,
        now: Instant,
        seat: &mut Seat,
        generation: Generation,
        cause: &DeathCause,
        requests: &Requests,
    ) -> Scene {
        let (reaping, scene) = post_mortem::examine(seat, cause, requests, now);
        let gpu = &self.gpu[seat.id];
        let examine = |death: &_, reaping: &_| gpu.examine(death, reaping);
        self.crashes.reaped(seat.id, generation, reaping, examine);
        scene
    }

    /// Records a GPU sample and returns the verdict for the lifecycle.
    pub(super) fn sampled(
        &mut self,
        device: DeviceId,
        sample: GpuSample,
        seats: &Seats,
    ) -> Option<GpuVerdict> {
        let of_device = seats.iter().filter(|seat| seat.id.device() == device);
        let children = of_device.filter_map(|seat| seat.child.as_ref());
        let pids: Vec<_> = children.map(|child| child.pid).collect();
        self.snapshots.touch();
        self.gpu[device].note(sample, &pids, &mut self.crashes)
    }

    // === snapshots ===

    /// Next snapshot. `None`: nothing has changed.
    pub(super) fn snapshot(
        &mut self,
        now: Instant,
        seats: &Seats,
        worker: &Worker,
        requests: &Requests,
        shared: &Shared,
    ) -> Option<EngineSnapshot> {
        if !self.snapshots.is_due(now) {
            return None;
        }
        let from = Sources {
            seats,
            worker,
            requests,
            registry: &shared.registry,
            last_death: self.crashes.last().cloned(),
        };
        let mut snapshot = self.snapshots.snapshot(now, &from);
        snapshot.faults.crash_reports = self.crashes.reported();
        for (device, watch) in snapshot.devices.iter_mut().zip(self.gpu.iter()) {
            device.gpu = watch.snapshot().clone();
        }
        self.snapshots.draft_models(now, &snapshot.children);
        let trouble = shared.crashes.trouble();
        snapshot.impaired = self.snapshots.impairments(now, trouble);
        Some(snapshot)
    }
}

#[cfg(test)]
mod tests;
