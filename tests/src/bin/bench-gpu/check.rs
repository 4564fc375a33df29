//! Check before the measurements: the tokens of a sequence do not depend on other sequences.
//!
//! The first four sequences run alone, all of them in batches of eight, and then in batches of every measured size,
//! with prompts of different lengths, cut at different positions, some greedy and some drawn: every token must be the
//! same. A sequence with half of an answer in its prompt must go on with the other half.

use super::bare::Bare;
use super::lines::Line;
use super::prompts::token_ids;
use super::{Settings, print};
use anyhow::{Result, ensure};
use serde_json::json;
use worker_orcd_ipc::{Sampling, TokenId};

const ALONE: usize = 4;
const REFERENCE_BATCH: usize = 8;
pub const LONGEST_PROMPT: usize = 160;
/// Odd, so that cuts fall everywhere in pages and tiles.
const SMALL_CHUNK: usize = 37;

/// # Errors
/// Two answers differ, or the device fails.
pub fn run(bare: &mut Bare, settings: &Settings) -> Result<()> {
    let count = settings.largest_batch().min(bare.room());
    let chunk = bare.chunk;
    let lines = |bare: &Bare| -> Vec<Line> {
        let line = |index| subject(bare, index, index);
        (0..count).map(line).collect()
    };
    let mut wanted: Vec<Vec<TokenId>> = Vec::new();
    for first in (0..count).step_by(REFERENCE_BATCH) {
        let last = count.min(first + REFERENCE_BATCH);
        let mut lines: Vec<_> = (first..last)
            .map(|index| subject(bare, index, index - first))
            .collect();
        wanted.extend(answers(bare, &mut lines, chunk, settings.check_tokens)?);
    }
    for (index, wanted) in wanted.iter().enumerate().take(ALONE) {
        for chunk in [chunk, SMALL_CHUNK] {
            let mut alone = [subject(bare, index, 0)];
            let got = answers(bare, &mut alone, chunk, settings.check_tokens)?;
            same(&got, std::slice::from_ref(wanted), "alone", 1)?;
        }
        replayed(bare, index, wanted)?;
    }
    for batch in &settings.batches {
        let mut lines = lines(bare);
        lines.truncate(*batch);
        // A small chunk makes some sequences decode while others are still at their prompts.
        let chunk = chunk.min(SMALL_CHUNK * batch);
        let got = answers(bare, &mut lines, chunk, settings.check_tokens)?;
        same(&got, &wanted[..got.len()], "in a batch", *batch)?;
    }
    print(&json!({
        "what": "check", "side": "bare", "equal": true, "sequences": count,
        "tokens_each": settings.check_tokens, "batches": settings.batches,
        "different_answers": distinct(&wanted),
    }));
    Ok(())
}

/// Line of a length of its own; one in four is drawn instead of greedy.
fn subject(bare: &Bare, index: usize, share: usize) -> Line {
    let length = 11 + index * 29 % (LONGEST_PROMPT - 11);
    let prompt = token_ids(index as u64, length, bare.vocabulary);
    Line::new(prompt, sampling(index), bare.pages(share))
}

fn sampling(index: usize) -> Sampling {
    Sampling {
        temperature: if index % 4 == 1 { 1.0 } else { 0.0 },
        seed: index as u64,
        ..Sampling::default()
    }
}

fn answers(
    bare: &mut Bare,
    lines: &mut [Line],
    chunk: usize,
    tokens: usize,
) -> Result<Vec<Vec<TokenId>>> {
    let is_unfinished = |line: &Line| line.generated().len() < tokens;
    while lines.iter().any(is_unfinished) {
        bare.step(lines, chunk, is_unfinished)?;
    }
    Ok(lines.iter().map(|line| line.generated().to_vec()).collect())
}

/// Answer after a replay, as after a death: the tokens so far are computed as a prompt.
fn replayed(bare: &mut Bare, index: usize, wanted: &[TokenId]) -> Result<()> {
    let (known, rest) = wanted.split_at(wanted.len() / 2);
    let length = 11 + index * 29 % (LONGEST_PROMPT - 11);
    let prompt = [&token_ids(index as u64, length, bare.vocabulary), known].concat();
    let mut lines = [Line::new(prompt, sampling(index), bare.pages(0))];
    let got = answers(bare, &mut lines, bare.chunk, rest.len())?;
    same(&got, &[rest.to_vec()], "replayed", 1)
}

fn same(got: &[Vec<TokenId>], wanted: &[Vec<TokenId>], how: &str, batch: usize) -> Result<()> {
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let agree = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        let is_same = got == wanted;
        if !is_same {
            print(&json!({
                "what": "check", "side": "bare", "equal": false, "how": how, "batch": batch,
                "sequence": index, "tokens_that_agree": agree,
            }));
        }
        ensure!(
            is_same,
            "sequence {index}, {how} of {batch}, differs after {agree} tokens"
        );
    }
    Ok(())
}

/// Number of different answers; equal answers would prove little.
fn distinct(answers: &[Vec<TokenId>]) -> usize {
    answers
        .iter()
        .map(|answer| answer.iter().map(|token| token.0).collect())
        .collect::<std::collections::BTreeSet<Vec<u32>>>()
        .len()
}
