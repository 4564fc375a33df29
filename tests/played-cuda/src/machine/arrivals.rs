//! Barriers in shared memory, and the bulk copies that count there.
//!
//! A barrier is a word of 64 bits, of which PTX says nothing: here the parity of its phase, the bytes that it still waits
//! for, the arrivals of a phase, and those that are left.

use super::Trouble;
use super::memory::Memory;
use super::registers::{Mask, lanes};
use super::warp::Warp;
use crate::ptx::op::{Address, Slot, Word};

/// Copy under way. It comes when the block's other warps have had their turn.
pub struct BulkCopy {
    to: u64,
    from: u64,
    bytes: usize,
    at: u64,
}

#[derive(Debug, Clone, Copy)]
struct Barrier {
    parity: bool,
    bytes: u32,
    count: u32,
    left: u32,
}

const COUNT_BITS: u32 = 20;
const BYTES_BITS: u32 = 23;

impl Barrier {
    fn of(bits: u64) -> Self {
        let field = |from: u32, count: u32| (bits >> from) as u32 & ((1 << count) - 1);
        Self {
            parity: bits >> 63 == 1,
            bytes: field(2 * COUNT_BITS, BYTES_BITS),
            count: field(COUNT_BITS, COUNT_BITS),
            left: field(0, COUNT_BITS),
        }
    }

    fn bits(self) -> u64 {
        u64::from(self.parity) << 63
            | u64::from(self.bytes) << (2 * COUNT_BITS)
            | u64::from(self.count) << COUNT_BITS
            | u64::from(self.left)
    }

    /// Begins the next phase, if nothing is left of this one.
    fn turned(mut self) -> Self {
        if self.left == 0 && self.bytes == 0 {
            self.left = self.count;
            self.parity = !self.parity;
        }
        self
    }
}

impl Memory<'_> {
    fn barrier(&mut self, at: u64) -> Result<Barrier, Trouble> {
        let place = self.reach_shared(at, 8)?;
        // SAFETY: eight bytes of shared memory.
        Ok(Barrier::of(unsafe { place.cast::<u64>().read_unaligned() }))
    }

    fn set_barrier(&mut self, at: u64, barrier: Barrier) -> Result<(), Trouble> {
        let place = self.reach_shared(at, 8)?;
        // SAFETY: eight bytes of shared memory.
        unsafe { place.cast::<u64>().write_unaligned(barrier.bits()) };
        Ok(())
    }

    /// Lets the copies come that are under way.
    ///
    /// # Errors
    /// A copy reaches beyond the memory, or brings what no barrier waits for.
    pub fn finish_copies(&mut self) -> Result<(), Trouble> {
        for copy in std::mem::take(&mut self.bulk) {
            let from = self.reach(copy.from, copy.bytes, false)?;
            let to = self.reach_shared(copy.to, copy.bytes)?;
            // SAFETY: as many bytes were checked on both sides, which are different memory.
            unsafe { std::ptr::copy_nonoverlapping(from, to, copy.bytes) };
            let mut barrier = self.barrier(copy.at)?;
            let left = barrier.bytes.checked_sub(copy.bytes as u32);
            barrier.bytes = left.ok_or_else(|| {
                Trouble::Stuck("a copy brings bytes that its barrier does not expect".to_owned())
            })?;
            self.set_barrier(copy.at, barrier.turned())?;
        }
        Ok(())
    }
}

impl Warp<'_> {
    pub(super) fn copy_bulk(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        places: [&Address; 3],
        bytes: Word,
    ) -> Result<(), Trouble> {
        let [to, from, at] = places.map(|it| self.addresses(it));
        for (lane, bytes) in self.each(bytes, active) {
            let (to, from, at) = (to[lane], from[lane], at[lane]);
            if (to | from | u64::from(bytes)) & 15 != 0 {
                return Err(Trouble::Misaligned(format!(
                    "a copy of {bytes} bytes from {from:#x} to {to:#x}"
                )));
            }
            memory.bulk.push(BulkCopy {
                to,
                from,
                bytes: bytes as usize,
                at,
            });
        }
        Ok(())
    }

    pub(super) fn start_barrier(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        at: &Address,
        count: Word,
    ) -> Result<(), Trouble> {
        let at = self.addresses(at);
        for (lane, count) in self.each(count, active) {
            let barrier = Barrier {
                parity: false,
                bytes: 0,
                count,
                left: count,
            };
            memory.set_barrier(at[lane], barrier)?;
        }
        Ok(())
    }

    pub(super) fn arrive(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        at: &Address,
        (count, are_bytes): (Word, bool),
    ) -> Result<(), Trouble> {
        let at = self.addresses(at);
        for (lane, count) in self.each(count, active) {
            let mut barrier = memory.barrier(at[lane])?;
            let (arrivals, bytes) = if are_bytes { (1, count) } else { (count, 0) };
            barrier.bytes += bytes;
            let left = barrier.left.checked_sub(arrivals);
            barrier.left =
                left.ok_or_else(|| Trouble::Stuck("more arrivals than a phase has".to_owned()))?;
            memory.set_barrier(at[lane], barrier.turned())?;
        }
        Ok(())
    }

    pub(super) fn try_wait(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        (to, at): (Slot, &Address),
        parity: Word,
    ) -> Result<(), Trouble> {
        let (at, mut is_over) = (self.addresses(at), 0);
        let parities = *self.registers.word(parity);
        for lane in lanes(active) {
            let current = memory.barrier(at[lane])?.parity;
            is_over |= u32::from(current != (parities[lane] == 1)) << lane;
        }
        self.registers.set_predicate(to, active, is_over);
        Ok(())
    }
}
