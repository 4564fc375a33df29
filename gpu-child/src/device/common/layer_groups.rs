//! Groups of layers: layers with the keys and values of the same positions in one page.
//!
//! If some layers have full attention and others a sliding window, each group has layers of one kind. A page has room for
//! all layers of the kind that takes less memory, and for as many of the other kind as fit, or for more if there would
//! be more than [`MAX_LAYER_GROUPS`] groups ([`MAX_UNEQUAL_GROUPS`] if the layers of the kinds differ in size). The last
//! group of a kind may have fewer layers; the rest of its pages is unused.

use crate::device::{KvGroups, SlidingGroups};
use crate::model::Positions;

/// Maximum number of groups of layers with attention, if all layers have the same size.
pub const MAX_LAYER_GROUPS: usize = 8;

/// Maximum number of groups if the kinds differ in size. Fewer groups would leave a part of each page with full attention
/// unused.
pub const MAX_UNEQUAL_GROUPS: usize = 24;

/// Positions of a prompt with sliding-window pages ahead of the computed ones: at least the largest chunk.
const MOST_AHEAD: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroups {
    groups: KvGroups,
    /// Layers of a page, by kind.
    layers: ByKind,
    /// Place of each layer; of one without attention it has no meaning.
    places: Vec<Place>,
}

/// A number for layers with full attention, and one for sliding-window layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByKind {
    pub full: usize,
    pub sliding: usize,
}

impl ByKind {
    #[must_use]
    pub fn both(number: usize) -> Self {
        Self {
            full: number,
            sliding: number,
        }
    }
}

/// Place of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub group: usize,
    /// Index among the layers of a page.
    pub index: usize,
}

impl LayerGroups {
    /// Assigns layers with keys and values of their own to groups. `sizes`: elements that a layer takes for each position.
    /// `batch_tokens`: size of the largest batch.
    #[must_use]
    pub fn of(n_layers: usize, positions: &Positions, sizes: ByKind, batch_tokens: usize) -> Self {
        let windows = (0..n_layers).map(|layer| positions.window_of(layer));
        let windows: Vec<_> = windows.collect();
        let sliding = windows.iter().flatten().count();
        let full = n_layers - sliding;
        let layers = match (full, sliding) {
            (0, all) | (all, 0) => ByKind::both(all),
            _ => layers_of_pages(ByKind { full, sliding }, sizes),
        };
        let full_groups = full.div_ceil(layers.full);
        // Places are assigned consecutively, by kind.
        let (mut next_full, mut next_sliding) = (0, 0);
        let places = windows.iter().map(|window| {
            let (first_group, layers, next) = match window {
                None => (0, layers.full, &mut next_full),
                Some(_) => (full_groups, layers.sliding, &mut next_sliding),
            };
            *next += 1;
            Place {
                group: first_group + (*next - 1) / layers,
                index: (*next - 1) % layers,
            }
        });
        let places = places.collect();
        let window = windows.iter().flatten().next();
        let sliding = window.map(|window| SlidingGroups {
            count: sliding.div_ceil(layers.sliding) as u32,
            window: u32::try_from(*window).unwrap_or(u32::MAX / 2),
            ahead: batch_tokens.clamp(1, MOST_AHEAD) as u32,
            checkpoints: None,
        });
        let groups = KvGroups {
            full: full_groups as u32,
            sliding,
        };
        Self {
            groups,
            layers,
            places,
        }
    }

    /// Adds layers behind these. Each shares keys and values of an earlier one, and has its place.
    #[must_use]
    pub fn sharing(mut self, earlier: impl Iterator<Item = usize>) -> Self {
        let places: Vec<_> = earlier.map(|layer| self.places[layer]).collect();
        self.places.extend(places);
        self
    }

    /// Layers with attention in one group; the others have no place.
    #[must_use]
    pub fn one(have_attention: impl Iterator<Item = bool>) -> Self {
        let mut layers = 0;
        let places = have_attention.map(|has_attention| {
            let index = layers;
            layers += usize::from(has_attention);
            Place { group: 0, index }
        });
        let places = places.collect();
        Self {
            groups: KvGroups::ONE,
            layers: ByKind::both(layers),
            places,
        }
    }

    #[must_use]
    pub fn groups(&self) -> KvGroups {
        self.groups
    }

    /// Number of layers in a page.
    #[must_use]
    pub fn layers(&self) -> ByKind {
        self.layers
    }

    #[must_use]
    pub fn place(&self, layer: usize) -> Place {
        self.places[layer]
    }
}

/// Layers in a page of each kind. `layers`: how many there are.
fn layers_of_pages(layers: ByKind, sizes: ByKind) -> ByKind {
    let most_groups = match sizes.full == sizes.sliding {
        true => MAX_LAYER_GROUPS,
        false => MAX_UNEQUAL_GROUPS,
    };
    let [full, sliding] = [layers.full * sizes.full, layers.sliding * sizes.sliding];
    let of_page = |page: usize| ByKind {
        full: page / sizes.full,
        sliding: page / sizes.sliding,
    };
    let fits = |of_page: &ByKind| {
        layers.full.div_ceil(of_page.full) + layers.sliding.div_ceil(of_page.sliding) <= most_groups
    };
    // Room for a layer of either kind; then for one more layer each time.
    let least = full.min(sliding).max(sizes.full).max(sizes.sliding);
    let most = full.max(sliding);
    // All layers of the larger kind in one group, and the others in another, are two groups.
    (least..most)
        .step_by(sizes.full.min(sizes.sliding))
        .map(of_page)
        .find(fits)
        .unwrap_or_else(|| of_page(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::KvGeometry;
    use crate::model::Window;

    fn groups(n_layers: usize, full_every: Option<usize>) -> LayerGroups {
        let window = full_every.map(|every| Window {
            positions: 512,
            full_every: Some(every),
            rope: None,
        });
        let positions = Positions {
            window,
            ..Positions::default()
        };
        LayerGroups::of(n_layers, &positions, ByKind::both(1), 64)
    }

    /// Layers, interval of full-attention layers; groups of both kinds, and layers of a page.
    const MODELS: [(usize, Option<usize>, [usize; 3]); 9] = [
        (28, None, [1, 0, 28]),
        // gpt-oss-20b.
        (24, Some(2), [1, 1, 12]),
        // Gemma 3, from 270M to 27B.
        (18, Some(6), [1, 5, 3]),
        (26, Some(6), [1, 6, 4]),
        (34, Some(6), [1, 6, 5]),
        (48, Some(6), [1, 5, 8]),
        (62, Some(6), [1, 6, 10]),
        // No full-attention layer; one of many.
        (2, Some(6), [0, 1, 2]),
        (40, Some(40), [1, 7, 6]),
    ];

    #[test]
    fn layers_of_a_kind_are_in_few_groups_of_one_size() {
        for (n_layers, full_every, [full, sliding, layers]) in MODELS {
            let of = groups(n_layers, full_every);
            let found = (of.groups.full(), of.groups.sliding(), of.layers());
            let layers = ByKind::both(layers);
            assert_eq!(found, (full, sliding, layers), "{n_layers} {full_every:?}");
        }
    }

    fn unequal(n_layers: usize, [full, sliding]: [usize; 2]) -> LayerGroups {
        let positions = Positions {
            window: Some(Window {
                positions: 1024,
                full_every: Some(6),
                rope: None,
            }),
            ..Positions::default()
        };
        LayerGroups::of(n_layers, &positions, ByKind { full, sliding }, 64)
    }

    #[test]
    fn a_page_of_the_larger_kind_has_as_many_layers_as_fit_in_one_of_all_others() {
        // Gemma 4 31B, 26B-A4B and 12B: layers, sizes; groups of both kinds, and layers of a page.
        for (n_layers, sizes, [full, sliding], [full_layers, sliding_layers]) in [
            (60, [4 * 512, 16 * 256], [1, 10], [10, 5]),
            (30, [2 * 512, 8 * 256], [1, 13], [5, 2]),
            (48, [512, 8 * 256], [1, 20], [8, 2]),
        ] {
            let of = unequal(n_layers, sizes);
            assert_eq!((of.groups.full(), of.groups.sliding()), (full, sliding));
            let layers = ByKind {
                full: full_layers,
                sliding: sliding_layers,
            };
            assert_eq!(of.layers(), layers);
            assert!(sliding_layers * sizes[1] <= full_layers * sizes[0]);
            let places = (0..n_layers).map(|layer| of.place(layer));
            let places: std::collections::BTreeSet<_> =
                places.map(|place| (place.group, place.index)).collect();
            assert_eq!(places.len(), n_layers);
        }
    }

    /// Gemma 4 E2B and E4B: layers, those that share, distance of layers with full attention, sizes; groups of both kinds,
    /// and layers of a page.
    #[test]
    fn layers_that_share_keys_and_values_take_no_room() {
        for (n_layers, shared, every, sizes, [full, sliding], [full_layers, sliding_layers]) in [
            (35, 20, 5, [512, 256], [1, 2], [3, 6]),
            (42, 18, 6, [2 * 512, 2 * 256], [1, 3], [4, 8]),
        ] {
            let own = n_layers - shared;
            let positions = Positions {
                window: Some(Window {
                    positions: 512,
                    full_every: Some(every),
                    rope: None,
                }),
                ..Positions::default()
            };
            let earlier = |layer: usize| match positions.window_of(layer) {
                None => own - 1,
                Some(_) => own - 2,
            };
            let sizes = ByKind {
                full: sizes[0],
                sliding: sizes[1],
            };
            let of = LayerGroups::of(own, &positions, sizes, 64);
            let of = of.sharing((own..n_layers).map(earlier));
            assert_eq!((of.groups.full(), of.groups.sliding()), (full, sliding));
            let layers = ByKind {
                full: full_layers,
                sliding: sliding_layers,
            };
            assert_eq!(of.layers(), layers);
            for layer in own..n_layers {
                assert_eq!(of.place(layer), of.place(earlier(layer)));
            }
            let places = (0..n_layers).map(|layer| of.place(layer));
            let places: std::collections::BTreeSet<_> =
                places.map(|place| (place.group, place.index)).collect();
            assert_eq!(places.len(), own);
        }
    }

    #[test]
    fn each_layer_has_a_place_of_its_own_among_those_of_its_kind() {
        for (n_layers, full_every, [full, sliding, layers]) in MODELS {
            let of = groups(n_layers, full_every);
            let mut taken = std::collections::BTreeSet::new();
            for layer in 0..n_layers {
                let Place { group, index } = of.place(layer);
                let sees_all = full_every.is_none_or(|every| (layer + 1).is_multiple_of(every));
                assert_eq!(group < full, sees_all, "{layer} of {n_layers}");
                assert!(group < full + sliding && index < layers);
                assert!(taken.insert((group, index)), "{layer} of {n_layers}");
            }
        }
    }

    /// The numbers of docs/guide/models.md for two models.
    #[test]
    fn a_long_sequence_takes_a_part_of_the_pages_of_all_its_tokens() {
        let share = |n_layers, every, window, tokens: usize| {
            let positions = Positions {
                window: Some(Window {
                    positions: window,
                    full_every: Some(every),
                    rope: None,
                }),
                ..Positions::default()
            };
            let of = LayerGroups::of(n_layers, &positions, ByKind::both(1), 2048);
            let geometry = KvGeometry {
                page_tokens: 32,
                pages: 0,
                page_bytes: 0,
                groups: of.groups(),
            };
            let all = geometry.table_entries(tokens);
            (100.0 * geometry.sequence_pages(tokens) as f64 / all as f64).round()
        };
        // gpt-oss-20b, and Gemma 3 12B.
        assert_eq!(share(24, 2, 128, 131_072), 50.0);
        assert_eq!(share(48, 6, 1024, 32_768), 22.0);
    }
}
