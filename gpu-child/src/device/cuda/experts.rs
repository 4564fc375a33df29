//! Kernels of a mixture of experts, and their selection by number of rows.
//!
//! Every choice gives the same bits (`kernels/cuda/experts.cuh`); only time differs. It depends on the number
//! of rows alone, not on the chosen experts: these are on the device only, and recorded launches stay valid.

use super::context::Context;
use super::expert_arguments::{CombineArgs, DownArgs, ExpertsArgs, RouteArgs, RouteFewArgs};
use super::expert_way::{MANY_ROWS, Way};
use super::experts_wide::{self, ExpertsWide, Pack};
use super::headers::constant;
use super::kernels::{Geometry, Kernel, Module, Part};
use super::products_few::{FewProducts, ROWS_ALONE, ring_bytes};
use super::weights::{
    GatedUnit, Linear, TILE_ROWS, UNIT, Weights, multiplied_as, segments, unit_bytes, units,
};
use crate::model::{ExpertsConfig, MAX_EXPERTS};
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::{TensorType, Weighing};

/// Mean rows per expert from which a block of Hopper multiplies them (`bench/results/experts.md`).
const WIDE: usize = 4;
/// The same for weights of sixteen bits or more: their transfer takes longer than the product.
const WIDE_OF_HALVES: usize = 16;
/// Mean rows per expert from which the tensor cores bound the time.
const MANY: usize = 24;

const FEW_WARPS: usize = constant!("route_few.cu", FEW_WARPS);
/// Maximum bytes of rows that a block of `route_few.cu` normalizes: the limit without an opt-in.
const FEW_BYTES: usize = 32 << 10;
const ROUTE_THREADS: u32 = constant!("route.cu", ROUTE_THREADS) as u32;
const COMBINE_THREADS: u32 = constant!("combine.cu", COMBINE_THREADS) as u32;
const COMBINE_COLUMNS: usize = 4 * COMBINE_THREADS as usize;
const ROW_WARPS: usize = constant!("experts_row.cu", ROW_WARPS);
const ROW_STAGES: usize = constant!("experts_row.cu", ROW_STAGES);
const DOWN_WARPS: usize = constant!("experts_row.cu", DOWN_WARPS);
const DOWN_STAGES: usize = constant!("experts_row.cu", DOWN_STAGES);
const WALK_WARPS: usize = constant!("experts_walk.cu", WALK_WARPS);
const WALK_STAGES: usize = constant!("experts_walk.cu", WALK_STAGES);
const MANY_TILES: usize = constant!("experts_many.cu", EXPERTS_TILES);
const MANY_THREADS: u32 = constant!("experts_many.cu", EXPERTS_THREADS) as u32;
/// Maximum number of experts: a warp chooses for a row in its registers.
const _: () = assert!(MAX_EXPERTS <= constant!("choice.cuh", MAX_EXPERTS));
/// Static shared memory of the kernels, and a reserve for NVIDIA's driver.
const RESERVED_SHARED: usize = 2 << 10;

/// Kernels of one tensor type.
#[derive(Debug)]
struct OfType {
    ty: TensorType,
    row: Kernel<ExpertsArgs>,
    down: Kernel<DownArgs>,
    walk: Kernel<ExpertsArgs>,
    /// Warps of a block of `walk` that fit into shared memory.
    walk_warps: usize,
    /// `None` if it does not fit into shared memory.
    many: Option<Kernel<ExpertsArgs>>,
    /// `None` on devices other than Hopper.
    wide: Option<ExpertsWide>,
}

/// Kernels that choose experts by probabilities or logits, and by scores.
#[derive(Debug)]
struct ByChoice<A> {
    plain: Kernel<A>,
    by_scores: Kernel<A>,
}

impl<A> ByChoice<A> {
    fn of(&self, arguments: &RouteArgs) -> &Kernel<A> {
        let has_bias = arguments.choice_bias.address() != 0;
        match has_bias || arguments.weighing >= Weighing::Sigmoid as i32 {
            true => &self.by_scores,
            false => &self.plain,
        }
    }
}

#[derive(Debug)]
pub struct Experts {
    config: ExpertsConfig,
    route: ByChoice<RouteArgs>,
    route_few: ByChoice<RouteFewArgs>,
    combine: Kernel<CombineArgs>,
    /// Products around the experts, for the same few rows.
    pub few: FewProducts,
    /// Copies rows to their places, for [`Way::Wide`]; on Hopper.
    pub pack: Option<Pack>,
    kernels: Vec<OfType>,
    shared_bytes: usize,
    has_wide: bool,
}

impl Experts {
    /// Loads the kernels for matrices of experts of these types.
    ///
    /// # Errors
    /// If a kernel is missing, or the device has too little shared memory for one.
    pub fn load(
        context: &Context,
        module: &Module,
        config: ExpertsConfig,
        types: impl Iterator<Item = TensorType>,
    ) -> Result<Self, Fault> {
        let mut kernels: Vec<OfType> = Vec::new();
        for ty in types.map(multiplied_as) {
            if kernels.iter().all(|known| known.ty != ty) {
                kernels.push(OfType::load(context, module, ty)?);
            }
        }
        // SAFETY: these kernels take these structs, and wait.
        let (route, route_few, combine) = unsafe {
            let route = ByChoice {
                plain: module.kernel::<RouteArgs>("route")?.overlapping(),
                by_scores: module.kernel::<RouteArgs>("route_by_scores")?.overlapping(),
            };
            let few = |name| module.kernel::<RouteFewArgs>(name);
            let route_few = ByChoice {
                plain: few("route_few")?.overlapping(),
                by_scores: few("route_few_by_scores")?.overlapping(),
            };
            let combine: Kernel<CombineArgs> = module.kernel("combine")?;
            (route, route_few, combine.overlapping())
        };
        Ok(Self {
            config,
            route,
            route_few,
            combine,
            few: FewProducts::load(context, module)?,
            pack: context
                .has_wgmma()
                .then(|| Pack::load(module))
                .transpose()?,
            kernels,
            shared_bytes: context.shared_bytes() as usize - RESERVED_SHARED,
            has_wide: context.has_wgmma(),
        })
    }

    /// Drops the architecture-specific kernels.
    pub fn use_portable(&mut self) {
        self.has_wide = false;
    }

    /// Maximum number of places for this number of rows.
    #[must_use]
    pub fn places(&self, way: Way, rows: usize) -> usize {
        way.places(rows * self.config.used, self.config.count)
    }

    /// Gate and up run as one product, which gives their gated linear unit.
    #[must_use]
    pub fn pairs(&self, unit: &GatedUnit) -> bool {
        let [gate, up] = unit.gate_up.each_ref().map(|it| it.weight.ty);
        multiplied_as(gate) == multiplied_as(up)
    }

    /// The way with the lowest estimated time for this number of rows.
    #[must_use]
    pub fn way(&self, unit: &GatedUnit, rows: usize) -> Way {
        let pairs = rows * self.config.used;
        let unit_bytes = unit_bytes(multiplied_as(unit.gate_up[0].weight.ty));
        let least = match unit_bytes >= UNIT * TILE_ROWS * size_of::<u16>() {
            true => WIDE_OF_HALVES,
            false => WIDE,
        };
        let wide = experts_wide::block_for(pairs / self.config.count);
        let ways = [
            (Way::Row, rows <= ROWS_ALONE),
            (Way::Wide(wide), pairs >= least * self.config.count),
            (Way::Many, pairs >= MANY * self.config.count),
        ];
        let fits = ways
            .into_iter()
            .find(|(way, fits)| *fits && self.has(*way, unit));
        fits.map_or(Way::Walk, |(way, _)| way)
    }

    /// The way supports this unit.
    #[must_use]
    pub fn has(&self, way: Way, unit: &GatedUnit) -> bool {
        let [gate, up] = &unit.gate_up;
        match way {
            Way::Row => self.pairs(unit) && self.down_shared(unit) <= self.shared_bytes,
            Way::Walk => true,
            Way::Many => [gate, up, &unit.down]
                .iter()
                .all(|linear| self.of_type(linear).many.is_some()),
            Way::Wide(block) => {
                let fits = |linear: &Linear| {
                    let wide = self.of_type(linear).wide.as_ref();
                    wide.is_some_and(|wide| wide.has(block))
                };
                self.has_wide && [gate, up, &unit.down].into_iter().all(fits)
            }
        }
    }

    /// # Panics
    /// If no kernels were loaded for the type.
    fn of_type(&self, linear: &Linear) -> &OfType {
        let ty = multiplied_as(linear.weight.ty);
        let found = self.kernels.iter().find(|known| known.ty == ty);
        found.expect("a type of the model's experts")
    }

    /// Chooses the experts of each row, and groups the rows by expert.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// `arguments` are of this model, and refer to memory for their number of rows.
    pub unsafe fn route(&self, context: &Context, arguments: &RouteArgs) -> Result<(), Fault> {
        let warps = ROUTE_THREADS as usize / 32;
        let blocks = (arguments.rows as usize).div_ceil(warps);
        // SAFETY: a warp a row; the rest is the caller's promise.
        unsafe {
            let geometry = Geometry::line(blocks, ROUTE_THREADS);
            self.route
                .of(arguments)
                .launch(context, geometry, arguments)
        }
    }

    /// [`route_few`](Self::route_few) supports this number of rows of `cols` columns for this router.
    #[must_use]
    pub fn routes_few(&self, router: &Linear, way: Way, rows: usize) -> bool {
        let bytes = rows * units(router.weight.cols) * UNIT * size_of::<u16>();
        let alone = self.config.shared_n_ff.is_none() && !self.config.beside_dense;
        alone && way == Way::Row && router.weight.ty == TensorType::F32 && bytes <= FEW_BYTES
    }

    /// Normalizes rows, multiplies them by the router and chooses their experts, for [`Way::Row`].
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The contract of [`route`](Self::route), for rows that [`routes_few`](Self::routes_few) accepts.
    pub unsafe fn route_few(
        &self,
        context: &Context,
        arguments: &RouteFewArgs,
    ) -> Result<(), Fault> {
        let norm = &arguments.norm;
        let halves = norm.rows as usize * norm.units as usize * UNIT;
        let geometry = Geometry {
            grid: [arguments.router.tiles as u32, 1],
            block: [32, FEW_WARPS as u32, 1],
            shared_bytes: (halves * size_of::<u16>()) as u32,
        };
        // SAFETY: a block a tile, with room for the rows; the rest is the caller's promise.
        unsafe {
            self.route_few
                .of(&arguments.route)
                .launch(context, geometry, arguments)
        }
    }

    /// The kernels' view of a matrix of experts, with outputs from `column` on. Bias and weight are those of all
    /// experts.
    #[must_use]
    pub fn part(&self, weights: &Weights, linear: &Linear, column: usize) -> Part {
        let (all, count) = (weights.part(linear, column), self.config.count as i32);
        Part {
            rows: all.rows / count,
            tiles: all.tiles / count,
            ..all
        }
    }

    /// Multiplies the rows of each expert, `rows` in total, by its matrix, or by two matrices as a pair.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The memory of `arguments` is on the device and has the stated sizes; the routing is of this way.
    pub unsafe fn multiply(
        &self,
        context: &Context,
        (way, rows): (Way, usize),
        linear: &Linear,
        arguments: &ExpertsArgs,
    ) -> Result<(), Fault> {
        let kernels = self.of_type(linear);
        if let (Way::Wide(block), Some(wide)) = (way, &kernels.wide) {
            let experts = self.config.count;
            let places = self.places(way, rows);
            // SAFETY: the caller's promise.
            return unsafe { wide.multiply(context, block, (experts, places), arguments) };
        }
        let ty = kernels.ty;
        let tiles = arguments.parts[0].tiles as usize;
        // A warp or a block takes adjacent tiles of one matrix, unless there is a pair.
        let pairs = match arguments.paired {
            0 => tiles.div_ceil(2),
            _ => tiles,
        };
        let shares = most_shares(rows * self.config.used, self.config.count, way.share_rows());
        let geometry = |across: usize, block: [u32; 3], shared_bytes: usize| Geometry {
            grid: [across as u32, shares as u32],
            block,
            shared_bytes: shared_bytes as u32,
        };
        // SAFETY: shares are as many as there can be; blocks are those that the kernels were compiled for, with
        // shared memory for them; the rest is the caller's promise.
        unsafe {
            match way {
                Way::Row => {
                    let bytes = ROW_WARPS * ring_bytes(ty, 2, ROW_STAGES);
                    let geometry = geometry(tiles, [32, ROW_WARPS as u32, 1], bytes);
                    kernels.row.launch(context, geometry, arguments)
                }
                Way::Walk => {
                    let warps = kernels.walk_warps;
                    let bytes = warps * ring_bytes(ty, 2, WALK_STAGES);
                    let across = pairs.div_ceil(warps);
                    let geometry = geometry(across, [32, warps as u32, 1], bytes);
                    kernels.walk.launch(context, geometry, arguments)
                }
                Way::Many => {
                    let kernel = kernels.many.as_ref().expect("a way that is there");
                    let across = pairs.div_ceil(MANY_TILES / 2);
                    let geometry = geometry(across, [MANY_THREADS, 1, 1], many_shared(ty));
                    kernel.launch(context, geometry, arguments)
                }
                Way::Wide(_) => unreachable!("kernels of Hopper on another device"),
            }
        }
    }

    /// Multiplies the outputs of gate and up of each row by the matrix `down` of its experts, and adds the results to
    /// the stream, for [`Way::Row`].
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The contract of [`multiply`](Self::multiply). The preceding launch is that of gate and up: the kernel reads the
    /// choices of the rows before that launch has ended.
    pub unsafe fn down(
        &self,
        context: &Context,
        rows: usize,
        unit: &GatedUnit,
        arguments: &DownArgs,
    ) -> Result<(), Fault> {
        let geometry = Geometry {
            grid: [arguments.down.parts[0].tiles as u32, rows as u32],
            block: [32, DOWN_WARPS as u32, 1],
            shared_bytes: self.down_shared(unit) as u32,
        };
        let kernel = &self.of_type(&unit.down).down;
        // SAFETY: a block a tile of a row, with shared memory for the inputs; the rest is the caller's promise.
        unsafe { kernel.launch(context, geometry, arguments) }
    }

    /// Adds the results of `rows` rows to the stream.
    ///
    /// # Errors
    /// If the launch fails.
    ///
    /// # Safety
    /// The memory of `arguments` is on the device and has the stated sizes.
    pub unsafe fn combine(
        &self,
        context: &Context,
        rows: usize,
        arguments: &CombineArgs,
    ) -> Result<(), Fault> {
        let across = (arguments.n_embd as usize).div_ceil(COMBINE_COLUMNS);
        let geometry = Geometry {
            grid: [rows as u32, across as u32],
            ..Geometry::line(rows, COMBINE_THREADS)
        };
        // SAFETY: a thread has four columns of a row; the rest is the caller's promise.
        unsafe { self.combine.launch(context, geometry, arguments) }
    }

    /// Shared memory of `experts_down`: rings, inputs, sums of segments and powers of two.
    fn down_shared(&self, unit: &GatedUnit) -> usize {
        let (units, used) = (units(self.config.n_ff), self.config.used);
        let inputs = used * units * UNIT * size_of::<u16>();
        let sums = used * (segments(units) * TILE_ROWS + 1) * size_of::<f32>();
        DOWN_WARPS * ring_bytes(multiplied_as(unit.down.weight.ty), 1, DOWN_STAGES) + inputs + sums
    }
}

impl OfType {
    fn load(context: &Context, module: &Module, ty: TensorType) -> Result<Self, Fault> {
        let name = ty.name();
        let most = context.shared_bytes() as usize - RESERVED_SHARED;
        let shared = |kernel: Kernel<ExpertsArgs>, bytes: usize| {
            kernel.allow_shared(bytes as u32)?;
            Ok::<_, Fault>(kernel)
        };
        let of_warp = ring_bytes(ty, 2, WALK_STAGES);
        let walk_warps = WALK_WARPS.min(most / of_warp);
        // SAFETY: experts_walk takes ExpertsArgs, and waits.
        let walk = unsafe {
            module
                .kernel(&format!("experts_walk_{name}"))?
                .overlapping()
        };
        let many = || {
            // SAFETY: the kernels of experts_many.cu take ExpertsArgs, and wait.
            let kernel = unsafe {
                module
                    .kernel(&format!("experts_many_{name}"))?
                    .overlapping()
            };
            shared(kernel, many_shared(ty))
        };
        // SAFETY: experts_row takes ExpertsArgs, and waits.
        let row = unsafe { module.kernel(&format!("experts_row_{name}"))?.overlapping() };
        // SAFETY: these kernels take DownArgs, and wait.
        let down: Kernel<DownArgs> = unsafe {
            module
                .kernel(&format!("experts_down_{name}"))?
                .overlapping()
        };
        down.allow_shared(most as u32)?;
        Ok(Self {
            ty,
            row: shared(row, ROW_WARPS * ring_bytes(ty, 2, ROW_STAGES))?,
            down,
            walk: shared(walk, walk_warps * of_warp)?,
            walk_warps,
            many: (many_shared(ty) <= most).then(many).transpose()?,
            wide: ExpertsWide::load(context, module, ty)?,
        })
    }
}

/// `MatmulBlock` of `matmul_block.cuh`: two stages of activations and weights.
fn many_shared(ty: TensorType) -> usize {
    2 * (MANY_ROWS * UNIT * size_of::<u16>() + MANY_TILES * unit_bytes(ty))
}

/// Maximum number of shares for `pairs` pairs and `experts` experts.
fn most_shares(pairs: usize, experts: usize, share_rows: usize) -> usize {
    (pairs + experts.min(pairs) * (share_rows - 1)) / share_rows
}

#[cfg(test)]
mod tests;
