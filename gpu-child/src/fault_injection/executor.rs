//! An executor that evaluates the rules before each step, and computes the step if no rule matches.

use super::engine_faults::{self, Outcome};
use super::wire::Wire;
use super::{Kind, Rule};
use crate::device::{Batch, Executor, KvGeometry, KvTransfer, ProgressProbe, SampleWork, Tap};
use std::sync::Arc;
use worker_orcd_ipc::{DeviceFacts, Drawn, Fault, Generation, MemoryReport};

pub(super) struct FaultyExecutor {
    inner: Box<dyn Executor>,
    rules: Vec<Rule>,
    generation: Generation,
    wire: Arc<Wire>,
}

impl FaultyExecutor {
    pub fn new(
        inner: Box<dyn Executor>,
        rules: Vec<Rule>,
        generation: Generation,
        wire: Arc<Wire>,
    ) -> Self {
        Self {
            inner,
            rules,
            generation,
            wire,
        }
    }

    fn strike(&self, batch: &Batch<'_>) -> Option<Kind> {
        let mut rules = (0..).zip(&self.rules);
        rules.find_map(|(index, rule)| rule.strike(index, self.generation, batch))
    }
}

impl FaultyExecutor {
    fn ask_the_rules(&mut self, batch: &Batch<'_>) -> Result<(), Fault> {
        let Some(kind) = self.strike(batch) else {
            return Ok(());
        };
        // The chaos runner counts these lines.
        eprintln!(
            "worker-orcd-gpu: injected fault {} in step {}",
            kind.name(),
            batch.step
        );
        match engine_faults::commit(kind, &mut *self.inner)? {
            Outcome::Done => {}
            Outcome::OnTheWire(fault) => self.wire.order(fault),
        }
        Ok(())
    }
}

impl Executor for FaultyExecutor {
    fn facts(&self) -> DeviceFacts {
        self.inner.facts()
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.inner.kv_geometry()
    }

    fn max_batch_tokens(&self) -> u32 {
        self.inner.max_batch_tokens()
    }

    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
        self.ask_the_rules(batch)?;
        self.inner.begin(batch, tap)
    }

    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault> {
        self.inner.draw(draws, tap)
    }

    fn finish(&mut self, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        self.inner.finish(tap)
    }

    fn is_ahead(&self) -> bool {
        self.inner.is_ahead()
    }

    fn inspect(&mut self) -> Result<(), Fault> {
        self.inner.inspect()
    }

    fn first_prompt_tokens(&self) -> u32 {
        self.inner.first_prompt_tokens()
    }

    fn promote(&mut self) -> Result<(), Fault> {
        self.inner.promote()
    }

    fn release(&mut self) -> Result<(), Fault> {
        self.inner.release()
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        self.inner.kv_transfer()
    }

    fn progress_probe(&mut self) -> Option<Box<dyn ProgressProbe>> {
        self.inner.progress_probe()
    }
}
