//! Page arithmetic of the KV cache.
//!
//! A page holds all layers of a [group](LayerGroups), so that a page is one contiguous piece that can be copied, handed on
//! or checked as a whole: `page ─► layer ─► keys of all heads, values of all heads`, in F16. How a
//! head's part is laid out is each device's own business. Recurrent states have [pages of their own](super::states).

use super::LoadOptions;
use super::layer_groups::LayerGroups;
use super::states::{HALVES, StateLayout};
use crate::device::{KvGeometry, KvGroups};
use crate::model::ModelConfig;

/// Positions of a page, which is what attention reads at a time.
pub const PAGE_TOKENS: usize = 32;

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    /// Elements that a page has at least.
    pub least: usize,
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
        (2 * self.layers * self.half_layer()).max(self.least)
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
    /// Groups of the layers with attention.
    pub groups: LayerGroups,
    /// The other layers, if there are any.
    pub states: Option<StateLayout>,
}

impl KvLayout {
    #[must_use]
    pub fn of(config: &ModelConfig, options: &LoadOptions) -> Self {
        let shape_of = |groups: &LayerGroups, least| KvShape {
            layers: groups.layers(),
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            least,
        };
        let Some(net) = &config.delta_net else {
            let positions = &config.positions;
            let groups = LayerGroups::of(config.n_layers, positions, options.batch_tokens());
            return Self::of_attention(shape_of(&groups, 0), groups);
        };
        let groups = LayerGroups::one((0..config.n_layers).map(|layer| !net.is_in(layer)));
        let page = shape_of(&groups, 0).page();
        let states = StateLayout::of(config, page / HALVES, groups.groups().count());
        let least = states.as_ref().map_or(0, StateLayout::least_halves);
        Self {
            shape: shape_of(&groups, least),
            groups,
            states,
        }
    }

    /// Layout of a model in which every layer has attention.
    #[must_use]
    pub fn of_attention(shape: KvShape, groups: LayerGroups) -> Self {
        Self {
            shape,
            groups,
            states: None,
        }
    }

    /// All groups of pages of a block.
    #[must_use]
    pub fn page_groups(&self) -> KvGroups {
        let groups = self.groups.groups();
        match &self.states {
            None => groups,
            Some(states) => KvGroups {
                near: Some(states.near_groups(groups.whole())),
                ..groups
            },
        }
    }

    #[must_use]
    pub fn geometry(&self, pages: u32) -> KvGeometry {
        KvGeometry {
            page_tokens: PAGE_TOKENS as u32,
            pages,
            page_bytes: self.shape.page_bytes(),
            groups: self.page_groups(),
        }
    }

    /// Bytes of a cache in which each of so many sequences, of the longest, has a page of each block and group.
    #[must_use]
    pub fn bytes_of(&self, options: &LoadOptions, sequences: usize) -> u64 {
        let entries = self
            .geometry(0)
            .table_entries(options.max_sequence_tokens as usize);
        (sequences * entries) as u64 * self.shape.page_bytes()
    }

    /// The most pages that the longest sequence wants at a time.
    #[must_use]
    pub fn sequence_pages(&self, options: &LoadOptions) -> u64 {
        let geometry = self.geometry(0);
        geometry.sequence_pages(options.max_sequence_tokens as usize) as u64
    }
}
