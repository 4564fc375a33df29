//! Checksums of device memory, computed by the device (`kernels/cuda/checksum.cu`).

use super::context::Context;
use super::kernels::{ChecksumArgs, Geometry, Kernel, Module};
use super::memory::{ALIGNMENT, Arena, Purpose, download};
use std::ops::Range;
use worker_orcd_ipc::{Fault, PlacedTensor};

const THREADS: u32 = 256;
/// Blocks that keep every multiprocessor loading.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;
/// Bytes that the kernel reads at a time.
const PAIR_BYTES: u64 = 16;

// A tensor begins at a pair, and is padded up to the next pair at most.
const _: () = assert!(ALIGNMENT.is_multiple_of(PAIR_BYTES));

#[derive(Debug)]
pub struct Checksum(Kernel<ChecksumArgs>);

impl Checksum {
    /// # Errors
    /// If the kernel is missing.
    pub fn load(module: &Module) -> Result<Self, Fault> {
        // SAFETY: checksum.cu takes ChecksumArgs.
        unsafe { module.kernel("checksum") }.map(Self)
    }

    /// Adds the checksum of a range, in whole pairs, to `sums[at]`, in stream order.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn add(
        &self,
        context: &Context,
        arena: &Arena,
        range: Range<u64>,
        sums: &Arena,
        at: usize,
    ) -> Result<(), Fault> {
        let bytes = (range.end - range.start).next_multiple_of(PAIR_BYTES);
        let arguments = ChecksumArgs {
            words: arena.at(range.start, bytes as usize),
            sum: sums.at(8 * at as u64, 1),
            pairs: bytes / PAIR_BYTES,
            first: range.start / 8,
        };
        let most = BLOCKS_PER_MULTIPROCESSOR * context.multiprocessors() as usize;
        let blocks = (arguments.pairs as usize).div_ceil(THREADS as usize);
        // SAFETY: the pairs lie inside the arena, as `at` has just seen.
        unsafe {
            let geometry = Geometry::line(blocks.min(most), THREADS);
            self.0.launch(context, geometry, &arguments)
        }
    }

    /// Checksum of each range, in order. Waits for the device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn of_ranges(
        &self,
        context: &Context,
        arena: &Arena,
        ranges: impl ExactSizeIterator<Item = Range<u64>>,
    ) -> Result<Vec<u64>, Fault> {
        let mut checksums = vec![0; ranges.len()];
        let sums = Arena::new(context, Purpose::Scratch, 8 * checksums.len() as u64)?;
        sums.clear(context)?;
        for (at, range) in ranges.enumerate() {
            self.add(context, arena, range, &sums, at)?;
        }
        let sums = sums.at(0, checksums.len());
        // SAFETY: a sum for each range.
        unsafe { download(context, &mut checksums, sums) }?;
        Ok(checksums)
    }

    /// Checksum of each tensor in the arena, in order.
    ///
    /// # Errors
    /// The errors of [`of_ranges`](Self::of_ranges).
    pub fn of_tensors(
        &self,
        context: &Context,
        arena: &Arena,
        tensors: &[PlacedTensor],
    ) -> Result<Vec<u128>, Fault> {
        let range = |tensor: &PlacedTensor| tensor.offset..tensor.offset + tensor.bytes;
        let ranges = tensors.iter().map(range);
        let checksums = self.of_ranges(context, arena, ranges)?;
        Ok(checksums.into_iter().map(u128::from).collect())
    }
}
