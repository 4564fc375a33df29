//! Version number of the layout of all memory that outlives a child.
//!
//! Checksums prove that bytes are unchanged, but not their layout. A child of another binary may pack weights or lay
//! out pages differently. It sends another number in its `Hello`, and receives no retained memory
//! (`supervisor/engine/src/driver/retained_memory.rs`).
//!
//! The number is a hash of the sources that define the layout. An edit of a comment there costs one load at an upgrade;
//! a forgotten version bump would cost wrong text.

/// Layout of weights, KV pages and their checksums, for both devices.
pub const ARENA_LAYOUT: u64 = fnv1a(&[
    include_str!("../../../../kernels/cuda/common.cuh"),
    include_str!("../../../../kernels/cuda/weights.cuh"),
    include_str!("../../../../kernels/cuda/repack.cu"),
    include_str!("../../../../kernels/cuda/checksum.cu"),
    include_str!("../../../../kernels/cuda/kv.cuh"),
    include_str!("../../../../kernels/cuda/rope_kv.cuh"),
    include_str!("../../../../kernels/cuda/kv_pages.cu"),
    include_str!("../../../../kernels/src/cpu/packed.rs"),
    include_str!("../cpu/kv.rs"),
    include_str!("../cpu/kv_transfer.rs"),
    include_str!("kv.rs"),
    include_str!("manifest.rs"),
]);

/// 64-bit FNV-1a, with a separator byte that is in no text after each text
/// (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>).
const fn fnv1a(texts: &[&str]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut text = 0;
    while text < texts.len() {
        let bytes = texts[text].as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            hash = (hash ^ bytes[at] as u64).wrapping_mul(PRIME);
            at += 1;
        }
        hash = (hash ^ 0xff).wrapping_mul(PRIME);
        text += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_of_a_source_or_its_place_gives_another_number() {
        // The hash of "a" is 0xaf63dc4c8601ec8c, by the draft's table.
        let behind = (0xaf63_dc4c_8601_ec8c ^ 0xff_u64).wrapping_mul(0x0000_0100_0000_01b3);
        assert_eq!(fnv1a(&["a"]), behind);
        assert_ne!(fnv1a(&["ab", "c"]), fnv1a(&["a", "bc"]));
        assert_ne!(fnv1a(&["ab", "c"]), fnv1a(&["c", "ab"]));
    }
}
