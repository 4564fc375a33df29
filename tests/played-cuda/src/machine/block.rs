//! Block: its warps, shared memory and barriers.

use super::memory::Memory;
use super::registers::{LANES, Mask};
use super::warp::{Pause, Warp};
use super::{AddressSpace, Launch, Trouble};
use crate::ptx::Kernel;
use std::collections::BTreeMap;

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

    /// Begins at this position of the grid.
    pub fn begin(&mut self, place: [u32; 3]) {
        self.memory.begin();
        for warp in &mut self.warps {
            warp.begin(place);
        }
    }

    /// Gives each warp a turn of so many instructions. Returns whether all have ended.
    ///
    /// # Errors
    /// The launch's failure.
    pub fn turn(&mut self, slice: u32) -> Result<bool, Trouble> {
        let (mut are_done, mut wait) = (true, true);
        for warp in &mut self.warps {
            match warp.run(&mut self.memory, slice)? {
                Pause::End => {}
                Pause::Barrier => are_done = false,
                Pause::Slice => (are_done, wait) = (false, false),
            }
        }
        self.memory.finish_copies()?;
        let passes = are_done || self.pass_barriers();
        if wait && !passes {
            return Err(Trouble::Stuck(
                "not all threads come to a barrier".to_owned(),
            ));
        }
        Ok(are_done)
    }

    /// Releases the barriers that all their threads have reached. Returns whether there was one.
    fn pass_barriers(&mut self) -> bool {
        let mut at: BTreeMap<Option<[u32; 2]>, u32> = BTreeMap::new();
        for (of, lanes) in self.warps.iter().flat_map(Warp::arrived) {
            *at.entry(of).or_default() += lanes;
        }
        let alive: u32 = self.warps.iter().map(|it| it.alive().count_ones()).sum();
        let mut passes = false;
        for (of, arrived) in at {
            match of {
                Some([number, threads]) if arrived == threads => {
                    self.warps
                        .iter_mut()
                        .for_each(|it| it.pass_numbered(number));
                }
                None if arrived == alive => self.pass_barrier(),
                _ => continue,
            }
            passes = true;
        }
        passes
    }

    /// Releases the barrier of the whole block.
    fn pass_barrier(&mut self) {
        let all = self.warps.iter().all(Warp::all_hold_at_barrier);
        for warp in &mut self.warps {
            warp.pass_barrier(if all { Mask::MAX } else { 0 });
        }
    }
}
