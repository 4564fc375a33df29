//! Copies of the logits of drawn tokens for a tap.
//!
//! A row is copied in stream order, before its draw may change it in place, into pinned memory of its step, and is
//! shown after the end of the step. The copy blocks no thread, and the next step may already be in flight.
//!
//! Memory is allocated at the first use and kept. Copies of rows beyond it are synchronous.

use super::context::Context;
use super::memory::{DevicePtr, Pinned, fetch, read};
use super::step_queue::STEPS;
use crate::device::common::batch::DrawingRow;
use crate::device::{Checkpoint, Tap};
use worker_orcd_ipc::Fault;

/// Maximum bytes of pinned memory of a step's rows: enough for 32 streams with one of the largest vocabularies.
const MOST_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub struct ShownRows {
    vocab: usize,
    /// One slot per step in flight.
    slots: [Slot; STEPS],
}

#[derive(Debug, Default)]
struct Slot {
    /// One entry per row; the rows of `pinned` are the first.
    places: Vec<Pinned>,
    pinned: Vec<DrawingRow>,
    waited_for: Vec<(DrawingRow, Vec<f32>)>,
}

impl ShownRows {
    #[must_use]
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            slots: Default::default(),
        }
    }

    /// Copies a row. The step that used the slot before has ended.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error, or an earlier launch has failed.
    ///
    /// # Safety
    /// The row of logits at `from` is complete when the stream reaches the copy.
    pub unsafe fn take(
        &mut self,
        context: &Context,
        slot: usize,
        row: DrawingRow,
        from: DevicePtr<f32>,
    ) -> Result<(), Fault> {
        let most = MOST_BYTES / (4 * self.vocab);
        let slot = &mut self.slots[slot];
        let Some(place) = slot.free_place(4 * self.vocab, most) else {
            // SAFETY: as promised by the caller.
            let values = unsafe { read(context, from, self.vocab) }?;
            slot.waited_for.push((row, values));
            return Ok(());
        };
        // SAFETY: a row as promised by the caller; the place is read when the step has ended, and is taken again by
        // a later one.
        unsafe { fetch(context, place.floats_mut(), from) }?;
        slot.pinned.push(row);
        Ok(())
    }

    /// Shows the rows of an ended step.
    pub fn show(&mut self, slot: usize, tap: &mut dyn Tap) {
        let slot = &mut self.slots[slot];
        let pinned = slot.pinned.drain(..).zip(&mut slot.places);
        for (row, place) in pinned {
            let values = place.floats_mut();
            tap.see(row.request, &Checkpoint::Logits, row.position, values);
        }
        for (row, values) in slot.waited_for.drain(..) {
            tap.see(row.request, &Checkpoint::Logits, row.position, &values);
        }
    }
}

impl Slot {
    /// Room of this size for one more row, of at most `most`. `None` also if the driver cannot allocate it.
    fn free_place(&mut self, bytes: usize, most: usize) -> Option<&mut Pinned> {
        let at = self.pinned.len();
        if at == self.places.len() && at < most {
            self.places.extend(Pinned::new(bytes).ok());
        }
        self.places.get_mut(at)
    }
}
