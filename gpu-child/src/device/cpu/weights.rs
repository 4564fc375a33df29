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

impl CpuTensors {
    /// Norms and biases, in an order of their own.
    pub fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let in_layers = self.layers.iter().flat_map(|layer| {
            let linears = [
                &layer.q,
                &layer.k,
                &layer.v,
                &layer.attn_output,
                &layer.ffn_gate,
                &layer.ffn_up,
                &layer.ffn_down,
            ];
            let norms = [Some(&layer.attn_norm), Some(&layer.ffn_norm)];
            let norms = norms
                .into_iter()
                .chain([layer.q_norm.as_ref(), layer.k_norm.as_ref()]);
            norms
                .chain(linears.map(|linear| linear.bias.as_ref()))
                .flatten()
        });
        let last = [Some(&self.output_norm), self.output.bias.as_ref()];
        in_layers
            .chain(last.into_iter().flatten())
            .map(Vec::as_slice)
    }
}

#[derive(Debug)]
pub struct CpuWeights {
    pub arena: Arena,
    /// Of norms and biases.
    pub vector_bytes: u64,
    /// Of every value in both, as it was when the model had been loaded.
    pub checksum: u128,
    pub tensors: CpuTensors,
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
