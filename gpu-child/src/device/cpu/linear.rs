//! Matmuls of a whole batch, cut into items of weight rows.
//!
//! An item owns a run of row groups for every token: each weight is read by one thread, and each output has one owner.
//! If matrices hold experts, it owns groups of an expert for all rows routed to it.

use super::pool::{Disjoint, Pool};
use super::scratch::Quantized;
use std::ops::Range;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::Activation;
use worker_orcd_kernels::cpu::{
    Activations, Isa, PackedMatrix, Q_BLOCK, ROWS, glu, matmul_group, quantize_row,
};

/// Tokens per block: their activations stay in the nearest caches while an item's weights stream by.
const TOKEN_BLOCK: usize = 32;
/// Number of rows that one thread normalizes or quantizes in the time of starting and ending a job.
pub const FEW_ROWS: usize = 16;
/// Items per thread: enough to balance a core that is shared with other processes.
const ITEMS_PER_THREAD: usize = 4;
/// Items per thread if groups are multiplied by different numbers of rows: that is balanced too.
const UNEVEN_ITEMS_PER_THREAD: usize = 16;

/// Results of one group for a block of tokens; two of them for a pair of matrices.
type Tiles = [[[f32; ROWS]; TOKEN_BLOCK]; 2];

/// The CPU as a device: its threads and their instruction set.
#[derive(Debug)]
pub struct Device {
    pub(super) pool: Pool,
    pub(super) isa: Isa,
}

/// A matrix to multiply by, and the place of its results.
#[derive(Debug)]
pub struct Projection<'a> {
    pub weight: PackedMatrix<'a>,
    /// Rows of `weight`, or of each expert in it; then they fill groups.
    pub rows: usize,
    /// Bias of all experts, consecutively.
    pub bias: Option<&'a [f32]>,
    /// First column of this matrix's results in the output rows.
    pub column: usize,
}

impl Projection<'_> {
    fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    /// Computes `tile.len()` results of a group of one expert.
    fn multiply(
        &self,
        isa: Isa,
        (expert, group): (usize, usize),
        x: &Activations<'_>,
        first: usize,
        tile: &mut [[f32; ROWS]],
    ) {
        let of_weight = expert * self.groups() + group;
        matmul_group(isa, &self.weight, of_weight, x, first, tile);
        if let Some(bias) = self.bias {
            let bias = &bias[of_weight * ROWS..];
            tile.iter_mut().for_each(|sums| add(sums, bias));
        }
    }
}

/// Consecutive rows of the input that one expert multiplies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub expert: usize,
    pub rows: Range<usize>,
}

impl Share {
    /// All rows, for a matrix of one expert.
    #[must_use]
    pub fn all(rows: usize) -> [Self; 1] {
        let rows = 0..rows;
        [Self { expert: 0, rows }]
    }
}

/// Epilogue of a product: its results overwrite the output, or are added to it (the residual stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    Store,
    Add,
}

impl Device {
    /// Starts the threads; the number includes the caller's. `None` means all cores.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn open(threads: Option<u32>, isa: Isa) -> Result<Self, Fault> {
        let all_cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.map_or_else(all_cores, |threads| threads.max(1) as usize);
        let pool = Pool::new(threads).map_err(|error| Fault::Io {
            message: format!("starting {threads} threads: {error}"),
        })?;
        Ok(Self { pool, isa })
    }

    /// Runs `each` for every token. With fewer than `few` tokens it runs on this thread: a job would cost more than the
    /// work it distributes.
    pub fn for_tokens(&self, tokens: usize, few: usize, each: &(dyn Fn(usize) + Sync)) {
        if tokens < few {
            (0..tokens).for_each(each);
            return;
        }
        let block = tokens.div_ceil(ITEMS_PER_THREAD * self.pool.threads());
        self.pool.run(tokens.div_ceil(block), &|item| {
            (item * block..tokens.min((item + 1) * block)).for_each(each);
        });
    }

    /// Converts rows to the format that `weights` multiply.
    pub fn quantize(
        &self,
        values: &[f32],
        cols: usize,
        weights: &[PackedMatrix<'_>],
        into: &mut Quantized,
    ) {
        if !weights
            .iter()
            .any(|weight| Activations::is_quantized(weight.shape().ty))
        {
            return;
        }
        let blocks = cols / Q_BLOCK;
        let isa = self.isa;
        let (q, meta) = (Disjoint::new(&mut into.q), Disjoint::new(&mut into.meta));
        self.for_tokens(values.len() / cols, FEW_ROWS, &|t| {
            // SAFETY: token t's own parts.
            let (q, meta) = unsafe { (q.part(t * cols, cols), meta.part(t * blocks, blocks)) };
            quantize_row(isa, &values[t * cols..][..cols], q, meta);
        });
    }

    /// Computes every projection of `x`; together they fill the rows of `out`. The shares cover all rows, in order.
    pub fn project(
        &self,
        x: &Activations<'_>,
        shares: &[Share],
        projections: &[Projection<'_>],
        out: &mut [f32],
        epilogue: Epilogue,
    ) {
        let width = out.len() / rows_of(shares);
        let starts = starts(projections.iter().map(Projection::groups));
        let (isa, out) = (self.isa, Disjoint::new(out));
        self.over_groups(
            starts[projections.len()],
            shares,
            &|expert, group, row, count, tiles| {
                let index = starts.partition_point(|&start| start <= group) - 1;
                let projection = &projections[index];
                let group = group - starts[index];
                let tile = &mut tiles[0][..count];
                projection.multiply(isa, (expert, group), x, row, tile);
                let first = group * ROWS;
                let rows = ROWS.min(projection.rows - first);
                for (t, sums) in tile.iter().enumerate() {
                    let column = projection.column + first;
                    // SAFETY: these columns of this row are written by this group alone.
                    let out = unsafe { out.part((row + t) * width + column, rows) };
                    match epilogue {
                        Epilogue::Store => store(out, sums),
                        Epilogue::Add => add(out, sums),
                    }
                }
            },
        );
    }

    /// `activation(gate x) * (up x)`; both matrices have the same shape. A single one is both.
    pub fn gate_up(
        &self,
        activation: Activation,
        x: &Activations<'_>,
        shares: &[Share],
        projections: &[Projection<'_>],
        out: &mut [f32],
    ) {
        let gate = &projections[0];
        let width = gate.rows;
        let (isa, out) = (self.isa, Disjoint::new(out));
        self.over_groups(
            gate.groups(),
            shares,
            &|expert, group, row, count, tiles| {
                for (tile, part) in tiles.iter_mut().zip(projections) {
                    part.multiply(isa, (expert, group), x, row, &mut tile[..count]);
                }
                let [gate, up] = tiles;
                if projections.len() == 1 {
                    up[..count].copy_from_slice(&gate[..count]);
                }
                glu(activation, isa, &mut gate[..count], &up[..count]);
                let first = group * ROWS;
                let columns = ROWS.min(width - first);
                for (t, values) in gate[..count].iter().enumerate() {
                    // SAFETY: these columns of this row are written by this group alone.
                    let out = unsafe { out.part((row + t) * width + first, columns) };
                    store(out, values);
                }
            },
        );
    }

    /// Runs `each(expert, group, first row, rows, room)` over all groups and blocks of rows of each share.
    fn over_groups(
        &self,
        groups: usize,
        shares: &[Share],
        each: &(dyn Fn(usize, usize, usize, usize, &mut Tiles) + Sync),
    ) {
        let per_thread = match shares.len() {
            1 => ITEMS_PER_THREAD,
            _ => UNEVEN_ITEMS_PER_THREAD,
        };
        let all = groups * shares.len();
        let run = all.div_ceil(per_thread * self.pool.threads()).max(1);
        self.pool.run(all.div_ceil(run), &|item| {
            // Zeroed once per item: a group of one token takes hardly longer than zeroing this.
            let mut tiles = [[[0.0; ROWS]; TOKEN_BLOCK]; 2];
            let mut at = item * run;
            let end = all.min(at + run);
            while at < end {
                let (share, first) = (&shares[at / groups], at % groups);
                let last = groups.min(first + end - at);
                for row in share.rows.clone().step_by(TOKEN_BLOCK) {
                    let count = TOKEN_BLOCK.min(share.rows.end - row);
                    for group in first..last {
                        each(share.expert, group, row, count, &mut tiles);
                    }
                }
                at += last - first;
            }
        });
    }
}

fn rows_of(shares: &[Share]) -> usize {
    shares.last().map_or(0, |share| share.rows.end)
}

/// Prefix sums of the lengths, with the total at the end.
fn starts(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + length);
    }
    starts
}

/// Adds up to the shorter length (a bias ends with its matrix, a group may not).
fn add(out: &mut [f32], values: &[f32]) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out += value;
    }
}

/// Stores as many of eight values as `out` takes: nearly always all, in one move.
fn store(out: &mut [f32], values: &[f32; ROWS]) {
    match <&mut [f32; ROWS]>::try_from(&mut *out) {
        Ok(out) => *out = *values,
        Err(_) => out.copy_from_slice(&values[..out.len()]),
    }
}
