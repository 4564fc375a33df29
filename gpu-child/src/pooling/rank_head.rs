//! Classification head of a reranker: probability of "yes" against "no" after a prompt.
//!
//! The computation is llama.cpp's (`llm_graph_context::build_pooling`): the product of each row of the head with the
//! vector of the last token, and the first number of the softmax of both products. Sums go by ascending index, in f64.

use crate::model::TensorView;
use worker_orcd_kernels::reference::dequantize::dequantize_row;

#[derive(Debug, Clone, PartialEq)]
pub struct RankHead {
    /// `[n_embd]`
    yes: Vec<f32>,
    /// `[n_embd]`
    no: Vec<f32>,
}

impl RankHead {
    /// Reads the head, `[2, n_embd]`, of any type.
    #[must_use]
    pub fn of(head: &TensorView<'_>) -> Self {
        let mut rows = vec![0.0; head.rows * head.cols];
        dequantize_row(head.ty, head.data, &mut rows);
        let no = rows.split_off(head.cols);
        Self { yes: rows, no }
    }

    /// Score from 0 to 1. `vector`: `[n_embd]`.
    #[must_use]
    pub fn score(&self, vector: &[f64]) -> f32 {
        let product = |row: &[f32]| {
            let products = row.iter().zip(vector).map(|(a, b)| f64::from(*a) * b);
            products.sum::<f64>()
        };
        let difference = product(&self.no) - product(&self.yes);
        (1.0 / (1.0 + difference.exp())) as f32
    }

    /// All numbers that a score depends on.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        self.yes.iter().chain(&self.no).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_kernels::TensorType;

    fn head(values: [f32; 4]) -> RankHead {
        let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        RankHead::of(&TensorView {
            name: "cls.output.weight",
            ty: TensorType::F32,
            rows: 2,
            cols: 2,
            data: &data,
            runs: None,
        })
    }

    #[test]
    fn a_score_is_the_first_of_a_softmax_of_two() {
        let head = head([1.0, 2.0, 3.0, -1.0]);
        let (yes, no) = (1.0_f64, 1.25_f64);
        let expected = yes.exp() / (yes.exp() + no.exp());
        assert!((f64::from(head.score(&[0.5, 0.25])) - expected).abs() < 1e-7);
        assert_eq!(head.values().collect::<Vec<_>>(), [1.0, 2.0, 3.0, -1.0]);
    }

    #[test]
    fn products_beyond_all_measure_are_scores_too() {
        let head = head([f32::MAX, 0.0, -f32::MAX, 0.0]);
        assert_eq!(head.score(&[1e30, 0.0]), 1.0);
        assert_eq!(head.score(&[-1e30, 0.0]), 0.0);
        assert_eq!(head.score(&[0.0, 0.0]), 0.5);
    }
}
