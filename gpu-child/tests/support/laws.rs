//! The law of the device boundary as scenarios for any device: only a sequence's own
//! tokens and positions determine the bits of its results.

use super::{Seen, Share, Watch, alone, page_table, pages, step, step_with_tables, tokens};
use std::thread;
use std::time::Duration;
use worker_orcd_gpu::device::{Batch, Executor, PageId, SampleWork, SequenceWork};
use worker_orcd_gpu::model::ModelConfig;
use worker_orcd_ipc::{Fault, RequestId, Sampling, TokenId};

/// Asserts that `seen` equals `expected` in all rows that it has.
pub fn assert_same(expected: &Seen, seen: &Seen, what: &str) {
    assert!(!seen.logits.is_empty(), "{what}: nothing was seen");
    for (expected, seen) in [
        (&expected.hidden, &seen.hidden),
        (&expected.logits, &seen.logits),
        // A prompt position has the logits of a draw at it.
        (&expected.logits, &seen.prompt),
    ] {
        for (position, bits) in seen {
            let expected = &expected[*position as usize];
            assert_eq!(expected.0, *position);
            assert!(
                expected.1 == *bits,
                "{what}: other bits at position {position}"
            );
        }
    }
}

/// Asserts that every division of a sequence into chunks gives the bits of `expected`.
pub fn chunks_do_not_change_a_bit(
    executor: &mut impl Executor,
    config: &ModelConfig,
    tokens: &[TokenId],
    expected: &Seen,
    chunks: &[usize],
    what: &str,
) {
    assert_eq!(expected.hidden.len(), tokens.len());
    for &chunk in chunks {
        let seen = alone(executor, config, tokens, chunk);
        assert_eq!(seen.prompt.len(), tokens.len());
        assert_same(expected, &seen, &format!("{what}, chunks of {chunk}"));
    }
}

/// Decodes sequences after prompts of these lengths together, in batches of each size; the first
/// `compared` of them are compared with their results alone.
pub fn neighbours_do_not_change_a_bit(
    executor: &mut impl Executor,
    config: &ModelConfig,
    lengths: &[usize],
    batches: impl IntoIterator<Item = usize>,
    compared: usize,
    what: &str,
) {
    let histories: Vec<Vec<TokenId>> = lengths
        .iter()
        .enumerate()
        .map(|(i, &length)| tokens(length + 1, i))
        .collect();
    let full: Vec<Seen> = histories
        .iter()
        .take(compared)
        .map(|tokens| alone(executor, config, tokens, 1))
        .collect();
    let each = lengths.iter().max().map_or(1, |max| max / 32 + 1) as u32;
    let places: Vec<_> = (0..lengths.len() as u32)
        .map(|i| pages(i * each, each))
        .collect();
    let share = |i: usize, from: usize, to: usize| Share {
        request: i,
        tokens: &histories[i][from..to],
        first: from,
        pages: &places[i],
    };
    let mut watch = Watch::new(lengths.len(), config);
    for (i, &length) in lengths.iter().enumerate() {
        step(executor, &[share(i, 0, length)], &mut watch).expect("prefill");
    }
    for batch in batches {
        let mut watch = Watch::new(lengths.len(), config);
        let shares: Vec<Share<'_>> = (0..batch)
            .map(|i| share(i, lengths[i], lengths[i] + 1))
            .collect();
        step(executor, &shares, &mut watch).expect("decode");
        for (i, seen) in watch.seen[..batch.min(compared)].iter().enumerate() {
            assert_same(&full[i], seen, &format!("{what}, {i} of {batch}"));
        }
    }
}

/// One sequence decodes during the computation of another one's prompt.
pub fn prefill_beside_decoding_does_not_change_a_bit(
    executor: &mut impl Executor,
    config: &ModelConfig,
) {
    let (old, new) = (tokens(80, 3), tokens(120, 4));
    let old_alone = alone(executor, config, &old, 1);
    let new_alone = alone(executor, config, &new, 1);
    let (old_pages, new_pages) = (pages(0, 4), pages(8, 4));
    let mut watch = Watch::new(2, config);
    let first = Share {
        request: 0,
        tokens: &old[..77],
        first: 0,
        pages: &old_pages,
    };
    step(executor, &[first], &mut watch).expect("prefill");
    for (i, chunk) in new.chunks(40).enumerate() {
        let decode = Share {
            request: 0,
            tokens: &old[77 + i..78 + i],
            first: 77 + i,
            pages: &old_pages,
        };
        let prefill = Share {
            request: 1,
            tokens: chunk,
            first: 40 * i,
            pages: &new_pages,
        };
        step(executor, &[decode, prefill], &mut watch).expect("a mixed step");
    }
    assert_same(&old_alone, &watch.seen[0], "the sequence that decodes");
    assert_same(&new_alone, &watch.seen[1], "the sequence that is prefilled");
}

pub fn pages_of_another_request_serve_an_equal_prefix(
    executor: &mut impl Executor,
    config: &ModelConfig,
) {
    let (mut first, mut second) = (tokens(96, 5), tokens(96, 5));
    first[64..].fill(TokenId(1));
    second[64..].fill(TokenId(2));
    let expected = alone(executor, config, &second, 1);
    let mut watch = Watch::new(2, config);
    let own = pages(0, 3);
    let share = Share {
        request: 0,
        tokens: &first,
        first: 0,
        pages: &own,
    };
    step(executor, &[share], &mut watch).expect("the first request");
    let mut shared = own[..2].to_vec();
    shared.extend(pages(9, 1));
    let share = Share {
        request: 1,
        tokens: &second[64..],
        first: 64,
        pages: &shared,
    };
    step(executor, &[share], &mut watch).expect("the second request");
    assert_same(&expected, &watch.seen[1], "behind shared pages");
}

/// Pages outside all windows of a sequence belong to another sequence, which writes them.
pub fn pages_behind_windows_do_not_change_a_bit(
    executor: &mut impl Executor,
    config: &ModelConfig,
    chunk: usize,
) {
    let (tokens, others) = (tokens(150, 6), tokens(150, 7));
    let expected = alone(executor, config, &tokens, 1);
    let geometry = executor.kv_geometry();
    let (whole, groups) = (geometry.groups.full(), geometry.groups.count());
    let (own, other) = (pages(0, 5), pages(8, 5));
    let other_table = page_table(&other, groups as u32);
    let mut watch = Watch::new(2, config);
    let mut given_back = 0;
    for first in (0..tokens.len()).step_by(chunk) {
        let end = tokens.len().min(first + chunk);
        let share = |request, tokens, pages| Share {
            request,
            tokens,
            first,
            pages,
        };
        let mut table = page_table(&own, groups as u32);
        given_back = geometry.sliding_from(first);
        for block in 0..given_back {
            let places = block * groups + whole..(block + 1) * groups;
            let last = other_table.len() - groups;
            table[places.clone()].copy_from_slice(&other_table[last + whole..]);
        }
        let shares = [
            share(0, &tokens[first..end], &own),
            share(1, &others[first..end], &other),
        ];
        let tables = [table, other_table.clone()];
        step_with_tables(executor, &shares, &tables, &mut watch).expect("a step");
    }
    assert!(given_back > 1, "windows have left nothing behind");
    assert_same(&expected, &watch.seen[0], &format!("chunks of {chunk}"));
}

/// Runs a model with a NaN in the embedding of token 50.
pub fn a_nan_is_a_fault_that_names_its_request(executor: &mut impl Executor, config: &ModelConfig) {
    let (good, bad) = ([TokenId(1), TokenId(2)], [TokenId(1), TokenId(50)]);
    let (first, second) = (pages(0, 1), pages(1, 1));
    let share = |request, tokens, pages| Share {
        request,
        tokens,
        first: 0,
        pages,
    };
    let mut watch = Watch::new(9, config);
    let shares = [share(3, &good, &first)];
    let drawn = step(executor, &shares, &mut watch).expect("finite");
    assert_eq!(drawn.len(), shares.len());
    let shares = [share(3, &good, &first), share(8, &bad, &second)];
    let expected = Fault::NonFiniteLogits {
        step: 7,
        request: RequestId(8),
    };
    assert_eq!(step(executor, &shares, &mut watch), Err(expected));
}

/// Rows behind drafts have the bits and draws of single steps, and rejected drafts leave no trace, beside a prompt of
/// another request.
pub fn drafts_do_not_change_a_bit(executor: &mut impl Executor, config: &ModelConfig) {
    const PROMPT: usize = 20;
    let (tokens, other) = (tokens(150, 9), tokens(80, 4));
    let expected = alone(executor, config, &tokens, 1);
    let expected_other = alone(executor, config, &other, 1);
    let sampling = Sampling {
        temperature: 0.8,
        repetition_penalty: 1.3,
        presence_penalty: 0.2,
        seed: 5,
        ..Sampling::default()
    };
    let groups = executor.kv_geometry().groups.count() as u32;
    let [single, drafting, beside] = [0, 8, 16].map(|first| page_table(&pages(first, 5), groups));
    let (prompt, generated) = tokens.split_at(PROMPT);
    let mut singles = vec![];
    // A run of tokens, of which the last are drafts, beside a chunk of the other request.
    let mut run_step = |(run, first, drafts): (&[TokenId], usize, usize),
                        pages: &[PageId],
                        (chunk, at): (&[TokenId], usize)| {
        let before = generated[..first.saturating_sub(PROMPT)].iter();
        let own_part = if first < PROMPT { &[] } else { run };
        let history: Vec<_> = before.chain(own_part).copied().collect();
        let own = SequenceWork {
            request: RequestId(0),
            tokens: run,
            first_position: first as u32,
            pages,
            sample: Some(SampleWork::new(sampling, prompt, &history)),
            drafts,
        };
        let neighbour = SequenceWork {
            request: RequestId(1),
            tokens: chunk,
            first_position: at as u32,
            pages: &beside,
            sample: None,
            drafts: 0,
        };
        let mut watch = Watch::new(2, config);
        let sequences = [own, neighbour];
        let sequences = &sequences[..1 + usize::from(!chunk.is_empty())];
        let drawn = executor.step(&Batch { step: 1, sequences }, &mut watch);
        (drawn.expect("a step"), watch)
    };
    for pages in [&single, &drafting] {
        run_step((prompt, 0, 0), pages, (&[], 0));
    }
    for first in PROMPT..tokens.len() {
        let (drawn, _) = run_step((&tokens[first..=first], first, 0), &single, (&[], 0));
        singles.push(drawn[0]);
    }
    let mut chunks = other.chunks(8).enumerate();
    let (mut first, mut sizes) = (PROMPT, [1, 3, 15, 2, 7, 4].into_iter().cycle());
    let mut accepted = 0;
    while first + 16 < tokens.len() {
        let drafts = sizes.next().expect("a cycle");
        accepted = (accepted + 3) % (drafts + 1);
        let mut run = tokens[first..=first + accepted].to_vec();
        run.resize(1 + drafts, TokenId(3));
        let (at, chunk) = chunks
            .next()
            .map_or((0, &[][..]), |(i, chunk)| (8 * i, chunk));
        let (drawn, watch) = run_step((&run, first, drafts), &drafting, (chunk, at));
        assert_eq!(drawn.len(), 1 + drafts);
        let singles = &singles[first - PROMPT..][..=accepted];
        assert_eq!(drawn[..=accepted], *singles, "{drafts} drafts at {first}");
        let [mut own, neighbour] = watch.seen.try_into().expect("two requests");
        for rows in [&mut own.hidden, &mut own.logits, &mut own.prompt] {
            rows.retain(|(position, _)| *position as usize <= first + accepted);
        }
        assert_eq!(own.logits.len(), 1 + accepted);
        assert_same(&expected, &own, "behind drafts");
        if !chunk.is_empty() {
            assert_eq!(neighbour.hidden.len(), chunk.len());
            for (position, bits) in &neighbour.hidden {
                assert!(
                    expected_other.hidden[*position as usize].1 == *bits,
                    "beside drafts"
                );
            }
        }
        first += 1 + accepted;
    }
}

/// Steps of equally many rows follow each other, as a device may record them: right and wrong drafts of a sequence, alone
/// and beside one that decodes.
pub fn repeated_drafts_do_not_change_a_bit(executor: &mut impl Executor, config: &ModelConfig) {
    // Steps of 16 rows cross the borders of three splits of attention.
    const PROMPT: usize = 230;
    const STEPS: usize = 18;
    let tokens = [9, 4].map(|seed| tokens(PROMPT + 16 * STEPS, seed));
    let expected = tokens
        .each_ref()
        .map(|tokens| alone(executor, config, tokens, 1));
    let groups = executor.kv_geometry().groups.count() as u32;
    let blocks = tokens[0].len().div_ceil(32) as u32;
    let tables = [1, 2].map(|place| page_table(&pages(place * blocks, blocks), groups));
    let garbage = vec![TokenId(5); PROMPT + 16 * STEPS];
    for (rows, sequences) in [(2, 1), (4, 1), (5, 1), (8, 1), (16, 1), (4, 2), (16, 2)] {
        // Positions behind the prompt hold the keys and values of another text.
        for (request, tokens) in tokens[..sequences].iter().enumerate() {
            let chunks = garbage.chunks(PROMPT).enumerate();
            let chunks = chunks.map(|(index, chunk)| (chunk, index * PROMPT));
            for (chunk, first) in chunks.chain([(&tokens[..PROMPT], 0)]) {
                let sequences = [SequenceWork {
                    sample: None,
                    drafts: 0,
                    ..drafted(request, chunk, first, &tables)
                }];
                let prompt = Batch {
                    step: 1,
                    sequences: &sequences,
                };
                let mut watch = Watch::logits(2);
                executor.step(&prompt, &mut watch).expect("a prompt");
            }
        }
        let mut first = PROMPT;
        for step in 0..STEPS {
            if step == 3 {
                // Another thread completes a recording.
                thread::sleep(Duration::from_millis(50));
            }
            let accepted = rows - 1 - step % rows.min(3);
            let mut run = tokens[0][first..=first + accepted].to_vec();
            run.resize(rows, TokenId(3));
            let beside = PROMPT + step;
            let works = [
                drafted(0, &run, first, &tables),
                drafted(1, &tokens[1][beside..=beside], beside, &tables),
            ];
            let batch = Batch {
                step: 1,
                sequences: &works[..sequences],
            };
            let mut watch = Watch::logits(2);
            executor.step(&batch, &mut watch).expect("a step");
            let mut seen = watch.seen;
            seen[0].logits.truncate(1 + accepted);
            let what = format!("{rows} rows of {sequences} at {first}");
            for (expected, seen) in expected.iter().zip(&seen[..sequences]) {
                assert_same(expected, seen, &what);
            }
            first += 1 + accepted;
        }
    }
}

/// A run of tokens of which all but the first are drafts.
fn drafted<'a>(
    request: usize,
    rows: &'a [TokenId],
    first: usize,
    tables: &'a [Vec<PageId>],
) -> SequenceWork<'a> {
    SequenceWork {
        request: RequestId(request as u64),
        tokens: rows,
        first_position: first as u32,
        pages: &tables[request],
        sample: Some(SampleWork::new(Sampling::default(), &[], rows)),
        drafts: rows.len() - 1,
    }
}
