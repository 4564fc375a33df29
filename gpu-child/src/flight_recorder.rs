//! The flight recorder: a log of this process's recent actions that survives its death.
//!
//! The supervisor passes the ring as descriptor 0: a sealed memfd, mapped here once. Each record is one cache line of
//! plain stores, some tens of nanoseconds with the clock (`examples/flight_recorder_cost.rs` measures it), without a
//! system call: stored data is in the memfd immediately, so it survives any death.
//!
//! A manually started child has a terminal or no file there: then it works without recording.
//!
//! [`Watched`] records the progress inside a step without support by the device: a device queries its [`Tap`] at every
//! checkpoint, and the query itself is the event.

use crate::device::{Checkpoint, SampleWork, SequenceWork, Tap};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use worker_orcd_ipc::RequestId;
use worker_orcd_ipc::flight::{
    Header, Moment, NOTES, Note, Phase, RECORD_BYTES, Record, StepRequests, ring_bytes,
};

/// Belongs to the one thread that computes.
pub struct FlightRecorder {
    ring: Option<Ring>,
}

struct Ring {
    map: Arc<MmapRaw>,
    capacity: u32,
    /// Records written.
    written: Cell<u64>,
}

/// Notes in the same memory, for another thread than the one that computes: state of the child while that thread is
/// stuck.
pub struct Notes {
    ring: Option<(Arc<MmapRaw>, u32)>,
    written: usize,
}

impl FlightRecorder {
    /// The notes, for one thread: two would overwrite each other's entries.
    #[must_use]
    pub fn notes(&self) -> Notes {
        let ring = self.ring.as_ref();
        Notes {
            ring: ring.map(|ring| (Arc::clone(&ring.map), ring.capacity)),
            written: 0,
        }
    }

    /// A recorder without a ring.
    #[must_use]
    pub fn none() -> Self {
        Self { ring: None }
    }

    /// The ring at descriptor 0, if there is one.
    #[must_use]
    pub fn at_stdin() -> Self {
        Self::at(io::stdin())
    }

    #[must_use]
    pub fn at(descriptor: impl AsFd) -> Self {
        let file = descriptor.as_fd().try_clone_to_owned().map(File::from);
        Self {
            ring: file.ok().and_then(|file| Ring::map(&file)),
        }
    }

    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.ring.is_some()
    }

    pub fn record(&self, step: u64, moment: Moment, requests: StepRequests) {
        if let Some(ring) = &self.ring {
            ring.record(step, moment, requests);
        }
    }
}

impl Notes {
    pub fn write(&mut self, step: u64, text: &str) {
        let Some((map, capacity)) = &self.ring else {
            return;
        };
        let note = Note {
            time_ns: monotonic_ns(),
            step,
            text: text.to_owned(),
        };
        store(
            map,
            Note::offset(self.written % NOTES, *capacity),
            &note.encode(),
        );
        self.written += 1;
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightRecorder")
            .field("is_recording", &self.is_recording())
            .finish_non_exhaustive()
    }
}

impl Ring {
    /// Maps the ring. `None` for anything but a ring that cannot shrink under the map.
    fn map(file: &File) -> Option<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS).ok()?);
        let mut header = [0; RECORD_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let Header { capacity, .. } = Header::decode(&header).ok()?;
        let bytes = ring_bytes(capacity);
        let fits = file.metadata().ok()?.len() == bytes as u64;
        if !fits || !seals.contains(SealFlag::F_SEAL_SHRINK) {
            return None;
        }
        Some(Self {
            map: Arc::new(MmapOptions::new().len(bytes).map_raw(file).ok()?),
            capacity,
            written: Cell::new(0),
        })
    }

    fn record(&self, step: u64, moment: Moment, requests: StepRequests) {
        let number = self.written.get() + 1;
        self.written.set(number);
        let record = Record {
            number,
            time_ns: monotonic_ns(),
            step,
            moment,
            requests,
        };
        let at = Record::offset(number, self.capacity);
        store(&self.map, at, &record.encode());
    }
}

/// Stores a record or a note.
fn store(map: &MmapRaw, at: usize, bytes: &[u8]) {
    assert!(at.is_multiple_of(8) && at + bytes.len() <= map.len());
    let (words, _) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // SAFETY: inside the map, as was just checked, and aligned, for a map begins at a page. The only other user of
        // this memory is the supervisor's descriptor, which reads by system call; in this process the words are only
        // accessed here.
        let place =
            unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(at + 8 * index).cast::<u64>()) };
        // In order, a record's checksum last, so that it is complete as early as possible.
        place.store(u64::from_ne_bytes(*word), Ordering::Release);
    }
}

/// Monotonic time; 0 if the clock is unreadable. The numbers of the records still give the order.
fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
    })
}

/// The phase of a batch, by its sequences.
#[must_use]
pub fn phase(sequences: &[SequenceWork<'_>]) -> Phase {
    match sequences.iter().filter(|work| decodes(work)).count() {
        0 => Phase::Prefill,
        all if all == sequences.len() => Phase::Decode,
        _ => Phase::Mixed,
    }
}

/// True for a sequence that runs only its newest token and drafts, after its prompt.
#[must_use]
pub fn decodes(work: &SequenceWork<'_>) -> bool {
    let draws_behind_its_own = |sample: SampleWork<'_>| sample.generated.len() > work.drafts;
    work.tokens.len() == 1 + work.drafts && work.sample.is_some_and(draws_behind_its_own)
}

/// A tap that records the device's progress, and otherwise forwards to the inner one.
#[expect(missing_debug_implementations, reason = "a tap has nothing to show")]
pub struct Watched<'a> {
    inner: &'a mut dyn Tap,
    recorder: &'a FlightRecorder,
    step: u64,
    requests: StepRequests,
}

impl<'a> Watched<'a> {
    pub fn new(
        inner: &'a mut dyn Tap,
        recorder: &'a FlightRecorder,
        step: u64,
        requests: StepRequests,
    ) -> Self {
        Self {
            inner,
            recorder,
            step,
            requests,
        }
    }
}

impl Tap for Watched<'_> {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        self.inner.wants(request, checkpoint)
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        self.inner.see(request, checkpoint, position, values);
    }

    fn reached(&mut self, checkpoint: &Checkpoint) {
        let moment = match checkpoint {
            Checkpoint::Embedding
            | Checkpoint::FinalNorm
            | Checkpoint::Hidden
            | Checkpoint::PromptLogits => return,
            Checkpoint::Layer(layer) => Moment::Layer(*layer),
            Checkpoint::Logits => Moment::Phase(Phase::Sample),
        };
        self.recorder.record(self.step, moment, self.requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::NoTap;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use worker_orcd_ipc::Generation;
    use worker_orcd_ipc::flight::Recording;

    fn ring(capacity: u32, seals: SealFlag) -> File {
        let file = File::from(memfd_create("flight", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        let header = Header {
            capacity,
            generation: Generation(3),
        };
        file.set_len(ring_bytes(capacity) as u64).unwrap();
        file.write_all_at(&header.encode(), 0).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    fn recording(file: &File) -> Recording {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        Recording::read(&bytes).unwrap()
    }

    #[test]
    fn what_is_recorded_can_be_read_through_another_descriptor() {
        let file = ring(4, SealFlag::F_SEAL_SHRINK);
        let recorder = FlightRecorder::at(&file);
        assert!(recorder.is_recording());
        let before = monotonic_ns();
        for step in 1..=6 {
            let requests = StepRequests::new([RequestId(step)].into_iter());
            recorder.record(step, Moment::StepEnd, requests);
        }
        drop(recorder);
        let read = recording(&file);
        let steps: Vec<_> = read.records.iter().map(|record| record.step).collect();
        assert_eq!((steps, read.torn), (vec![3, 4, 5, 6], 0));
        let times = read.records.iter().map(|record| record.time_ns);
        assert!(times.is_sorted() && read.records[0].time_ns >= before);
    }

    #[test]
    fn the_newest_note_is_read_beside_the_records() {
        let file = ring(4, SealFlag::F_SEAL_SHRINK);
        let recorder = FlightRecorder::at(&file);
        assert_eq!(recording(&file).note, None);
        let mut notes = recorder.notes();
        for step in 1..=5 {
            notes.write(step, &format!("stands in {step}\u{1b}"));
            recorder.record(step, Moment::StepEnd, StepRequests::NONE);
            let read = recording(&file);
            let note = read.note.expect("a note");
            assert_eq!(
                (note.step, &*note.text),
                (step, &*format!("stands in {step}?"))
            );
            assert_eq!((read.records.len() as u64, read.torn), (step.min(4), 0));
        }
    }

    #[test]
    fn anything_else_at_the_descriptor_records_nothing() {
        let unsealed = ring(4, SealFlag::empty());
        let foreign = ring(4, SealFlag::F_SEAL_SHRINK);
        foreign.write_all_at(b"x", 0).unwrap();
        for file in [unsealed, foreign, File::open("/dev/null").unwrap()] {
            let recorder = FlightRecorder::at(&file);
            assert!(!recorder.is_recording());
            recorder.record(1, Moment::StepEnd, StepRequests::NONE);
        }
    }

    #[test]
    fn a_watched_step_tells_how_far_it_is() {
        let file = ring(8, SealFlag::F_SEAL_SHRINK);
        let recorder = FlightRecorder::at(&file);
        let mut inner = NoTap;
        let mut tap = Watched::new(&mut inner, &recorder, 5, StepRequests::NONE);
        for checkpoint in [
            Checkpoint::Embedding,
            Checkpoint::Layer(0),
            Checkpoint::Layer(1),
            Checkpoint::FinalNorm,
            Checkpoint::Logits,
        ] {
            assert!(!tap.wants(RequestId(1), &checkpoint));
            tap.reached(&checkpoint);
        }
        let moments: Vec<_> = recording(&file)
            .records
            .iter()
            .map(|record| record.moment)
            .collect();
        let expected = [
            Moment::Layer(0),
            Moment::Layer(1),
            Moment::Phase(Phase::Sample),
        ];
        assert_eq!(moments, expected);
    }
}
