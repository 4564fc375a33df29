//! The law of the device boundary: nothing but its own tokens and positions changes a bit of what
//! a sequence gets.

use crate::load;
use crate::support::{MIXED, Model, Seen, Share, Types, Watch, alone, config, pages, step, tokens};
use worker_orcd_gpu::model::ModelConfig;
use worker_orcd_ipc::{Fault, RequestId, TokenId};
use worker_orcd_kernels::TensorType;

/// `seen` must agree with `expected` wherever it has something to say.
fn assert_same(expected: &Seen, seen: &Seen, what: &str) {
    assert!(!seen.logits.is_empty(), "{what}: nothing was seen");
    for (expected, seen) in [
        (&expected.hidden, &seen.hidden),
        (&expected.logits, &seen.logits),
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

/// Wide enough that a row of weights is cut into several segments of several units.
fn wide() -> ModelConfig {
    ModelConfig {
        n_embd: 896,
        n_ff: 2304,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        rope_dims: 64,
        ..config(None)
    }
}

fn models() -> Vec<Model> {
    let of = |config: &ModelConfig, types: Types| Model::random(config.clone(), types);
    vec![
        of(&config(None), MIXED),
        of(&wide(), [TensorType::F16; 9]),
        of(&wide(), [TensorType::Q8_0; 9]),
        of(&wide(), [TensorType::F32; 9]),
    ]
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn decoding_and_prefill_in_any_chunks_give_the_same_bits() {
    for (index, model) in models().into_iter().enumerate() {
        let tokens = tokens(300, 1);
        let mut executor = load(&model);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        assert_eq!(expected.hidden.len(), 300);
        for chunk in [2, 7, 16, 17, 32, 33, 64, 65, 128, 200, 256, 300] {
            let seen = alone(&mut executor, &model.config, &tokens, chunk);
            assert_same(
                &expected,
                &seen,
                &format!("model {index}, chunks of {chunk}"),
            );
        }
    }
}

/// Hopper's kernels and those of every architecture.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn both_sets_of_kernels_give_the_same_bits() {
    for (index, model) in models().into_iter().enumerate() {
        let tokens = tokens(300, 1);
        let mut executor = load(&model);
        let expected = alone(&mut executor, &model.config, &tokens, 1);
        executor.use_portable_kernels();
        for chunk in [5, 16, 17, 60, 65, 128, 300] {
            let seen = alone(&mut executor, &model.config, &tokens, chunk);
            let what = format!("model {index}, portable, chunks of {chunk}");
            assert_same(&expected, &seen, &what);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn neighbours_do_not_change_a_bit() {
    for (index, model) in models().into_iter().enumerate() {
        let config = &model.config;
        let mut executor = load(&model);
        // Lengths on both sides of pages and splits, repeated up to a large batch.
        let lengths: Vec<usize> = (0..256)
            .map(|i| [1, 2, 31, 32, 33, 63, 64, 65, 95, 17][i % 10])
            .collect();
        let histories: Vec<Vec<TokenId>> = lengths
            .iter()
            .enumerate()
            .map(|(i, &length)| tokens(length + 1, i))
            .collect();
        let full: Vec<Seen> = histories
            .iter()
            .take(20)
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        let places: Vec<_> = (0..256).map(|i| pages(i * 3, 3)).collect();
        let mut watch = Watch::new(256, config);
        for (i, history) in histories.iter().enumerate() {
            let share = Share {
                request: i,
                tokens: &history[..lengths[i]],
                first: 0,
                pages: &places[i],
            };
            step(&mut executor, &[share], &mut watch).expect("prefill");
        }
        for batch in (1..=20).chain([31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256]) {
            let mut watch = Watch::new(256, config);
            let shares: Vec<Share<'_>> = (0..batch)
                .map(|i| Share {
                    request: i,
                    tokens: &histories[i][lengths[i]..],
                    first: lengths[i],
                    pages: &places[i],
                })
                .collect();
            step(&mut executor, &shares, &mut watch).expect("decode");
            for (i, seen) in watch.seen[..batch.min(20)].iter().enumerate() {
                assert_same(&full[i], seen, &format!("model {index}, {i} of {batch}"));
            }
        }
    }
}

/// Nobody looks at the layers, so that small batches run as one launch.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_step_in_one_launch_gives_the_same_bits() {
    const PROMPT: usize = 50;
    for (index, model) in models().into_iter().enumerate() {
        let config = &model.config;
        let mut executor = load(&model);
        let histories: Vec<Vec<TokenId>> = (0..9).map(|i| tokens(130 + i, i)).collect();
        let places: Vec<_> = (0..9).map(|i| pages(i * 5, 5)).collect();
        let expected: Vec<Seen> = histories
            .iter()
            .map(|tokens| alone(&mut executor, config, tokens, 1))
            .collect();
        for batch in 1..=9 {
            let share = |i: usize, from: usize, to: usize| Share {
                request: i,
                tokens: &histories[i][from..to],
                first: from,
                pages: &places[i],
            };
            let mut watch = Watch::logits(9);
            let prompts: Vec<_> = (0..batch).map(|i| share(i, 0, PROMPT)).collect();
            step(&mut executor, &prompts, &mut watch).expect("prefill");
            for at in PROMPT..130 {
                let shares: Vec<_> = (0..batch).map(|i| share(i, at, at + 1)).collect();
                step(&mut executor, &shares, &mut watch).expect("decode");
            }
            for (i, seen) in watch.seen[..batch].iter().enumerate() {
                assert_eq!(seen.logits.len(), 81);
                assert_same(
                    &expected[i],
                    seen,
                    &format!("model {index}, {i} of {batch}"),
                );
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn prefill_beside_decoding_does_not_change_a_bit() {
    let model = Model::random(wide(), MIXED_WIDE);
    let (old, new) = (tokens(80, 3), tokens(120, 4));
    let mut executor = load(&model);
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

/// Types whose blocks of 32 fit any width, and floats.
const MIXED_WIDE: Types = [
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q5_0,
    TensorType::Q8_0,
    TensorType::Q4_1,
    TensorType::Q5_1,
    TensorType::Q4_0,
    TensorType::F16,
    TensorType::BF16,
];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn pages_of_another_request_serve_an_equal_prefix() {
    let model = Model::random(config(None), MIXED);
    let (mut first, mut second) = (tokens(96, 5), tokens(96, 5));
    first[64..].fill(TokenId(1));
    second[64..].fill(TokenId(2));
    let mut executor = load(&model);
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
#[ignore = "needs an NVIDIA GPU"]
fn a_nan_is_a_fault_that_names_its_request() {
    let mut model = Model::random(config(None), MIXED);
    model.poison(50);
    let mut executor = load(&model);
    let (good, bad) = ([TokenId(1), TokenId(2)], [TokenId(1), TokenId(50)]);
    let (first, second) = (pages(0, 1), pages(1, 1));
    let share = |request, tokens, pages| Share {
        request,
        tokens,
        first: 0,
        pages,
    };
    let mut watch = Watch::new(9, &model.config);
    let shares = [share(3, &good, &first)];
    assert!(step(&mut executor, &shares, &mut watch).expect("finite")[0].is_some());
    let shares = [share(3, &good, &first), share(8, &bad, &second)];
    let expected = Fault::NonFiniteLogits {
        step: 7,
        request: RequestId(8),
    };
    assert_eq!(step(&mut executor, &shares, &mut watch), Err(expected));
}
