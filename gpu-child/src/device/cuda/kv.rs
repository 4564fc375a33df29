//! The paged KV cache on the device: `kernels/cuda/kv.cuh` says what is in a page.

use super::context::Context;
use super::headers::constant;
use super::kernels::KvArgs;
use super::memory::{Arena, DevicePtr, Purpose};
use crate::device::KvGeometry;
use crate::device::common::kv::{KvShape, PAGE_TOKENS};
use worker_orcd_ipc::{Fault, Role};

// It is what attention reads at a time.
const _: () = assert!(PAGE_TOKENS == constant!("kv.cuh", PAGE));

#[derive(Debug)]
pub struct KvCache {
    arena: Arena,
    shape: KvShape,
    pages: u32,
}

impl KvCache {
    /// Zeroed: attention reads whole pages, and what was never written must be a number.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn new(context: &Context, shape: KvShape, pages: u32, role: Role) -> Result<Self, Fault> {
        let bytes = u64::from(pages) * shape.page_bytes();
        let arena = Arena::for_role(context, Purpose::Kv, bytes, role)?;
        if arena.has_memory() {
            arena.clear(context)?;
        }
        Ok(Self {
            arena,
            shape,
            pages,
        })
    }

    /// Takes the memory that a standby has left to others.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn take(&mut self, context: &Context) -> Result<(), Fault> {
        self.arena.take(context)?;
        self.arena.clear(context)
    }

    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        self.shape.geometry(self.pages)
    }

    /// Halves from one layer to the next.
    #[must_use]
    pub fn layer_halves(&self) -> u64 {
        2 * self.shape.half_layer() as u64
    }

    #[must_use]
    pub fn layer(&self, layer: usize, tables: DevicePtr<i32>) -> KvArgs {
        KvArgs {
            pages: self.arena.at(0, self.pages as usize * self.shape.page()),
            page_stride: self.shape.page() as u64,
            layer_offset: layer as u64 * self.layer_halves(),
            tables,
        }
    }
}
