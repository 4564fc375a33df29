//! Start of an engine: the shared state of driver and handles, and the driver's task.

#![expect(clippy::disallowed_methods, reason = "there is no turn yet")]

use crate::child::spawn::Spawner;
use crate::crash::CrashStore;
use crate::driver::{Driver, program};
use crate::engine::{Engine, EngineSettings, EngineSnapshot, Milestones, PreviousEngine, Shared};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use worker_orcd_ipc::LoadOrder;
use worker_orcd_requests::Registry;
use worker_orcd_requests::orphans::Orphans;

/// Starts the driver. It starts the first child and continues from the inherited state.
///
/// # Panics
/// Outside a tokio runtime.
#[must_use]
pub fn start(settings: EngineSettings, mut previous: PreviousEngine, spawner: &Spawner) -> Engine {
    let slots = settings.load.max_running as usize;
    let shared = Arc::new(Shared {
        registry: Arc::new(Registry::new(
            slots,
            settings.max_queue,
            settings.quarantine_for,
        )),
        model: RwLock::new(None),
        snapshot: RwLock::new(Arc::new(EngineSnapshot::at_start(
            Instant::now(),
            &settings.devices,
        ))),
        crashes: Arc::new(CrashStore::open(settings.crashes.clone())),
        orphans: Orphans::default(),
        on_fault: settings.on_fault,
    });
    if let Some(number) = behind_older_traces(&settings.load) {
        shared.registry.number_behind(number);
    }
    let (controls, inbox) = mpsc::unbounded_channel();
    if settings.standby {
        let program = settings.child_binary.clone();
        tokio::spawn(program::watch(program, controls.downgrade()));
    }
    let (publish, milestones) = watch::channel(Milestones::default());
    let handoff = &mut previous.handoff;
    let mut driver = Driver::new(
        settings,
        Arc::clone(&shared),
        inbox,
        publish,
        spawner,
        handoff,
    );
    driver.restore(previous, controls.downgrade());
    tokio::spawn(driver.run());
    Engine::new(shared, controls, milestones)
}

/// First request number after those of an older trace. In a trace that an earlier supervisor began, numbers from 1
/// would be ambiguous. Numbers that begin with the time are unique and still exact as JSON numbers.
fn behind_older_traces(load: &LoadOrder) -> Option<u64> {
    const BITS_FOR_REQUESTS: u32 = 20;
    let trace = load.trace.as_ref()?;
    let written = std::fs::metadata(&trace.path).map_or(0, |file| file.len());
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    (written > 0).then_some(since_1970.as_secs() << BITS_FOR_REQUESTS)
}
