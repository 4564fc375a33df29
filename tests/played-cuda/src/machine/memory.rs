//! Memory of all spaces: the launch's part of the process's memory, and a block's own.

use super::arrivals::BulkCopy;
use super::registers::{LANES, Longs, Mask, Registers, for_each_lane, lanes, mapped};
use super::warp::Warp;
use super::{AddressSpace, Launch, Range, Trouble};
use crate::ptx::Kernel;
use crate::ptx::op::{
    Address, Atomic, AtomicOp, Element, LOCAL_ADDRESSES, Source, Space, Target, Word,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub struct Memory<'a> {
    space: &'a AddressSpace,
    /// Range of the last access.
    last: Range,
    parameters: Bytes,
    shared: Bytes,
    /// Bulk copies that are under way.
    pub(super) bulk: Vec<BulkCopy>,
}

/// Memory that is aligned for every element.
pub struct Bytes(Vec<u128>);

impl Bytes {
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(size_of::<u128>())])
    }

    pub fn all(&mut self) -> &mut [u8] {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: any bytes are valid for these integers.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) }
    }
}

/// Asynchronous copies to shared memory. A thread sees them after it has waited for them.
#[derive(Default)]
pub struct Copies {
    pending: Vec<Copy>,
    /// Groups that each lane has committed.
    groups: [usize; LANES],
}

struct Copy {
    lane: usize,
    group: usize,
    to: u64,
    count: usize,
    bytes: [u8; MOST_COPIED],
}

/// Addresses of shared memory end below this, and no other memory is there.
const SHARED_ADDRESSES: u64 = 1 << 20;

/// Limit of one lane's copy, in bytes.
const MOST_COPIED: usize = 16;

impl Copies {
    pub fn commit(&mut self, active: Mask) {
        for lane in lanes(active) {
            self.groups[lane] += 1;
        }
    }

    /// Copies of these lanes, without their newest `but` groups; `None` takes all.
    fn take(&mut self, active: Mask, but: Option<usize>) -> Vec<Copy> {
        let groups = self.groups;
        let is_done = |copy: &mut Copy| {
            let comes = but.is_none_or(|but| copy.group + but < groups[copy.lane]);
            active >> copy.lane & 1 == 1 && comes
        };
        self.pending.extract_if(.., is_done).collect()
    }
}

fn illegal<T>(what: &str, at: u64, bytes: usize) -> Result<T, Trouble> {
    Err(Trouble::IllegalAddress(format!(
        "{what} of {bytes} bytes at {at:#x}"
    )))
}

impl<'a> Memory<'a> {
    pub fn new(kernel: &Kernel, launch: &Launch, space: &'a AddressSpace) -> Self {
        let mut parameters = Bytes::new(launch.parameters.len());
        parameters.all()[..launch.parameters.len()].copy_from_slice(&launch.parameters);
        Self {
            space,
            last: Range {
                start: 0,
                end: 0,
                writable: false,
            },
            parameters,
            shared: Bytes::new(kernel.shared_bytes + launch.shared_bytes as usize),
            bulk: Vec::new(),
        }
    }

    /// Fills shared memory with a pattern, so that no block sees the values of another.
    pub fn begin(&mut self) {
        self.shared.all().fill(0xA5);
        self.bulk.clear();
    }

    /// # Errors
    /// These bytes cannot be reached.
    pub(super) fn reach(
        &mut self,
        at: u64,
        bytes: usize,
        writes: bool,
    ) -> Result<*mut u8, Trouble> {
        let end = at.wrapping_add(bytes as u64);
        if at < self.last.start || end > self.last.end {
            let behind = self.space.ranges.partition_point(|range| range.start <= at);
            let found = self.space.ranges[..behind].last();
            match found {
                Some(range) if at < range.end && end <= range.end => self.last = *range,
                _ => return illegal(if writes { "a write" } else { "a read" }, at, bytes),
            }
        }
        if writes && !self.last.writable {
            return illegal("a write to what is read only", at, bytes);
        }
        Ok(at as *mut u8)
    }

    /// Pointer that all of these addresses are relative to, if one check covers all of them.
    fn reach_warp(
        &mut self,
        addresses: &Longs,
        active: Mask,
        space: Space,
        bytes: usize,
        writes: bool,
    ) -> Option<*mut u8> {
        let (mut least, mut most, mut bits) = (u64::MAX, 0, 0);
        for_each_lane(active, |lane| {
            let at = addresses[lane];
            (least, most, bits) = (least.min(at), most.max(at), bits | at);
        });
        let end = most.checked_add(bytes as u64)?;
        if bits & (bytes as u64 - 1) != 0 {
            return None;
        }
        match space {
            Space::Shared => {
                (end <= self.shared.all().len() as u64).then(|| self.shared.all().as_mut_ptr())
            }
            Space::Global => {
                let range = self.last;
                let is_inside = least >= range.start && end <= range.end;
                (is_inside && (range.writable || !writes)).then(std::ptr::null_mut)
            }
            _ => None,
        }
    }

    /// # Errors
    /// These bytes are not all in shared memory.
    pub(super) fn reach_shared(&mut self, at: u64, bytes: usize) -> Result<*mut u8, Trouble> {
        inside(self.shared.all(), "shared memory", at, bytes)
    }

    fn write_shared(&mut self, at: u64, from: &[u8]) -> Result<(), Trouble> {
        let to = self.reach_shared(at, from.len())?;
        // SAFETY: as many bytes of shared memory, which this thread owns.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

fn inside(memory: &mut [u8], what: &str, at: u64, bytes: usize) -> Result<*mut u8, Trouble> {
    let found = usize::try_from(at)
        .ok()
        .and_then(|at| memory.get_mut(at..)?.get_mut(..bytes));
    match found {
        Some(found) => Ok(found.as_mut_ptr()),
        None => illegal(&format!("an access to {what}"), at, bytes),
    }
}

impl Warp<'_> {
    pub(super) fn addresses(&self, address: &Address) -> Longs {
        let bases = match address.base {
            Source::Long(long) => *self.registers.long(long),
            // Addresses in shared memory are words.
            Source::Word(word) => mapped(self.registers.word(word), u64::from),
        };
        mapped(&bases, |base| base.wrapping_add_signed(address.offset))
    }

    /// Space of a generic address.
    fn resolve(space: Space, at: u64) -> (Space, u64) {
        match space {
            Space::Generic if at >= LOCAL_ADDRESSES => (Space::Local, at - LOCAL_ADDRESSES),
            Space::Generic if at < SHARED_ADDRESSES => (Space::Shared, at),
            Space::Generic => (Space::Global, at),
            Space::Local => (
                space,
                if at >= LOCAL_ADDRESSES {
                    at - LOCAL_ADDRESSES
                } else {
                    at
                },
            ),
            other => (other, at),
        }
    }

    /// Address in this process of these bytes of a lane.
    fn reach(
        &mut self,
        memory: &mut Memory<'_>,
        lane: usize,
        (space, at): (Space, u64),
        bytes: usize,
        writes: bool,
    ) -> Result<*mut u8, Trouble> {
        if at & (bytes as u64 - 1) != 0 {
            return Err(Trouble::Misaligned(format!("{bytes} bytes at {at:#x}")));
        }
        match space {
            Space::Shared => memory.reach_shared(at, bytes),
            Space::Global | Space::Generic => memory.reach(at, bytes, writes),
            Space::Local => {
                let of_lane = self.local_bytes();
                let local = &mut self.local.all()[lane * of_lane..][..of_lane];
                inside(local, "local memory", at, bytes)
            }
            Space::Parameter if writes => illegal("a write to parameters", at, bytes),
            Space::Parameter => inside(memory.parameters.all(), "parameters", at, bytes),
        }
    }

    /// [`Self::reach`] for all of these lanes.
    fn reach_all(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        address: &Address,
        bytes: usize,
        writes: bool,
    ) -> Result<[*mut u8; LANES], Trouble> {
        let addresses = self.addresses(address);
        if let Some(first) = memory.reach_warp(&addresses, active, address.space, bytes, writes) {
            return Ok(addresses.map(|at| first.wrapping_add(at as usize)));
        }
        let mut places = [std::ptr::null_mut(); LANES];
        for lane in lanes(active) {
            let place = Self::resolve(address.space, addresses[lane]);
            places[lane] = self.reach(memory, lane, place, bytes, writes)?;
        }
        Ok(places)
    }

    pub(super) fn load(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        element: Element,
        to: &[Target],
        address: &Address,
    ) -> Result<(), Trouble> {
        let places = self.reach_all(memory, active, address, element.bytes * to.len(), false)?;
        for (index, target) in to.iter().enumerate() {
            // SAFETY: inside the checked range, and aligned.
            let values = unsafe { read_all(&places, index * element.bytes, active, element) };
            put(&mut self.registers, *target, active, &values);
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        element: Element,
        from: &[Source],
        address: &Address,
    ) -> Result<(), Trouble> {
        let places = self.reach_all(memory, active, address, element.bytes * from.len(), true)?;
        for (index, source) in from.iter().enumerate() {
            let values = self.values(*source);
            // SAFETY: inside the checked range, and aligned.
            unsafe {
                write_all(
                    &places,
                    index * element.bytes,
                    active,
                    element.bytes,
                    &values,
                )
            };
        }
        Ok(())
    }

    fn values(&self, source: Source) -> Longs {
        match source {
            Source::Word(word) => mapped(self.registers.word(word), u64::from),
            Source::Long(long) => *self.registers.long(long),
        }
    }

    /// Atomic operation, lane by lane, as a device does in some order.
    pub(super) fn atomic(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        atomic: &Atomic,
    ) -> Result<(), Trouble> {
        let Atomic {
            op,
            bytes,
            to,
            address,
            value,
        } = *atomic;
        let places = self.reach_all(memory, active, &address, bytes, true)?;
        let mut values = self.values(value);
        for lane in lanes(active) {
            let place = places[lane];
            // SAFETY: checked and aligned; the host and other blocks use atomic operations too.
            values[lane] = unsafe { change(op, place, bytes, values[lane]) };
        }
        if let Some(to) = to {
            put(&mut self.registers, to, active, &values);
        }
        Ok(())
    }

    /// Reads at once; the values become visible when they are waited for.
    pub(super) fn copy_async(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        to: &Address,
        from: &Address,
        bytes: usize,
        read: Option<Word>,
    ) -> Result<(), Trouble> {
        let (targets, sources) = (self.addresses(to), self.addresses(from));
        let reads = read.map_or([bytes as u32; LANES], |word| *self.registers.word(word));
        for lane in lanes(active) {
            let (to, from) = (targets[lane], sources[lane]);
            if (to | from) & (bytes as u64 - 1) != 0 {
                return Err(Trouble::Misaligned(format!(
                    "a copy from {from:#x} to {to:#x}"
                )));
            }
            let mut copied = [0; MOST_COPIED];
            let count = (reads[lane] as usize).min(bytes);
            if count > 0 {
                let from = memory.reach(from, count, false)?;
                // SAFETY: as many bytes were checked.
                unsafe { std::ptr::copy_nonoverlapping(from, copied.as_mut_ptr(), count) };
            }
            let group = self.copies.groups[lane];
            self.copies.pending.push(Copy {
                lane,
                group,
                to,
                count: bytes,
                bytes: copied,
            });
        }
        Ok(())
    }

    pub(super) fn wait_copies(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        but: Option<usize>,
    ) -> Result<(), Trouble> {
        for copy in self.copies.take(active, but) {
            memory.write_shared(copy.to, &copy.bytes[..copy.count])?;
        }
        Ok(())
    }

    /// Rows of eight halves of four matrices, from the lanes' addresses.
    pub(super) fn matrix_rows(
        &mut self,
        memory: &mut Memory<'_>,
        active: Mask,
        address: &Address,
    ) -> Result<[[u8; 16]; LANES], Trouble> {
        let places = self.reach_all(memory, active, address, 16, false)?;
        let mut rows = [[0; 16]; LANES];
        for lane in lanes(active) {
            // SAFETY: as many bytes of shared memory were checked.
            rows[lane] = unsafe { places[lane].cast::<[u8; 16]>().read() };
        }
        Ok(rows)
    }
}

/// Elements so many bytes behind the places of these lanes.
///
/// # Safety
/// As many bytes are mapped and aligned. The host and other blocks may write meanwhile; as on a device, ordering is
/// their responsibility.
#[inline(always)]
unsafe fn read_all(
    places: &[*mut u8; LANES],
    behind: usize,
    active: Mask,
    element: Element,
) -> Longs {
    let mut values = [0; LANES];
    // SAFETY: guaranteed by the caller.
    let place = |lane: usize| unsafe { places[lane].add(behind) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match element.bytes {
            1 => for_each_lane(active, |lane| {
                values[lane] = u64::from(place(lane).read_volatile());
            }),
            2 => for_each_lane(active, |lane| {
                values[lane] = u64::from(place(lane).cast::<u16>().read_volatile());
            }),
            4 => for_each_lane(active, |lane| {
                values[lane] = u64::from(place(lane).cast::<u32>().read_volatile());
            }),
            _ => for_each_lane(active, |lane| {
                values[lane] = place(lane).cast::<u64>().read_volatile();
            }),
        }
    }
    let unused = 64 - 8 * element.bytes;
    match element.signed {
        true => mapped(&values, |value| {
            ((value << unused).cast_signed() >> unused).cast_unsigned()
        }),
        false => values,
    }
}

/// # Safety
/// As for [`read_all`].
#[inline(always)]
unsafe fn write_all(
    places: &[*mut u8; LANES],
    behind: usize,
    active: Mask,
    bytes: usize,
    values: &Longs,
) {
    // SAFETY: guaranteed by the caller.
    let place = |lane: usize| unsafe { places[lane].add(behind) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match bytes {
            1 => for_each_lane(active, |lane| {
                place(lane).write_volatile(values[lane] as u8);
            }),
            2 => for_each_lane(active, |lane| {
                place(lane)
                    .cast::<u16>()
                    .write_volatile(values[lane] as u16);
            }),
            4 => for_each_lane(active, |lane| {
                place(lane)
                    .cast::<u32>()
                    .write_volatile(values[lane] as u32);
            }),
            _ => for_each_lane(active, |lane| {
                place(lane).cast::<u64>().write_volatile(values[lane]);
            }),
        }
    }
}

/// Previous value.
///
/// # Safety
/// As for [`read_all`].
unsafe fn change(op: AtomicOp, at: *mut u8, bytes: usize, value: u64) -> u64 {
    let order = Ordering::SeqCst;
    if bytes == 8 {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { AtomicU64::from_ptr(at.cast()) };
        let updated = place.fetch_update(order, order, |old| Some(result(op, old, value)));
        return updated.unwrap_or_default();
    }
    // SAFETY: guaranteed by the caller.
    let place = unsafe { AtomicU32::from_ptr(at.cast()) };
    let new = |old| Some(result(op, u64::from(old), value) as u32);
    u64::from(place.fetch_update(order, order, new).unwrap_or_default())
}

fn result(op: AtomicOp, old: u64, value: u64) -> u64 {
    match op {
        AtomicOp::Add => old.wrapping_add(value),
        AtomicOp::Or => old | value,
        AtomicOp::MaxUnsigned => old.max(value),
        AtomicOp::AddFloat => {
            let sum = f32::from_bits(old as u32) + f32::from_bits(value as u32);
            u64::from(sum.to_bits())
        }
    }
}

fn put(registers: &mut Registers, to: Target, active: Mask, values: &Longs) {
    match to {
        Target::Word(slot) => {
            registers.set_word(slot, active, mapped(values, |value| value as u32))
        }
        Target::Long(slot) => registers.set_long(slot, active, *values),
    }
}
