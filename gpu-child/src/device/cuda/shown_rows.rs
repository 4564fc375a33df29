//! Rows of logits on their way to those who want to see what a token was drawn from.
//!
//! A row is copied in stream order, before its draw may change it where it lies, into pinned memory of its step, and
//! is shown when the step has ended. Nobody waits for it, and by then another step may be behind that one.
//!
//! Memory is taken when rows are wanted for the first time, and kept. Rows beyond it are waited for.

use super::context::Context;
use super::memory::{DevicePtr, Pinned, fetch, read};
use super::step_queue::STEPS;
use crate::device::common::batch::DrawingRow;
use crate::device::{Checkpoint, Tap};
use worker_orcd_ipc::Fault;

/// Pinned memory of a step's rows, at most, in bytes: for 32 streams with one of the largest vocabularies.
const MOST_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub struct ShownRows {
    vocab: usize,
    /// Of each step that can be in flight.
    slots: [Slot; STEPS],
}

#[derive(Debug, Default)]
struct Slot {
    /// A row each; those of `pinned` are the first.
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

    /// Takes a row along. The step that used the slot before has ended.
    ///
    /// # Errors
    /// When NVIDIA's driver refuses, or something before it has failed.
    ///
    /// # Safety
    /// The row of logits at `from` is there when the stream gets to it.
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

    /// Shows the rows of a step that has ended.
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
    /// A place of so many bytes for one more row, of `most` in all. None also where the driver has no memory for it.
    fn free_place(&mut self, bytes: usize, most: usize) -> Option<&mut Pinned> {
        let at = self.pinned.len();
        if at == self.places.len() && at < most {
            self.places.extend(Pinned::new(bytes).ok());
        }
        self.places.get_mut(at)
    }
}
