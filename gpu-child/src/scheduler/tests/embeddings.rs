//! Prompts of embeddings, beside prompts of completions.

use super::*;
use crate::model::TensorView;
use crate::pooling::{HiddenRow, RankHead};
use std::sync::Arc;
use worker_orcd_ipc::Pooling;
use worker_orcd_kernels::TensorType;

const POOLINGS: [Pooling; 4] = [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];

/// A head for vectors of one number.
pub(super) fn rank_head() -> Arc<RankHead> {
    let data: Vec<u8> = [0.25_f32, -0.5]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let head = TensorView {
        name: "head",
        ty: TensorType::F32,
        rows: 2,
        cols: 1,
        data: &data,
        runs: None,
    };
    Arc::new(RankHead::of(&head))
}

impl PagedDevice {
    /// Rows of the selected requests: one number, computed from all tokens up to the position as they are in the pages.
    pub(super) fn hidden(
        &mut self,
        work: &[SequenceWork<'_>],
        wanted: &[RequestId],
    ) -> Vec<HiddenRow> {
        let mut rows = Vec::new();
        for sequence in work.iter().filter(|it| wanted.contains(&it.request)) {
            for position in (sequence.first_position..).take(sequence.tokens.len()) {
                let mut sum = 0.0;
                for token in self.seen_from(sequence.pages, position) {
                    sum = sum * 0.5 + token.0 as f32;
                }
                rows.push(HiddenRow {
                    request: sequence.request,
                    position,
                    values: vec![sum],
                });
            }
        }
        rows
    }
}

fn embed(request: u64, prompt: &[u32], pooling: Pooling) -> Submission {
    Submission {
        embeds: Some(pooling),
        ..submission(request, prompt, 0)
    }
}

fn vector_of(bench: &Bench, request: u64) -> Vec<f32> {
    assert_eq!(bench.outcome(request).tokens, []);
    match bench.only_reason(request) {
        FinishReason::Embedded { values } => values.clone(),
        other => panic!("{other:?}"),
    }
}

/// The definition, without pages and chunks.
fn expected(prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let mut sum = 0.0;
    let row = |token: &u32| {
        sum = sum * 0.5 + *token as f32;
        sum
    };
    let rows: Vec<f32> = prompt.iter().map(row).collect();
    let value = match pooling {
        Pooling::Mean => {
            let sum: f64 = rows.iter().map(|row| f64::from(*row)).sum();
            (sum / rows.len() as f64) as f32
        }
        Pooling::Cls => rows[0],
        Pooling::Last => rows[rows.len() - 1],
        Pooling::Rank => {
            let head = rank_head();
            return vec![head.score(&[f64::from(rows[rows.len() - 1])])];
        }
    };
    vec![value]
}

#[test]
fn each_ends_with_the_step_that_has_its_last_token_and_draws_none() {
    for pooling in POOLINGS {
        let mut bench = Bench::new(limits(), 20, true);
        let prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5];
        bench.submit(embed(1, &prompt, pooling));
        for left in [2, 1, 0] {
            assert!(bench.turn(3));
            let ended = bench.outcomes.contains_key(&RequestId(1));
            assert_eq!(ended, left == 0, "{pooling:?}");
        }
        assert_eq!(vector_of(&bench, 1), expected(&prompt, pooling));
        assert!(!bench.scheduler.reads_prompts());
    }
}

#[test]
fn only_where_earlier_rows_count_for_nothing_is_a_prefix_reused() {
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5];
    for (pooling, reused) in POOLINGS.into_iter().zip([0, 0, 8, 8]) {
        let mut bench = Bench::new(limits(), 20, true);
        for request in [1, 2] {
            bench.submit(embed(request, &prompt, pooling));
            bench.run();
            assert_eq!(vector_of(&bench, request), expected(&prompt, pooling));
        }
        assert_eq!(bench.scheduler.load().counters.prefix_hit_tokens, reused);
    }
}

#[test]
fn a_model_that_gives_no_scores_is_asked_for_none() {
    let rank_head = None;
    let mut bench = Bench::new(
        Limits {
            rank_head,
            ..limits()
        },
        20,
        true,
    );
    bench.submit(embed(1, &[3, 1], Pooling::Rank));
    bench.run();
    let reason = bench.only_reason(1);
    assert!(matches!(reason, FinishReason::Refused { .. }), "{reason:?}");
}

proptest! {
    #[test]
    fn whatever_is_beside_them_they_are_the_same(
        prompts in prop::collection::vec((prop::collection::vec(8_u32..12, 1..20), 0_usize..6), 1..12),
        chunk in 1_u32..9,
        // Few: decoding sequences evict others.
        pages in 12_u32..20,
        is_ahead in any::<bool>(),
    ) {
        let mut bench = Bench::new(limits(), pages, true);
        bench.is_ahead = is_ahead;
        for (request, (prompt, kind)) in (0..).zip(&prompts) {
            bench.submit(match POOLINGS.get(*kind) {
                Some(pooling) => embed(request, prompt, *pooling),
                None => submission(request, prompt, 30),
            });
            bench.turn(chunk);
        }
        bench.run();
        for (request, (prompt, kind)) in (0..).zip(&prompts) {
            if let Some(pooling) = POOLINGS.get(*kind) {
                prop_assert_eq!(vector_of(&bench, request), expected(prompt, *pooling));
            }
        }
    }
}
