//! Division of a product among the blocks of `matmul_wgmma.cu`.
//!
//! A block has so many warpgroups (64 weight rows each) and so many rows of activations; blocks
//! walk tiles, or the blocks of a cluster share the segments of one tile. Which of it is fastest
//! depends on the shape, and is estimated from what was measured on an H200; the bits are the same.

use super::headers::constant;
use super::weights::{TILE_ROWS, UNIT, segments, unit_bytes};
use worker_orcd_kernels::TensorType;

/// Weight rows of a warpgroup.
const GROUP_ROWS: usize = 64;
const MAX_STAGES: usize = constant!("matmul_wgmma.cu", MAX_STAGES);
/// Blocks of a cluster that every device has room for.
const MAX_CLUSTER: usize = 8;
/// Fewer, and a block waits for every unit that it multiplies.
const MIN_STAGES: usize = 2;
/// Bytes of a warp's sums of eight rows in a cluster.
const PIECE_BYTES: usize = 512;

/// The block that a kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    pub warpgroups: usize,
    pub rows: usize,
    /// Blocks whose registers fit a multiprocessor together.
    pub together: usize,
    /// Factor of its time in estimates.
    price: f64,
}

const fn block(warpgroups: usize, rows: usize, together: usize, price: f64) -> Block {
    Block {
        warpgroups,
        rows,
        together,
        price,
    }
}

/// `MATMUL_WIDE` in `matmul_wgmma.cu`.
pub const BLOCKS: [Block; 5] = [
    block(1, 16, 3, 0.81),
    block(1, 32, 3, 0.86),
    block(1, 64, 2, 1.0),
    block(2, 64, 1, 1.26),
    block(2, 128, 1, 0.8),
];

impl Block {
    /// The warpgroups', and those of the warp that copies; in the largest block of a warpgroup that
    /// gives the others its registers.
    #[must_use]
    pub fn threads(&self) -> u32 {
        let is_large = (self.warpgroups, self.rows) == (2, 128);
        (self.warpgroups * 128 + if is_large { 128 } else { 32 }) as u32
    }

    fn tiles(&self) -> usize {
        self.warpgroups * GROUP_ROWS / TILE_ROWS
    }

    fn stage_bytes(&self, ty: TensorType) -> usize {
        self.rows * UNIT * 2 + self.tiles() * unit_bytes(ty)
    }

    /// Pieces of eight rows that its warps have of a segment.
    fn pieces(&self) -> usize {
        self.warpgroups * 4 * self.rows / 8
    }
}

/// A product: tiles of each weight, units of k, rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    pub ty: TensorType,
    pub tiles: &'a [usize],
    pub units: usize,
    pub rows: usize,
    /// Two weights, taken as one with twice the tiles.
    pub paired: bool,
}

impl Product<'_> {
    /// Blocks that it takes without clusters.
    fn blocks(&self, block: &Block) -> usize {
        let weights: usize = if self.paired {
            (2 * self.tiles[0]).div_ceil(block.tiles())
        } else {
            let of = |tiles: &usize| tiles.div_ceil(block.tiles());
            self.tiles.iter().map(of).sum()
        };
        weights * self.rows.div_ceil(block.rows)
    }
}

/// A device's multiprocessors, and the shared memory of each that blocks may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    pub multiprocessors: usize,
    pub shared_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Index into [`BLOCKS`].
    pub block: usize,
    pub cluster: usize,
    pub blocks: usize,
    pub stages: usize,
    /// Offset of the cluster's sums of segments in shared memory, behind the stages.
    pub cluster_sums: usize,
    pub shared_bytes: usize,
}

/// The tiling that is estimated to take the least time.
///
/// # Panics
/// When there is no room for two stages of the smallest block: no such device has `wgmma`.
#[must_use]
pub fn tiling(product: &Product<'_>, capacity: Capacity) -> Tiling {
    let clusters = 1..=MAX_CLUSTER.min(segments(product.units));
    (0..BLOCKS.len())
        .flat_map(|block| clusters.clone().map(move |cluster| (block, cluster)))
        .flat_map(|(block, cluster)| tilings(product, capacity, block, cluster))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, tiling)| tiling)
        .expect("room for two stages of the smallest block")
}

/// Tilings and their nanoseconds, for each number of blocks that may share a multiprocessor.
fn tilings(
    product: &Product<'_>,
    capacity: Capacity,
    index: usize,
    cluster: usize,
) -> impl Iterator<Item = (f64, Tiling)> {
    let together = if cluster == 1 {
        BLOCKS[index].together
    } else {
        1
    };
    (1..=together)
        .filter_map(move |together| tiling_of(product, capacity, index, cluster, together))
}

fn tiling_of(
    product: &Product<'_>,
    capacity: Capacity,
    index: usize,
    cluster: usize,
    together: usize,
) -> Option<(f64, Tiling)> {
    let block = BLOCKS[index];
    let tiles = product.blocks(&block);
    let slots = capacity.multiprocessors * together;
    let n_segments = segments(product.units);
    let length = product.units.div_ceil(n_segments);
    let units = (n_segments.div_ceil(cluster) * length).min(product.units);
    let stage = block.stage_bytes(product.ty);
    let cluster_sums = match cluster {
        1 => 0,
        _ => n_segments * block.pieces().div_ceil(cluster) * PIECE_BYTES,
    };
    let left = (capacity.shared_bytes / together).checked_sub(cluster_sums)?;
    let rounds = (tiles * cluster).div_ceil(slots);
    // With one tile a block there is nothing to fetch behind its units.
    let useful = if rounds == 1 { units } else { MAX_STAGES };
    let stages = (left / stage).min(MAX_STAGES).min(useful);
    if stages < MIN_STAGES.min(units) || (cluster > 1 && rounds > 2) {
        return None;
    }
    let tiling = Tiling {
        block: index,
        cluster,
        blocks: if cluster == 1 {
            tiles.min(slots)
        } else {
            tiles * cluster
        },
        stages,
        cluster_sums: stages * stage,
        shared_bytes: stages * stage + cluster_sums,
    };
    let estimate = Estimate {
        rounds,
        units,
        beside: together.min((tiles * cluster).div_ceil(capacity.multiprocessors)),
        stages,
        cluster_sums,
    };
    Some((estimate.nanoseconds(&block), tiling))
}

/// The work of one multiprocessor, and the time that it takes.
struct Estimate {
    rounds: usize,
    units: usize,
    /// Blocks at the same time.
    beside: usize,
    stages: usize,
    cluster_sums: usize,
}

impl Estimate {
    /// Fitted to times of single products on an H200, by a harness that is not kept. Only the order
    /// of such estimates means anything, and a wrong one costs time, not bits.
    fn nanoseconds(&self, block: &Block) -> f64 {
        let beside = self.beside as f64;
        let outputs = (block.warpgroups * GROUP_ROWS * block.rows) as f64;
        let products = outputs * beside / 90.0;
        let unit = 175.0 + products.max(195.0 / self.stages as f64);
        // What is added and written behind the last unit, and a cluster's exchange.
        let ends = 610.0 + outputs * beside / 29.0;
        let cluster_sums = if self.cluster_sums == 0 { 0.0 } else { 680.0 };
        block.price * self.rounds as f64 * (self.units as f64 * unit + ends + cluster_sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Capacity = Capacity {
        multiprocessors: 132,
        shared_bytes: 225 << 10,
    };

    #[test]
    fn whatever_the_shape_a_way_is_found_that_fits() {
        for ty in TensorType::ALL {
            for units in [1, 2, 5, 7, 16, 17, 28, 38, 148] {
                for rows in [1, 16, 17, 64, 100, 256, 1024] {
                    for tiles in [vec![1], vec![112, 16, 16], vec![608, 608], vec![18_992]] {
                        let product = Product {
                            ty,
                            tiles: &tiles,
                            units,
                            rows,
                            paired: tiles.len() == 2,
                        };
                        let tiling = tiling(&product, H200);
                        assert!(tiling.shared_bytes <= H200.shared_bytes, "{product:?}");
                        assert!(tiling.cluster <= segments(units), "{product:?}");
                        assert!(tiling.blocks.is_multiple_of(tiling.cluster), "{product:?}");
                        assert!((1..=MAX_STAGES).contains(&tiling.stages), "{product:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn few_weight_rows_are_shared_out_by_segments() {
        let product = Product {
            ty: TensorType::F16,
            tiles: &[112],
            units: 38,
            rows: 32,
            paired: false,
        };
        assert!(tiling(&product, H200).cluster > 1);
    }
}
