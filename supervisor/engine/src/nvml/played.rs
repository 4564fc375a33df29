//! Simulated GPU for tests: gauges, Xids, and calls that block on demand.

use super::library::{DeviceMemory, Gauges, Gpu, Identity, Opener, Process};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_lifecycle::{RecoveryAction, Xid};

#[derive(Debug, Default)]
pub(crate) struct PlayedGpu {
    script: Mutex<Script>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Script {
    gauges: Gauges,
    xids: VecDeque<Xid>,
    wedged: bool,
    deaf: bool,
}

impl PlayedGpu {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn opener(self: &Arc<Self>) -> Opener {
        let gpu = Arc::clone(self);
        Box::new(move || {
            gpu.wait_while_wedged();
            Ok(gpu as Arc<dyn Gpu>)
        })
    }

    /// Sets the memory in use, and its share by process.
    pub(crate) fn holds(&self, used: u64, processes: &[(u32, u64)]) {
        let process = |(pid, bytes): &(u32, u64)| Process {
            pid: *pid,
            bytes: Some(*bytes),
        };
        let memory = DeviceMemory {
            total: 1 << 40,
            free: (1 << 40) - used,
            used,
            processes: Some(processes.iter().map(process).collect()),
        };
        self.change(|script| script.gauges.memory = Some(memory));
    }

    pub(crate) fn asks_for(&self, action: RecoveryAction) {
        self.change(|script| script.gauges.action = Some(action));
    }

    pub(crate) fn reports(&self, number: u32) {
        self.change(|script| script.xids.push_back(Xid(Some(number))));
    }

    /// Sets whether all calls block.
    pub(crate) fn is_wedged(&self, wedged: bool) {
        self.change(|script| script.wedged = wedged);
    }

    pub(crate) fn is_deaf(&self) {
        self.change(|script| script.deaf = true);
    }

    fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock());
        self.changed.notify_all();
    }

    fn wait_while_wedged(&self) -> Gauges {
        let mut script = self.script.lock();
        self.changed.wait_while(&mut script, |script| script.wedged);
        script.gauges.clone()
    }
}

impl Gpu for PlayedGpu {
    fn identity(&self) -> Identity {
        self.wait_while_wedged();
        Identity {
            name: Some("Played H200".to_owned()),
            uuid: Some("GPU-played".to_owned()),
            driver: Some("0.0".to_owned()),
        }
    }

    fn gauges(&self) -> Gauges {
        self.wait_while_wedged()
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.wait_while_wedged().memory
    }

    fn recovery_action(&self) -> Option<RecoveryAction> {
        self.wait_while_wedged().action
    }

    fn listen(
        &self,
        slice: Duration,
        heard: &mut dyn FnMut(Option<Xid>) -> ControlFlow<()>,
    ) -> Result<(), String> {
        loop {
            let mut script = self.script.lock();
            if script.deaf {
                return Err("not supported".to_owned());
            }
            if script.xids.is_empty() {
                self.changed.wait_for(&mut script, slice);
            }
            let xid = script.xids.pop_front();
            drop(script);
            if heard(xid).is_break() {
                return Ok(());
            }
        }
    }
}
