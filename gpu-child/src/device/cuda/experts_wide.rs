//! Products of a mixture of experts with many rows per expert, on Hopper (`kernels/cuda/experts_wide.cu`).

use super::context::Context;
use super::expert_arguments::{ExpertsArgs, ExpertsPackArgs, ExpertsWideArgs};
use super::kernels::{Geometry, Kernel, MatmulArgs, Module, Part, WideArgs};
use super::tensor_map::TensorMap;
use super::weights::units;
use super::wide::{Block, MAX_STAGES, block};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Alignment of an expert's first place: rows of a group of the packed layout.
pub const PLACE_GROUP: usize = 8;
const PACK_THREADS: u32 = 256;
/// Static shared memory of a block of the kernels, and a reserve for NVIDIA's driver.
const RESERVED_SHARED: usize = 2 << 10;

/// `EXPERTS_WIDE` in `experts_wide.cu`. Three warpgroups: with one, units would wait for its unpacking.
pub const BLOCKS: [Block; 3] = [
    block(3, 32, 1, 0.0),
    block(3, 64, 1, 0.0),
    block(3, 128, 1, 0.0),
];
/// Mean rows per expert up to which each block is the fastest (`bench/results/experts.md`).
const MEAN_ROWS: [usize; 3] = [24, 56, usize::MAX];
/// Minimum of stages: with fewer, a block waits for a unit without a free slot.
const MIN_STAGES: usize = 2;

/// The block of [`BLOCKS`] for this mean number of rows per expert.
#[must_use]
pub fn block_for(mean_rows: usize) -> usize {
    let fits = MEAN_ROWS.iter().position(|most| mean_rows < *most);
    fits.unwrap_or(BLOCKS.len() - 1)
}

/// Maximum number of places for `pairs` pairs and `experts` experts.
#[must_use]
pub fn most_places(pairs: usize, experts: usize) -> usize {
    (pairs + experts.min(pairs) * (PLACE_GROUP - 1)).next_multiple_of(PLACE_GROUP)
}

/// Copies the rows of a batch to their places, in the packed layout.
#[derive(Debug)]
pub struct Pack(Kernel<ExpertsPackArgs>);

impl Pack {
    /// # Errors
    /// If the kernel is missing.
    pub fn load(module: &Module) -> Result<Self, Fault> {
        // SAFETY: the kernel takes ExpertsPackArgs, and waits.
        Ok(Self(unsafe {
            module.kernel("experts_pack")?.overlapping()
        }))
    }

    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The memory of `arguments` is on the device and has the stated sizes.
    pub unsafe fn run(&self, context: &Context, arguments: &ExpertsPackArgs) -> Result<(), Fault> {
        let geometry = Geometry::line(arguments.groups as usize, PACK_THREADS);
        // SAFETY: a block a group; the rest is the caller's promise.
        unsafe { self.0.launch(context, geometry, arguments) }
    }
}

/// Kernels of one type, one for each of [`BLOCKS`].
#[derive(Debug)]
pub struct ExpertsWide {
    ty: TensorType,
    /// Maximum shared memory of a block.
    shared_bytes: usize,
    kernels: Vec<Kernel<ExpertsWideArgs>>,
}

impl ExpertsWide {
    /// `None` on devices other than Hopper.
    ///
    /// # Errors
    /// If a kernel is missing.
    pub fn load(context: &Context, module: &Module, ty: TensorType) -> Result<Option<Self>, Fault> {
        if !context.has_wgmma() {
            return Ok(None);
        }
        let shared_bytes = context.shared_bytes() as usize - RESERVED_SHARED;
        let mut kernels = Vec::new();
        for block in &BLOCKS {
            let (name, groups, rows) = (ty.name(), block.warpgroups, block.rows);
            // SAFETY: the kernels take ExpertsWideArgs, and wait.
            let kernel: Kernel<ExpertsWideArgs> = unsafe {
                module
                    .kernel(&format!("experts_wide_{name}_{groups}_{rows}"))?
                    .overlapping()
            };
            kernel.allow_shared(shared_bytes as u32)?;
            kernels.push(kernel);
        }
        Ok(Some(Self {
            ty,
            shared_bytes,
            kernels,
        }))
    }

    /// A block fits into shared memory.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        self.stages(index) >= MIN_STAGES
    }

    fn stages(&self, index: usize) -> usize {
        (self.shared_bytes / BLOCKS[index].stage_bytes(self.ty)).min(MAX_STAGES)
    }

    /// Multiplies the rows at their places by the matrix of their expert, or by two matrices as a pair.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The memory of `arguments` is on the device and has the stated sizes; inputs are by place, packed for `places`
    /// places, and the routing's places are grouped.
    pub unsafe fn multiply(
        &self,
        context: &Context,
        index: usize,
        (experts, places): (usize, usize),
        arguments: &ExpertsArgs,
    ) -> Result<(), Fault> {
        let block = BLOCKS[index];
        let [first, second] = arguments.parts;
        let units_of_row = arguments.units as usize;
        let mut weights = [TensorMap::NONE; 3];
        for (map, part) in weights.iter_mut().zip([first, second]) {
            let tiles = part.tiles * experts as i32;
            let all = Part { tiles, ..part };
            *map = TensorMap::of_weight(&all, self.ty, units_of_row, block.tiles() / 2)?;
        }
        let stages = self.stages(index);
        let arguments = ExpertsWideArgs {
            wide: WideArgs {
                matmul: MatmulArgs {
                    parts: [first, second, Part::NONE],
                    n_parts: 2,
                    rows: places as i32,
                    units: arguments.units,
                    out_stride: arguments.out_stride,
                    add: 0,
                    scale_of_all: 1.0,
                    x: arguments.x,
                    scale: arguments.scale,
                    out: arguments.out,
                },
                stages: stages as i32,
                cluster_sums: 0,
                paired: arguments.paired,
                shares: 0,
                up: 0.0,
                out_units: 0,
                weights,
            },
            shares: arguments.routing.shares,
            counts: arguments.routing.counts,
            activation: arguments.activation,
            out_units: units(first.rows as usize) as i32,
        };
        let geometry = Geometry {
            grid: [context.multiprocessors(), 1],
            block: [block.threads(), 1, 1],
            shared_bytes: (stages * block.stage_bytes(self.ty)) as u32,
        };
        // SAFETY: the geometry is what the kernel of that block was compiled for, with room for its stages; the rest is
        // the caller's promise.
        unsafe { self.kernels[index].launch(context, geometry, &arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rows_take_a_block_of_as_many_or_more() {
        let blocks: Vec<_> = (0..300).map(block_for).collect();
        assert!(blocks.is_sorted());
        assert_eq!((blocks[4], blocks[32], blocks[128]), (0, 1, 2));
    }

    #[test]
    fn there_are_no_more_places_than_are_reckoned_with() {
        for experts in [1, 2, 7, 128] {
            for pairs in 1..300_usize {
                // The maximum: all experts but one have one row each.
                let chosen = experts.min(pairs);
                let rest = pairs - (chosen - 1);
                let places = (chosen - 1) * PLACE_GROUP + rest.next_multiple_of(PLACE_GROUP);
                assert!(
                    places <= most_places(pairs, experts),
                    "{pairs} of {experts}"
                );
            }
        }
    }
}
