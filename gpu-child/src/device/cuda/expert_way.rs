//! The ways to multiply a batch's rows by their experts, and how each lines the rows up.

use super::experts_wide::{self, PLACE_GROUP};
use super::headers::constant;
use worker_orcd_kernels::TensorType;

const WALK_ROWS: usize = constant!("experts_walk.cu", WALK_ROWS);
pub const MANY_ROWS: usize = constant!("experts_many.cu", EXPERTS_ROWS);

/// Rows of the largest block of `experts_wide.cu` that does so.
const BOUNDED_ROWS: usize = 64;

/// How a batch's rows are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each row by its own experts: `experts_row.cu`.
    Row,
    /// Each expert by its rows, sixteen at a time: `experts_walk.cu`.
    Walk,
    /// The same where it has many: `experts_many.cu`.
    Many,
    /// The same on Hopper, by a block of [`experts_wide::BLOCKS`]: `experts_wide.cu`.
    Wide(usize),
}

impl Way {
    /// Rows of a share, at most.
    #[must_use]
    pub fn share_rows(self) -> usize {
        match self {
            Self::Row => 1,
            Self::Walk => WALK_ROWS,
            Self::Many => MANY_ROWS,
            Self::Wide(block) => experts_wide::BLOCKS[block].rows,
        }
    }

    /// Places of an expert begin at a multiple of this.
    #[must_use]
    pub fn place_group(self) -> usize {
        match self {
            Self::Row | Self::Walk | Self::Many => 1,
            Self::Wide(_) => PLACE_GROUP,
        }
    }

    /// Outputs of a clamped unit of weights of this type are written as inputs of the next product.
    #[must_use]
    pub fn is_bounded(self, ty: TensorType) -> bool {
        match self {
            Self::Row | Self::Walk | Self::Many => false,
            Self::Wide(block) => {
                ty == TensorType::MXFP4 && experts_wide::BLOCKS[block].rows <= BOUNDED_ROWS
            }
        }
    }

    /// Places of so many pairs, at most, where `experts` may be chosen.
    #[must_use]
    pub fn places(self, pairs: usize, experts: usize) -> usize {
        match self {
            Self::Row | Self::Walk | Self::Many => pairs,
            Self::Wide(_) => experts_wide::most_places(pairs, experts),
        }
    }
}
