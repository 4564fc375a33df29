//! The law of the device boundary on the CPU: nothing but its own tokens and positions changes a
//! bit of what a sequence gets.

use crate::support::{
    MIXED, Model, Seen, Share, Watch, alone, config, options, pages, step, tokens,
};
use worker_orcd_gpu::device::Executor;
use worker_orcd_gpu::device::cpu::CpuExecutor;
use worker_orcd_ipc::{Fault, RequestId, TokenId};
use worker_orcd_kernels::TensorType;

/// Past one span of attention (256) and into the middle of a page.
const LONG: usize = 300;

/// `seen` must agree with `expected` wherever it has something to say.
fn assert_same(expected: &Seen, seen: &Seen, what: &str) {
    for (expected, seen) in [
        (&expected.hidden, &seen.hidden),
        (&expected.logits, &seen.logits),
    ] {
        assert!(!seen.is_empty());
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

#[test]
fn neither_chunks_nor_threads_change_a_bit() {
    for window in [None, Some(40), Some(270)] {
        let model = Model::random(config(window), MIXED);
        let tokens = tokens(LONG, 1);
        let expected = alone(&mut model.load(1), &model.config, &tokens, 1);
        assert_eq!(expected.hidden.len(), LONG);
        for threads in [1, 2, 3] {
            let mut executor = model.load(threads);
            for chunk in [1, 7, 32, 33, 256, LONG] {
                if (threads, chunk) != (1, 1) {
                    let seen = alone(&mut executor, &model.config, &tokens, chunk);
                    assert_same(
                        &expected,
                        &seen,
                        &format!("{window:?}: {threads} threads, chunks of {chunk}"),
                    );
                }
            }
        }
    }
}

#[test]
fn a_window_changes_what_is_seen_from_its_length_on() {
    let tokens = tokens(60, 1);
    let runs = [None, Some(40)].map(|window| {
        let model = Model::random(config(window), MIXED);
        alone(&mut model.load(2), &model.config, &tokens, 60)
    });
    assert_eq!(runs[0].hidden[..40], runs[1].hidden[..40]);
    assert_ne!(runs[0].hidden[40], runs[1].hidden[40]);
}

#[test]
fn neighbours_do_not_change_a_bit() {
    let model = Model::random(config(None), MIXED);
    let config = &model.config;
    // Lengths across pages and the end of a span, so that a batch mixes all of them.
    let lengths = [
        1, 2, 5, 31, 32, 33, 40, 63, 64, 65, 9, 17, 255, 256, 257, 100, 270,
    ];
    let histories: Vec<Vec<TokenId>> = lengths
        .iter()
        .enumerate()
        .map(|(i, &length)| tokens(length + 1, i))
        .collect();
    let mut executor = model.load(2);
    let expected: Vec<Seen> = histories
        .iter()
        .map(|tokens| alone(&mut executor, config, tokens, 64))
        .collect();
    let full: Vec<Seen> = histories
        .iter()
        .map(|tokens| alone(&mut executor, config, tokens, 1))
        .collect();
    let places: Vec<_> = (0..17).map(|i| pages(i * 10, 9)).collect();
    for threads in [1, 3] {
        let mut executor = model.load(threads);
        let mut watch = Watch::new(17, config);
        for (i, history) in histories.iter().enumerate() {
            let (prompt, pages) = (&history[..lengths[i]], &places[i]);
            let share = Share {
                request: i,
                tokens: prompt,
                first: 0,
                pages,
            };
            step(&mut executor, &[share], &mut watch).expect("prefill");
        }
        for batch in 1..=17 {
            let mut watch = Watch::new(17, config);
            let shares: Vec<Share<'_>> = (0..batch)
                .map(|i| Share {
                    request: i,
                    tokens: &histories[i][lengths[i]..],
                    first: lengths[i],
                    pages: &places[i],
                })
                .collect();
            step(&mut executor, &shares, &mut watch).expect("decode");
            for (i, seen) in watch.seen[..batch].iter().enumerate() {
                assert_same(
                    &full[i],
                    seen,
                    &format!("{threads} threads, {i} of {batch}"),
                );
            }
        }
    }
    assert_eq!(expected[5].hidden, full[5].hidden);
}

#[test]
fn prefill_beside_decoding_does_not_change_a_bit() {
    let model = Model::random(config(None), MIXED);
    let (old, new) = (tokens(80, 3), tokens(120, 4));
    let mut executor = model.load(2);
    let old_alone = alone(&mut executor, &model.config, &old, 1);
    let new_alone = alone(&mut executor, &model.config, &new, 1);
    let (old_pages, new_pages) = (pages(0, 4), pages(8, 4));
    let mut watch = Watch::new(2, &model.config);
    let first = Share {
        request: 0,
        tokens: &old[..77],
        first: 0,
        pages: &old_pages,
    };
    step(&mut executor, &[first], &mut watch).expect("prefill");
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
        step(&mut executor, &[decode, prefill], &mut watch).expect("a mixed step");
    }
    assert_same(&old_alone, &watch.seen[0], "the sequence that decodes");
    assert_same(&new_alone, &watch.seen[1], "the sequence that is prefilled");
}

#[test]
fn pages_of_another_request_serve_an_equal_prefix() {
    let model = Model::random(config(None), MIXED);
    let (mut first, mut second) = (tokens(96, 5), tokens(96, 5));
    first[64..].fill(TokenId(1));
    second[64..].fill(TokenId(2));
    let mut executor = model.load(2);
    let expected = alone(&mut executor, &model.config, &second, 1);
    let mut watch = Watch::new(2, &model.config);
    let own = pages(0, 3);
    let share = Share {
        request: 0,
        tokens: &first,
        first: 0,
        pages: &own,
    };
    step(&mut executor, &[share], &mut watch).expect("the first request");
    let mut shared = own[..2].to_vec();
    shared.extend(pages(9, 1));
    let share = Share {
        request: 1,
        tokens: &second[64..],
        first: 64,
        pages: &shared,
    };
    step(&mut executor, &[share], &mut watch).expect("the second request");
    assert_same(&expected, &watch.seen[1], "behind shared pages");
}

#[test]
fn the_portable_path_keeps_the_law_and_agrees_with_the_fast_one() {
    let model = Model::random(config(None), [TensorType::Q8_0; 9]);
    let tokens = tokens(70, 6);
    let mut executor = model.load_portable();
    assert!(executor.facts().features.is_empty());
    let expected = alone(&mut executor, &model.config, &tokens, 1);
    assert_same(
        &expected,
        &alone(&mut executor, &model.config, &tokens, 33),
        "portable",
    );
    let fast = alone(&mut model.load(2), &model.config, &tokens, 70);
    let (position, bits) = &fast.logits[0];
    let values = |bits: &[u32]| bits.iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
    let seen = worker_orcd_kernels::compare(
        &values(&expected.logits[*position as usize].1),
        &values(bits),
    );
    // Rounding before quantization may move single activations by one step.
    assert!(seen.within(2e-2), "{seen:?}");
}

#[test]
fn a_nan_is_a_fault_that_names_its_request() {
    let mut model = Model::random(config(None), MIXED);
    model.poison(50);
    let mut executor = model.load(2);
    let (good, bad) = ([TokenId(1), TokenId(2)], [TokenId(1), TokenId(50)]);
    let (first, second) = (pages(0, 1), pages(1, 1));
    let share = |request, tokens| {
        let pages = if request == 3 { &first } else { &second };
        Share {
            request,
            tokens,
            first: 0,
            pages,
        }
    };
    let mut watch = Watch::new(9, &model.config);
    let drawn = step(&mut executor, &[share(3, &good)], &mut watch).expect("finite");
    assert!(drawn[0].is_some());
    let fault = step(
        &mut executor,
        &[share(3, &good), share(8, &bad)],
        &mut watch,
    );
    let expected = Fault::NonFiniteLogits {
        step: 7,
        request: RequestId(8),
    };
    assert_eq!(fault, Err(expected));
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_allocated() {
    let model = Model::random(config(None), MIXED);
    let load = |kv_cache_bytes| {
        let options = worker_orcd_gpu::device::cpu::CpuOptions {
            kv_cache_bytes,
            ..options(1)
        };
        CpuExecutor::load(&model.config, &model.weights(), &options, &mut |_, _| ())
    };
    for bytes in [1 << 50, 100] {
        let fault = load(Some(bytes)).err();
        assert!(
            matches!(fault, Some(Fault::InsufficientMemory { .. })),
            "{bytes}: {fault:?}"
        );
    }
    let executor = load(None).expect("the default fits");
    let geometry = executor.kv_geometry();
    assert_eq!(u64::from(geometry.pages), 8 * 512 / 32);
    assert_eq!(
        executor.memory().kv_capacity_bytes,
        u64::from(geometry.pages) * geometry.page_bytes
    );
}

#[test]
fn progress_ends_at_the_whole() {
    let model = Model::random(config(None), MIXED);
    let mut reports = Vec::new();
    CpuExecutor::load(
        &model.config,
        &model.weights(),
        &options(2),
        &mut |done, total| {
            reports.push((done, total));
        },
    )
    .expect("a model that fits");
    assert!(reports.is_sorted() && reports.iter().all(|&(done, total)| done <= total));
    let &(done, total) = reports.last().expect("a report");
    assert_eq!(done, total);
}
