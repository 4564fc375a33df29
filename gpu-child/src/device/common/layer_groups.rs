//! Groups of layers: layers with the keys and values of the same positions in one page.
//!
//! If some layers have full attention and others a sliding window, each group has layers of one kind. All groups have
//! the same number of layers: the number of layers of the rarer kind, or more if there would be more than
//! [`MAX_LAYER_GROUPS`] groups. The last group of a kind may have fewer; the rest of its pages is unused.

use crate::device::{KvGroups, NearGroups};
use crate::model::Positions;

/// Maximum number of groups of layers with attention.
pub const MAX_LAYER_GROUPS: usize = 8;

/// Positions of a prompt with sliding-window pages ahead of the computed ones: at least the largest chunk.
const MOST_AHEAD: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGroups {
    groups: KvGroups,
    /// Layers of a page.
    layers: usize,
    /// Place of each layer; of one without attention it has no meaning.
    places: Vec<Place>,
}

/// Place of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub group: usize,
    /// Index among the layers of a page.
    pub index: usize,
}

impl LayerGroups {
    /// Assigns layers to groups. `batch_tokens`: size of the largest batch.
    #[must_use]
    pub fn of(n_layers: usize, positions: &Positions, batch_tokens: usize) -> Self {
        let windows = (0..n_layers).map(|layer| positions.window_of(layer));
        let windows: Vec<_> = windows.collect();
        let near = windows.iter().flatten().count();
        let whole = n_layers - near;
        let layers = match (whole, near) {
            (0, all) | (all, 0) => all,
            _ => layers_of_a_group(whole, near),
        };
        let whole_groups = whole.div_ceil(layers);
        // Places are assigned consecutively, by kind.
        let (mut next_whole, mut next_near) = (0, whole_groups * layers);
        let places = windows.iter().map(|window| {
            let next = match window {
                None => &mut next_whole,
                Some(_) => &mut next_near,
            };
            *next += 1;
            Place {
                group: (*next - 1) / layers,
                index: (*next - 1) % layers,
            }
        });
        let places = places.collect();
        let window = windows.iter().flatten().next();
        let near = window.map(|window| NearGroups {
            count: near.div_ceil(layers) as u32,
            window: u32::try_from(*window).unwrap_or(u32::MAX / 2),
            ahead: batch_tokens.clamp(1, MOST_AHEAD) as u32,
            checkpoints: None,
        });
        let groups = KvGroups {
            whole: whole_groups as u32,
            near,
        };
        Self {
            groups,
            layers,
            places,
        }
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
            layers,
            places,
        }
    }

    #[must_use]
    pub fn groups(&self) -> KvGroups {
        self.groups
    }

    /// Number of layers in a page.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers
    }

    #[must_use]
    pub fn place(&self, layer: usize) -> Place {
        self.places[layer]
    }
}

fn layers_of_a_group(whole: usize, near: usize) -> usize {
    let fits =
        |layers: &usize| whole.div_ceil(*layers) + near.div_ceil(*layers) <= MAX_LAYER_GROUPS;
    let rarer = whole.min(near);
    // All layers of the commoner kind in one group, and the others in another, are two groups.
    (rarer..whole.max(near))
        .find(fits)
        .unwrap_or(whole.max(near))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::KvGeometry;
    use crate::model::Window;

    fn groups(n_layers: usize, whole_every: Option<usize>) -> LayerGroups {
        let window = whole_every.map(|every| Window {
            positions: 512,
            whole_every: Some(every),
            rope: None,
        });
        let positions = Positions {
            window,
            ..Positions::default()
        };
        LayerGroups::of(n_layers, &positions, 64)
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
        for (n_layers, whole_every, [whole, near, layers]) in MODELS {
            let of = groups(n_layers, whole_every);
            let found = (of.groups.whole(), of.groups.near(), of.layers());
            assert_eq!(found, (whole, near, layers), "{n_layers} {whole_every:?}");
        }
    }

    #[test]
    fn each_layer_has_a_place_of_its_own_among_those_of_its_kind() {
        for (n_layers, whole_every, [whole, near, layers]) in MODELS {
            let of = groups(n_layers, whole_every);
            let mut taken = std::collections::BTreeSet::new();
            for layer in 0..n_layers {
                let Place { group, index } = of.place(layer);
                let sees_all = whole_every.is_none_or(|every| (layer + 1).is_multiple_of(every));
                assert_eq!(group < whole, sees_all, "{layer} of {n_layers}");
                assert!(group < whole + near && index < layers);
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
                    whole_every: Some(every),
                    rope: None,
                }),
                ..Positions::default()
            };
            let of = LayerGroups::of(n_layers, &positions, 2048);
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
