//! Figures of the bare executor: decoding at each batch size, and prompts to their first token.

use super::bare::Bare;
use super::lines::Line;
use super::prompts::token_ids;
use super::{Settings, median, print};
use anyhow::Result;
use serde_json::json;
use std::time::Instant;
use worker_orcd_gpu::device::PageId;
use worker_orcd_ipc::Sampling;

/// Steps in which a device allocates for a new batch size.
const WARM_UP_STEPS: usize = 16;

/// Rounds for each prompt length.
const PROMPT_ROUNDS: usize = 11;

/// Computes prompts once; then decodes the same positions in every round.
///
/// # Errors
/// A fault of the device.
pub fn decode(bare: &mut Bare, settings: &Settings) -> Result<()> {
    for batch in &settings.batches {
        if *batch > bare.room() {
            print(&json!({
                "what": "decode", "side": "bare", "batch": batch,
                "not_run": format!("the KV cache has room for {} sequences", bare.room()),
            }));
            continue;
        }
        let mut lines: Vec<_> = (0..*batch)
            .map(|index| {
                let pages = bare.pages(index);
                greedy(bare, index as u64, settings.prompt_tokens, pages)
            })
            .collect();
        let has_prompt = |line: &Line| line.generated().is_empty();
        while lines.iter().any(has_prompt) {
            bare.step(&mut lines, bare.chunk, has_prompt)?;
        }
        for _ in 0..WARM_UP_STEPS.min(settings.tokens - 1) {
            bare.step(&mut lines, usize::MAX, |_| true)?;
        }
        let (mut rates, mut steps) = (Vec::new(), Vec::new());
        for _ in settings.rounds(settings.rounds).skip(1) {
            lines.iter_mut().for_each(Line::rewind);
            let start = Instant::now();
            for _ in 1..settings.tokens {
                let step = Instant::now();
                bare.step(&mut lines, usize::MAX, |_| true)?;
                steps.push(step.elapsed().as_secs_f64() * 1e6);
            }
            let drawn = batch * (settings.tokens - 1);
            rates.push(drawn as f64 / start.elapsed().as_secs_f64());
        }
        print(&json!({
            "what": "decode", "side": "bare", "batch": batch,
            "tokens_per_second": median(&mut rates), "median_step_us": median(&mut steps),
            "least": rates[0], "most": rates[rates.len() - 1],
        }));
    }
    Ok(())
}

/// Measures the time of the first token of new prompts.
///
/// # Errors
/// A fault of the device.
pub fn prompts(bare: &mut Bare, settings: &Settings) -> Result<()> {
    for length in &settings.prompts {
        let mut times = Vec::new();
        for round in settings.rounds(PROMPT_ROUNDS) {
            let pages = bare.pages_alone(*length + 1);
            let mut line = [greedy(bare, 1000 + round as u64, *length, pages)];
            let start = Instant::now();
            while line[0].generated().is_empty() {
                bare.step(&mut line, bare.chunk, |_| true)?;
            }
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        print(&json!({
            "what": "prompt", "side": "bare", "tokens": length, "median_ms": median(&mut times),
            "least_ms": times[0], "most_ms": times[times.len() - 1],
        }));
    }
    Ok(())
}

fn greedy(bare: &Bare, seed: u64, length: usize, pages: Vec<PageId>) -> Line {
    let prompt = token_ids(seed, length, bare.vocabulary);
    Line::new(prompt, Sampling::default(), pages)
}
