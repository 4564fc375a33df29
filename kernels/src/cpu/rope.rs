//! Rotary embedding with angles computed once for a token and used by every head of every layer. The rotation itself is
//! the reference's, multiplication by multiplication.

use crate::reference::rope::Rope;

/// cos and sin of every pair at one position.
#[derive(Debug, Clone, Default)]
pub struct RopeRow {
    turns: Vec<(f32, f32)>,
}

impl RopeRow {
    pub fn set(&mut self, rope: &Rope, position: u32) {
        self.turns.clear();
        self.turns
            .extend((0..rope.dims / 2).map(|i| rope.rotation(position, i)));
    }
}

/// Rotates one head in place.
///
/// # Panics
/// If the head is shorter than the rotated part.
pub fn apply_rope(head: &mut [f32], rope: &Rope, row: &RopeRow) {
    for (i, &(cos, sin)) in row.turns.iter().enumerate() {
        let (a, b) = rope.pair(i);
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
    }
}
