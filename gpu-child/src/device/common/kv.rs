//! Page arithmetic of the KV cache.
//!
//! A page holds all layers of a [group](LayerGroups), so that a page is one contiguous piece that can be copied, handed on
//! or checked as a whole: `page ─► layer ─► keys of all heads, values of all heads`, in F16. How a
//! head's part is laid out is each device's own business. Recurrent states have [pages of their own](super::states).

use super::LoadOptions;
use super::layer_groups::{ByKind, LayerGroups};
use super::states::{HALVES, StateLayout};
use crate::device::{KvGeometry, KvGroups};
use crate::model::{Heads, ModelConfig};
use worker_orcd_ipc::{Fault, MAX_PAGE_GROUPS};

/// Positions of a page, which is what attention reads at a time.
pub const PAGE_TOKENS: usize = 32;

/// Maximum values of a unit of a recurrent state: 512 MiB. Kernels index it by 32 bits.
const MAX_UNIT_FLOATS: usize = 1 << 27;

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
        self.used().max(self.least)
    }

    /// Elements of one page that its layers take.
    fn used(&self) -> usize {
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
    /// Pages of sliding-window layers, if their heads differ. They are as large.
    pub sliding_shape: Option<KvShape>,
    /// Groups of the layers with attention. Layers that share keys and values are in the places of earlier ones.
    pub groups: LayerGroups,
    /// Layers with a recurrent state, if there are any.
    pub states: Option<StateLayout>,
}

impl KvLayout {
    #[must_use]
    pub fn of(config: &ModelConfig, options: &LoadOptions) -> Self {
        let mut heads = config.heads();
        let full = heads.next().expect("heads of layers with full attention");
        let sliding = heads.next();
        let shape_of = |heads: Heads, layers, least| KvShape {
            layers,
            n_kv_heads: heads.kv_count,
            head_dim: heads.dim,
            least,
        };
        if config.recurrent.is_none() {
            let sizes = ByKind {
                full: full.kv_width(),
                sliding: sliding.unwrap_or(full).kv_width(),
            };
            let (positions, batch) = (&config.positions, options.batch_tokens());
            let own = config.kv_layers();
            let groups = LayerGroups::of(own, positions, sizes, batch);
            let groups = groups.sharing((own..config.n_layers).map(|it| config.kv_layer(it)));
            let layers = groups.layers();
            let sliding_shape = sliding.map(|sliding| shape_of(sliding, layers.sliding, 0));
            let least = sliding_shape.map_or(0, |shape| shape.used());
            let shape = shape_of(full, layers.full, least);
            let least = shape.page();
            return Self {
                sliding_shape: sliding_shape.map(|shape| KvShape { least, ..shape }),
                ..Self::of_attention(shape, groups)
            };
        }
        let have_attention = (0..config.n_layers).map(|layer| config.has_attention(layer));
        let groups = LayerGroups::one(have_attention);
        let layers = groups.layers().full;
        let page = shape_of(full, layers, 0).page();
        let states = StateLayout::of(config, page / HALVES, groups.groups().count());
        let least = states.as_ref().map_or(0, StateLayout::least_halves);
        Self {
            shape: shape_of(full, layers, least),
            sliding_shape: None,
            groups,
            states,
        }
    }

    /// Shape of the pages of a group of layers with attention.
    #[must_use]
    pub fn shape_of(&self, group: usize) -> &KvShape {
        let is_sliding = group >= self.groups.groups().full();
        self.sliding_shape
            .as_ref()
            .filter(|_| is_sliding)
            .unwrap_or(&self.shape)
    }

    /// Layout of a model in which every layer has attention.
    #[must_use]
    pub fn of_attention(shape: KvShape, groups: LayerGroups) -> Self {
        Self {
            shape,
            sliding_shape: None,
            groups,
            states: None,
        }
    }

    /// Checks the sizes of recurrent states, which a model file determines.
    ///
    /// # Errors
    /// If a unit is too large for the indices of the kernels, or a block takes more pages than a message may have.
    pub fn check_states(&self) -> Result<(), Fault> {
        let Some(states) = &self.states else {
            return Ok(());
        };
        let (floats, groups) = (states.unit().floats(), self.page_groups().count());
        let message = if floats > MAX_UNIT_FLOATS {
            format!(
                "a recurrent state has {floats} values in a unit; at most {MAX_UNIT_FLOATS} are supported"
            )
        } else if groups > MAX_PAGE_GROUPS {
            format!(
                "recurrent states take {groups} pages of each block; at most {MAX_PAGE_GROUPS} are supported"
            )
        } else {
            return Ok(());
        };
        Err(Fault::ModelLoad { message })
    }

    /// All groups of pages of a block.
    #[must_use]
    pub fn page_groups(&self) -> KvGroups {
        let groups = self.groups.groups();
        match &self.states {
            None => groups,
            Some(states) => KvGroups {
                sliding: Some(states.sliding_groups(groups.full())),
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
