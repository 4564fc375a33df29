//! Pages of recurrent states.
//!
//! A layer with a recurrent state keeps, of each block of positions, the rows of the positions, and of a delta net or a state-space
//! layer the state at the end ([`worker_orcd_kernels::cpu::delta_net`], [`worker_orcd_kernels::cpu::mamba`]). The state of a [short convolution](worker_orcd_kernels::cpu::short_conv) is the
//! last rows of a block. To compute a position, a layer reads its block and the block before. So a state is a sliding window of
//! pages: of each block the pages of all such layers, until the next block is complete.
//!
//! A layer's part is cut into units, one for each head of keys, or for some heads or channels. A unit lies in one page, beside others as
//! long as there is room. Therefore pages are as large as those of attention, unless a unit is larger.

use crate::device::SlidingGroups;
use crate::model::{ModelConfig, Recurrence, RecurrentLayers};
use std::ops::Range;
use worker_orcd_kernels::cpu::delta_net::BLOCK;

/// Positions of a prompt with pages ahead of the computed ones.
const AHEAD: u32 = 4 * BLOCK as u32;

/// Elements of a page that a float takes: those of attention are halves.
pub const HALVES: usize = size_of::<f32>() / size_of::<u16>();

/// What is kept of a block of positions in a unit: its rows, then the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateUnit {
    /// Floats of a position.
    row: usize,
    /// Floats of the state at the end.
    state: usize,
}

impl StateUnit {
    #[must_use]
    pub fn row(&self) -> usize {
        self.row
    }

    #[must_use]
    pub fn floats(&self) -> usize {
        BLOCK * self.row + self.state
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateLayout {
    unit: StateUnit,
    /// Units of a layer.
    units: usize,
    /// Index of each layer among those with a state.
    layers: Vec<Option<usize>>,
    /// Units of a page.
    per_page: usize,
    /// Group of the first pages.
    first_group: usize,
}

/// Place of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitPlace {
    pub group: usize,
    /// Index among the units of a page.
    pub index: usize,
}

impl StateLayout {
    /// Layout in pages of `page` floats or, if a unit is larger, of a unit each; behind `first_group` groups of attention
    /// layers. `None` if no layer has a state.
    #[must_use]
    pub fn of(config: &ModelConfig, page: usize, first_group: usize) -> Option<Self> {
        let recurrent = config.recurrent.as_ref()?;
        let mut next = 0;
        let layers = (0..config.n_layers).map(|layer| {
            recurrent.is_in(layer).then(|| {
                next += 1;
                next - 1
            })
        });
        let (unit, units) = units_of(recurrent);
        Some(Self {
            unit,
            units,
            layers: layers.collect(),
            per_page: (page / unit.floats()).max(1),
            first_group,
        })
    }

    #[must_use]
    pub fn unit(&self) -> &StateUnit {
        &self.unit
    }

    /// Units of a page.
    #[must_use]
    pub fn per_page(&self) -> usize {
        self.per_page
    }

    /// Elements that a page has at least: those of a unit.
    #[must_use]
    pub fn least_halves(&self) -> usize {
        HALVES * self.unit.floats()
    }

    /// Elements of a page with the rows of some positions, of all units. The state belongs to the last position.
    pub fn spans(&self, slots: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (unit, row) = (HALVES * self.unit.floats(), HALVES * self.unit.row);
        let end = match slots.end {
            BLOCK => unit,
            slot => slot * row,
        };
        let units = (0..self.per_page).map(move |index| index * unit);
        units.map(move |unit| unit + slots.start * row..unit + end)
    }

    /// Groups of pages: a sequence has as many pages of each block.
    #[must_use]
    pub fn groups(&self) -> usize {
        let layers = self.layers.iter().flatten().count();
        (layers * self.units).div_ceil(self.per_page)
    }

    /// Index of a layer's first unit among those of all layers.
    ///
    /// # Panics
    /// If the layer has no state.
    #[must_use]
    pub fn first_unit(&self, layer: usize) -> usize {
        self.layers[layer].expect("a layer with a state") * self.units
    }

    /// Place of a unit of a layer.
    ///
    /// # Panics
    /// If the layer has no state.
    #[must_use]
    pub fn place(&self, layer: usize, unit: usize) -> UnitPlace {
        let at = self.first_unit(layer) + unit;
        UnitPlace {
            group: self.first_group + at / self.per_page,
            index: at % self.per_page,
        }
    }

    /// The groups as the scheduler sees them. Checkpoints on the way take as many pages as those of attention,
    /// of which there are `full` for each block.
    #[must_use]
    pub fn sliding_groups(&self, full: usize) -> SlidingGroups {
        let count = self.groups();
        SlidingGroups {
            count: count as u32,
            // A position of a block and the whole block before it.
            window: BLOCK as u32 + 1,
            ahead: AHEAD,
            checkpoints: Some(count.div_ceil(full.max(1)) as u32),
        }
    }
}

/// A unit of a layer, and their number.
fn units_of(recurrent: &RecurrentLayers) -> (StateUnit, usize) {
    match &recurrent.recurrence {
        Recurrence::DeltaNet(net) => {
            let unit = net.unit();
            let (row, state) = (unit.row(), unit.state());
            (StateUnit { row, state }, net.k_heads)
        }
        Recurrence::Mamba(mamba) => {
            let unit = mamba.unit();
            let (row, state) = (unit.row(), unit.state_floats());
            (StateUnit { row, state }, mamba.units())
        }
        Recurrence::ShortConv(conv) => {
            let row = conv.unit().channels;
            (StateUnit { row, state: 0 }, conv.units())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::common::kv::KvLayout;
    use crate::device::{KvGroups, LoadOptions};
    use crate::model::tiny_model::tiny_model;
    use crate::model::{Architecture, DeltaNetConfig, ShortConvConfig, gguf};
    use std::collections::BTreeSet;
    use worker_orcd_ipc::{KvReaders, MAX_PAGE_GROUPS, Role};

    /// Layers, heads of keys and of values, heads of attention's keys.
    fn layout(n_layers: usize, k_heads: usize, v_heads: usize, n_kv_heads: usize) -> KvLayout {
        let bytes = tiny_model(Architecture::Qwen35).build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        let net = DeltaNetConfig {
            head_dim: 128,
            k_heads,
            v_heads,
            ..*config.delta_net().expect("delta nets")
        };
        let net = Recurrence::DeltaNet(net);
        layout_of(&ModelConfig {
            n_layers,
            n_kv_heads,
            head_dim: 256,
            recurrent: Some(RecurrentLayers::beside_attention(net, 4, n_layers)),
            ..config
        })
    }

    /// LFM2-1.2B: 6 of 16 layers have attention.
    fn layout_of_lfm2() -> KvLayout {
        let bytes = tiny_model(Architecture::Lfm2).build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        let conv = ShortConvConfig {
            kernel: 3,
            width: 2048,
        };
        let attention = [2, 5, 8, 10, 12, 14];
        layout_of(&ModelConfig {
            n_layers: 16,
            n_kv_heads: 8,
            head_dim: 64,
            recurrent: Some(RecurrentLayers {
                recurrence: Recurrence::ShortConv(conv),
                layers: (0..16).map(|layer| !attention.contains(&layer)).collect(),
            }),
            ..config
        })
    }

    fn layout_of(config: &ModelConfig) -> KvLayout {
        let options = LoadOptions {
            kv_cache_bytes: None,
            max_batch_tokens: 512,
            max_sequence_tokens: 4096,
            role: Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: crate::device::Beside::default(),
            model: String::new(),
        };
        KvLayout::of(config, &options)
    }

    #[test]
    fn states_of_too_many_pages_or_of_too_large_units_are_refused() {
        let refused = |units: usize, floats: usize| {
            let mut layout = layout(4, 16, 48, 4);
            layout.states = layout.states.map(|states| StateLayout {
                unit: StateUnit {
                    row: 1,
                    state: floats,
                },
                units,
                per_page: 1,
                ..states
            });
            layout.check_states().err().map(|fault| fault.to_string())
        };
        assert_eq!(refused(64, 1 << 20), None);
        let pages = refused(400, 1 << 20).expect("three layers of 400 units");
        assert!(pages.contains("1201 pages"), "{pages}");
        let large = refused(2, 1 << 27).expect("a unit of more than 2^27 values");
        assert!(large.contains("values in a unit"), "{large}");
    }

    /// The numbers of docs/internals/decisions/child.md.
    #[test]
    fn qwen3_5_has_pages_of_these_sizes() {
        for (name, layout, page_bytes, groups, sliding_bytes) in [
            ("27B", layout(64, 16, 48, 4), 2 << 20, 1 + 128, 537e6),
            ("35B-A3B", layout(40, 16, 32, 2), 640 << 10, 1 + 240, 315e6),
        ] {
            let geometry = layout.geometry(1);
            assert_eq!(geometry.page_bytes, page_bytes, "{name}");
            assert_eq!(geometry.groups.count(), groups, "{name}");
            assert!(groups <= MAX_PAGE_GROUPS);
            // Of the block of a position and the one before.
            let bytes = (2 * geometry.groups.sliding()) as u64 * page_bytes;
            assert!(
                (bytes as f64 / sliding_bytes - 1.0).abs() < 0.01,
                "{name}: {bytes}"
            );
            assert_eq!(
                (geometry.sliding_from(64), geometry.sliding_from(95)),
                (1, 1)
            );
        }
    }

    /// The numbers of docs/internals/decisions/child.md.
    #[test]
    fn lfm2_has_pages_of_these_sizes() {
        let geometry = layout_of_lfm2().geometry(1);
        assert_eq!(geometry.page_bytes, 384 << 10);
        // Ten layers of 2,048 floats in each of 32 positions.
        assert_eq!(geometry.groups.count(), 1 + 7);
    }

    /// Of five layers of one block one has attention, and two have state spaces.
    #[test]
    fn layers_with_a_feed_forward_part_alone_take_no_room_in_pages() {
        let bytes = tiny_model(Architecture::NemotronH).build();
        let header = gguf::parse(&bytes).expect("a model");
        let config = ModelConfig::from_gguf(&header, None).expect("a configuration");
        let layout = layout_of(&config);
        assert_eq!(layout.shape.layers, 1);
        let states = layout.states.as_ref().expect("states");
        assert_eq!(states.layers, [Some(0), None, None, None, Some(1)]);
        assert_eq!(layout.groups.place(2).index, 0);
    }

    #[test]
    fn each_unit_has_a_place_of_its_own_behind_the_pages_of_attention() {
        // In the second model a unit is larger than a page of attention.
        for (layers, layout) in [
            (64, layout(64, 16, 48, 4)),
            (4, layout(4, 3, 6, 1)),
            (16, layout_of_lfm2()),
        ] {
            let states = layout.states.as_ref().expect("states");
            let shape = layout.shape;
            assert!(states.per_page() * states.unit().floats() * HALVES <= shape.page());
            let all = (0..layers).filter(|layer| states.layers[*layer].is_some());
            let mut places = BTreeSet::new();
            for (layer, unit) in all.flat_map(|layer| (0..states.units).map(move |it| (layer, it)))
            {
                let UnitPlace { group, index } = states.place(layer, unit);
                assert!((1..layout.page_groups().count()).contains(&group));
                assert!(index < states.per_page());
                assert!(places.insert((group, index)), "{layer} {unit}");
            }
        }
    }

    #[test]
    fn checkpoints_on_the_way_take_as_many_pages_as_keys_and_values() {
        let KvGroups { full, sliding } = layout(64, 16, 48, 4).page_groups();
        let sliding = sliding.expect("states");
        assert_eq!(
            sliding.checkpoints.map(|every| every * full),
            Some(sliding.count)
        );
    }
}
