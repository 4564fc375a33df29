//! Per-layer inputs of a model.

use super::{Model, Tensor, Types};
use worker_orcd_gpu::model::{LayerInput, LayerInputs, TensorView};
use worker_orcd_kernels::TensorType;

/// Tensors of a layer's input.
const OF_INPUT: usize = 3;

impl Model {
    /// Table and output have the type of values, with short blocks; the others those of queries and keys.
    pub(super) fn push_layer_inputs(&mut self, types: Types) {
        let Some(width) = self.config.layer_input else {
            return;
        };
        let (n_embd, vocab) = (self.config.n_embd, self.config.vocab_size);
        let all = self.config.n_layers * width;
        // What norms take is about as large as the root of their epsilon.
        let of_all = [
            (types[2], vocab, all, 0.2),
            (types[0], all, n_embd, 0.05),
            (TensorType::F32, 1, width, 1.0),
        ];
        let of_layer = [
            (types[1], width, n_embd, 0.1),
            (types[2], n_embd, width, 0.02),
            (TensorType::F32, 1, n_embd, 1.0),
        ];
        let layers = (0..self.config.n_layers).flat_map(|_| of_layer);
        for (ty, rows, cols, magnitude) in of_all.into_iter().chain(layers) {
            self.layer_inputs.push(Tensor {
                ty,
                rows,
                cols,
                magnitude,
                data: Vec::new(),
            });
        }
    }

    pub(super) fn layer_inputs(&self) -> Option<LayerInputs<TensorView<'_>, TensorView<'_>>> {
        let [table, projection, norm, ..] = &self.layer_inputs[..] else {
            return None;
        };
        Some(LayerInputs {
            table: table.view(),
            projection: projection.linear(),
            norm: norm.view(),
        })
    }

    pub(super) fn layer_input(
        &self,
        layer: usize,
    ) -> Option<LayerInput<TensorView<'_>, TensorView<'_>>> {
        let of_layer = self.layer_inputs.get(OF_INPUT * (1 + layer)..)?;
        let [gate, output, post_norm, ..] = of_layer else {
            return None;
        };
        Some(LayerInput {
            gate: gate.linear(),
            output: output.linear(),
            post_norm: post_norm.view(),
        })
    }
}
