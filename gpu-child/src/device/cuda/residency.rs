//! Checks that loaded memory is still on the device, and that the weights are bit for bit unchanged.
//!
//! The engine calls it between steps ([`Executor::inspect`](crate::device::Executor::inspect)). Each
//! call queries the location of weights and KV cache from the driver, and launches the checksum of one more
//! [`SLICE_BYTES`] of weights in the stream (`checksum.cu`). The next call compares the
//! result, so no call waits for it. Keys and values change with every step and have no
//! checksum: only their location is checked.

use super::checksum::Checksum;
use super::context::{Context, StreamEvent, check};
use super::memory::{Arena, Pinned, Purpose, fetch};
use cudarc::driver::sys;
use std::ops::Range;
use worker_orcd_ipc::{DeviceError, Fault};

/// Bytes of weights of one check. Its time on the device is below the variation of a step of the smallest
/// model (`a_look_costs_little`).
const SLICE_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub struct Residency {
    checksum: Checksum,
    /// Checksum of each slice after loading.
    expected: Vec<u64>,
    /// Accumulator on the device.
    sum: Arena,
    answer: Pinned,
    done: StreamEvent,
    /// Slice with a checksum in flight.
    under_way: Option<usize>,
    next: usize,
    /// Completed rounds over all slices.
    rounds: u64,
}

impl Residency {
    /// Computes the reference checksums. The weights must be in the stream.
    ///
    /// # Errors
    /// If the device fails, or the memory is not on the device.
    pub fn new(context: &Context, checksum: Checksum, weights: &Arena) -> Result<Self, Fault> {
        let slices =
            (0..weights.bytes().div_ceil(SLICE_BYTES) as usize).map(|index| slice(weights, index));
        let expected = checksum.of_ranges(context, weights, slices)?;
        is_on_device(context, weights)?;
        Ok(Self {
            checksum,
            expected,
            sum: Arena::new(context, Purpose::Scratch, 8)?,
            answer: Pinned::new(8)?,
            done: StreamEvent::new()?,
            under_way: None,
            next: 0,
            rounds: 0,
        })
    }

    /// Starts the check of one more slice, and compares the previous one. Does not wait for the
    /// device. A standby has no KV cache yet.
    ///
    /// # Errors
    /// [`Fault::Device`]: [`DeviceError::WeightsChanged`] or [`DeviceError::NotResident`], or an error of
    /// NVIDIA's driver.
    pub fn check_slice(
        &mut self,
        context: &Context,
        weights: &Arena,
        kv: Option<&Arena>,
    ) -> Result<(), Fault> {
        context.enter()?;
        is_on_device(context, weights)?;
        kv.map_or(Ok(()), |kv| is_on_device(context, kv))?;
        if let Some(slice) = self.under_way {
            if !self.done.is_reached()? {
                return Ok(());
            }
            self.under_way = None;
            self.compare(slice)?;
        }
        let next = self.next;
        self.sum.clear(context)?;
        self.checksum
            .add(context, weights, slice(weights, next), &self.sum, 0)?;
        // SAFETY: one word; the pinned word is read only after the event that follows the copy.
        unsafe { fetch(context, self.answer.bytes_mut(), self.sum.at(0, 8)) }?;
        self.done.record(context)?;
        self.under_way = Some(next);
        self.next = (next + 1) % self.expected.len();
        Ok(())
    }

    /// Number of rounds in which all weights were unchanged.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    fn compare(&mut self, slice: usize) -> Result<(), Fault> {
        let mut sum = [0; 8];
        sum.copy_from_slice(self.answer.bytes_mut());
        let (sum, expected) = (u64::from_le_bytes(sum), self.expected[slice]);
        if sum != expected {
            return Err(Fault::Device {
                error: DeviceError::WeightsChanged,
                message: format!(
                    "the weights from byte {} on have the checksum {sum:016x}, and had \
                     {expected:016x} when they were loaded",
                    slice as u64 * SLICE_BYTES
                ),
            });
        }
        self.rounds += u64::from(slice + 1 == self.expected.len());
        Ok(())
    }
}

/// Bytes of a slice.
fn slice(weights: &Arena, index: usize) -> Range<u64> {
    let start = index as u64 * SLICE_BYTES;
    start..weights.bytes().min(start + SLICE_BYTES)
}

/// Query of NVIDIA's driver: device memory, not managed, and one allocation of that size.
fn is_on_device(context: &Context, arena: &Arena) -> Result<(), Fault> {
    use sys::CUpointer_attribute as Attribute;
    let (mut kind, mut managed) = (0_u32, 0_u32);
    let (mut start, mut bytes) = (0_u64, 0_usize);
    let mut attributes = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut places = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut start).cast(),
        (&raw mut bytes).cast(),
    ];
    // SAFETY: as many places as attributes, each of the type that its attribute has.
    let result = unsafe {
        sys::cuPointerGetAttributes(
            attributes.len() as u32,
            attributes.as_mut_ptr(),
            places.as_mut_ptr(),
            arena.start(),
        )
    };
    check(result, "asking where memory lies")?;
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    if kind == device && managed == 0 && start == arena.start() && bytes as u64 >= arena.bytes() {
        return Ok(());
    }
    Err(Fault::Device {
        error: DeviceError::NotResident,
        message: format!(
            "{} bytes for {:?} are memory of kind {kind}, managed {managed}, {bytes} bytes from \
             {start:#x} on, says the driver of {}",
            arena.bytes(),
            arena.purpose(),
            context.id()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::kernels::Module;
    use crate::device::cuda::memory::upload;
    use std::time::{Duration, Instant};
    use worker_orcd_kernels::reference::checksum::checksum;

    /// Several slices, the last one partial.
    const BYTES: u64 = SLICE_BYTES + (5 << 20) + 256;

    fn loaded() -> (Context, Module, Arena, Vec<u8>) {
        let context = Context::open(0).expect("a device");
        let module = Module::load(&context).expect("kernels");
        let arena = Arena::new(&context, Purpose::Weights, BYTES).expect("memory");
        let bytes: Vec<u8> = (0..BYTES)
            .map(|i| (i ^ (i >> 7) ^ (i >> 15)) as u8)
            .collect();
        // SAFETY: the whole of the arena.
        unsafe { upload(&context, arena.at(0, bytes.len()), &bytes) }.expect("a copy");
        (context, module, arena, bytes)
    }

    fn take(context: &Context, module: &Module, arena: &Arena) -> Result<Residency, Fault> {
        Residency::new(context, Checksum::load(module)?, arena)
    }

    /// Inspects until every slice was compared once.
    fn round(residency: &mut Residency, context: &Context, arena: &Arena) -> Result<(), Fault> {
        for _ in 0..=residency.expected.len() {
            residency.check_slice(context, arena, Some(arena))?;
            context.synchronize("a test")?;
        }
        Ok(())
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn sums_are_those_of_the_reference() {
        let (context, module, arena, bytes) = loaded();
        let residency = take(&context, &module, &arena).expect("sums");
        let (one, other) = bytes.split_at(SLICE_BYTES as usize);
        let expected = [checksum(one, 0), checksum(other, SLICE_BYTES / 8)];
        assert_eq!(residency.expected, expected);
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_look_costs_little() {
        const LOOKS: u32 = 64;
        let context = Context::open(0).expect("a device");
        let module = Module::load(&context).expect("kernels");
        // Far more than the capacity of any cache.
        let arena = Arena::new(&context, Purpose::Weights, 32 * SLICE_BYTES).expect("memory");
        arena.clear(&context).expect("cleared");
        let mut residency = take(&context, &module, &arena).expect("sums");
        let (mut asked, began) = (Duration::ZERO, Instant::now());
        for _ in 0..LOOKS {
            let asks = Instant::now();
            residency
                .check_slice(&context, &arena, Some(&arena))
                .expect("unchanged");
            asked += asks.elapsed();
            context.synchronize("a test").expect("computed");
        }
        let (asked, all) = (asked / LOOKS, began.elapsed() / LOOKS);
        println!("a look: {asked:?} of the host, {all:?} until the device is done");
        assert_eq!(residency.rounds(), u64::from(LOOKS) / 32 - 1);
        assert!(all < Duration::from_millis(1), "{all:?}");
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn a_flipped_bit_is_found_in_the_next_round_and_named() {
        let (context, module, arena, bytes) = loaded();
        let mut residency = take(&context, &module, &arena).expect("sums");
        for _ in 0..3 {
            round(&mut residency, &context, &arena).expect("nothing has changed");
        }
        assert!(residency.rounds() >= 3);
        for at in [0, SLICE_BYTES - 1, SLICE_BYTES, BYTES - 1] {
            let mut residency = take(&context, &module, &arena).expect("sums");
            let byte = bytes[at as usize];
            for (byte, found) in [(byte ^ 0x10, true), (byte, false)] {
                // SAFETY: one byte inside the arena.
                unsafe { upload(&context, arena.at(at, 1), &[byte]) }.expect("a copy");
                let outcome = round(&mut residency, &context, &arena);
                match outcome {
                    Err(Fault::Device { error, .. }) => {
                        let expected = found && error == DeviceError::WeightsChanged;
                        assert!(expected, "{error} at {at}");
                        residency.under_way = None;
                    }
                    other => assert!(other.is_ok() && !found, "{other:?} at {at}"),
                }
            }
        }
    }
}
