//! Supervisor's end of a child's flight recorder: created before the child, read after its end.
//!
//! A memfd that is the child's descriptor 0, so no number must be agreed on and no other descriptor crosses the exec.
//! Its size is sealed. It is read with positioned reads and never mapped, so a child cannot affect this process through
//! it.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use worker_orcd_ipc::Generation;
use worker_orcd_ipc::flight::{Header, NotARing, RING_CAPACITY, Recording, ring_bytes};

#[derive(Debug)]
pub(crate) struct FlightRecorder {
    memory: File,
}

impl FlightRecorder {
    /// Creates a recorder.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor.
    pub(crate) fn create(generation: Generation) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = File::from(memfd_create("worker-orcd-flight", flags)?);
        memory.set_len(ring_bytes(RING_CAPACITY) as u64)?;
        let header = Header {
            capacity: RING_CAPACITY,
            generation,
        };
        memory.write_all_at(&header.encode(), 0)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self { memory })
    }

    /// Recorder of a child of another supervisor.
    pub(crate) fn resume(memory: OwnedFd) -> Self {
        Self {
            memory: memory.into(),
        }
    }

    /// Descriptor for [`resume`](Self::resume).
    pub(crate) fn hand_over(self) -> OwnedFd {
        self.memory.into()
    }

    /// Duplicate that becomes the child's descriptor 0.
    ///
    /// # Errors
    /// If there is no free descriptor.
    pub(crate) fn for_child(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone().map(OwnedFd::from)
    }

    /// Reads all records. A running child may be in the middle of a record, which then counts as torn.
    ///
    /// # Errors
    /// If the child has overwritten the header.
    pub(crate) fn read(&self) -> io::Result<Recording> {
        let mut ring = vec![0; ring_bytes(RING_CAPACITY)];
        self.memory.read_exact_at(&mut ring, 0)?;
        Recording::read(&ring).map_err(|error: NotARing| io::Error::other(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use worker_orcd_ipc::flight::{Moment, Record, StepRequests};

    /// `cat` is the child: it gets the ring as descriptor 0 and prints its content.
    #[test]
    fn a_child_finds_the_ring_at_descriptor_0() {
        let recorder = FlightRecorder::create(Generation(4)).unwrap();
        let child = Command::new("cat")
            .arg("/proc/self/fd/0")
            .stdin(Stdio::from(recorder.for_child().unwrap()))
            .output()
            .unwrap();
        assert_eq!(Recording::read(&child.stdout), Ok(recorder.read().unwrap()));
        assert_eq!(recorder.read().unwrap().generation, Generation(4));
    }

    #[test]
    fn whole_records_are_read_and_a_torn_one_is_counted() {
        let recorder = FlightRecorder::create(Generation(4)).unwrap();
        let record = |number| Record {
            number,
            time_ns: 5,
            step: 9,
            moment: Moment::StepBegin { tokens: 3 },
            requests: StepRequests::NONE,
        };
        let child_s = File::from(recorder.for_child().unwrap());
        child_s.write_all_at(&record(1).encode(), 64).unwrap();
        child_s
            .write_all_at(&record(2).encode()[..40], 128)
            .unwrap();
        let recording = recorder.read().unwrap();
        assert_eq!((recording.records, recording.torn), (vec![record(1)], 1));
    }

    #[test]
    fn a_child_can_neither_cut_nor_stretch_it() {
        let recorder = FlightRecorder::create(Generation(1)).unwrap();
        let child_s = File::from(recorder.for_child().unwrap());
        assert!(child_s.set_len(0).is_err());
        assert!(child_s.set_len(1 << 20).is_err());
        assert_eq!(recorder.read().unwrap().records, []);
    }

    #[test]
    fn a_child_that_scribbles_over_the_header_leaves_no_recording() {
        let recorder = FlightRecorder::create(Generation(1)).unwrap();
        let child_s = File::from(recorder.for_child().unwrap());
        child_s.write_all_at(&[7; 4096], 0).unwrap();
        assert!(recorder.read().is_err());
    }
}
