//! Memory that outlives its process: a memfd, written once and then sealed.
//!
//! ```text
//! Draft ── seal ──► Sealed ── share ──► descriptor ──► supervisor ──► attach ──► Sealed
//! ```
//!
//! No process can write, shrink or grow a sealed file: a defective child cannot corrupt the weights of its successor,
//! and mappings stay valid. It reads as fast as anonymous memory (`bench/results/paired.md`); huge pages are a hint,
//! which the kernel follows where `shmem_enabled` allows them.

use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_ipc::Fault;

/// All seals, including the one against further seals.
const SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_WRITE);

/// Longest wait for pages that the kernel holds: it migrates or reclaims them.
const PAGES_HELD: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// A zeroed memfd of that length. The name is for display only.
pub(super) fn unnamed_file(name: &str, bytes: u64) -> io::Result<File> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name, flags)?);
    file.set_len(bytes.max(1))?;
    Ok(file)
}

/// Memory that one process writes. Zeroed; pages take memory when they are first touched.
#[derive(Debug)]
pub struct Draft {
    file: File,
    map: MmapMut,
}

/// Read-only memory.
#[derive(Debug)]
pub struct Sealed {
    file: File,
    map: Mmap,
}

impl Draft {
    /// Allocates a zeroed draft.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if the kernel refuses.
    pub fn new(bytes: u64) -> Result<Self, Fault> {
        Self::create(bytes).map_err(|error| Fault::OutOfMemory {
            message: format!("{bytes} bytes for the weights: {error}"),
        })
    }

    fn create(bytes: u64) -> io::Result<Self> {
        let file = unnamed_file("worker-orcd-weights", bytes)?;
        // SAFETY: no other process has the file yet.
        let map = unsafe { MmapMut::map_mut(&file) }?;
        // Only a hint.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { file, map })
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// Makes the memory read-only for all processes.
    ///
    /// # Errors
    /// [`Fault::Io`] if the kernel refuses.
    pub fn seal(self) -> Result<Sealed, Fault> {
        let Self { file, map } = self;
        // A file with a writable mapping cannot be sealed.
        drop(map);
        let map = add_seals(&file).and_then(|()| map_sealed(&file));
        let map = map.map_err(|error| Fault::Io {
            message: format!("sealing the weights: {error}"),
        })?;
        Ok(Sealed { file, map })
    }
}

impl Sealed {
    /// Maps memory that another process has sealed.
    ///
    /// # Errors
    /// [`Fault::Io`] if it is not sealed, has another size, or cannot be mapped.
    pub fn attach(memory: OwnedFd, bytes: u64) -> Result<Self, Fault> {
        let fault = |message: String| Fault::Io {
            message: format!("the weights that were kept: {message}"),
        };
        let file = File::from(memory);
        let found = file.metadata().map_err(|error| fault(error.to_string()))?;
        if found.len() != bytes.max(1) {
            return Err(fault(format!("{} bytes instead of {bytes}", found.len())));
        }
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if !SealFlag::from_bits_truncate(seals).contains(SEALS) {
            return Err(fault("they are not sealed".to_owned()));
        }
        let map = map_sealed(&file).map_err(|error| fault(error.to_string()))?;
        Ok(Self { file, map })
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The memory as floats.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        // SAFETY: any bits are an `f32`, and the mapping is page aligned.
        unsafe { self.map.align_to().1 }
    }

    /// A descriptor of the memory, for another process.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn share(&self) -> Result<OwnedFd, Fault> {
        let copy = self.file.try_clone().map_err(|error| Fault::Io {
            message: format!("sharing the weights: {error}"),
        })?;
        Ok(copy.into())
    }
}

/// Write-seals a file without writable mappings.
///
/// The kernel refuses with `EBUSY` while it holds a page itself, for example to migrate it, after a wait of its own of
/// some 150 ms (`memfd_wait_for_pins` in mm/memfd.c).
fn add_seals(file: &File) -> io::Result<()> {
    let deadline = Instant::now() + PAGES_HELD;
    loop {
        match fcntl(file, FcntlArg::F_ADD_SEALS(SEALS)) {
            Err(Errno::EBUSY) if Instant::now() < deadline => thread::sleep(PAUSE),
            sealed => return sealed.map(drop).map_err(io::Error::from),
        }
    }
}

/// A private mapping: before Linux 6.7 a write-sealed file allows no shared one.
fn map_sealed(file: &File) -> io::Result<Mmap> {
    // SAFETY: the seals prevent any process from changing the mapped bytes.
    let map = unsafe { MmapOptions::new().map_copy_read_only(file) }?;
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{SpliceFFlags, splice};
    use std::os::unix::fs::FileExt as _;

    fn sealed() -> Sealed {
        let mut draft = Draft::new(4098).expect("memory");
        assert!(draft.bytes_mut().iter().all(|&byte| byte == 0));
        draft.bytes_mut()[4097] = 7;
        draft.seal().expect("sealed")
    }

    #[test]
    fn sealing_waits_for_pages_that_the_kernel_holds() {
        let file = unnamed_file("test", 4096).expect("memory");
        file.write_all_at(&[7], 0).expect("memory");
        let (end, begin) = io::pipe().expect("a pipe");
        // A page in a pipe is held.
        let spliced = splice(&file, None, &begin, None, 4096, SpliceFFlags::empty());
        assert_eq!(spliced, Ok(4096));
        assert_eq!(
            fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)),
            Err(Errno::EBUSY)
        );
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(400));
                drop((begin, end));
            });
            add_seals(&file).expect("sealed");
        });
    }

    #[test]
    fn what_was_written_is_read_by_who_attaches() {
        let first = sealed();
        let descriptor = first.share().expect("a descriptor");
        drop(first);
        let next = Sealed::attach(descriptor, 4098).expect("attached");
        assert_eq!((next.bytes().len(), next.bytes()[4097]), (4098, 7));
        assert_eq!(next.floats().len(), 1024);
    }

    #[test]
    fn nobody_writes_cuts_or_stretches_what_is_sealed() {
        let file = File::from(sealed().share().expect("a descriptor"));
        assert!(file.write_all_at(&[1], 0).is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(1 << 20).is_err());
        // SAFETY: refused, so nothing is mapped.
        assert!(unsafe { MmapMut::map_mut(&file) }.is_err());
    }

    #[test]
    fn what_is_not_sealed_or_of_another_size_is_not_attached() {
        let draft = Draft::new(4098).expect("memory");
        let unsealed = OwnedFd::from(draft.file.try_clone().expect("a descriptor"));
        for (descriptor, bytes) in [(unsealed, 4098), (sealed().share().expect("one"), 4097)] {
            let fault = Sealed::attach(descriptor, bytes).expect_err("refused");
            assert!(matches!(fault, Fault::Io { .. }), "{fault}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_a_fault() {
        assert!(matches!(
            Draft::new(1 << 62),
            Err(Fault::OutOfMemory { .. })
        ));
    }
}
