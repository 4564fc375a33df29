//! Memory of the CPU device that dies with its process, and the memory available to it.
//!
//! The KV cache is an anonymous mapping with huge pages as a hint: attention reads all pages of a sequence once a
//! token. If another process may need it, it is a memfd. The weights are always in a memfd ([`sealed`](super::sealed)).

use super::control_group;
use super::sealed::unnamed_file;
use memmap2::{Advice, MmapMut};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use worker_orcd_ipc::{Fault, MemoryBound};

/// Seals against all changes through a descriptor; an existing mapping stays writable.
const SEALS: SealFlag = SealFlag::F_SEAL_SEAL
    .union(SealFlag::F_SEAL_SHRINK)
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE);

/// A zeroed mapping, page aligned. Pages take memory when they are first touched.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
    /// The mapped file, if it is shareable.
    file: Option<File>,
}

impl Arena {
    /// Allocates private memory.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if the kernel refuses.
    pub fn new(bytes: u64) -> Result<Self, Fault> {
        let length = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        Self::of(MmapMut::map_anon(length).map(|map| (map, None)), bytes)
    }

    /// Allocates memory that another process may read, but not write or resize.
    ///
    /// # Errors
    /// [`Fault::OutOfMemory`] if the kernel refuses.
    pub fn shareable(bytes: u64) -> Result<Self, Fault> {
        let mapped = unnamed_file("worker-orcd-kv", bytes).and_then(|file| {
            // SAFETY: this process alone writes it, and it keeps its length.
            let map = unsafe { MmapMut::map_mut(&file) }?;
            fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
            Ok((map, Some(file)))
        });
        Self::of(mapped, bytes)
    }

    fn of(mapped: io::Result<(MmapMut, Option<File>)>, bytes: u64) -> Result<Self, Fault> {
        let (map, file) = mapped.map_err(|error| Fault::OutOfMemory {
            message: format!("{bytes} bytes for the KV cache: {error}"),
        })?;
        // Only a hint.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map, file })
    }

    #[must_use]
    pub fn is_shareable(&self) -> bool {
        self.file.is_some()
    }

    /// A descriptor of the memory, for another process.
    ///
    /// # Errors
    /// If the memory is not shareable, or no descriptor is left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        let private = || io::Error::other("the memory is this process's alone");
        let file = self.file.as_ref().ok_or_else(private)?;
        Ok(file.try_clone()?.into())
    }

    /// Bytes that take memory, if they can be counted.
    #[must_use]
    pub fn taken_bytes(&self) -> Option<u64> {
        self.file.as_ref().and_then(|file| taken_bytes(file).ok())
    }

    /// The arena as 16-bit words.
    #[must_use]
    pub fn halves(&self) -> &[u16] {
        // SAFETY: any bits are a `u16`, and the mapping is page aligned.
        unsafe { self.map.align_to().1 }
    }

    pub fn halves_mut(&mut self) -> &mut [u16] {
        // SAFETY: as for `halves`.
        unsafe { self.map.align_to_mut().1 }
    }
}

/// Bytes of a memfd that take memory.
///
/// # Errors
/// If the kernel does not report them.
pub fn taken_bytes(file: &File) -> io::Result<u64> {
    /// Unit of `st_blocks`; see inode(7).
    const BLOCK_BYTES: u64 = 512;
    Ok(file.metadata()?.blocks() * BLOCK_BYTES)
}

/// Available memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    pub total: u64,
    pub available: u64,
    /// The machine or the control group that limits this memory.
    pub bound: MemoryBound,
}

/// Minimum of the memory available in the machine and in its control groups. `None` if neither is known.
#[must_use]
pub fn room() -> Option<HostMemory> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(parse_meminfo);
    let groups = control_group::rooms(Path::new("/proc/self"));
    // Of equals the machine, which comes first.
    machine
        .into_iter()
        .chain(groups)
        .min_by_key(|room| room.available)
}

fn parse_meminfo(text: &str) -> Option<HostMemory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(HostMemory {
        total: field("MemTotal:")?,
        available: field("MemAvailable:")?,
        bound: MemoryBound::Machine,
    })
}

#[must_use]
pub fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn meminfo_is_read_in_bytes_or_not_at_all() {
        let text = "MemTotal:       24681 kB\nMemFree: 1 kB\nMemAvailable:   22881 kB\n";
        let expected = HostMemory {
            total: 24681 * 1024,
            available: 22881 * 1024,
            bound: MemoryBound::Machine,
        };
        assert_eq!(parse_meminfo(text), Some(expected));
        assert_eq!(parse_meminfo("MemTotal: 24681 kB\n"), None);
        assert_eq!(parse_meminfo("MemTotal: many kB\nMemAvailable: 1 kB"), None);
    }

    #[test]
    fn an_arena_is_zeroed_and_whole() {
        let mut arena = Arena::new(6002).expect("arena");
        assert_eq!(arena.halves().len(), 3001);
        assert!(arena.halves().iter().all(|&half| half == 0));
        arena.halves_mut()[3000] = 0x0201;
        assert_eq!(arena.halves()[2999..], [0, 0x0201]);
    }

    #[test]
    fn who_shares_an_arena_reads_it_and_does_nothing_else_with_it() {
        let mut arena = Arena::shareable(8192).expect("arena");
        let file = File::from(arena.share().expect("a descriptor"));
        arena.halves_mut()[4095] = 7;
        let mut last = [0; 2];
        file.read_exact_at(&mut last, 8190).expect("it is there");
        assert_eq!(u16::from_ne_bytes(last), 7);
        assert!(file.write_all_at(&[1], 0).is_err());
        assert!(file.set_len(4096).is_err() && file.set_len(1 << 20).is_err());
        // SAFETY: refused, so nothing is mapped.
        assert!(unsafe { MmapMut::map_mut(&file) }.is_err());
        assert!(Arena::new(1).expect("arena").share().is_err());
    }

    #[test]
    fn what_cannot_be_mapped_is_a_fault() {
        for arena in [Arena::new(1 << 62), Arena::shareable(1 << 62)] {
            assert!(matches!(arena, Err(Fault::OutOfMemory { .. })));
        }
    }
}
