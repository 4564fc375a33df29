//! Tensor map of a weight for Hopper's copy engine: a tensor, and the box of one copy.
//!
//! A block of `matmul_wgmma.cuh` copies a unit of all its tiles in two operations: one operation per tile delayed the
//! tensor cores (`bench/results/cuda.md`).
//!
//! Source: CUDA driver API, "Tensor Map Object Management".

use super::context::check;
use super::headers::constant;
use super::kernels::Part;
use super::weights::unit_bytes;
use cudarc::driver::sys;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::TensorType;

/// Maximum bytes of a line of the tensor: a box has at most 256 elements of 8 bytes per line.
const LINE_BYTES: usize = constant!("matmul_wgmma.cuh", LINE_BYTES);
const ELEMENT: usize = 8;

/// `TensorMap` of `hopper.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// Map of an absent part.
    pub const NONE: Self = Self([0; 16]);

    /// Weight of `units` units per tile, `[tiles][units * lines][line]`; a box is one unit of `box_tiles` tiles.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn of_weight(
        part: &Part,
        ty: TensorType,
        units: usize,
        box_tiles: usize,
    ) -> Result<Self, Fault> {
        let (lines, line) = lines(ty);
        let sizes = [line / ELEMENT, units * lines, part.tiles as usize].map(|size| size as u64);
        let strides = [line, units * unit_bytes(ty)].map(|stride| stride as u64);
        let corner = [line / ELEMENT, lines, box_tiles].map(|size| size as u32);
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: three dimensions, two strides between them, and a place for one map.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
                3,
                part.weight.address() as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                corner.as_ptr(),
                [1, 1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check(result, "describing a weight")?;
        Ok(Self(map.opaque))
    }
}

/// Lines per unit of a tile, and bytes per line.
fn lines(ty: TensorType) -> (usize, usize) {
    let lines = unit_bytes(ty).div_ceil(LINE_BYTES);
    (lines, unit_bytes(ty) / lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_of_every_type_is_a_box_that_the_engine_can_copy() {
        for ty in TensorType::ALL {
            let (lines, line) = lines(ty);
            assert_eq!(lines * line, unit_bytes(ty), "{ty:?}");
            assert!(line / ELEMENT <= 256, "{ty:?}");
            // Strides, and lines of a box.
            assert!(line.is_multiple_of(16), "{ty:?}");
        }
    }
}
