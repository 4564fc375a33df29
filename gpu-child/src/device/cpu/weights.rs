//! The model's weights as the CPU holds them: matrices packed in one arena, vectors beside it.

use super::memory::Arena;
use crate::model::{self, ModelWeights};
use worker_orcd_kernels::cpu::{PackedMatrix, PackedShape};

/// A packed matrix's place in the arena.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    pub shape: PackedShape,
    pub offset: usize,
}

pub type Linear = model::Linear<Placed, Vec<f32>>;
pub type Layer = model::Layer<Placed, Vec<f32>>;

#[derive(Debug)]
pub struct CpuWeights {
    pub arena: Arena,
    /// Bytes of norms and biases.
    pub vector_bytes: u64,
    /// Checksum of every value in both, as it was when the model had been loaded.
    pub checksum: u128,
    pub tensors: ModelWeights<Placed, Vec<f32>>,
}

impl CpuWeights {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arena.bytes().len() as u64 + self.vector_bytes
    }

    #[must_use]
    pub fn matrix(&self, placed: &Placed) -> PackedMatrix<'_> {
        let data = &self.arena.bytes()[placed.offset..][..placed.shape.bytes()];
        PackedMatrix::new(placed.shape, data)
    }
}
