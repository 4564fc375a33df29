//! What attention makes of positions beside RoPE's parameters: which layers rotate queries and keys.

/// The same in every layer, unless it says otherwise.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Positions {
    /// The last of so many layers, and of the next so many, leaves queries and keys as they are. Never zero.
    pub unrotated_every: Option<usize>,
}

impl Positions {
    /// Queries and keys of the layer are rotated.
    #[must_use]
    pub fn rotates(&self, layer: usize) -> bool {
        self.unrotated_every
            .is_none_or(|every| !(layer + 1).is_multiple_of(every))
    }
}
