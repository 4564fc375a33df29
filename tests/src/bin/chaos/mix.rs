//! Requests and behaviour of clients, from the seed.
//!
//! [`kinds`] has a row for each kind of request, [`held`] the formats of constrained answers.

mod held;
pub mod kinds;

use super::api::{Api, Outcome};
use kinds::Kind;
use serde_json::Value;
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Independent generator for each `lane` of a seed.
    pub fn new(seed: u64, lane: u64) -> Self {
        let mut random = Self(seed ^ lane.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Uniform number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Request without its job id.
#[derive(Debug, Clone)]
pub struct Request {
    /// Kind and delivery.
    pub what: String,
    pub api: Api,
    pub is_streamed: bool,
    pub body: Value,
    pub expects: Expects,
}

/// Expected outcome of a request of a kind, whatever happens to the worker.
#[derive(Debug, Clone, Copy)]
pub enum Expects {
    /// Answer of a run without faults, bit by bit.
    Answer,
    /// The same, and the output passes this independent check of its format.
    Form(fn(&Outcome) -> bool),
    /// Error that names the field.
    Refusal,
}

/// Behaviour of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Reads,
    /// Sleeps after every event.
    ReadsSlowly(Duration),
    /// Cancels after so many pieces; an unstreamed answer has no id to cancel.
    Cancels(u32),
    /// Disconnects after so many pieces, or after hundredths of a second if the answer is unstreamed.
    Vanishes(u32),
}

impl Manner {
    /// Random behaviour: seven in ten read to the end.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            0 => Self::Cancels(random.below(12) as u32),
            1 => Self::Vanishes(random.below(12) as u32),
            2 => Self::ReadsSlowly(Duration::from_millis(20 + random.below(80) as u64)),
            _ => Self::Reads,
        }
    }
}

const OPENINGS: [&str; 8] = [
    "The lighthouse keeper counted the ships",
    "To bake good bread you first",
    "In the year the river froze,",
    "The main difference between a process and a thread is",
    "She opened the old letter and read:",
    "Three reasons why the sky is blue:",
    "The train left at dawn, and",
    "Once upon a time, a fox",
];

const PASSAGES: [&str; 4] = [
    " while the wind turned slowly to the north and the lamps were lit one after the other along \
     the harbour wall,",
    " because nobody in the village had ever seen such a machine, and those who had heard of it \
     did not believe a word,",
    " as the textbook explains on its first page with a table, two figures and a long footnote \
     about units of measurement,",
    " although the map that they had bought in the market showed neither the bridge nor the road \
     that led to it,",
];

/// `of_each` different requests of each kind and delivery.
pub fn requests(seed: u64, of_each: usize, kinds: &[Kind]) -> Vec<Request> {
    let mut random = Random::new(seed, u64::MAX);
    let mut requests = Vec::new();
    for kind in kinds {
        for delivery in kind.delivery {
            for _ in 0..of_each {
                requests.push(kind.request(*delivery, &mut random));
            }
        }
    }
    // Shuffled: neighbours of a kind would run at the same time.
    for last in (1..requests.len()).rev() {
        requests.swap(last, random.below(last + 1));
    }
    requests
}

/// Prompt: short, except for one in four.
fn words(random: &mut Random) -> String {
    let mut words = (*random.pick(&OPENINGS)).to_owned();
    let passages = match random.below(4) {
        0 => 3 + random.below(4),
        _ => random.below(2),
    };
    (0..passages).for_each(|_| words.push_str(random.pick::<&str>(&PASSAGES)));
    words
}

/// Most answers are short; one in eight is not.
fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 96 + random.below(64),
        _ => 6 + random.below(40),
    }
}

#[cfg(test)]
mod tests {
    use super::kinds::{ALL, EXECUTE};
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_says_everything() {
        let bodies = |seed| -> Vec<Value> {
            let requests = requests(seed, 1, &ALL);
            requests.into_iter().map(|request| request.body).collect()
        };
        assert_eq!(bodies(1), bodies(1));
        assert_ne!(bodies(1), bodies(2));
    }

    #[test]
    fn each_kind_is_there_in_each_way_to_be_told() {
        let names = |kinds: &[Kind]| -> BTreeSet<String> {
            let requests = requests(1, 2, kinds);
            let ways: usize = kinds.iter().map(|kind| kind.delivery.len()).sum();
            assert_eq!(requests.len(), 2 * ways);
            let names: BTreeSet<_> = requests.into_iter().map(|request| request.what).collect();
            assert_eq!(names.len(), ways, "{names:?}");
            names
        };
        assert!(names(&ALL).is_superset(&names(&EXECUTE)));
    }

    #[test]
    fn clients_have_all_manners() {
        let mut random = Random::new(1, 0);
        let manners: Vec<_> = (0..200).map(|_| Manner::draw(&mut random)).collect();
        let has = |is: fn(&Manner) -> bool| manners.iter().any(is);
        assert!(has(|it| matches!(it, Manner::Reads)));
        assert!(has(|it| matches!(it, Manner::Cancels(_))));
        assert!(has(|it| matches!(it, Manner::Vanishes(_))));
        assert!(has(|it| matches!(it, Manner::ReadsSlowly(_))));
    }
}
