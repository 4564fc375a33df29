//! The model's weights as the CPU holds them: matrices packed in one arena, vectors beside it.

use super::memory::Arena;
use worker_orcd_kernels::cpu::{PackedMatrix, PackedShape};

/// A packed matrix's place in the arena.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    pub shape: PackedShape,
    pub offset: usize,
}

/// `y = W x + b`.
#[derive(Debug)]
pub struct CpuLinear {
    pub weight: Placed,
    pub bias: Option<Vec<f32>>,
}

#[derive(Debug)]
pub struct CpuLayer {
    pub attn_norm: Vec<f32>,
    pub q: CpuLinear,
    pub k: CpuLinear,
    pub v: CpuLinear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub attn_output: CpuLinear,
    pub ffn_norm: Vec<f32>,
    pub ffn_gate: CpuLinear,
    pub ffn_up: CpuLinear,
    pub ffn_down: CpuLinear,
}

#[derive(Debug)]
pub struct CpuTensors {
    /// The output's own place when the file ties them.
    pub token_embd: Placed,
    pub layers: Vec<CpuLayer>,
    pub output_norm: Vec<f32>,
    pub output: CpuLinear,
}

#[derive(Debug)]
pub struct CpuWeights {
    pub arena: Arena,
    pub tensors: CpuTensors,
}

impl CpuWeights {
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arena.bytes().len() as u64
    }

    #[must_use]
    pub fn matrix(&self, placed: &Placed) -> PackedMatrix<'_> {
        let data = &self.arena.bytes()[placed.offset..][..placed.shape.bytes()];
        PackedMatrix::new(placed.shape, data)
    }
}
