//! Embeddings and scores: a prompt's rows after the final norm, pooled to one vector.
//!
//! The rows are llama.cpp's `result_norm`. Sums go by ascending position, in f64, on one thread. So a vector depends on
//! the rows alone, and not on the chunks in which a prompt was computed.

mod rank_head;

pub use rank_head::RankHead;

use crate::device::{Checkpoint, Tap};
use std::ops::Range;
use std::sync::Arc;
use worker_orcd_ipc::{Pooling, RequestId};

/// The vector of one prompt, accumulated from the rows so far.
#[derive(Debug, Clone)]
pub struct Pool {
    pooling: Pooling,
    /// Tokens of the prompt.
    length: usize,
    /// `[n_embd]`; empty before the first row.
    sum: Vec<f64>,
    /// Classification head, for [`Pooling::Rank`].
    head: Option<Arc<RankHead>>,
}

impl Pool {
    #[must_use]
    pub fn new(pooling: Pooling, length: usize) -> Self {
        Self {
            pooling,
            length,
            sum: Vec::new(),
            head: None,
        }
    }

    #[must_use]
    pub fn with_head(self, head: Option<Arc<RankHead>>) -> Self {
        Self { head, ..self }
    }

    /// True if a score is requested of a model without a head.
    #[must_use]
    pub fn lacks_head(&self) -> bool {
        self.pooling == Pooling::Rank && self.head.is_none()
    }

    /// True if some of these positions count.
    #[must_use]
    pub fn wants(&self, positions: Range<usize>) -> bool {
        match self.pooling {
            Pooling::Mean => !positions.is_empty(),
            Pooling::Cls => positions.contains(&0),
            Pooling::Last | Pooling::Rank => positions.contains(&(self.length - 1)),
        }
    }

    /// True if positions before the last one do not count: they may come from the cache.
    #[must_use]
    pub fn may_reuse_prefix(&self) -> bool {
        matches!(self.pooling, Pooling::Last | Pooling::Rank)
    }

    /// Adds the row of a position, `[n_embd]`; positions ascend.
    pub fn add(&mut self, position: usize, row: &[f32]) {
        if self.wants(position..position + 1) {
            self.sum.resize(row.len(), 0.0);
            for (sum, value) in self.sum.iter_mut().zip(row) {
                *sum += f64::from(*value);
            }
        }
    }

    /// Drops all rows: they will be computed again.
    pub fn restart(&mut self) {
        self.sum.clear();
    }

    /// The vector, `[n_embd]`, once every row is added; a single score for [`Pooling::Rank`].
    #[must_use]
    pub fn vector(&self) -> Vec<f32> {
        let rows = match self.pooling {
            Pooling::Rank => {
                let head = self.head.iter();
                return head.map(|head| head.score(&self.sum)).collect();
            }
            Pooling::Mean => self.length as f64,
            Pooling::Cls | Pooling::Last => 1.0,
        };
        self.sum.iter().map(|sum| (sum / rows) as f32).collect()
    }
}

/// A row after the final norm.
#[derive(Debug)]
pub struct HiddenRow {
    pub request: RequestId,
    pub position: u32,
    /// `[n_embd]`
    pub values: Vec<f32>,
}

impl HiddenRow {
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }
}

/// Rows of a step for embeddings.
#[derive(Debug)]
pub struct HiddenRows {
    wanted: Vec<RequestId>,
    rows: Vec<HiddenRow>,
}

impl HiddenRows {
    /// Rows of these requests.
    #[must_use]
    pub fn of(wanted: impl Iterator<Item = RequestId>) -> Self {
        Self {
            wanted: wanted.collect(),
            rows: Vec::new(),
        }
    }

    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// A tap that keeps these rows, and forwards the selection of an inner tap.
    pub fn keep<'a>(&'a mut self, inner: &'a mut dyn Tap) -> impl Tap + 'a {
        RowRecorder { kept: self, inner }
    }

    /// The kept rows, in the order of the device.
    #[must_use]
    pub fn into_rows(self) -> Vec<HiddenRow> {
        self.rows
    }
}

struct RowRecorder<'a> {
    kept: &'a mut HiddenRows,
    inner: &'a mut dyn Tap,
}

impl RowRecorder<'_> {
    fn keeps(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        *checkpoint == Checkpoint::Hidden && self.kept.wanted.contains(&request)
    }
}

impl Tap for RowRecorder<'_> {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        self.keeps(request, checkpoint) || self.inner.wants(request, checkpoint)
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, values: &[f32]) {
        if self.keeps(request, checkpoint) {
            self.kept.rows.push(HiddenRow {
                request,
                position,
                values: values.to_vec(),
            });
        }
        if self.inner.wants(request, checkpoint) {
            self.inner.see(request, checkpoint, position, values);
        }
    }

    fn reached(&mut self, checkpoint: &Checkpoint) {
        self.inner.reached(checkpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pooled(pooling: Pooling, rows: &[Vec<f32>]) -> Vec<f32> {
        let mut pool = Pool::new(pooling, rows.len());
        for (position, row) in rows.iter().enumerate() {
            pool.add(position, row);
        }
        pool.vector()
    }

    #[test]
    fn each_pooling_takes_the_rows_that_its_name_says() {
        let rows = [vec![1.0, -4.0], vec![2.0, 0.0], vec![6.0, 1.0]];
        assert_eq!(pooled(Pooling::Mean, &rows), [3.0, -1.0]);
        assert_eq!(pooled(Pooling::Cls, &rows), [1.0, -4.0]);
        assert_eq!(pooled(Pooling::Last, &rows), [6.0, 1.0]);
    }

    proptest! {
        #[test]
        fn a_vector_of_rows_that_come_again_is_the_same(
            rows in prop::collection::vec(prop::collection::vec(-1e3_f32..1e3, 3), 1..20),
            lost in 0_usize..20,
        ) {
            for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
                let mut pool = Pool::new(pooling, rows.len());
                for (position, row) in rows.iter().enumerate().take(lost) {
                    pool.add(position, row);
                }
                pool.restart();
                for (position, row) in rows.iter().enumerate() {
                    pool.add(position, row);
                }
                prop_assert_eq!(pool.vector(), pooled(pooling, &rows));
            }
        }
    }

    #[test]
    fn only_chunks_with_a_row_that_counts_are_wanted() {
        let wants = |pooling| {
            let pool = Pool::new(pooling, 9);
            [0..4, 4..8, 8..9].map(|chunk| pool.wants(chunk))
        };
        assert_eq!(wants(Pooling::Mean), [true, true, true]);
        assert_eq!(wants(Pooling::Cls), [true, false, false]);
        assert_eq!(wants(Pooling::Last), [false, false, true]);
    }

    #[test]
    fn hidden_rows_of_those_who_want_them_are_kept_and_no_others() {
        let mut rows = HiddenRows::of([RequestId(2)].into_iter());
        assert!(rows.is_wanted());
        let mut nobody = crate::device::NoTap;
        let mut tap = rows.keep(&mut nobody);
        for request in [1, 2].map(RequestId) {
            for checkpoint in [Checkpoint::FinalNorm, Checkpoint::Hidden] {
                if tap.wants(request, &checkpoint) {
                    tap.see(request, &checkpoint, 7, &[f32::NAN]);
                }
            }
        }
        drop(tap);
        let kept = rows.into_rows();
        assert_eq!(kept.len(), 1);
        assert_eq!((kept[0].request, kept[0].position), (RequestId(2), 7));
        assert!(!kept[0].is_finite());
    }
}
