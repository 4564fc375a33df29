//! Philox4x32-10: a counter-based random number generator.
//!
//! Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). A number is a function of a key and a
//! counter, so another process can repeat the sampling at a position without replaying earlier ones.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// The golden ratio and `sqrt(3) - 1`: increments of the key in each round.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: u32 = 10;

#[must_use]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [a, b] = [(0, counter[0]), (1, counter[2])]
            .map(|(lane, word)| u64::from(MULTIPLIERS[lane]) * u64::from(word));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// A number evenly distributed over all 64 bits.
#[must_use]
pub fn number(seed: u64, position: u32) -> u64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [low, high, ..] = philox4x32([position, 0, 0, 0], key);
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from `kat_vectors` of the Random123 distribution.
    #[test]
    fn the_known_answers_of_random123() {
        for (counter, key, answer) in [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ] {
            assert_eq!(philox4x32(counter, key), answer);
        }
    }

    #[test]
    fn numbers_are_evenly_distributed() {
        const DRAWS: u32 = 100_000;
        let mut bins = [0_u32; 10];
        for position in 0..DRAWS {
            let tenth = (u128::from(number(7, position)) * 10) >> 64;
            bins[tenth as usize] += 1;
        }
        let expected = f64::from(DRAWS) / 10.0;
        let chi_square: f64 = bins
            .iter()
            .map(|&n| (f64::from(n) - expected).powi(2) / expected)
            .sum();
        // 99.9 % of even distributions stay under this with 9 degrees of freedom.
        assert!(chi_square < 27.9, "{chi_square}");
    }
}
