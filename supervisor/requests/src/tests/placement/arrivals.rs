//! Arrivals of published shapes.
//!
//! * `conversations`: the hour of Mooncake's `conversation_trace.jsonl` (Qin and others, FAST 2025;
//!   kvcache-ai/Mooncake, `FAST25-release/traces`, 12,031 requests): prompt lengths, added tokens of the next turn,
//!   answer lengths, and time between turns, at the quantiles below. 39 of 100 requests continue an earlier one, and
//!   all share their first block.
//! * `chat` and `bursts`: the conversations and the code completions of Azure's traces of 2023 (Patel and others,
//!   Splitwise, ISCA 2024; Azure/AzurePublicDataset, `data/AzureLLMInferenceTrace_conv.csv` and `_code.csv`). Lengths
//!   of prompts and answers are log-normal, with the median and the standard deviation of the traces. The code
//!   completions arrive in bursts.

use super::child::SHARED;
use std::collections::BTreeMap;
use worker_orcd_ipc::TokenId;

/// Prompt tokens that a device computes per second: an H200 with a model of 7B parameters, at a third of its peak
/// arithmetic.
const TOKENS_PER_SECOND: f64 = 25_000.0;

/// Quantiles: pairs of a fraction and the value there.
type Quantiles = [(f64, f64); 8];

const PROMPTS: Quantiles = [
    (0.0, 890.0),
    (0.1, 964.0),
    (0.25, 2306.0),
    (0.5, 6909.0),
    (0.75, 15_368.0),
    (0.9, 27_367.0),
    (0.99, 85_401.0),
    (1.0, 123_000.0),
];
const ADDED: Quantiles = [
    (0.0, 50.0),
    (0.1, 304.0),
    (0.25, 534.0),
    (0.5, 829.0),
    (0.75, 3503.0),
    (0.9, 9741.0),
    (0.99, 26_773.0),
    (1.0, 60_000.0),
];
const ANSWERS: Quantiles = [
    (0.0, 1.0),
    (0.1, 24.0),
    (0.25, 156.0),
    (0.5, 350.0),
    (0.75, 472.0),
    (0.9, 597.0),
    (0.99, 1120.0),
    (1.0, 2000.0),
];
const SECONDS_BETWEEN_TURNS: Quantiles = [
    (0.0, 3.0),
    (0.1, 42.0),
    (0.25, 66.0),
    (0.5, 123.0),
    (0.75, 264.0),
    (0.9, 483.0),
    (0.99, 1482.0),
    (1.0, 3000.0),
];
const GOES_ON: f64 = 0.39;

/// Median of a length in tokens, and standard deviation of its logarithm.
type Spread = (f64, f64);

/// Lengths of prompts and of answers.
const CHAT: (Spread, Spread) = ((1020.0, 0.985), (129.0, 0.859));
const CODE: (Spread, Spread) = ((1469.0, 1.360), (13.0, 0.847));

#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub conversation: u64,
    pub prompt: Vec<TokenId>,
    pub answer: u32,
    goes_on: bool,
}

pub(super) struct Arrivals {
    random: u64,
    due: BTreeMap<(u64, u64), Turn>,
    serial: u64,
}

impl Arrivals {
    /// Conversations. The next turn follows some time after the last answer.
    pub(super) fn conversations(devices: u8, seed: u64) -> Self {
        let mut arrivals = Self::new(seed);
        let mut at = 0.0;
        for _ in 0..60 * u64::from(devices) {
            at += arrivals.exponential() * 24_000.0 / f64::from(devices);
            let (prompt, answer) = (arrivals.draw(&PROMPTS), arrivals.draw(&ANSWERS));
            arrivals.begin(at, prompt, answer, true);
        }
        arrivals
    }

    pub(super) fn chat(devices: u8, seed: u64) -> Self {
        let mut arrivals = Self::new(seed);
        let mut at = 0.0;
        for _ in 0..200 * u64::from(devices) {
            at += arrivals.exponential() * 2_000.0 / f64::from(devices);
            let (prompt, answer) = (arrivals.around(CHAT.0), arrivals.around(CHAT.1));
            arrivals.begin(at, prompt, answer, false);
        }
        arrivals
    }

    pub(super) fn bursts(devices: u8, seed: u64) -> Self {
        const BURST: u64 = 16;
        let mut arrivals = Self::new(seed);
        let mut at = 0.0;
        for _ in 0..12 * u64::from(devices) {
            at += arrivals.exponential() * 3_000.0 * BURST as f64 / f64::from(devices);
            for _ in 0..BURST {
                let (prompt, answer) = (arrivals.around(CODE.0), arrivals.around(CODE.1));
                arrivals.begin(at, prompt, answer, false);
            }
        }
        arrivals
    }

    fn new(seed: u64) -> Self {
        Self {
            random: seed,
            due: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn next(&mut self) -> Option<Turn> {
        self.due.pop_first().map(|(_, turn)| turn)
    }

    /// Schedules the next turn of a conversation after an answer was read.
    pub(super) fn ended(&mut self, turn: Turn, now: u64) {
        if turn.goes_on && self.uniform() < GOES_ON {
            let pause = self.draw(&SECONDS_BETWEEN_TURNS) * TOKENS_PER_SECOND;
            let (added, answer) = (self.draw(&ADDED), self.draw(&ANSWERS));
            let mut prompt = turn.prompt;
            prompt.extend((0..turn.answer).map(|index| TokenId(index % 2)));
            self.ask(
                now as f64 + pause,
                turn.conversation,
                prompt,
                added,
                answer,
                true,
            );
        }
    }

    fn begin(&mut self, at: f64, prompt: f64, answer: f64, goes_on: bool) {
        let shared = vec![TokenId(2); SHARED as usize];
        self.ask(at, self.serial, shared, prompt, answer, goes_on);
    }

    fn ask(
        &mut self,
        at: f64,
        conversation: u64,
        mut prompt: Vec<TokenId>,
        added: f64,
        answer: f64,
        goes_on: bool,
    ) {
        let own = TokenId(1000 + conversation as u32);
        prompt.extend(vec![own; (added).ceil() as usize]);
        let turn = Turn {
            conversation,
            prompt,
            answer: (answer).ceil().max(1.0) as u32,
            goes_on,
        };
        self.due.insert((at as u64, self.serial), turn);
        self.serial += 1;
    }

    // === random numbers ===

    /// Uniform in 0..1, by the generator `SplitMix64` (Steele and others, OOPSLA 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with mean 1: the time between two arrivals of a Poisson process.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }

    /// Log-normal length.
    fn around(&mut self, (median, deviation): Spread) -> f64 {
        let normal: f64 = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        median * (deviation * normal).exp()
    }

    fn draw(&mut self, quantiles: &Quantiles) -> f64 {
        let part = self.uniform();
        let pairs = quantiles.iter().zip(&quantiles[1..]);
        let mut around = pairs.filter(|((_, _), (upper, _))| part <= *upper);
        let ((lower, from), (upper, to)) = around.next().expect("a fraction in 0..1");
        from + (to - from) * (part - lower) / (upper - lower)
    }
}
