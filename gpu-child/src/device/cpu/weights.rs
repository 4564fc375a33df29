//! The model's weights on the CPU: packed matrices and plain vectors in one arena.

use super::sealed::Sealed;
use crate::model::{self, ModelWeights};
use worker_orcd_ipc::WeightsManifest;
use worker_orcd_kernels::cpu::{PackedMatrix, PackedShape};

/// A packed matrix's place in the arena.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    pub shape: PackedShape,
    pub offset: usize,
}

/// F32 values in the arena: a norm or a bias.
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    pub len: usize,
    pub offset: usize,
}

pub type Linear = model::Linear<Matrix, Vector>;
pub type GatedUnit = model::GatedUnit<Matrix, Vector>;
pub type DenseBeside = model::DenseBeside<Matrix, Vector>;
pub type Experts = model::Experts<Matrix, Vector>;
pub type Attention = model::Attention<Matrix, Vector>;
pub type DeltaNet = model::DeltaNet<Matrix, Vector>;
pub type Mamba = model::Mamba<Matrix, Vector>;
pub type ShortConv = model::ShortConv<Matrix, Vector>;
pub type Layer = model::Layer<Matrix, Vector>;
pub type MixerBlock = model::Block<Vector, model::Mixer<Matrix, Vector>>;
pub type FeedForwardBlock = model::Block<Vector, model::FeedForward<Matrix, Vector>>;
pub type LayerInput = model::LayerInput<Matrix, Vector>;
pub type LayerInputs = model::LayerInputs<Matrix, Vector>;

#[derive(Debug)]
pub struct CpuWeights {
    pub arena: Sealed,
    pub tensors: ModelWeights<Matrix, Vector>,
    pub manifest: WeightsManifest,
}

impl CpuWeights {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes
    }

    #[must_use]
    pub fn matrix(&self, matrix: &Matrix) -> PackedMatrix<'_> {
        let data = &self.arena.bytes()[matrix.offset..][..matrix.shape.bytes()];
        PackedMatrix::new(matrix.shape, data)
    }

    #[must_use]
    pub fn vector(&self, vector: &Vector) -> &[f32] {
        &self.arena.floats()[vector.offset / size_of::<f32>()..][..vector.len]
    }
}
