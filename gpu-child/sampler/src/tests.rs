//! Comparison with a naive implementation of the same definitions: everything sorted, everything in f64.

use super::*;
use proptest::prelude::*;

const PLAIN: Sampling = Sampling {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    seed: 1,
};

fn ids(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

fn work<'a>(sampling: Sampling, prompt: &'a [TokenId], generated: &'a [TokenId]) -> SampleWork<'a> {
    SampleWork::new(sampling, prompt, generated)
}

fn sample_plain(logits: &[f32], sampling: Sampling, position: u32) -> TokenId {
    sample(&mut logits.to_vec(), &work(sampling, &[], &[]), position)
}

/// Probabilities after every filter, by definition.
fn naive(logits: &[f32], work: &SampleWork<'_>) -> Vec<f64> {
    let s = &work.sampling;
    let mut scores: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for (id, score) in scores.iter_mut().enumerate() {
        let count = work
            .generated
            .iter()
            .filter(|token| token.index() == id)
            .count();
        if count > 0 || work.prompt.iter().any(|token| token.index() == id) {
            let penalty = f64::from(s.repetition_penalty);
            *score = if *score < 0.0 {
                *score * penalty
            } else {
                *score / penalty
            };
        }
        if count > 0 {
            *score -= count as f64 * f64::from(s.frequency_penalty) + f64::from(s.presence_penalty);
        }
        *score /= f64::from(s.temperature);
    }
    if s.top_k > 0 {
        let mut sorted = scores.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let kth = sorted[(s.top_k as usize).min(sorted.len()) - 1];
        scores
            .iter_mut()
            .filter(|score| **score < kth)
            .for_each(|score| *score = f64::NEG_INFINITY);
    }
    if s.top_p < 1.0 {
        let probabilities = softmax(&scores);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let mut before = 0.0;
        for (rank, &id) in order.iter().enumerate() {
            if rank > 0 && before >= f64::from(s.top_p) {
                scores[id] = f64::NEG_INFINITY;
            }
            before += probabilities[id];
        }
    }
    let probabilities = softmax(&scores);
    let best = probabilities.iter().copied().fold(0.0, f64::max);
    for (score, probability) in scores.iter_mut().zip(&probabilities) {
        if *probability < f64::from(s.min_p) * best {
            *score = f64::NEG_INFINITY;
        }
    }
    softmax(&scores)
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / total).collect()
}

/// The token with the number in its share of the unit interval, and the distance of the number from the nearest border.
fn naive_draw(probabilities: &[f64], number: f64) -> (TokenId, f64) {
    let mut before = 0.0;
    for (id, probability) in probabilities.iter().enumerate() {
        if number < before + probability {
            return (
                TokenId(id as u32),
                (number - before).min(before + probability - number),
            );
        }
        before += probability;
    }
    (TokenId(0), 0.0)
}

/// Values on a grid that is coarse against rounding, so that f32 and f64 agree on the filters.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(
        (-400_i32..400).prop_map(|value| value as f32 / 50.0 + 0.001),
        2..300,
    )
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let off_or = |off: f32, on: std::ops::Range<f32>| prop_oneof![Just(off), on];
    (
        off_or(1.0, 0.2..2.0),
        prop_oneof![Just(0_u32), 1_u32..350],
        off_or(1.0, 0.05..0.99),
        off_or(0.0, 0.001..0.5),
        off_or(1.0, 0.5..2.0),
        off_or(0.0, -1.0..1.0),
        off_or(0.0, -1.0..1.0),
        any::<u64>(),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, repetition, frequency, presence, seed)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: repetition,
                frequency_penalty: frequency,
                presence_penalty: presence,
                seed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn it_draws_what_the_definitions_say(
        logits in logits(),
        sampling in sampling(),
        prompt in prop::collection::vec(0_u32..2, 0..4),
        generated in prop::collection::vec(0_u32..2, 0..4),
        position in 0_u32..10_000,
    ) {
        let (prompt, generated) = (ids(&prompt), ids(&generated));
        let work = work(sampling, &prompt, &generated);
        let probabilities = naive(&logits, &work);
        let drawn = sample(&mut logits.clone(), &work, position);
        let number = rng::number(sampling.seed, position) as f64 / 2_f64.powi(64);
        let (expected, distance) = naive_draw(&probabilities, number);
        // At a border, or where rounding decides the nucleus, either is right.
        if drawn != expected {
            let near_border = distance < 1e-5;
            prop_assert!(near_border || borderline(&logits, &work), "{drawn} instead of {expected}");
        }
    }
}

/// Words of a mask.
fn mask(allowed: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| {
        let bits = bits.iter().enumerate();
        bits.fold(0, |word, (bit, &is_set)| word | u32::from(is_set) << bit)
    };
    allowed.chunks(32).map(word).collect()
}

/// Words as in a grammar's mask: empty, full, and mixed.
fn allowed() -> impl Strategy<Value = Vec<bool>> {
    let word = prop_oneof![
        Just(0_u32),
        Just(u32::MAX),
        any::<u32>(),
        (0_u32..32).prop_map(|bit| 1 << bit)
    ];
    prop::collection::vec(word, 10).prop_map(|words| {
        let bits = |word: u32| (0..32).map(move |bit| word >> bit & 1 == 1);
        words.into_iter().flat_map(bits).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Forbidden tokens behave as absent from the vocabulary.
    #[test]
    fn a_masked_draw_is_the_draw_of_the_allowed_alone(
        logits in logits(),
        sampling in sampling(),
        is_greedy in any::<bool>(),
        allowed in allowed(),
        one in any::<prop::sample::Index>(),
        history in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        split in 0_usize..6,
        position in 0_u32..10_000,
    ) {
        let sampling = Sampling {
            temperature: if is_greedy { 0.0 } else { sampling.temperature },
            ..sampling
        };
        let mut allowed = allowed[..logits.len()].to_vec();
        allowed[one.index(logits.len())] = true;
        let left: Vec<u32> = (0..).zip(&allowed).filter(|(_, is)| **is).map(|(id, _)| id).collect();
        let history: Vec<u32> = history.iter().map(|at| *at.get(&left)).collect();
        let (prompt, generated) = history.split_at(split.min(history.len()));
        let words = mask(&allowed);
        let (prompt_ids, generated_ids) = (ids(prompt), ids(generated));
        let masked = SampleWork { allowed: Some(&words), ..work(sampling, &prompt_ids, &generated_ids) };
        let drawn = sample(&mut logits.clone(), &masked, position);

        let mut fewer: Vec<f32> = left.iter().map(|id| logits[*id as usize]).collect();
        let renamed = |part: &[u32]| -> Vec<TokenId> {
            part.iter().map(|id| TokenId(left.binary_search(id).unwrap() as u32)).collect()
        };
        let (prompt, generated) = (renamed(prompt), renamed(generated));
        let expected = sample(&mut fewer, &work(sampling, &prompt, &generated), position);
        prop_assert_eq!(drawn.0, left[expected.index()]);
    }

    #[test]
    fn biases_are_added_before_everything_else(
        logits in logits(),
        sampling in sampling(),
        biases in prop::collection::btree_map(0_u32..300, -100.0_f32..100.0, 0..20),
        generated in prop::collection::vec(0_u32..2, 0..4),
        position in 0_u32..10_000,
    ) {
        let vocab = logits.len() as u32;
        let bias: Vec<_> = biases.range(..vocab).map(|(id, bias)| (TokenId(*id), *bias)).collect();
        let generated = ids(&generated);
        let plain = work(sampling, &[], &generated);
        let drawn = sample(&mut logits.clone(), &SampleWork { bias: &bias, ..plain }, position);
        let mut biased = logits;
        bias.iter().for_each(|(id, bias)| biased[id.index()] += bias);
        prop_assert_eq!(drawn, sample(&mut biased, &plain, position));
    }
}

#[test]
fn a_bias_comes_before_a_penalty_and_never_undoes_a_mask() {
    let sampling = Sampling {
        temperature: 0.0,
        repetition_penalty: 2.0,
        ..PLAIN
    };
    let generated = ids(&[0]);
    let biased = |bias: &[(TokenId, f32)], allowed: Option<&[u32]>| {
        let work = SampleWork {
            bias,
            allowed,
            ..work(sampling, &[], &generated)
        };
        sample(&mut [1.0, 3.0, 2.0], &work, 1)
    };
    // (1 + 4) / 2 is less than 3, and 1 / 2 + 4 would not be.
    assert_eq!(biased(&[(TokenId(0), 4.0)], None), TokenId(1));
    assert_eq!(biased(&[(TokenId(0), 6.0)], None), TokenId(0));
    assert_eq!(biased(&[(TokenId(1), -100.0)], None), TokenId(2));
    assert_eq!(biased(&[(TokenId(1), 100.0)], Some(&[0b101])), TokenId(2));
}

#[test]
fn under_a_mask_only_the_worst_token_may_be_left() {
    let mut logits = vec![f32::MAX; 100];
    logits[70] = f32::MIN;
    let words = [0, 0, 1 << 6, 0];
    for sampling in [
        PLAIN,
        Sampling {
            temperature: 0.0,
            ..PLAIN
        },
        Sampling {
            top_k: 5,
            top_p: 0.5,
            ..PLAIN
        },
    ] {
        let masked = SampleWork {
            allowed: Some(&words),
            ..work(sampling, &[], &[])
        };
        assert_eq!(sample(&mut logits.clone(), &masked, 9), TokenId(70));
    }
}

/// True if a filter's threshold is so close to a token that f32 and f64 may differ about it.
fn borderline(logits: &[f32], work: &SampleWork<'_>) -> bool {
    let nudged = |top_p: f32, min_p: f32| {
        let mut sampling = work.sampling;
        sampling.top_p *= top_p;
        sampling.min_p *= min_p;
        naive(logits, &SampleWork { sampling, ..*work })
            .iter()
            .filter(|p| **p > 0.0)
            .count()
    };
    let counts = [
        nudged(1.0, 1.0),
        nudged(1.00001, 1.0),
        nudged(0.99999, 1.0),
        nudged(1.0, 1.00001),
        nudged(1.0, 0.99999),
    ];
    counts.iter().any(|count| *count != counts[0])
}

#[test]
fn temperature_zero_takes_the_best_and_the_lowest_of_equals() {
    let greedy = Sampling {
        temperature: 0.0,
        top_k: 2,
        ..PLAIN
    };
    assert_eq!(sample_plain(&[1.0, 3.0, 2.0, 3.0], greedy, 9), TokenId(1));
    assert_eq!(sample_plain(&[-4.0, -3.0], greedy, 9), TokenId(1));
    let penalized = Sampling {
        repetition_penalty: 2.0,
        ..greedy
    };
    let drawn = sample(&mut [1.0, 3.0, 2.0], &work(penalized, &ids(&[1]), &[]), 1);
    assert_eq!(drawn, TokenId(2), "3 / 2 is less than 2");
}

#[test]
fn penalties_are_the_published_formulas() {
    let sampling = Sampling {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..PLAIN
    };
    let mut logits = [4.0, -4.0, 4.0, 4.0];
    penalize(
        &mut logits,
        &work(sampling, &ids(&[0, 0, 1]), &ids(&[2, 2])),
    );
    // 2: 4 / 2 - 2 * 0.5 - 0.25
    assert_eq!(logits, [2.0, -8.0, 0.75, 4.0]);
}

#[test]
fn extreme_temperatures_neither_overflow_nor_fail() {
    let logits = [1e30, 5.0, -1e30];
    for temperature in [f32::MIN_POSITIVE, 1e-40, 1e-6] {
        let cold = Sampling {
            temperature,
            ..PLAIN
        };
        assert_eq!(sample_plain(&logits, cold, 3), TokenId(0));
    }
    let masked = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    for position in 0..100 {
        assert_eq!(sample_plain(&masked, PLAIN, position), TokenId(1));
    }
}

#[test]
fn top_p_zero_and_top_k_one_leave_the_best() {
    let logits: Vec<f32> = (0..1000).map(|id| (id % 97) as f32 / 10.0).collect();
    for sampling in [
        Sampling {
            top_p: 0.0,
            ..PLAIN
        },
        Sampling {
            min_p: 1.0,
            top_k: 1,
            top_p: 0.5,
            ..PLAIN
        },
    ] {
        for position in 0..50 {
            assert_eq!(sample_plain(&logits, sampling, position).0 % 97, 96);
        }
    }
    let one = Sampling {
        top_p: 0.0,
        ..PLAIN
    };
    assert_eq!(
        sample_plain(&logits, one, 1),
        TokenId(96),
        "the lowest of equals"
    );
}

#[test]
fn draws_follow_the_distribution() {
    const DRAWS: u32 = 40_000;
    let logits: Vec<f32> = (0..600)
        .map(|id| ((id * 7919) % 601) as f32 / 200.0)
        .collect();
    for sampling in [
        Sampling {
            temperature: 0.8,
            ..PLAIN
        },
        Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.2,
            ..PLAIN
        },
    ] {
        let probabilities = naive(&logits, &work(sampling, &[], &[]));
        let mut counts = vec![0_u32; logits.len()];
        for position in 0..DRAWS {
            counts[sample_plain(&logits, sampling, position).index()] += 1;
        }
        let (mut chi_square, mut degrees) = (0.0, -1.0);
        for (probability, count) in probabilities.iter().zip(counts) {
            let expected = probability * f64::from(DRAWS);
            if *probability == 0.0 {
                assert_eq!(count, 0, "a token that was filtered out");
            } else {
                chi_square += (f64::from(count) - expected).powi(2) / expected;
                degrees += 1.0;
            }
        }
        // Wilson and Hilferty: chi-square's 99.99 % point.
        let limit: f64 = degrees
            * (1.0 - 2.0 / (9.0 * degrees) + 3.72 * f64::sqrt(2.0 / (9.0 * degrees))).powi(3);
        assert!(
            chi_square < limit,
            "{chi_square} over {degrees} degrees of freedom"
        );
    }
}

#[test]
fn the_seed_and_the_position_decide() {
    let logits: Vec<f32> = vec![0.0; 50_000];
    let of = |seed, position| sample_plain(&logits, Sampling { seed, ..PLAIN }, position);
    assert_eq!(of(1, 2), of(1, 2));
    assert_ne!(of(1, 2), of(1, 3));
    assert_ne!(of(1, 2), of(2, 2));
}

/// The best of several runs on both sides: a busy machine slows both.
#[test]
fn a_large_vocabulary_is_drawn_from_sooner_than_it_is_sorted() {
    let logits: Vec<f32> = (0..49_152)
        .map(|id| ((id * 7919_u32) % 49_157) as f32 / 4000.0)
        .collect();
    let best = |act: &mut dyn FnMut(&mut [f32])| {
        let once = |_| {
            let mut row = logits.clone();
            let start = std::time::Instant::now();
            act(&mut row);
            start.elapsed()
        };
        (0..40).map(once).min().expect("several")
    };
    let sorted = best(&mut |row| row.sort_unstable_by(f32::total_cmp));
    for sampling in [
        Sampling {
            temperature: 0.8,
            ..PLAIN
        },
        Sampling {
            temperature: 0.8,
            top_k: 40,
            ..PLAIN
        },
        Sampling {
            temperature: 0.8,
            top_p: 0.95,
            ..PLAIN
        },
        Sampling {
            temperature: 0.8,
            min_p: 0.05,
            ..PLAIN
        },
    ] {
        let drawn = best(&mut |row| {
            sample(row, &work(sampling, &[], &[]), 1);
        });
        println!("{drawn:?} beside {sorted:?} with {sampling:?}");
        assert!(drawn < sorted, "{drawn:?}, {sorted:?} with {sampling:?}");
    }
}
