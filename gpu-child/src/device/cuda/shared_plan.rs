//! Shared memory of a block of `decode_step.cu`, divided among inputs, sums, the table of layers
//! and the ring of weights.

use super::attention::plan::SPLIT;
use super::decode_step::{HeadNorms, StepLayer};
use super::headers::{constant, layout};
use super::weights::{UNIT, unit_bytes, units};
use crate::model::ModelConfig;
use worker_orcd_kernels::TensorType;

/// Maximum number of units of a tile in one piece.
const PIECE_UNITS: usize = constant!("step_plan.cuh", PIECE_UNITS);
/// Tiles in one piece.
const PIECE_TILES: usize = 2;
/// Bytes of a piece, unless one unit of each tile is more. Larger pieces are fewer, which costs the producer
/// less; but a slot is freed as a whole.
const MOST_PIECE_BYTES: usize = 16 << 10;
const MAX_SLOTS: usize = constant!("ring.cuh", MAX_SLOTS);
/// Slots of the shortest ring in which some copies are in flight while others are multiplied.
const MIN_SLOTS: usize = 6;
/// Bytes of partial sums, enough for two tiles of any shape. The warps synchronize whenever the sums
/// are full; these hold all of a block's tiles of gate and up in the shapes of Qwen2.5-7B.
pub const SUMS_BYTES: usize = 18 << 10;
/// Bytes of weights that a block has in flight. More would queue, and delay the small reads of
/// exchanges (`bench/results/cuda.md`).
const WINDOW_BYTES: usize = 48 << 10;
/// Splits that a team computes before several blocks share a pair, at the cost of one more exchange.
const MAX_KEPT_SPLITS: usize = 2;
/// Static shared memory of the kernels, and a reserve for NVIDIA's driver.
pub const STATIC_SHARED_BYTES: usize = 6 << 10;
/// Block that computes attention: bytes of its tables, maximum of teams and of heads per group, memory of
/// a team besides the pages of a split, and padding in halves between two queries.
const ROW_TABLES_BYTES: usize = constant!("step_attention.cuh", ROW_TABLES_BYTES);
const MAX_TEAMS: usize = constant!("step_split.cuh", MAX_TEAMS);
const MAX_GROUP: usize = constant!("step_split.cuh", TEAM_ROWS);
const EXPONENTIALS_BYTES: usize = constant!("step_split.cuh", EXPONENTIALS_BYTES);
const QUERY_GAP: usize = constant!("step_split.cuh", QUERY_GAP);

layout! {
    /// Offsets of the parts of a block's shared memory, in bytes.
    #[derive(PartialEq, Eq)]
    pub struct SharedPlan in "step_plan.cuh" {
        slot_bytes: i32,
        slots: i32,
        sums_bytes: i32,
        inputs_at: i32,
        norm_at: i32,
        sums_at: i32,
        layers_at: i32,
        ring_at: i32,
        piece_units: i32,
        window: i32,
        pub teams: i32,
        pub kept_splits: i32,
    }
}

/// Bytes per unit of a model's types.
#[derive(Debug, Clone, Copy)]
pub struct UnitBytes {
    pub largest: usize,
    /// Mean over all units of all matrices.
    pub mean: usize,
}

impl SharedPlan {
    /// Plan for a model and a number of rows; `None` if the ring would be too short.
    #[must_use]
    pub fn of(
        config: &ModelConfig,
        rows: usize,
        of_units: UnitBytes,
        available: usize,
    ) -> Option<Self> {
        let q_width = config.n_heads * config.head_dim;
        let (n_ff, used) = match &config.experts {
            None => (config.n_ff, 1),
            Some(experts) => (experts.n_ff, experts.used),
        };
        let widest = config.n_embd.max(used * units(n_ff) * UNIT).max(q_width);
        let mut end = 0;
        let mut place = |bytes: usize| {
            let at = end;
            end = (at + bytes).next_multiple_of(128);
            at as i32
        };
        let inputs_at = place(rows * (units(widest) * 2 * UNIT + 64));
        let norm_at = place(config.n_embd * size_of::<f32>());
        let sums_at = place(SUMS_BYTES);
        let layers_at = place(config.n_layers * size_of::<StepLayer>());
        let ring_at = place(0);
        let left = available.checked_sub(STATIC_SHARED_BYTES + ring_at as usize)?;
        // A router is F32, and a piece of it one unit of each tile.
        let least = match config.experts {
            None => 0,
            Some(_) => PIECE_TILES * unit_bytes(TensorType::F32),
        };
        let pieces = Pieces::of([config.n_embd, q_width, n_ff], of_units, least, left)?;
        let (teams, kept_splits) = attention(config, available - STATIC_SHARED_BYTES)?;
        Some(Self {
            slot_bytes: pieces.slot_bytes as i32,
            slots: pieces.slots as i32,
            sums_bytes: SUMS_BYTES as i32,
            inputs_at,
            norm_at,
            sums_at,
            layers_at,
            ring_at,
            piece_units: pieces.units as i32,
            window: pieces.window as i32,
            teams: teams as i32,
            kept_splits: kept_splits as i32,
        })
    }
}

/// Division of a ring.
struct Pieces {
    /// Maximum number of units of a tile.
    units: usize,
    slot_bytes: usize,
    slots: usize,
    window: usize,
}

impl Pieces {
    /// The largest pieces of rows of these widths that leave the ring enough slots of `least_bytes` or more.
    fn of(
        widths: [usize; 3],
        unit_bytes: UnitBytes,
        least_bytes: usize,
        left: usize,
    ) -> Option<Self> {
        let most = MOST_PIECE_BYTES / (PIECE_TILES * unit_bytes.largest);
        let most = most.clamp(1, PIECE_UNITS);
        let least = most.min(PIECE_UNITS / PIECE_TILES);
        (least..=most).rev().find_map(|units_of_piece| {
            let even =
                widths.map(|cols| units(cols).div_ceil(units(cols).div_ceil(units_of_piece)));
            let both = PIECE_TILES * even.into_iter().max().unwrap_or(0);
            let slot_bytes = (both * unit_bytes.largest)
                .max(least_bytes)
                .next_multiple_of(128);
            let slots = (left / slot_bytes).min(MAX_SLOTS);
            let window = WINDOW_BYTES.div_ceil(both * unit_bytes.mean);
            (slots >= MIN_SLOTS).then(|| Self {
                units: units_of_piece,
                slot_bytes,
                slots,
                window: window.clamp(2, slots),
            })
        })
    }
}

/// Teams of a block that computes attention, and splits of a pair with room for partial results besides the
/// pages that they read. Of the other blocks' shared memory it needs only the table of
/// layers, and of that only the norms of heads where the kernel is compact.
fn attention(config: &ModelConfig, available: usize) -> Option<(usize, usize)> {
    let (group, head_dim) = (config.n_heads / config.n_kv_heads, config.head_dim);
    let of_layer = match config.experts {
        None => size_of::<StepLayer>(),
        Some(_) => size_of::<HeadNorms>(),
    };
    let layers = (config.n_layers * of_layer).next_multiple_of(128);
    let heads = (group + 2) * head_dim * size_of::<f32>();
    let queries = group * (head_dim + QUERY_GAP) * size_of::<u16>();
    let left = available.checked_sub(layers + ROW_TABLES_BYTES + heads + queries)?;
    let pages = 2 * SPLIT * head_dim * size_of::<u16>();
    // Exponentials reuse a page's keys if those are long enough.
    let over_keys = pages / 8 >= EXPONENTIALS_BYTES;
    let team = pages + if over_keys { 0 } else { EXPONENTIALS_BYTES };
    let teams = (left / team).min(MAX_TEAMS);
    let kept_splits = (left - teams * team) / (group * (head_dim + 2) * size_of::<f32>());
    (group <= MAX_GROUP && teams > 0).then_some((teams, kept_splits.min(MAX_KEPT_SPLITS * teams)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Architecture, ExpertsConfig, Positions};
    use worker_orcd_kernels::Activation;
    use worker_orcd_kernels::reference::rope::{Rope, RopePairs};

    /// Shared memory that an H200 gives to a block.
    const AVAILABLE: usize = 227 << 10;
    const F16: UnitBytes = UnitBytes {
        largest: 2048,
        mean: 2048,
    };

    fn config(n_embd: usize, n_ff: usize, n_heads: usize, head_dim: usize) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Qwen2,
            n_layers: 28,
            n_mtp_layers: 0,
            n_embd,
            n_ff,
            ff_widths: None,
            feed_forward_layers: None,
            experts: None,
            n_heads,
            n_kv_heads: 2,
            head_dim,
            vocab_size: 1000,
            context_length: 32_768,
            norm_eps: 1e-6,
            rope: Rope {
                pairs: RopePairs::HalfOffset,
                dims: head_dim,
                base: 1e6,
                scale: 1.0,
                factors: None,
                attn_factor: 1.0,
            },
            activation: Activation::Silu,
            positions: Positions::default(),
            attention_scale: 0.1,
            embedding_scale: 1.0,
            has_joint_norms: false,
            has_sinks: false,
            gates_attention: false,
            recurrent: None,
            sliding_heads: None,
            normalizes_values: false,
            logit_scale: 1.0,
            logit_cap: None,
            shared_kv_layers: 0,
            layer_input: None,
        }
    }

    #[test]
    fn what_shares_a_blocks_memory_fits_and_does_not_overlap() {
        let small = config(128, 1024, 2, 64);
        let half_billion = config(896, 4864, 14, 64);
        let seven_billion = config(3584, 18_944, 28, 128);
        for config in [&small, &half_billion, &seven_billion] {
            let inputs = 2 * config.n_ff + 64;
            for (largest, mean, rows) in [(2048, 2048, 1), (848, 640, 1), (576, 576, 2)] {
                let unit_bytes = UnitBytes { largest, mean };
                let shared = SharedPlan::of(config, rows, unit_bytes, AVAILABLE).expect("it fits");
                let ends = [
                    shared.inputs_at + (rows * inputs) as i32,
                    shared.norm_at + 4 * config.n_embd as i32,
                    shared.sums_at + shared.sums_bytes,
                    shared.layers_at + (config.n_layers * size_of::<StepLayer>()) as i32,
                ];
                let begins = [
                    shared.norm_at,
                    shared.sums_at,
                    shared.layers_at,
                    shared.ring_at,
                ];
                assert!(ends.iter().zip(begins).all(|(end, begin)| *end <= begin));
                let end = (shared.ring_at + shared.slots * shared.slot_bytes) as usize;
                assert!(end + STATIC_SHARED_BYTES <= AVAILABLE);
                // A piece that the producer waits for must still be in the ring.
                assert!(shared.window <= shared.slots, "{shared:?}");
                assert!(shared.piece_units as usize <= PIECE_UNITS, "{shared:?}");
            }
        }
    }

    #[test]
    fn pieces_are_small_where_the_ring_is() {
        let config = config(3584, 18_944, 28, 128);
        let q4_k = UnitBytes {
            largest: 640,
            mean: 640,
        };
        let pieces = |rows, unit_bytes| {
            let shared = SharedPlan::of(&config, rows, unit_bytes, AVAILABLE)?;
            Some((shared.piece_units, shared.slots, shared.window))
        };
        assert_eq!(pieces(1, F16), Some((4, 9, 3)));
        assert_eq!(pieces(1, q4_k), Some((8, 14, 5)));
        assert_eq!(pieces(4, q4_k), Some((4, 6, 6)));
        assert_eq!(pieces(4, F16), None);
    }

    #[test]
    fn inputs_of_all_chosen_experts_pieces_of_a_router_and_splits_fit() {
        let experts = ExpertsConfig::plain(128, 8, 768);
        let config = ModelConfig {
            experts: Some(experts),
            n_layers: 48,
            n_mtp_layers: 0,
            n_kv_heads: 4,
            ..config(2048, 6144, 32, 128)
        };
        for (largest, mean) in [(848, 640), (608, 608), (576, 576)] {
            let shared = SharedPlan::of(&config, 1, UnitBytes { largest, mean }, AVAILABLE);
            let shared = shared.expect("it fits");
            assert!(
                shared.norm_at - shared.inputs_at >= 8 * 768 * 2,
                "{shared:?}"
            );
            assert!(shared.slot_bytes >= 2 * 4096, "{shared:?}");
            assert!(shared.slots as usize >= MIN_SLOTS, "{shared:?}");
            assert_eq!((shared.teams, shared.kept_splits), (3, 4));
        }
    }

    #[test]
    fn a_block_has_room_for_splits_of_attention() {
        let teams = |config: &ModelConfig| {
            let shared = SharedPlan::of(config, 1, F16, AVAILABLE).expect("it fits");
            (shared.teams, shared.kept_splits)
        };
        assert_eq!(teams(&config(896, 4864, 14, 64)), (4, 8));
        assert_eq!(teams(&config(3584, 18_944, 14, 128)), (3, 3));
        // More heads in a group than rows in a step of the tensor core.
        let crowd = config(3584, 4096, 34, 64);
        assert_eq!(SharedPlan::of(&crowd, 1, F16, AVAILABLE), None);
    }

    #[test]
    fn rows_too_wide_for_a_ring_beside_them_are_left_to_other_kernels() {
        let wide = config(8192, 98_304, 64, 128);
        assert_eq!(SharedPlan::of(&wide, 1, F16, AVAILABLE), None);
    }
}
