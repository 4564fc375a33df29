//! What is asked for, and how the clients behave: all of it from the seed.

use serde_json::{Value, json};
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each `lane` of a seed.
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

    /// 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Everything of a request but its job id.
#[derive(Debug, Clone)]
pub struct Request {
    pub what: &'static str,
    pub body: Value,
}

/// How a client takes its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Reads,
    /// Sleeps after every event.
    ReadsSlowly(Duration),
    /// Says that it wants no more after so many tokens.
    Cancels(u32),
    /// Goes away after so many tokens.
    Vanishes(u32),
}

impl Manner {
    /// Seven in ten read to the end.
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

const KINDS: [&str; 4] = ["greedy", "sampled", "penalties", "stop"];

/// So many different requests: short and long, greedy and sampled, with penalties and with stop
/// strings.
pub fn requests(seed: u64, count: usize) -> Vec<Request> {
    let mut random = Random::new(seed, u64::MAX);
    (0..count)
        .map(|index| request(index, &mut random))
        .collect()
}

fn request(index: usize, random: &mut Random) -> Request {
    let mut prompt = random.pick(&OPENINGS).to_string();
    // One in four has a prompt of a hundred tokens or more.
    let passages = if index % 4 == 3 {
        3 + random.below(4)
    } else {
        random.below(2)
    };
    (0..passages).for_each(|_| prompt.push_str(random.pick::<&str>(&PASSAGES)));
    // One in eight has a long answer.
    let long = index % 8 == 5;
    let max_tokens = if long {
        96 + random.below(64)
    } else {
        6 + random.below(40)
    };
    let mut body = json!({
        "prompt": prompt, "max_tokens": max_tokens, "seed": random.next() >> 12,
        "ignore_eos": random.below(4) == 0,
    });
    let what = KINDS[random.below(KINDS.len())];
    match what {
        "greedy" => body["temperature"] = json!(0.0),
        "sampled" => {
            body["temperature"] = json!(0.5 + random.unit());
            body["top_p"] = json!(0.8 + 0.2 * random.unit());
            body["top_k"] = json!(random.below(80));
        }
        "penalties" => {
            body["temperature"] = json!(0.8);
            body["repetition_penalty"] = json!(1.0 + 0.3 * random.unit());
            body["frequency_penalty"] = json!(0.5 * random.unit());
            body["presence_penalty"] = json!(0.5 * random.unit());
        }
        _ => {
            body["temperature"] = json!(0.7);
            body["stop"] = json!([*random.pick(&[".", ", and", "\n\n", " the "]), "\u{2014}"]);
        }
    }
    Request { what, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_everything() {
        let bodies = |seed| -> Vec<Value> {
            requests(seed, 16)
                .into_iter()
                .map(|request| request.body)
                .collect()
        };
        assert_eq!(bodies(1), bodies(1));
        assert_ne!(bodies(1), bodies(2));
    }

    #[test]
    fn the_mix_is_mixed() {
        let requests = requests(1, 32);
        for what in KINDS {
            assert!(
                requests.iter().any(|request| request.what == what),
                "{what}"
            );
        }
        let mut random = Random::new(1, 0);
        let manners: Vec<_> = (0..200).map(|_| Manner::draw(&mut random)).collect();
        assert!(manners.contains(&Manner::Reads));
        assert!(
            manners
                .iter()
                .any(|manner| matches!(manner, Manner::Cancels(_)))
        );
        assert!(
            manners
                .iter()
                .any(|manner| matches!(manner, Manner::Vanishes(_)))
        );
        assert!(
            manners
                .iter()
                .any(|manner| matches!(manner, Manner::ReadsSlowly(_)))
        );
    }
}
