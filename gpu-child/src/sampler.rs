//! From a row of logits to the next token. Pure: the same row, parameters, history and position
//! give the same token, on every machine.
//!
//! Order and definitions:
//!
//! 1. repetition penalty, as transformers' `RepetitionPenaltyLogitsProcessor`: the logit of every
//!    token seen in prompt or completion is divided by it when positive, multiplied when negative
//!    (CTRL, arXiv:1909.05858, section 4.1);
//! 2. frequency and presence penalty, as the OpenAI API defines them, over the completion:
//!    `logit -= count * frequency + (count > 0) * presence`;
//! 3. temperature, as `TemperatureLogitsWarper`: logits are divided by it; 0 means argmax, the
//!    lowest id of equals, and ends here;
//! 4. top-k, as `TopKLogitsWarper`: what is below the k-th largest goes, equals of it stay;
//! 5. top-p, as `TopPLogitsWarper`: the smallest set of most probable tokens whose mass reaches
//!    p stays, at least one; of equals, lower ids come first;
//! 6. min-p, as `MinPLogitsWarper`: what is less probable than p times the most probable goes;
//! 7. the draw: the inverse of the cumulative distribution in order of token ids, at a number
//!    that Philox makes of (seed, position).
//!
//! No step needs the whole vocabulary sorted. Logits must not be NaN: the executor ends the child
//! before one gets here.

mod exp;
mod lanes;
mod nucleus;
mod select;

use crate::device::SampleWork;
use crate::rng;
use exp::exp_nonpositive;
use worker_orcd_ipc::{Sampling, TokenId};

/// A token that is still in the race.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    /// Logit after penalties and temperature, moved so that the largest is 0.
    scaled: f32,
    /// Its probability, but for a common factor that makes the most probable token's 1.
    weight: f32,
}

/// `position` is that of the token being drawn: the first one behind a prompt of 5 has 5.
/// `logits` is used up.
pub fn sample(logits: &mut [f32], work: &SampleWork<'_>, position: u32) -> TokenId {
    let sampling = &work.sampling;
    penalize(logits, work);
    let best = argmax(logits);
    if sampling.temperature == 0.0 {
        return TokenId(best as u32);
    }
    // The largest becomes 0 before the division, so that no temperature overflows.
    let max = logits[best];
    for logit in logits.iter_mut() {
        *logit = (*logit - max) / sampling.temperature;
    }
    let number = rng::uniform(sampling.seed, position);
    match candidates(logits, sampling) {
        None => draw_of_all(logits, number),
        Some(candidates) => draw(candidates, number),
    }
}

fn penalize(logits: &mut [f32], work: &SampleWork<'_>) {
    let Sampling {
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        ..
    } = work.sampling;
    if repetition_penalty != 1.0 {
        let mut seen = vec![false; logits.len()];
        for token in work.prompt.iter().chain(work.generated) {
            let token = token.index();
            if !std::mem::replace(&mut seen[token], true) {
                let logit = &mut logits[token];
                *logit = if *logit < 0.0 {
                    *logit * repetition_penalty
                } else {
                    *logit / repetition_penalty
                };
            }
        }
    }
    if frequency_penalty != 0.0 || presence_penalty != 0.0 {
        let mut counts = vec![0_u32; logits.len()];
        for token in work.generated {
            counts[token.index()] += 1;
        }
        for (logit, count) in logits
            .iter_mut()
            .zip(counts)
            .filter(|(_, count)| *count > 0)
        {
            *logit -= count as f32 * frequency_penalty + presence_penalty;
        }
    }
}

fn argmax(logits: &[f32]) -> usize {
    let max = lanes::max(logits);
    logits.iter().position(|logit| *logit == max).unwrap_or(0)
}

/// What top-k, top-p and min-p leave over, in no order; `None` when all of them are off.
fn candidates(scaled: &[f32], sampling: &Sampling) -> Option<Vec<Candidate>> {
    let top_k = Some(sampling.top_k as usize).filter(|k| (1..scaled.len()).contains(k));
    let has_top_p = sampling.top_p < 1.0;
    let has_min_p = sampling.min_p > 0.0;
    let mut left = match top_k {
        None if !has_top_p && !has_min_p => return None,
        None => weigh((0..).zip(scaled.iter().copied())),
        Some(k) => weigh(select::top(scaled, k).into_iter()),
    };
    if has_top_p {
        left = nucleus::nucleus(left, sampling.top_p);
    }
    if has_min_p {
        left.retain(|token| token.weight >= sampling.min_p);
    }
    Some(left)
}

fn weigh(tokens: impl Iterator<Item = (u32, f32)>) -> Vec<Candidate> {
    tokens
        .map(|(id, scaled)| Candidate {
            id,
            scaled,
            weight: exp_nonpositive(scaled),
        })
        .collect()
}

fn draw(mut left: Vec<Candidate>, number: f64) -> TokenId {
    left.sort_unstable_by_key(|token| token.id);
    let total: f64 = left.iter().map(|token| f64::from(token.weight)).sum();
    let mut rest = number * total;
    for token in &left {
        rest -= f64::from(token.weight);
        if rest < 0.0 {
            return TokenId(token.id);
        }
    }
    // Rounding can leave a crumb behind the last token.
    let last = left.iter().rfind(|token| token.weight > 0.0);
    TokenId(last.map_or(0, |token| token.id))
}

/// As [`draw`] over the whole vocabulary: sums of blocks first, then one block token by token.
fn draw_of_all(scaled: &mut [f32], number: f64) -> TokenId {
    const BLOCK: usize = 256;
    let weights = scaled;
    for weight in weights.iter_mut() {
        *weight = exp_nonpositive(*weight);
    }
    let sums: Vec<f64> = weights.chunks(BLOCK).map(lanes::sum).collect();
    let mut rest = number * sums.iter().sum::<f64>();
    for (index, (block, sum)) in weights.chunks(BLOCK).zip(&sums).enumerate() {
        if rest >= *sum {
            rest -= sum;
            continue;
        }
        for (offset, weight) in block.iter().enumerate() {
            rest -= f64::from(*weight);
            if rest < 0.0 {
                return TokenId((index * BLOCK + offset) as u32);
            }
        }
        // Rounding left a crumb behind this block's last token.
        rest = 0.0;
    }
    TokenId(
        weights
            .iter()
            .rposition(|weight| *weight > 0.0)
            .unwrap_or(0) as u32,
    )
}

#[cfg(test)]
mod tests;
