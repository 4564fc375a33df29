//! Pages of recurrent states in a step ([`StateLayout`](crate::device::common::states::StateLayout)).
//!
//! A row reads its block and the block before. So the device gets the pages of these blocks only, of all groups: the whole
//! table of a long sequence would be hundreds of times as large.

use super::buffer_allocator::{BufferAllocator, Input, InputBuffer, StepInput};
use super::headers::layout;
use super::kv::PageGroups;
use super::memory::DevicePtr;
use super::rank::Rank;
use super::scratch::Largest;
use crate::device::SequenceWork;
use crate::device::common::kv::PAGE_TOKENS;
use crate::device::common::states::HALVES;

layout! {
    pub struct StatePages in "states.cuh" {
        pub pages: DevicePtr<f32>,
        pub page_stride: u64,
        pub tables: DevicePtr<i32>,
        pub groups: i32,
        pub first: i32,
        pub per_page: i32,
        pub unit: i32,
    }

    /// A token of the batch.
    #[derive(PartialEq, Eq)]
    pub struct StateRow in "states.cuh" {
        pub pages: i32,
        pub before: i32,
    }

    #[derive(PartialEq, Eq)]
    pub struct StateSequence in "states.cuh" {
        pub row0: i32,
        pub rows: i32,
        pub position0: i32,
        pub pages: i32,
    }
}

// SAFETY: two `i32`.
unsafe impl Input for StateRow {}
// SAFETY: four `i32`.
unsafe impl Input for StateSequence {}

/// Maximum number of rows of a sequence in a step without a long prompt: at least the newest token and its drafts. Such steps
/// are recorded.
const MOST_FEW_ROWS: usize = 16;

/// Maximum number of pages of states in a step with this number of tokens: for each sequence those of the blocks of its
/// tokens, and of the block before.
#[must_use]
fn most_pages(groups: PageGroups, tokens: usize) -> usize {
    // Two blocks for a single token, and at most one more for each further token.
    2 * tokens * groups.states
}

/// The units of a layer's state. `tables`: pages of states, by block and group.
pub fn state_pages(rank: &Rank, layer: usize, tables: DevicePtr<i32>) -> StatePages {
    let kv = &rank.kv;
    let states = kv.state_layout().expect("layers with a state");
    let floats = kv.shape().page() / HALVES;
    StatePages {
        pages: kv.arena().at(0, kv.pages() as usize * floats),
        page_stride: floats as u64,
        tables,
        groups: states.groups() as i32,
        first: states.first_unit(layer) as i32,
        per_page: states.per_page() as i32,
        unit: states.unit().floats() as i32,
    }
}

/// Inputs that layers with a state add to those of a step.
pub const INPUTS: usize = 3;

/// Buffers of layers with a state, whatever their recurrence is.
#[derive(Debug, Clone, Copy)]
pub struct StateBuffers {
    pub rows: InputBuffer<StateRow>,
    pub sequences: InputBuffer<StateSequence>,
    /// Pages of recurrent states, by block and group.
    pub pages: InputBuffer<i32>,
}

impl StateBuffers {
    pub fn place(places: &mut BufferAllocator<'_>, largest: Largest) -> Self {
        let tokens = largest.tokens;
        Self {
            rows: places.input(tokens),
            sequences: places.input(tokens),
            pages: places.input(most_pages(largest.groups, tokens)),
        }
    }

    /// # Panics
    /// If the batch is larger than announced.
    #[must_use]
    pub fn inputs<'a>(&self, plan: &'a StatePlan) -> [StepInput<'a>; INPUTS] {
        [
            self.rows.filled(&plan.rows),
            self.sequences.filled(&plan.sequences),
            self.pages.filled(&plan.pages),
        ]
    }
}

/// Pages of states of a batch. Empty for models without them.
#[derive(Debug, Default)]
pub struct StatePlan {
    /// By block and group, sequence by sequence.
    pub pages: Vec<i32>,
    pub rows: Vec<StateRow>,
    pub sequences: Vec<StateSequence>,
}

impl StatePlan {
    #[must_use]
    pub fn new(sequences: &[SequenceWork<'_>], groups: PageGroups) -> Self {
        let mut plan = Self::default();
        if groups.states > 0 {
            sequences.iter().for_each(|work| plan.add(work, groups));
        }
        plan
    }

    /// Maximum number of blocks of positions in which a sequence has rows, in a step with a long prompt. Zero for other steps.
    #[must_use]
    pub fn pieces(&self) -> usize {
        let is_long = |it: &StateSequence| it.rows as usize > MOST_FEW_ROWS;
        if !self.sequences.iter().any(is_long) {
            return 0;
        }
        let blocks = self.sequences.iter().map(|it| {
            let (first, rows) = (it.position0 as usize, it.rows as usize);
            (first + rows).div_ceil(PAGE_TOKENS) - first / PAGE_TOKENS
        });
        blocks.max().unwrap_or(0)
    }

    /// Adds the next sequence of the batch.
    fn add(&mut self, work: &SequenceWork<'_>, groups: PageGroups) {
        let (first, count) = (work.first_position as usize, work.tokens.len());
        let from = (first / PAGE_TOKENS).saturating_sub(1);
        let start = self.pages.len();
        for block in from..(first + count).div_ceil(PAGE_TOKENS) {
            let pages = &work.pages[block * groups.all()..][groups.attention..groups.all()];
            self.pages.extend(pages.iter().map(|page| page.0 as i32));
        }
        let entry =
            |position: usize| (start + (position / PAGE_TOKENS - from) * groups.states) as i32;
        self.sequences.push(StateSequence {
            row0: self.rows.len() as i32,
            rows: count as i32,
            position0: first as i32,
            pages: entry(first),
        });
        self.rows.extend((0..count).map(|before| StateRow {
            pages: entry(first + before),
            before: before as i32,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::PageId;
    use worker_orcd_ipc::{RequestId, TokenId};

    const GROUPS: PageGroups = PageGroups {
        attention: 1,
        states: 2,
    };

    /// Plan of sequences that begin at these positions, with so many tokens each. Page `10 b + g` is of block `b` and
    /// group `g`.
    fn plan(sequences: &[(u32, usize)]) -> StatePlan {
        let tokens = [TokenId(1); 100];
        let pages: Vec<_> = (0..30).map(|at| PageId(10 * (at / 3) + at % 3)).collect();
        let work = |&(first_position, count): &(u32, usize)| SequenceWork {
            request: RequestId(0),
            tokens: &tokens[..count],
            first_position,
            pages: &pages,
            sample: None,
            drafts: 0,
        };
        let sequences: Vec<_> = sequences.iter().map(work).collect();
        StatePlan::new(&sequences, GROUPS)
    }

    #[test]
    fn each_row_finds_the_pages_of_its_block_and_of_the_block_before() {
        let sequences = [(0, 3), (95, 2), (32, 1), (130, 40), (31, 1)];
        let plan = plan(&sequences);
        let (mut row, mut sequence) = (0, 0);
        for (first, count) in sequences {
            let of_sequence = plan.sequences[sequence];
            assert_eq!(of_sequence.row0, row as i32);
            assert_eq!(of_sequence.position0, first as i32);
            assert_eq!(of_sequence.rows, count as i32);
            assert_eq!(of_sequence.pages, plan.rows[row].pages);
            for before in 0..count {
                let StateRow {
                    pages,
                    before: of_row,
                } = plan.rows[row];
                assert_eq!(of_row, before as i32);
                let block = (first as usize + before) / PAGE_TOKENS;
                let of_block = |at: i32| &plan.pages[at as usize..][..GROUPS.states];
                let expected = |block: usize| [1, 2].map(|group| (10 * block + group) as i32);
                assert_eq!(of_block(pages), expected(block));
                if block > 0 {
                    assert_eq!(of_block(pages - GROUPS.states as i32), expected(block - 1));
                }
                row += 1;
            }
            sequence += 1;
        }
        assert_eq!((row, sequence), (plan.rows.len(), plan.sequences.len()));
    }

    #[test]
    fn a_long_prompt_has_rows_in_so_many_blocks() {
        for (sequences, pieces) in [
            (&[(95, 1), (0, 16)][..], 0),
            (&[(95, 1), (0, 17)], 1),
            (&[(95, 2), (0, 17)], 2),
            (&[(0, 32), (32, 32)], 1),
            (&[(1, 32)], 2),
            (&[(31, 66)], 4),
        ] {
            assert_eq!(plan(sequences).pieces(), pieces, "{sequences:?}");
        }
    }

    #[test]
    fn there_is_room_for_the_pages_of_any_sequence() {
        for first in 0..100 {
            for count in 1..100 {
                let plan = plan(&[(first, count)]);
                assert!(
                    plan.pages.len() <= most_pages(GROUPS, count),
                    "{first} {count}"
                );
            }
        }
    }

    #[test]
    fn a_model_without_states_has_no_pages_of_them() {
        let tokens = [TokenId(1)];
        let work = SequenceWork {
            request: RequestId(0),
            tokens: &tokens,
            first_position: 0,
            pages: &[PageId(0)],
            sample: None,
            drafts: 0,
        };
        let groups = PageGroups {
            attention: 1,
            states: 0,
        };
        let plan = StatePlan::new(&[work], groups);
        assert!(plan.pages.is_empty() && plan.rows.is_empty() && plan.sequences.is_empty());
    }
}
