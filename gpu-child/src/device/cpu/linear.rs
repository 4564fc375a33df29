//! Matmuls of a whole batch, cut into items of weight rows.
//!
//! An item owns a run of row groups for every token: each weight is read by one thread, and each
//! output has one owner.

use super::pool::{Disjoint, Pool};
use super::scratch::Quantized;
use std::ops::Range;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::Activation;
use worker_orcd_kernels::cpu::{
    Activations, Isa, PackedMatrix, Q_BLOCK, ROWS, glu, matmul_group, quantize_row,
};

/// Tokens whose activations are walked together, so that they stay in the nearest caches while
/// an item's weights pass by.
const TOKEN_BLOCK: usize = 32;
/// Rows that one thread normalizes or quantizes in the time that a job takes to start and end.
pub const FEW_ROWS: usize = 16;
/// Items per thread: enough to even out a core that is shared with others.
const ITEMS_PER_THREAD: usize = 4;

/// Results of one group for a block of tokens; two of them where two matrices meet.
type Tiles = [[[f32; ROWS]; TOKEN_BLOCK]; 2];

/// The CPU as a device: threads that compute, and their instruction set.
#[derive(Debug)]
pub struct Device {
    pub(super) pool: Pool,
    pub(super) isa: Isa,
}

/// A matrix to multiply by, and the place of its results.
#[derive(Debug)]
pub struct Projection<'a> {
    pub weight: PackedMatrix<'a>,
    pub bias: Option<&'a [f32]>,
    /// Column of the output rows at which this matrix' results start.
    pub column: usize,
}

/// The end of a product: its results replace what is there, or are added to it (the residual
/// stream).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    Store,
    Add,
}

impl Device {
    /// Starts the threads, the caller's counted too; `None` means all cores.
    ///
    /// # Errors
    /// When they cannot be had.
    pub fn open(threads: Option<u32>, isa: Isa) -> Result<Self, Fault> {
        let all_cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.map_or_else(all_cores, |threads| threads.max(1) as usize);
        let pool = Pool::new(threads).map_err(|error| Fault::Io {
            message: format!("starting {threads} threads: {error}"),
        })?;
        Ok(Self { pool, isa })
    }

    /// Runs `each` for every token: on this thread when there are fewer than `few`, for which a
    /// job would cost more than the work it shares.
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

    /// Brings rows into the form that `weights` read.
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

    /// Every projection of `x`, into rows that fill `out`.
    pub fn project(
        &self,
        x: &Activations<'_>,
        tokens: usize,
        projections: &[Projection<'_>],
        out: &mut [f32],
        epilogue: Epilogue,
    ) {
        let width = out.len() / tokens;
        let starts = starts(projections.iter().map(|p| p.weight.shape().groups()));
        let (isa, out) = (self.isa, Disjoint::new(out));
        self.over_groups(
            starts[projections.len()],
            tokens,
            &|group, token, count, tiles| {
                let index = starts.partition_point(|&start| start <= group) - 1;
                let Projection {
                    weight,
                    bias,
                    column,
                } = &projections[index];
                let group = group - starts[index];
                let tile = &mut tiles[0][..count];
                matmul_group(isa, weight, group, x, token, tile);
                let first = group * ROWS;
                let rows = ROWS.min(weight.shape().rows - first);
                for (t, sums) in tile.iter_mut().enumerate() {
                    if let Some(bias) = bias {
                        add(sums, &bias[first..first + rows]);
                    }
                    // SAFETY: these rows of this token are written by this group alone.
                    let out = unsafe { out.part((token + t) * width + column + first, rows) };
                    match epilogue {
                        Epilogue::Store => store(out, sums),
                        Epilogue::Add => add(out, sums),
                    }
                }
            },
        );
    }

    /// `activation(gate x) * (up x)`; both matrices have the same shape.
    pub fn gate_up(
        &self,
        activation: Activation,
        x: &Activations<'_>,
        tokens: usize,
        [gate, up]: &[Projection<'_>; 2],
        out: &mut [f32],
    ) {
        let width = gate.weight.shape().rows;
        let (isa, out) = (self.isa, Disjoint::new(out));
        self.over_groups(
            gate.weight.shape().groups(),
            tokens,
            &|group, token, count, tiles| {
                let first = group * ROWS;
                let rows = ROWS.min(width - first);
                for (tile, part) in tiles.iter_mut().zip([gate, up]) {
                    matmul_group(isa, &part.weight, group, x, token, &mut tile[..count]);
                    if let Some(bias) = part.bias {
                        tile[..count]
                            .iter_mut()
                            .for_each(|sums| add(sums, &bias[first..]));
                    }
                }
                let [gate, up] = tiles;
                glu(activation, isa, &mut gate[..count], &up[..count]);
                for (t, values) in gate[..count].iter().enumerate() {
                    // SAFETY: these rows of this token are written by this group alone.
                    let out = unsafe { out.part((token + t) * width + first, rows) };
                    store(out, values);
                }
            },
        );
    }

    /// `each(group, first token, tokens, room)` over all groups and blocks of tokens.
    fn over_groups(
        &self,
        groups: usize,
        tokens: usize,
        each: &(dyn Fn(usize, usize, usize, &mut Tiles) + Sync),
    ) {
        let run = groups
            .div_ceil(ITEMS_PER_THREAD * self.pool.threads())
            .max(1);
        self.pool.run(groups.div_ceil(run), &|item| {
            // Zeroed once an item: a group of one token takes hardly longer than zeroing this.
            let mut tiles = [[[0.0; ROWS]; TOKEN_BLOCK]; 2];
            let groups: Range<usize> = item * run..groups.min((item + 1) * run);
            for token in (0..tokens).step_by(TOKEN_BLOCK) {
                for group in groups.clone() {
                    each(group, token, TOKEN_BLOCK.min(tokens - token), &mut tiles);
                }
            }
        });
    }
}

/// Starts of several lengths that are laid end to end, and the end of the last.
fn starts(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + length);
    }
    starts
}

/// Adds as far as the shorter reaches (a bias ends with its matrix, a group may not).
fn add(out: &mut [f32], values: &[f32]) {
    for (out, &value) in out.iter_mut().zip(values) {
        *out += value;
    }
}

/// The first of eight values, as many as `out` takes: nearly always all, in one move.
fn store(out: &mut [f32], values: &[f32; ROWS]) {
    match <&mut [f32; ROWS]>::try_from(&mut *out) {
        Ok(out) => *out = *values,
        Err(_) => out.copy_from_slice(&values[..out.len()]),
    }
}
