//! Page arithmetic of the KV cache.
//!
//! A page holds all layers, so that a page is one contiguous piece that can be copied, handed on
//! or checked as a whole: `page ─► layer ─► keys of all heads, values of all heads`, in F16. How a
//! head's part is laid out is each device's own business.

use crate::device::KvGeometry;
use crate::model::ModelConfig;

/// Positions of a page, which is what attention reads at a time.
pub const PAGE_TOKENS: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub n_layers: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        Self {
            n_layers: config.n_layers,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        }
    }

    /// Elements of one head's keys, or values, in one page.
    #[must_use]
    pub fn head(&self) -> usize {
        self.head_dim * PAGE_TOKENS
    }

    /// Elements of one layer's keys, or values, in one page.
    #[must_use]
    pub fn half_layer(&self) -> usize {
        self.n_kv_heads * self.head()
    }

    /// Elements of one page.
    #[must_use]
    pub fn page(&self) -> usize {
        2 * self.n_layers * self.half_layer()
    }

    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        (size_of::<u16>() * self.page()) as u64
    }

    #[must_use]
    pub fn geometry(&self, pages: u32) -> KvGeometry {
        KvGeometry {
            page_tokens: PAGE_TOKENS as u32,
            pages,
            page_bytes: self.page_bytes(),
        }
    }
}
