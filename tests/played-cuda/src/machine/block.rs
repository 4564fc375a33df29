//! Block: its warps, shared memory and barrier.

use super::memory::Memory;
use super::registers::{LANES, Mask};
use super::warp::{Pause, Warp};
use super::{AddressSpace, Launch, Trouble};
use crate::ptx::Kernel;

/// Instructions of a warp before the others' turn, because it may wait for their writes.
const SLICE: u32 = 1 << 20;

/// State that is reused for block after block of a launch.
pub struct Block<'a> {
    warps: Vec<Warp<'a>>,
    memory: Memory<'a>,
}

impl<'a> Block<'a> {
    pub fn new(kernel: &'a Kernel, launch: &'a Launch, space: &'a AddressSpace) -> Self {
        let threads = launch.block.iter().product::<u32>() as usize;
        let warps = (0..threads.div_ceil(LANES)).map(|index| Warp::new(kernel, launch, index));
        Self {
            warps: warps.collect(),
            memory: Memory::new(kernel, launch, space),
        }
    }

    /// Runs the block at this position of the grid.
    ///
    /// # Errors
    /// The launch's failure.
    pub fn run(&mut self, place: [u32; 3], goes_on: &dyn Fn() -> bool) -> Result<(), Trouble> {
        self.memory.begin();
        for warp in &mut self.warps {
            warp.begin(place);
        }
        loop {
            let (mut are_done, mut wait) = (true, true);
            for warp in &mut self.warps {
                match warp.run(&mut self.memory, SLICE)? {
                    Pause::End => {}
                    Pause::Barrier => are_done = false,
                    Pause::Slice => (are_done, wait) = (false, false),
                }
            }
            if are_done {
                return Ok(());
            }
            if !goes_on() {
                return Err(Trouble::Stuck("ended from outside".to_owned()));
            }
            if wait {
                self.pass_barrier();
            }
        }
    }

    /// Releases the barrier, which all live threads have reached.
    fn pass_barrier(&mut self) {
        let all = self.warps.iter().all(Warp::all_hold_at_barrier);
        for warp in &mut self.warps {
            warp.pass_barrier(if all { Mask::MAX } else { 0 });
        }
    }
}
