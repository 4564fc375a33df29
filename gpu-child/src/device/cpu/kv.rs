//! The paged KV cache: an arena of pages, in which the keys of a layer of theirs are `[kv_head][head_dim][32]` and
//! its values `[kv_head][32][head_dim]`; or units of [recurrent states](crate::device::common::states).
//!
//! The scheduler assigns pages to sequences; this file only finds the bytes.

use super::memory::Arena;
use super::pool::Disjoint;
use crate::device::common::kv::{KvLayout, KvShape, PAGE_TOKENS};
use crate::device::common::layer_groups::Place;
use crate::device::common::states::{HALVES, StateLayout};
use crate::device::{KvGeometry, PageId};
use std::ops::Range;
use worker_orcd_ipc::Fault;
use worker_orcd_kernels::cpu::{KvTile, TILE_TOKENS};

const _: () = assert!(TILE_TOKENS == PAGE_TOKENS);

/// First element of a head's keys in a page, and of its values. `layer` is its index among those of the page.
fn place(shape: &KvShape, page: PageId, layer: usize, head: usize) -> (usize, usize) {
    let layer_start = page.0 as usize * shape.page() + 2 * layer * shape.half_layer();
    let keys = layer_start + head * shape.head();
    (keys, keys + shape.half_layer())
}

/// Elements of a page of a group that some positions are in.
pub fn spans(
    layout: &KvLayout,
    group: u32,
    slots: Range<usize>,
) -> Box<dyn Iterator<Item = Range<usize>> + '_> {
    match &layout.states {
        Some(states) if group as usize >= layout.groups.groups().count() => {
            Box::new(states.spans(slots))
        }
        _ => Box::new(attention_spans(*layout.shape_of(group as usize), slots)),
    }
}

/// Elements of a page that some positions of all heads are in.
fn attention_spans(shape: KvShape, slots: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (from, to, dim) = (slots.start, slots.end, shape.head_dim);
    (0..shape.layers).flat_map(move |layer| {
        let keys = 2 * layer * shape.half_layer();
        let values = keys + shape.half_layer();
        let rows = (keys..values).step_by(TILE_TOKENS);
        let heads = (values..values + shape.half_layer()).step_by(shape.head());
        let of_keys = rows.map(move |row| row + from..row + to);
        of_keys.chain(heads.map(move |head| head + from * dim..head + to * dim))
    })
}

#[derive(Debug)]
pub struct KvCache {
    arena: Arena,
    layout: KvLayout,
    pages: u32,
}

impl KvCache {
    /// # Errors
    /// When the arena cannot be had.
    pub fn new(layout: KvLayout, pages: u32, shares: bool) -> Result<Self, Fault> {
        let bytes = u64::from(pages) * layout.shape.page_bytes();
        let arena = match shares {
            true => Arena::shareable(bytes)?,
            false => Arena::new(bytes)?,
        };
        Ok(Self {
            arena,
            layout,
            pages,
        })
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.layout.shape.page_bytes()
    }

    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    pub fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.layout.shape
    }

    #[must_use]
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Group and place of a layer.
    #[must_use]
    pub fn place_of(&self, layer: usize) -> Place {
        self.layout.groups.place(layer)
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        self.layout.geometry(self.pages)
    }

    /// Keys and values of one head of a layer over one page.
    #[must_use]
    pub fn tile(&self, page: PageId, layer: Place, head: usize) -> KvTile<'_> {
        let shape = self.layout.shape_of(layer.group);
        let (k, v) = place(shape, page, layer.index, head);
        let halves = self.arena.halves();
        KvTile {
            k: &halves[k..][..shape.head()],
            v: &halves[v..][..shape.head()],
        }
    }

    /// Units of recurrent states, for several threads.
    ///
    /// # Panics
    /// If no layer has a state.
    pub fn states(&mut self) -> StateUnits<'_> {
        let layout = self.layout.states.as_ref().expect("layers with a state");
        // SAFETY: any bits are floats; the arena is page aligned.
        let floats = unsafe { self.arena.halves_mut().align_to_mut().1 };
        StateUnits {
            layout,
            page: self.layout.shape.page() / HALVES,
            floats: Disjoint::new(floats),
        }
    }

    /// Writer of a layer's keys and values.
    pub fn writer(&mut self, layer: Place) -> KvWriter<'_> {
        KvWriter {
            shape: *self.layout.shape_of(layer.group),
            layer: layer.index,
            halves: Disjoint::new(self.arena.halves_mut()),
        }
    }
}

/// Writes positions, several at a time from several threads.
#[derive(Debug)]
pub struct KvWriter<'a> {
    shape: KvShape,
    /// Index among the layers of a page.
    layer: usize,
    halves: Disjoint<'a, u16>,
}

impl KvWriter<'_> {
    /// Writes one position of one head.
    ///
    /// # Safety
    /// No two calls for one position of a page and head run at the same time.
    pub unsafe fn write(&self, page: PageId, head: usize, slot: usize, key: &[u16], value: &[u16]) {
        assert!(
            slot < TILE_TOKENS && key.len() == self.shape.head_dim,
            "a position of a page"
        );
        let (keys, values) = place(&self.shape, page, self.layer, head);
        for (d, &key) in key.iter().enumerate() {
            // SAFETY: element (d, slot) belongs to this position alone.
            unsafe { self.halves.part(keys + d * TILE_TOKENS + slot, 1)[0] = key };
        }
        let at = values + slot * self.shape.head_dim;
        // SAFETY: row `slot` belongs to this position alone.
        unsafe { self.halves.part(at, self.shape.head_dim) }.copy_from_slice(value);
    }
}

/// The units of recurrent states in the arena.
#[derive(Debug)]
pub struct StateUnits<'a> {
    pub layout: &'a StateLayout,
    /// Floats of a page.
    page: usize,
    floats: Disjoint<'a, f32>,
}

impl StateUnits<'_> {
    /// A unit of a page, to write.
    ///
    /// # Safety
    /// No other reference to the same unit lives at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that units do not overlap"
    )]
    pub unsafe fn unit(&self, page: PageId, index: usize) -> &mut [f32] {
        // SAFETY: as guaranteed by the caller; units do not overlap.
        unsafe {
            self.floats
                .part(self.start(page, index), self.layout.unit().floats())
        }
    }

    /// A unit of a page, to read.
    ///
    /// # Safety
    /// No reference from [`unit`](Self::unit) to the same unit lives at the same time.
    pub unsafe fn read(&self, page: PageId, index: usize) -> &[f32] {
        // SAFETY: as guaranteed by the caller; units do not overlap.
        unsafe {
            self.floats
                .shared(self.start(page, index), self.layout.unit().floats())
        }
    }

    fn start(&self, page: PageId, index: usize) -> usize {
        assert!(index < self.layout.per_page(), "a unit of a page");
        page.0 as usize * self.page + index * self.layout.unit().floats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::common::layer_groups::{ByKind, LayerGroups};
    use crate::model::Positions;

    fn cache(shape: KvShape, pages: u32) -> KvCache {
        let groups = LayerGroups::of(shape.layers, &Positions::default(), ByKind::both(1), 1);
        KvCache::new(KvLayout::of_attention(shape, groups), pages, false).expect("arena")
    }

    #[test]
    fn spans_of_positions_are_what_is_written_for_them() {
        let shape = KvShape {
            layers: 2,
            n_kv_heads: 3,
            head_dim: 5,
            least: 0,
        };
        let mut kv = cache(shape, 1);
        for (index, head) in (0..2).flat_map(|layer| (0..3).map(move |head| (layer, head))) {
            let writer = kv.writer(Place { group: 0, index });
            for slot in 0..TILE_TOKENS {
                let mark = slot as u16 + 1;
                // SAFETY: one thread.
                unsafe { writer.write(PageId(0), head, slot, &[mark; 5], &[mark; 5]) };
            }
        }
        let page = &kv.arena().halves()[..shape.page()];
        for slots in [0..8, 8..TILE_TOKENS, 3..4] {
            let found: Vec<_> = attention_spans(shape, slots.clone())
                .flat_map(|span| &page[span])
                .collect();
            assert_eq!(found.len(), shape.page() / TILE_TOKENS * slots.len());
            assert!(
                found
                    .iter()
                    .all(|mark| slots.contains(&(**mark as usize - 1)))
            );
        }
    }

    #[test]
    fn tiles_fill_the_page_and_do_not_overlap() {
        let shape = KvShape {
            layers: 2,
            n_kv_heads: 3,
            head_dim: 5,
            least: 0,
        };
        let mut kv = cache(shape, 2);
        let mut next = 0;
        for page in [PageId(0), PageId(1)] {
            for index in 0..2 {
                let writer = kv.writer(Place { group: 0, index });
                for head in 0..3 {
                    for slot in 0..TILE_TOKENS {
                        next += 1;
                        // SAFETY: one thread.
                        unsafe { writer.write(page, head, slot, &[next; 5], &[!next; 5]) };
                    }
                }
            }
        }
        next = 0;
        for page in [PageId(0), PageId(1)] {
            for index in 0..2 {
                for head in 0..3 {
                    let tile = kv.tile(page, Place { group: 0, index }, head);
                    for slot in 0..TILE_TOKENS {
                        next += 1;
                        assert!((0..5).all(|d| tile.k[d * TILE_TOKENS + slot] == next));
                        assert!(tile.v[slot * 5..][..5].iter().all(|&v| v == !next));
                    }
                }
            }
        }
    }
}
