//! Page arithmetic of the KV cache.
//!
//! A page holds all layers of a [group](LayerGroups), so that a page is one contiguous piece that can be copied, handed on
//! or checked as a whole: `page ─► layer ─► keys of all heads, values of all heads`, in F16. How a
//! head's part is laid out is each device's own business.

use super::LoadOptions;
use super::layer_groups::LayerGroups;
use crate::device::KvGeometry;
use crate::model::ModelConfig;

/// Positions of a page, which is what attention reads at a time.
pub const PAGE_TOKENS: usize = 32;

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
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
        2 * self.layers * self.half_layer()
    }

    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        (size_of::<u16>() * self.page()) as u64
    }
}

/// What pages hold, and for which layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    pub shape: KvShape,
    pub groups: LayerGroups,
}

impl KvLayout {
    #[must_use]
    pub fn of(config: &ModelConfig, options: &LoadOptions) -> Self {
        let groups = LayerGroups::of(config.n_layers, &config.positions, options.batch_tokens());
        let shape = KvShape {
            layers: groups.layers(),
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
        };
        Self { shape, groups }
    }

    #[must_use]
    pub fn geometry(&self, pages: u32) -> KvGeometry {
        KvGeometry {
            page_tokens: PAGE_TOKENS as u32,
            pages,
            page_bytes: self.shape.page_bytes(),
            groups: self.groups.groups(),
        }
    }

    /// The most pages that the longest sequence wants at a time.
    #[must_use]
    pub fn sequence_pages(&self, options: &LoadOptions) -> u64 {
        let geometry = self.geometry(0);
        geometry.sequence_pages(options.max_sequence_tokens as usize) as u64
    }
}
