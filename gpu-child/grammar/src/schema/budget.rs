//! Work budget of one schema before its compilation: comparisons and derived schemas are products of the client's
//! input.

use std::cell::Cell;

/// Compared schemas.
const MAX_COMPARISONS: usize = 100_000;

/// Expressions built to compare texts: each has fuel of its own.
const MAX_EXPRESSIONS: usize = 200;

/// Schemas written for a negation.
const MAX_PIECES: usize = 5_000;

pub(super) struct Budget {
    comparisons: Cell<usize>,
    expressions: Cell<usize>,
    pieces: Cell<usize>,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self {
            comparisons: Cell::new(MAX_COMPARISONS),
            expressions: Cell::new(MAX_EXPRESSIONS),
            pieces: Cell::new(MAX_PIECES),
        }
    }

    pub(super) fn allows_comparison(&self) -> bool {
        spent(&self.comparisons)
    }

    pub(super) fn allows_expression(&self) -> bool {
        spent(&self.expressions)
    }

    pub(super) fn allows_piece(&self) -> bool {
        spent(&self.pieces)
    }
}

fn spent(left: &Cell<usize>) -> bool {
    let is_left = left.get() > 0;
    left.set(left.get().saturating_sub(1));
    is_left
}
