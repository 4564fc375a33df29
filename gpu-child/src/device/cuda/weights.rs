//! Packed matrices on the device, and their shapes by `kernels/cuda/weights.cuh`.

use super::headers::constant;
use super::kernels::Part;
use super::memory::{Arena, DevicePtr};
use super::mixers::PlacedTables;
use crate::model::{self, ModelWeights};
use worker_orcd_ipc::WeightsManifest;
use worker_orcd_kernels::TensorType;

/// Columns of a unit: what a warp multiplies at a time.
pub const UNIT: usize = constant!("common.cuh", UNIT);
/// Weight rows of a tile.
pub const TILE_ROWS: usize = constant!("common.cuh", TILE_N);
const MAX_SEGMENTS: usize = constant!("common.cuh", MAX_SEGMENTS);
const LONG_SEGMENT: usize = constant!("common.cuh", LONG_SEGMENT);

/// Whole units that hold `cols` columns.
#[must_use]
pub fn units(cols: usize) -> usize {
    cols.div_ceil(UNIT)
}

/// Number of segments of a row of `units`, each with its own accumulators.
#[must_use]
pub fn segments(units: usize) -> usize {
    let length = match units.div_ceil(MAX_SEGMENTS) {
        1 => 1,
        length => length.max(LONG_SEGMENT),
    };
    units.div_ceil(length)
}

/// Bytes of 8 rows of one unit.
#[must_use]
pub fn unit_bytes(ty: TensorType) -> usize {
    match ty {
        TensorType::F32 => 4096,
        TensorType::F16 | TensorType::BF16 => 2048,
        TensorType::Q8_0 => 1088,
        TensorType::Q4_0 | TensorType::IQ4_NL => 576,
        TensorType::Q4_1 | TensorType::Q4_K => 640,
        TensorType::Q5_0 => 704,
        TensorType::Q5_1 | TensorType::Q5_K => 768,
        TensorType::Q6_K => 848,
        TensorType::Q2_K => 352,
        TensorType::IQ4_XS
        | TensorType::Q3_K
        | TensorType::IQ3_S
        | TensorType::IQ3_XXS
        | TensorType::IQ2_S
        | TensorType::IQ2_XS
        | TensorType::IQ2_XXS => 608,
        TensorType::MXFP4 => 544,
    }
}

/// Bits per weight on a device, with its part of the scales.
#[must_use]
pub fn bits_a_weight(ty: TensorType) -> f64 {
    const WEIGHTS: usize = UNIT * 8;
    (unit_bytes(ty) * 8) as f64 / WEIGHTS as f64
}

/// Type of the packed matrix: packing converts BF16 to F16, multiplies the scales of Q4_K and Q5_K out, and gives types
/// with scales of 16 columns and a table of sixteen values one format.
#[must_use]
pub fn multiplied_as(ty: TensorType) -> TensorType {
    match ty {
        TensorType::BF16 => TensorType::F16,
        TensorType::Q4_K => TensorType::Q4_1,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q3_K
        | TensorType::IQ3_S
        | TensorType::IQ3_XXS
        | TensorType::IQ2_S
        | TensorType::IQ2_XS
        | TensorType::IQ2_XXS => TensorType::IQ4_XS,
        ty => ty,
    }
}

/// A matrix's place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    pub ty: TensorType,
    pub rows: usize,
    pub cols: usize,
    pub offset: u64,
}

impl Matrix {
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        units(self.cols) * unit_bytes(self.ty)
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.tiles() * self.tile_bytes()) as u64
    }
}

/// F32 values in the arena: a norm or a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vector {
    pub len: usize,
    pub offset: u64,
}

pub type Linear = model::Linear<Matrix, Vector>;
pub type Layer = model::Layer<Matrix, Vector>;
pub type MixerBlock = model::Block<Vector, model::Mixer<Matrix, Vector>>;
pub type FeedForwardBlock = model::Block<Vector, model::FeedForward<Matrix, Vector>>;
pub type LayerInput = model::LayerInput<Matrix, Vector>;
pub type GatedUnit = model::GatedUnit<Matrix, Vector>;
pub type Experts = model::Experts<Matrix, Vector>;

#[derive(Debug)]
pub struct Weights {
    pub arena: Arena,
    pub tensors: ModelWeights<Matrix, Vector>,
    pub manifest: WeightsManifest,
    pub tables: PlacedTables,
}

impl Weights {
    #[must_use]
    pub fn matrix(&self, matrix: &Matrix) -> DevicePtr<u8> {
        self.arena.at(matrix.offset, matrix.bytes() as usize)
    }

    #[must_use]
    pub fn vector(&self, vector: &Vector) -> DevicePtr<f32> {
        self.arena.at(vector.offset, vector.len)
    }

    #[must_use]
    pub fn optional_vector(&self, vector: Option<&Vector>) -> DevicePtr<f32> {
        vector.map_or(DevicePtr::NULL, |vector| self.vector(vector))
    }

    /// The kernels' view of a matrix with outputs from `column` on.
    #[must_use]
    pub fn part(&self, linear: &Linear, column: usize) -> Part {
        Part {
            weight: self.matrix(&linear.weight),
            bias: self.optional_vector(linear.bias.as_ref()),
            rows: linear.weight.rows as i32,
            tiles: linear.weight.tiles() as i32,
            column: column as i32,
            ty: multiplied_as(linear.weight.ty) as i32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_all_units_and_none_is_empty() {
        for units in 1..600_usize {
            let count = segments(units);
            assert!((1..=MAX_SEGMENTS).contains(&count), "{units}");
            // Segment s is the units s, s + count, s + 2 count, and so on.
            assert!(count <= units, "{units}");
            assert!(
                units <= MAX_SEGMENTS || units / count >= LONG_SEGMENT - 1,
                "{units}"
            );
        }
    }

    #[test]
    fn planes_are_read_in_aligned_pieces_of_sixteen_bytes() {
        for ty in TensorType::ALL {
            assert!(unit_bytes(ty).is_multiple_of(16), "{ty:?}");
        }
    }
}
