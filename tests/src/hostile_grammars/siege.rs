//! Any number of different hostile grammars, reproducible by seed.
//!
//! A family is one way to consume time, memory or stack. The size of each member is random, between acceptable and
//! beyond all limits.

use super::{expressions, rules, schemas};
use serde_json::Value;

/// Expensive grammar.
#[derive(Debug, Clone, PartialEq)]
pub struct Hostile {
    pub family: &'static str,
    /// Fields of the request.
    pub fields: Value,
}

/// Constructor of a family's member.
pub(super) type Make = fn(&mut Random) -> Value;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug)]
pub struct Random(u64);

/// `count` grammars, one of each family in turn.
///
/// # Panics
/// A family has fewer members than that.
#[must_use]
pub fn siege(seed: u64, count: usize) -> Vec<Hostile> {
    let families = [schemas::FAMILIES, expressions::FAMILIES, rules::FAMILIES].concat();
    let mut random = Random(seed);
    let mut all: Vec<Hostile> = Vec::with_capacity(count);
    let mut texts = std::collections::HashSet::new();
    for (family, make) in families.into_iter().cycle().take(count) {
        let new = (0..100).find_map(|_| {
            let fields = make(&mut random);
            let is_new = texts.insert(fields.to_string());
            is_new.then_some(Hostile { family, fields })
        });
        all.push(new.unwrap_or_else(|| panic!("too few are of the family {family}")));
    }
    all
}

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() % (most - least + 1) as u64) as usize
    }

    /// Random size; small numbers are as frequent as large ones.
    pub(super) fn size(&mut self, least: usize, most: usize) -> usize {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let ratio = most as f64 / least as f64;
        (least as f64 * ratio.powf(unit)).round() as usize
    }

    pub(super) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() - 1)]
    }

    pub(super) fn word(&mut self) -> String {
        let letters = (0..self.between(3, 9)).map(|_| self.one(b"abcdefghijklmnopqrstuvwxyz"));
        letters.map(char::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_grammars_again_and_another_seed_others() {
        let some = siege(1, 200);
        assert_eq!(some, siege(1, 200));
        assert_eq!(some[..100], siege(1, 100));
        assert_ne!(some, siege(2, 200));
    }

    #[test]
    fn a_thousand_are_of_all_families_and_fit_a_request() {
        let all = siege(1, 1000);
        assert_eq!(all.len(), 1000);
        for one in &all {
            let bytes = one.fields.to_string().len();
            assert!(bytes < 600 << 10, "{}: {bytes} bytes", one.family);
        }
    }
}
