//! Division of a product among the blocks of `matmul_wgmma.cuh`.
//!
//! A block has a number of warpgroups (64 weight rows each) and of rows of activations; blocks
//! iterate over tiles, or the blocks of a cluster share the segments of one tile. The fastest tiling
//! depends on the shape, and is estimated from measurements; the bits are the same.

use super::headers::constant;
use super::weights::{TILE_ROWS, UNIT, segments, unit_bytes};
use worker_orcd_kernels::TensorType;

/// Weight rows of a warpgroup.
const GROUP_ROWS: usize = 64;
pub const MAX_STAGES: usize = constant!("matmul_wgmma.cuh", MAX_STAGES);
/// Maximum cluster size on every device.
const MAX_CLUSTER: usize = 8;
/// Minimum of stages: with fewer, a block waits for every unit.
const MIN_STAGES: usize = 3;
/// Slots in shared memory for boxes of weights from the copy engine, two for each unit.
const BOX_ALIGNMENT: usize = 128;
/// Eighths of all slots that blocks of clusters can take at once: those of a cluster run on neighbouring
/// multiprocessors.
const CLUSTER_EIGHTHS: usize = 7;
/// Shared memory of a block besides stages and sums: NVIDIA's driver's, and barriers.
const BLOCK_BYTES: usize = (1 << 10) + 256;
/// Bytes of a warp's sums of eight rows in a cluster.
const PIECE_BYTES: usize = 512;

/// Block shape that a kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    pub warpgroups: usize,
    pub rows: usize,
    /// Blocks per multiprocessor within its registers.
    pub together: usize,
    /// Types that it multiplies.
    weights: BlockWeights,
    /// Estimated time of a unit in nanoseconds, independent of its bytes.
    unit: f64,
    /// Estimated nanoseconds in which a multiprocessor converts a unit of weights to F16.
    conversion: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockWeights {
    All,
    Floats,
    Quantized,
}

pub const fn block(warpgroups: usize, rows: usize, together: usize, unit: f64) -> Block {
    Block {
        warpgroups,
        rows,
        together,
        weights: BlockWeights::All,
        unit,
        conversion: 280.0 * warpgroups as f64,
    }
}

/// A block of one warpgroup whose warps multiply on their own (`matmul_warps.cuh`).
const fn warps(rows: usize, together: usize, unit: f64, conversion: f64) -> Block {
    Block {
        weights: BlockWeights::Quantized,
        conversion,
        ..block(1, rows, together, unit)
    }
}

/// `MATMUL_WARPS` and `MATMUL_WIDE` in `matmul_wide.cu`.
pub const BLOCKS: [Block; 8] = [
    warps(8, 5, 450.0, 180.0),
    warps(16, 5, 489.0, 230.0),
    warps(24, 4, 720.0, 250.0),
    Block {
        weights: BlockWeights::Floats,
        ..block(1, 16, 3, 489.0)
    },
    block(1, 32, 3, 483.0),
    block(1, 64, 2, 386.0),
    block(2, 64, 1, 468.0),
    block(2, 128, 1, 328.0),
];

impl Block {
    /// There is a kernel for packed weights of this type.
    #[must_use]
    pub fn multiplies(&self, ty: TensorType) -> bool {
        let is_float = matches!(ty, TensorType::F32 | TensorType::F16);
        match self.weights {
            BlockWeights::All => true,
            BlockWeights::Floats => is_float,
            BlockWeights::Quantized => !is_float,
        }
    }

    /// Name of the kernel for a type.
    #[must_use]
    pub fn kernel_name(&self, ty: TensorType) -> String {
        let kind = match self.weights {
            BlockWeights::Quantized => "warps",
            BlockWeights::All | BlockWeights::Floats => "wide",
        };
        let (name, groups, rows) = (ty.name(), self.warpgroups, self.rows);
        format!("matmul_{kind}_{name}_{groups}_{rows}")
    }

    /// Threads of the warpgroups and of the copying warp; large blocks have a copying warpgroup that
    /// cedes its registers to the others.
    #[must_use]
    pub fn threads(&self) -> u32 {
        let is_large = self.warpgroups > 1 && self.rows > 64;
        (self.warpgroups * 128 + if is_large { 128 } else { 32 }) as u32
    }

    #[must_use]
    pub fn tiles(&self) -> usize {
        self.warpgroups * GROUP_ROWS / TILE_ROWS
    }

    /// Bytes of a unit for a block, and of its rows.
    #[must_use]
    pub fn stage_bytes(&self, ty: TensorType) -> usize {
        let weights = (self.tiles() / 2 * unit_bytes(ty)).next_multiple_of(BOX_ALIGNMENT);
        self.rows * UNIT * size_of::<u16>() + 2 * weights
    }

    /// Dynamic shared memory of a block, for a unit with this number of rows.
    fn copied_bytes(&self, ty: TensorType, rows: usize, cluster: Cluster) -> usize {
        let weights = self.tiles() * unit_bytes(ty);
        let loads = match cluster {
            Cluster::Weights => weights / 2,
            Cluster::Alone | Cluster::Segments(_) => weights,
        };
        rows.next_multiple_of(8).min(self.rows) * UNIT * size_of::<u16>() + loads
    }

    /// Pieces of eight rows per segment of its warps.
    fn pieces(&self) -> usize {
        self.warpgroups * 4 * self.rows / 8
    }
}

/// Size of a product: tiles of each weight, units of k, rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    pub ty: TensorType,
    pub tiles: &'a [usize],
    pub units: usize,
    pub rows: usize,
    /// Two weights, handled as one with twice the tiles.
    pub paired: bool,
}

impl Product<'_> {
    /// Number of blocks without clusters.
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

/// Multiprocessors of a device, and shared memory: of each of them, and of a block at most.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    pub multiprocessors: usize,
    pub multiprocessor_bytes: usize,
    pub block_bytes: usize,
}

/// Work that the blocks of a cluster share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// One block.
    Alone,
    /// This number of blocks, each of which multiplies some of one tile's segments.
    Segments(usize),
    /// Two blocks multiply different rows by the same weights, and each loads half of these for both.
    Weights,
}

impl Cluster {
    #[must_use]
    pub fn blocks(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Segments(blocks) => blocks,
            Self::Weights => 2,
        }
    }

    /// Blocks that share a tile.
    fn split(self) -> usize {
        match self {
            Self::Segments(blocks) => blocks,
            Self::Alone | Self::Weights => 1,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Index into [`BLOCKS`].
    pub block: usize,
    pub cluster: Cluster,
    pub blocks: usize,
    pub stages: usize,
    /// Offset of the cluster's sums of segments in shared memory, after the stages.
    pub cluster_sums: usize,
    pub shared_bytes: usize,
}

/// The tiling with the lowest estimated time.
///
/// # Panics
/// If there is no room for three stages of the smallest block: no device with `wgmma` is that small.
#[must_use]
pub fn tiling(product: &Product<'_>, capacity: Capacity) -> Tiling {
    let splits = (2..=MAX_CLUSTER.min(segments(product.units))).map(Cluster::Segments);
    let clusters = [Cluster::Alone, Cluster::Weights].into_iter().chain(splits);
    (0..BLOCKS.len())
        .filter(|block| BLOCKS[*block].multiplies(product.ty))
        .flat_map(|block| clusters.clone().map(move |cluster| (block, cluster)))
        .flat_map(|(block, cluster)| tilings(product, capacity, block, cluster))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, tiling)| tiling)
        .expect("room for three stages of the smallest block")
}

/// Tilings and their nanoseconds, for each number of blocks per multiprocessor.
fn tilings(
    product: &Product<'_>,
    capacity: Capacity,
    index: usize,
    cluster: Cluster,
) -> impl Iterator<Item = (f64, Tiling)> {
    (1..=BLOCKS[index].together)
        .filter_map(move |together| tiling_of(product, capacity, index, cluster, together))
}

/// Tiling with these blocks, and its nanoseconds, if it has room.
pub fn tiling_of(
    product: &Product<'_>,
    capacity: Capacity,
    index: usize,
    cluster: Cluster,
    together: usize,
) -> Option<(f64, Tiling)> {
    let block = BLOCKS[index];
    let (tiles, split) = (product.blocks(&block), cluster.split());
    let row_blocks = product.rows.div_ceil(block.rows);
    if cluster == Cluster::Weights && row_blocks % 2 == 1 {
        return None;
    }
    // Several blocks of rows would unpack the same weights.
    if block.weights == BlockWeights::Quantized && row_blocks > 1 {
        return None;
    }
    let slots = capacity.multiprocessors * together;
    let n_segments = segments(product.units);
    let length = product.units.div_ceil(n_segments);
    let units = (n_segments.div_ceil(split) * length).min(product.units);
    let stage = block.stage_bytes(product.ty);
    let cluster_sums = match split {
        1 => 0,
        _ => n_segments * block.pieces().div_ceil(split) * PIECE_BYTES,
    };
    let share = capacity.multiprocessor_bytes / together - BLOCK_BYTES;
    let left = share.min(capacity.block_bytes) / BOX_ALIGNMENT * BOX_ALIGNMENT;
    let left = left.checked_sub(cluster_sums)?;
    let rounds = match split {
        1 => tiles.div_ceil(slots),
        _ => (tiles * split).div_ceil(slots * CLUSTER_EIGHTHS / 8),
    };
    // With one tile per block there is nothing to prefetch after its units.
    let useful = if rounds == 1 { units } else { MAX_STAGES };
    let stages = (left / stage).min(MAX_STAGES).min(useful);
    if stages < MIN_STAGES.min(units) || (split > 1 && rounds > 2) {
        return None;
    }
    let tiling = Tiling {
        block: index,
        cluster,
        blocks: match cluster {
            Cluster::Alone => tiles.min(slots),
            Cluster::Segments(split) => tiles * split,
            Cluster::Weights => tiles.min(slots & !1),
        },
        stages,
        cluster_sums: stages * stage,
        shared_bytes: stages * stage + cluster_sums,
    };
    let estimate = Estimate {
        rounds,
        units,
        beside: together.min((tiles * split).div_ceil(capacity.multiprocessors)),
        bytes: block.copied_bytes(product.ty, product.rows, cluster),
        unpacks: !matches!(product.ty, TensorType::F16 | TensorType::BF16),
        cluster,
    };
    Some((estimate.nanoseconds(&block), tiling))
}

/// Work of one multiprocessor, and its time.
struct Estimate {
    rounds: usize,
    units: usize,
    /// Concurrent blocks.
    beside: usize,
    /// Bytes copied per unit.
    bytes: usize,
    /// Weights are converted to F16 in the kernel.
    unpacks: bool,
    cluster: Cluster,
}

impl Estimate {
    /// Fitted to times of single products on an H100, and to steps on an H200 (`bench/results/cuda.md`). Only the order of the
    /// estimates matters, and a wrong one costs time, not bits.
    fn nanoseconds(&self, block: &Block) -> f64 {
        let (beside, units) = (self.beside as f64, self.units as f64);
        let outputs = (block.warpgroups * GROUP_ROWS * block.rows) as f64 * beside;
        let (unpacking, conversions) = match self.unpacks {
            // A multiprocessor converts the units of its blocks one after the other.
            true => (0.0338, block.conversion * beside),
            false => (0.0, 0.0),
        };
        // Bytes per nanosecond of a multiprocessor.
        let copies = self.bytes as f64 * beside / 74.8;
        let unit = (block.unit + outputs * unpacking).max(copies);
        // Epilogue after the last unit, and the exchange of a cluster.
        let ends = 280.0 + outputs * 0.38;
        let rounds = self.rounds as f64;
        match self.cluster {
            Cluster::Alone => rounds * (units * unit.max(conversions) + ends),
            Cluster::Weights => 283.0 + rounds * (units * unit.max(conversions) + ends),
            // Few units: others convert while a block begins, exchanges and ends.
            Cluster::Segments(_) => {
                rounds * (units * unit + ends + 1378.0).max(units * conversions)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Capacity = Capacity {
        multiprocessors: 132,
        multiprocessor_bytes: 228 << 10,
        block_bytes: 225 << 10,
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
                        assert!(tiling.shared_bytes <= H200.block_bytes, "{product:?}");
                        assert!(tiling.cluster.split() <= segments(units), "{product:?}");
                        let cluster = tiling.cluster.blocks();
                        assert!(tiling.blocks.is_multiple_of(cluster), "{product:?}");
                        assert!((1..=MAX_STAGES).contains(&tiling.stages), "{product:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_multiprocessor_has_room_for_the_blocks_that_an_estimate_counts() {
        for ty in TensorType::ALL {
            for (index, block) in BLOCKS.iter().enumerate() {
                for together in 1..=block.together {
                    let product = Product {
                        ty,
                        tiles: &[2368, 2368],
                        units: 28,
                        rows: 8,
                        paired: true,
                    };
                    let found = tiling_of(&product, H200, index, Cluster::Alone, together);
                    let bytes = found.map_or(0, |(_, tiling)| tiling.shared_bytes + BLOCK_BYTES);
                    assert!(together * bytes <= H200.multiprocessor_bytes, "{product:?}");
                }
            }
        }
    }

    #[test]
    fn blocks_that_share_a_small_weight_fill_the_multiprocessors() {
        // The feed-forward part's output in Qwen3.6-27B, and that of Qwen2.5-7B.
        for (tiles, units) in [(640, 136), (448, 148)] {
            for rows in [1, 8, 32] {
                let product = Product {
                    ty: TensorType::Q4_K,
                    tiles: &[tiles],
                    units,
                    rows,
                    paired: false,
                };
                let blocks = tiling(&product, H200).blocks;
                assert!(
                    blocks > H200.multiprocessors,
                    "{product:?}: {blocks} blocks"
                );
            }
        }
    }

    #[test]
    fn two_blocks_of_rows_load_weights_for_each_other_and_an_odd_one_has_none_to_share_with() {
        let cluster = |rows| {
            let product = Product {
                ty: TensorType::F16,
                tiles: &[448],
                units: 148,
                rows,
                paired: false,
            };
            let tiling = tiling(&product, H200);
            let row_blocks = usize::div_ceil(rows, BLOCKS[tiling.block].rows);
            (tiling.cluster, row_blocks % 2)
        };
        assert_eq!(cluster(256), (Cluster::Weights, 0));
        for rows in 1..=1024 {
            let (cluster, odd) = cluster(rows);
            assert!(cluster != Cluster::Weights || odd == 0, "{rows}");
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
        assert!(tiling(&product, H200).cluster.split() > 1);
    }
}
