//! The sampler: from a row of logits to the next token. Pure: the same row, parameters, history and position give the
//! same token, on every machine and every device.
//!
//! Order and definitions:
//!
//! 1. logit biases, as the OpenAI API defines `logit_bias`, are added to the logits; before penalties, as in vLLM and
//!    llama.cpp;
//! 2. repetition penalty, as transformers' `RepetitionPenaltyLogitsProcessor`: the logit of every token in prompt or
//!    completion is divided by it if positive, multiplied if negative (CTRL, arXiv:1909.05858, section 4.1);
//! 3. frequency and presence penalty, as the OpenAI API defines them, over the completion:
//!    `logit -= count * frequency + (count > 0) * presence`;
//! 4. the mask: a forbidden token has no weight. It is never sampled, not at temperature 0 either, and no filter below
//!    counts it;
//! 5. temperature, as `TemperatureLogitsWarper`: logits are divided by it; 0 means argmax, the lowest id of equals, and
//!    ends here. From here on a token is its [`weight`]: the exponential as an integer, so that everything below is
//!    exact;
//! 6. top-k, as `TopKLogitsWarper`: tokens below the k-th largest are removed, its equals stay;
//! 7. top-p, as `TopPLogitsWarper`: the smallest set of most probable tokens with a mass of at least p stays, at least
//!    one token; of equals, lower ids come first;
//! 8. min-p, as `MinPLogitsWarper`: tokens less probable than p times the most probable are removed;
//! 9. sampling: the inverse of the cumulative distribution in order of token ids, at a Philox number of (seed,
//!    position).
//!
//! No step sorts the whole vocabulary. Logits must be finite: the executor ends the child before non-finite ones arrive
//! here. `kernels/cuda/sample.cu` is the same for a GPU.

mod lanes;
mod logprobs;
mod nucleus;
pub mod rng;
mod select;
mod weight;

pub use logprobs::logprobs;
pub use weight::LEAST;
use weight::mass;
use worker_orcd_ipc::{Drawn, RequestId, Sampling, TokenId};

/// Parameters and history for sampling a next token.
#[derive(Debug, Clone, Copy)]
pub struct SampleWork<'a> {
    pub sampling: Sampling,
    pub prompt: &'a [TokenId],
    pub generated: &'a [TokenId],
    /// The mask: bit `i % 32` of word `i / 32` allows token `i`. At least one bit is set, and the number of words is
    /// that of the vocabulary. `None`: all tokens are allowed.
    pub allowed: Option<&'a [u32]>,
    /// Logit biases: ids of the vocabulary, ascending, and finite numbers.
    pub bias: &'a [(TokenId, f32)],
}

impl<'a> SampleWork<'a> {
    /// Sampling without mask and biases.
    #[must_use]
    pub fn new(sampling: Sampling, prompt: &'a [TokenId], generated: &'a [TokenId]) -> Self {
        Self {
            sampling,
            prompt,
            generated,
            allowed: None,
            bias: &[],
        }
    }

    /// The same parameters at an earlier position, without the last `tokens` generated tokens.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn before(self, tokens: usize) -> Self {
        let generated = &self.generated[..self.generated.len() - tokens];
        Self { generated, ..self }
    }

    /// The answer for a request with this sampled token.
    #[must_use]
    pub fn drawn(&self, request: RequestId, token: TokenId) -> Drawn {
        Drawn {
            request,
            index: self.generated.len() as u32,
            token,
        }
    }
}

/// A token that has passed the filters so far.
#[derive(Debug, Clone, Copy)]
struct WeightedToken {
    id: u32,
    /// Probability relative to the most probable token.
    weight: f32,
}

/// Parameters of sampling at one position, in the form that both devices compute with.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Powers of two per logit.
    pub rate: f32,
    /// 0: off.
    pub top_k: u32,
    /// Top-p in 2⁻⁶⁴; the maximum: off.
    pub top_p: u64,
    /// Minimum weight that stays.
    pub min_p: f32,
    /// Evenly distributed random number, in 2⁻⁶⁴.
    pub number: u64,
}

impl Draw {
    /// Parameters at this position. `None` for argmax.
    pub fn new(sampling: &Sampling, position: u32) -> Option<Self> {
        let top_p = if sampling.top_p < 1.0 {
            (f64::from(sampling.top_p) * 2_f64.powi(64)) as u64
        } else {
            u64::MAX
        };
        (sampling.temperature != 0.0).then(|| Self {
            rate: weight::rate(sampling.temperature),
            top_k: sampling.top_k,
            top_p,
            min_p: sampling.min_p.max(LEAST),
            number: rng::number(sampling.seed, position),
        })
    }

    fn has_top_p(&self) -> bool {
        self.top_p < u64::MAX
    }
}

/// Samples a token. `position`: that of the new token; the first one after a prompt of 5 has 5. `logits` is
/// overwritten.
///
/// # Panics
/// If the mask has another length than the vocabulary requires, or a bias is outside the vocabulary.
pub fn sample(logits: &mut [f32], work: &SampleWork<'_>, position: u32) -> TokenId {
    for (token, bias) in work.bias {
        // Finite: the largest number and a small one are the largest number.
        logits[token.index()] += bias;
    }
    penalize(logits, work);
    if let Some(allowed) = work.allowed {
        forbid(logits, allowed);
    }
    let best = argmax(logits);
    let Some(draw) = Draw::new(&work.sampling, position) else {
        return TokenId(best as u32);
    };
    let max = logits[best];
    let weights = logits;
    for weight in weights.iter_mut() {
        *weight = weight::weight(*weight - max, draw.rate);
    }
    match candidates(weights, &draw) {
        None => draw_of_all(weights, draw.number),
        Some(candidates) => draw_of(candidates, draw.number),
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
                let penalized = if *logit < 0.0 {
                    *logit * repetition_penalty
                } else {
                    *logit / repetition_penalty
                };
                // A penalty can be as small as a number gets.
                *logit = penalized.clamp(f32::MIN, f32::MAX);
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

/// Masks forbidden tokens: they lose every comparison, and weigh less than the minimum weight with mass.
fn forbid(logits: &mut [f32], allowed: &[u32]) {
    assert_eq!(allowed.len(), logits.len().div_ceil(32), "words of a mask");
    for (logits, word) in logits.chunks_mut(32).zip(allowed) {
        match word {
            // In a grammar's mask, most words are one of these.
            0 => logits.fill(f32::NEG_INFINITY),
            &u32::MAX => {}
            word => {
                let of_bits = logits.iter_mut().enumerate();
                let forbidden = of_bits.filter(|(bit, _)| word >> bit & 1 == 0);
                forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}

fn argmax(logits: &[f32]) -> usize {
    let max = lanes::max(logits);
    logits.iter().position(|logit| *logit == max).unwrap_or(0)
}

/// Tokens that pass top-k, top-p and min-p, unordered; `None` if all of them are off.
fn candidates(weights: &[f32], draw: &Draw) -> Option<Vec<WeightedToken>> {
    let top_k = Some(draw.top_k as usize).filter(|k| (1..weights.len()).contains(k));
    if top_k.is_none() && !draw.has_top_p() && draw.min_p <= LEAST {
        return None;
    }
    let candidate = |(id, weight)| WeightedToken { id, weight };
    // Tokens without mass change no filter, and under a mask that is nearly all of them.
    let mut left: Vec<WeightedToken> = match top_k {
        None => {
            let all = (0..).zip(weights.iter().copied()).map(candidate);
            all.filter(|token| token.weight >= LEAST).collect()
        }
        Some(k) => {
            let top = select::top(weights, k, LEAST);
            top.into_iter().map(candidate).collect()
        }
    };
    if draw.has_top_p() {
        left = nucleus::nucleus(left, draw.top_p);
    }
    left.retain(|token| token.weight >= draw.min_p);
    Some(left)
}

fn draw_of(mut left: Vec<WeightedToken>, number: u64) -> TokenId {
    left.sort_unstable_by_key(|token| token.id);
    let total = left.iter().map(|token| mass(token.weight)).sum();
    walk(left.into_iter(), at(total, number))
}

/// Samples as [`draw_of`] does, over the whole vocabulary: sums of blocks first, then one block token by token.
fn draw_of_all(weights: &[f32], number: u64) -> TokenId {
    const BLOCK: usize = 256;
    let of_block = |block: &[f32]| -> u64 { block.iter().map(|weight| mass(*weight)).sum() };
    let sums: Vec<u64> = weights.chunks(BLOCK).map(of_block).collect();
    let mut rest = at(sums.iter().sum(), number);
    let mut block = 0;
    while rest >= sums[block] {
        rest -= sums[block];
        block += 1;
    }
    let first = block * BLOCK;
    let tokens = (first as u32..).zip(weights[first..].iter().copied());
    walk(
        tokens.map(|(id, weight)| WeightedToken { id, weight }),
        rest,
    )
}

/// The token with this point in its mass.
fn walk(mut tokens: impl Iterator<Item = WeightedToken>, mut place: u64) -> TokenId {
    let token = tokens.find(|token| match place.checked_sub(mass(token.weight)) {
        Some(rest) => {
            place = rest;
            false
        }
        None => true,
    });
    TokenId(token.expect("a place inside the mass").id)
}

/// A point in a mass: below the total, for every number.
fn at(total: u64, number: u64) -> u64 {
    ((u128::from(total) * u128::from(number)) >> 64) as u64
}

#[cfg(test)]
mod tests;
