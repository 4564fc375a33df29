//! The paged KV cache on the device: `kernels/cuda/kv.cuh` says what is in a page.

use super::driver::Driver;
use super::kernels::KvArgs;
use super::memory::{Arena, DevicePtr, Purpose};
use super::plan::PAGE_TOKENS;
use crate::device::KvGeometry;
use crate::model::ModelConfig;
use worker_orcd_ipc::Fault;

#[derive(Debug, Clone, Copy)]
pub struct KvShape {
    n_layers: usize,
    /// Keys, or values, of one layer in one page, in halves.
    half_layer: usize,
}

impl KvShape {
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            n_layers: config.n_layers,
            half_layer: config.n_kv_heads * config.head_dim * PAGE_TOKENS,
        }
    }

    fn page_halves(&self) -> usize {
        2 * self.n_layers * self.half_layer
    }

    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        2 * self.page_halves() as u64
    }
}

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
    pub fn new(driver: &Driver, shape: KvShape, pages: u32) -> Result<Self, Fault> {
        let arena = Arena::new(driver, Purpose::Kv, u64::from(pages) * shape.page_bytes())?;
        arena.clear(driver)?;
        Ok(Self {
            arena,
            shape,
            pages,
        })
    }

    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    #[must_use]
    pub fn geometry(&self) -> KvGeometry {
        KvGeometry {
            page_tokens: PAGE_TOKENS as u32,
            pages: self.pages,
            page_bytes: self.shape.page_bytes(),
        }
    }

    /// From one layer to the next, in halves.
    #[must_use]
    pub fn layer_halves(&self) -> u64 {
        2 * self.shape.half_layer as u64
    }

    #[must_use]
    pub fn layer(&self, layer: usize, tables: DevicePtr<i32>) -> KvArgs {
        KvArgs {
            pages: self
                .arena
                .at(0, self.pages as usize * self.shape.page_halves()),
            page_stride: self.shape.page_halves() as u64,
            layer_offset: layer as u64 * self.layer_halves(),
            tables,
        }
    }
}
