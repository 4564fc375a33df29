//! Ways to multiply a batch's rows by their experts, and the grouping of rows in each.

use super::experts_wide::{self, PLACE_GROUP};
use super::headers::constant;
use worker_orcd_kernels::TensorType;

const WALK_ROWS: usize = constant!("experts_walk.cu", WALK_ROWS);
pub const MANY_ROWS: usize = constant!("experts_many.cu", EXPERTS_ROWS);

/// Rows of the largest block of `experts_wide.cu` that writes inputs of the next product.
const BOUNDED_ROWS: usize = 64;

/// Way to multiply a batch's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each row by its own experts: `experts_row.cu`.
    Row,
    /// Each expert by its rows, sixteen at a time: `experts_walk.cu`.
    Walk,
    /// The same for experts with many rows: `experts_many.cu`.
    Many,
    /// The same on Hopper, by a block of [`experts_wide::BLOCKS`]: `experts_wide.cu`.
    Wide(usize),
}

impl Way {
    /// Maximum number of rows of a share.
    #[must_use]
    pub fn share_rows(self) -> usize {
        match self {
            Self::Row => 1,
            Self::Walk => WALK_ROWS,
            Self::Many => MANY_ROWS,
            Self::Wide(block) => experts_wide::BLOCKS[block].rows,
        }
    }

    /// Alignment of an expert's first place.
    #[must_use]
    pub fn place_group(self) -> usize {
        match self {
            Self::Row | Self::Walk | Self::Many => 1,
            Self::Wide(_) => PLACE_GROUP,
        }
    }

    /// Outputs of a clamped unit with weights of this type are written as inputs of the next product.
    #[must_use]
    pub fn is_bounded(self, ty: TensorType) -> bool {
        match self {
            Self::Row | Self::Walk | Self::Many => false,
            Self::Wide(block) => {
                ty == TensorType::MXFP4 && experts_wide::BLOCKS[block].rows <= BOUNDED_ROWS
            }
        }
    }

    /// Maximum number of places for `pairs` pairs and `experts` experts.
    #[must_use]
    pub fn places(self, pairs: usize, experts: usize) -> usize {
        match self {
            Self::Row | Self::Walk | Self::Many => pairs,
            Self::Wide(_) => experts_wide::most_places(pairs, experts),
        }
    }
}
