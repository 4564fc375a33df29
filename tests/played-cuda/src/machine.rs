//! Multiprocessors of a device, which run the blocks of a launch.
//!
//! Each thread, one per core of this machine, runs blocks to their end one after the other: a block must not wait for
//! another, except in a cooperative launch, whose blocks take turns. The lanes of a warp proceed together as far as possible. Diverged lanes run until they reconverge: the
//! group that is furthest back goes first, and an instruction for many lanes waits for those in its mask. (Collange:
//! "Stack-less SIMT reconvergence at low cost", 2011.)

mod arithmetic;
mod arrivals;
mod block;
mod execute;
mod memory;
mod registers;
#[cfg(test)]
mod tests;
mod together;
mod warp;

use crate::ptx::Kernel;
use block::Block;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Memory of a kernel: addresses of this process.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub end: u64,
    pub writable: bool,
}

/// Address space of a launch, by address, without overlaps.
#[derive(Debug, Clone, Default)]
pub struct AddressSpace {
    pub ranges: Vec<Range>,
}

#[derive(Debug, Clone)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Parameters in the kernel's layout.
    pub parameters: Vec<u8>,
    /// Blocks may wait for each other.
    pub together: bool,
}

/// Cause of a launch's failure.
#[derive(Debug, Clone)]
pub enum Trouble {
    IllegalAddress(String),
    Misaligned(String),
    Trap,
    /// Deadlock of lanes, or end of the process.
    Stuck(String),
}

/// Blocks per thread; fewer are computed sooner than a thread starts.
const BLOCKS_OF_A_THREAD: u64 = 8;

/// Instructions of a warp before the others' turn, because it may wait for their writes.
const SLICE: u32 = 1 << 20;
/// The same in a cooperative launch, where it often does.
const SHORT_SLICE: u32 = 256;

/// Runs a launch to its end. Calls `goes_on` from time to time.
///
/// # Errors
/// The launch's failure.
pub fn run(
    kernel: &Kernel,
    launch: &Launch,
    space: &AddressSpace,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<(), Trouble> {
    let mut space = space.clone();
    space
        .ranges
        .extend(kernel.globals.iter().map(|start| Range {
            start: *start,
            end: start + 8,
            writable: true,
        }));
    space.ranges.sort_by_key(|range| range.start);
    let [x, y, z] = launch.grid.map(u64::from);
    let place = |index: u64| [index % x, index / x % y, index / (x * y)].map(|at| at as u32);
    if launch.together {
        let begun = |index| {
            let mut block = Block::new(kernel, launch, &space);
            block.begin(place(index));
            block
        };
        return run_together((0..x * y * z).map(begun).collect(), goes_on);
    }
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let trouble = Mutex::new(None);
    let go_on = || goes_on() && !is_over.load(Ordering::Relaxed);
    let work = || {
        let mut block = Block::new(kernel, launch, &space);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= x * y * z || !go_on() {
                return;
            }
            block.begin(place(index));
            if let Err(why) = to_end(&mut block, &go_on) {
                is_over.store(true, Ordering::Relaxed);
                let mut first = trouble.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(why);
                return;
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(x * y * z / BLOCKS_OF_A_THREAD) {
            scope.spawn(work);
        }
        work();
    });
    let trouble = trouble.into_inner().unwrap_or_else(PoisonError::into_inner);
    trouble.map_or(Ok(()), Err)
}

/// Runs a block to its end.
fn to_end(block: &mut Block<'_>, goes_on: &dyn Fn() -> bool) -> Result<(), Trouble> {
    while !block.turn(SLICE)? {
        expect_more(goes_on)?;
    }
    Ok(())
}

/// Runs blocks that may wait for each other.
fn run_together(
    mut blocks: Vec<Block<'_>>,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Result<(), Trouble> {
    while !blocks.is_empty() {
        let mut left = Vec::with_capacity(blocks.len());
        for mut block in blocks {
            if !block.turn(SHORT_SLICE)? {
                left.push(block);
            }
        }
        blocks = left;
        expect_more(goes_on)?;
    }
    Ok(())
}

fn expect_more(goes_on: &dyn Fn() -> bool) -> Result<(), Trouble> {
    match goes_on() {
        true => Ok(()),
        false => Err(Trouble::Stuck("ended from outside".to_owned())),
    }
}
