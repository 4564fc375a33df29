//! Paged KV cache on the device. `kernels/cuda/kv.cuh` defines the contents of a page.

use super::context::Context;
use super::headers::constant;
use super::memory::{Arena, DevicePtr, Purpose, Taken, clear};
use crate::device::common::kv::{KvLayout, KvShape, PAGE_TOKENS};
use crate::device::common::layer_groups::Place;
use crate::device::common::states::StateLayout;
use crate::device::{KvGeometry, PageId};
use worker_orcd_ipc::{Fault, Role};

// Attention reads one page at a time.
const _: () = assert!(PAGE_TOKENS == constant!("kv.cuh", PAGE));

#[derive(Debug)]
pub struct KvCache {
    arena: Arena,
    layout: KvLayout,
    pages: u32,
    is_shared: bool,
}

/// Capacity of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRoom {
    pub pages: u32,
    /// The memory may outlive the process. The next child's memory fits beside it, or the next child waits until
    /// this memory is freed.
    pub shares: bool,
}

impl KvCache {
    /// Allocates zeroed memory: attention reads whole pages, and unwritten values must be finite.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(
        context: &Context,
        layout: KvLayout,
        room: KvRoom,
        role: Role,
    ) -> Result<Self, Fault> {
        let KvRoom { pages, shares } = room;
        let bytes = u64::from(pages) * layout.shape.page_bytes();
        let arena = match (shares, role) {
            (false, Role::Active) => Arena::new(context, Purpose::Kv, bytes)?,
            _ => Arena::promised(context, Purpose::Kv, bytes)?,
        };
        let mut kv = Self {
            arena,
            layout,
            pages,
            is_shared: shares,
        };
        if shares {
            kv.take_to_share(context, role)?;
        }
        if kv.arena.has_memory() {
            kv.arena.clear(context)?;
        }
        Ok(kv)
    }

    /// A standby has no memory here while the active child has it, and takes it on promotion.
    fn take_to_share(&mut self, context: &Context, role: Role) -> Result<(), Fault> {
        match self.arena.take(context) {
            Err(Fault::OutOfMemory { message }) if role == Role::Standby => {
                eprintln!("worker-orcd-gpu: no KV cache beside the other child's: {message}");
                self.is_shared = false;
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// The memory may outlive the process.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Time at which the other working memory of a child is allocated.
    #[must_use]
    pub fn taken(&self) -> Taken {
        match self.arena.has_memory() {
            true => Taken::WhenLoaded,
            false => Taken::WhenPromoted,
        }
    }

    /// Takes the memory that a standby has deferred.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn take(&mut self, context: &Context) -> Result<(), Fault> {
        if self.arena.has_memory() {
            return Ok(());
        }
        self.arena.take(context)?;
        self.arena.clear(context)
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
    pub fn pages(&self) -> u32 {
        self.pages
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        self.layout.geometry(self.pages)
    }

    #[must_use]
    pub fn page_groups(&self) -> PageGroups {
        page_groups(&self.layout)
    }

    /// Layout of recurrent states, if the model has any.
    #[must_use]
    pub fn state_layout(&self) -> Option<&StateLayout> {
        self.layout.states.as_ref()
    }

    /// First byte of a page.
    #[must_use]
    pub fn page(&self, page: PageId) -> DevicePtr<u8> {
        let bytes = self.shape().page_bytes();
        self.arena.at(u64::from(page.0) * bytes, bytes as usize)
    }

    /// Clears a page, in stream order.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub fn clear_page(&self, context: &Context, page: PageId) -> Result<(), Fault> {
        let (place, bytes) = (self.page(page), self.shape().page_bytes());
        // SAFETY: the whole of a page.
        unsafe { clear(context, place, bytes as usize) }
    }

    /// Halves between the starts of two layers of a page of this group.
    #[must_use]
    pub fn layer_halves(&self, group: usize) -> u64 {
        2 * self.layout.shape_of(group).half_layer() as u64
    }

    /// Pages of layers with full attention, and of sliding-window layers.
    #[must_use]
    pub fn shapes(&self) -> [KvShape; 2] {
        let full = self.layout.shape;
        [full, self.layout.sliding_shape.unwrap_or(full)]
    }

    /// Groups of layers with full attention, which come first.
    #[must_use]
    pub fn full_groups(&self) -> usize {
        self.layout.groups.groups().full()
    }

    /// Group and index of a layer with attention among its pages.
    #[must_use]
    pub fn place(&self, layer: usize) -> Place {
        self.layout.groups.place(layer)
    }
}

/// Groups of pages of a block: first those of attention layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageGroups {
    pub attention: usize,
    pub states: usize,
}

impl PageGroups {
    #[must_use]
    pub fn all(self) -> usize {
        self.attention + self.states
    }
}

/// Groups of pages of a layout.
#[must_use]
pub fn page_groups(layout: &KvLayout) -> PageGroups {
    PageGroups {
        attention: layout.groups.groups().count(),
        states: layout.states.as_ref().map_or(0, StateLayout::groups),
    }
}
