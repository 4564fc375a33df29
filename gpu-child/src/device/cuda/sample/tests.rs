//! Draws of the device against those of the host, which define them: the same token for every row.

use super::*;
use crate::device::cuda::memory::Plain;
use std::collections::BTreeSet;
use worker_orcd_ipc::Sampling;
use worker_orcd_sampler::rng::philox4x32;
use worker_orcd_sampler::sample;

/// Numbers of one kind in a fixed order.
struct Numbers {
    taken: u32,
    kind: u32,
    four: [u32; 4],
}

impl Numbers {
    fn of(kind: usize) -> Self {
        Self {
            taken: 0,
            kind: kind as u32,
            four: [0; 4],
        }
    }

    fn next(&mut self) -> u32 {
        if self.taken.is_multiple_of(4) {
            self.four = philox4x32([self.taken, self.kind, 7, 0], [1, 2]);
        }
        self.taken += 1;
        self.four[self.taken as usize % 4]
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.next() as usize % values.len()]
    }

    /// Approximately normal.
    fn bell(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| self.next() as f32 / u32::MAX as f32).sum();
        (sum - 2.0) * 1.7
    }
}

/// Distributions of real logits, and some unrealistic ones.
fn logits(numbers: &mut Numbers, vocab: usize) -> Vec<f32> {
    let kind = numbers.next() % 9;
    let of = |numbers: &mut Numbers| match kind {
        0 => 3.0 * numbers.bell(),
        1 => 1e-3 * numbers.bell(),
        2 => -20.0 + numbers.bell(),
        3 => (numbers.next() % 5) as f32,
        4 => 1.0,
        5 => numbers.one_of(&[1e30, -1e30, 1.0, f32::MAX, f32::MIN, 0.0, -0.0]),
        6 => 27.0 + 0.5 * numbers.bell(),
        7 => 12.0 * numbers.bell(),
        _ => -((numbers.next() % 64) as f32) * std::f32::consts::LN_2,
    };
    let mut row: Vec<f32> = (0..vocab).map(|_| of(numbers)).collect();
    if kind == 2 {
        // A few likely tokens above many unlikely ones.
        for _ in 0..300 {
            row[numbers.next() as usize % vocab] = 5.0 * numbers.bell();
        }
    }
    row
}

fn sampling(numbers: &mut Numbers, vocab: usize) -> Sampling {
    let vocab = vocab as u32;
    let mut sampling = Sampling {
        temperature: numbers.one_of(&[0.0, 1e-40, 0.1, 0.7, 0.8, 1.0, 1.0, 1.5, 2.0]),
        top_k: numbers.one_of(&[
            0,
            0,
            0,
            1,
            2,
            40,
            100,
            1000,
            5000,
            vocab - 1,
            vocab,
            vocab + 5,
        ]),
        top_p: numbers.one_of(&[1.0, 1.0, 0.0, 0.1, 0.5, 0.9, 0.95, 0.999]),
        min_p: numbers.one_of(&[0.0, 0.0, 1e-20, 0.01, 0.05, 0.5, 1.0]),
        seed: u64::from(numbers.next()) << 20,
        ..Sampling::default()
    };
    if numbers.next().is_multiple_of(3) {
        sampling.repetition_penalty = numbers.one_of(&[1.0, 1.1, 0.5, 2.0, 1e-40]);
        sampling.frequency_penalty = numbers.one_of(&[0.0, 0.7, -0.3, 2.0]);
        sampling.presence_penalty = numbers.one_of(&[0.0, 0.4, -2.0]);
    }
    sampling
}

/// Mask for half of the cases. As in a grammar, most words allow all tokens or none.
fn mask(numbers: &mut Numbers, vocab: usize) -> Option<Vec<u32>> {
    let kinds: &[u32] =
        numbers.one_of(&[&[], &[], &[0, 0, 0, 1], &[0, 1, 2, 2], &[1, 1, 1, 2], &[3]]);
    let word = |numbers: &mut Numbers| match numbers.one_of(kinds) {
        0 => 0,
        1 => u32::MAX,
        2 => numbers.next(),
        _ => 1 << (numbers.next() % 32),
    };
    (!kinds.is_empty()).then(|| {
        let words = vocab.div_ceil(32);
        let mut words: Vec<u32> = (0..words).map(|_| word(numbers)).collect();
        let one = numbers.next() as usize % vocab;
        words[one / 32] |= 1 << (one % 32);
        words
    })
}

/// Biases for a third of the cases, up to the maximum of a request.
fn bias(numbers: &mut Numbers, vocab: usize) -> Vec<(TokenId, f32)> {
    let count = numbers.one_of(&[0, 0, 0, 0, 1, MAX_LOGIT_BIASES]);
    let ids: BTreeSet<u32> = (0..count).map(|_| numbers.next() % vocab as u32).collect();
    let bias = |id| (TokenId(id), numbers.one_of(&[-100.0, 100.0, 0.5, -3.25]));
    ids.into_iter().map(bias).collect()
}

struct Case {
    logits: Vec<f32>,
    sampling: Sampling,
    history: Vec<TokenId>,
    prompt: usize,
    mask: Option<Vec<u32>>,
    bias: Vec<(TokenId, f32)>,
    position: u32,
}

impl Case {
    fn random(numbers: &mut Numbers, vocab: usize) -> Self {
        let history: Vec<TokenId> = (0..numbers.next() % 600)
            .map(|_| TokenId(numbers.next() % (vocab as u32).min(4000)))
            .collect();
        Self {
            logits: logits(numbers, vocab),
            sampling: sampling(numbers, vocab),
            prompt: numbers.next() as usize % (history.len() + 1),
            mask: mask(numbers, vocab),
            bias: bias(numbers, vocab),
            history,
            position: numbers.next() % 100_000,
        }
    }

    fn work(&self) -> SampleWork<'_> {
        SampleWork {
            sampling: self.sampling,
            prompt: &self.history[..self.prompt],
            generated: &self.history[self.prompt..],
            allowed: self.mask.as_deref(),
            bias: &self.bias,
        }
    }

    /// Rank of the largest logit, and its token.
    fn best(&self) -> u64 {
        let greedy = SampleWork::new(Sampling::default(), &[], &[]);
        let largest = sample(&mut self.logits.clone(), &greedy, 0).0;
        9 << 32 | u64::from(!largest)
    }
}

struct Card {
    context: Context,
    arena: Arena,
    draws: Draws,
}

const MAX_ROWS: usize = 256;

/// Offset of the answers in the arena of a card.
fn behind_logits(vocab: usize) -> u64 {
    (MAX_ROWS * vocab * 4) as u64
}

impl Card {
    fn new(vocab: usize) -> Self {
        let context = Context::open(0).expect("a device");
        let module = Module::load(&context).expect("kernels");
        let bytes = (MAX_ROWS * (4 * vocab + 16)) as u64;
        Self {
            arena: Arena::new(&context, Purpose::Scratch, bytes).expect("memory"),
            draws: Draws::load(&context, &module, MAX_ROWS, vocab, 1024).expect("memory"),
            context,
        }
    }

    fn put<T: Plain>(&self, at: u64, values: &[T]) -> DevicePtr<T> {
        let place = self.arena.at(at, values.len());
        // SAFETY: `at` found room for them; pageable memory has been read when this returns.
        unsafe { upload(&self.context, place, values) }.expect("a copy");
        place
    }

    /// Writes the logits of the cases to the rows from `first` on, and their answers before the draw. Row `broken` is
    /// marked as one with a NaN.
    fn put_all(&self, first: usize, cases: &[Case], ranked: bool, broken: Option<usize>) -> Logits {
        let vocab = cases[0].logits.len();
        let all: Vec<f32> = cases.iter().flat_map(|case| case.logits.clone()).collect();
        let end = behind_logits(vocab);
        let best = cases.iter().map(Case::best);
        let is_broken = |row| broken == Some(row);
        let drawn = if ranked {
            let best: Vec<u64> = best.collect();
            let broken: Vec<u32> = (0..cases.len()).map(|row| is_broken(row).into()).collect();
            let broken = self.put(end + (8 * MAX_ROWS + 4 * first) as u64, &broken);
            DrawnTokens::of_rows(self.put(end + 8 * first as u64, &best), broken)
        } else {
            // In the second of two parts.
            let ranks = best.enumerate().flat_map(|(row, best)| {
                let best = if is_broken(row) { u64::MAX } else { best };
                [1, best]
            });
            let ranks: Vec<u64> = ranks.collect();
            DrawnTokens::of_parts(self.put(end + 16 * first as u64, &ranks), 2)
        };
        Logits {
            rows: self.put((4 * first * vocab) as u64, &all),
            vocab,
            batch: DevicePtr::NULL,
            drawn,
        }
    }

    /// Launches the draw of these cases and the copy of its tokens, without waiting.
    fn launch(&mut self, place: PinnedRows, logits: Logits, cases: &[Case]) {
        let works: Vec<SampleWork<'_>> = cases.iter().map(Case::work).collect();
        let drawings = cases.iter().zip(&works).enumerate();
        let drawings = drawings.map(|(row, (case, work))| Drawing {
            row,
            newest: 0,
            work,
            position: case.position,
        });
        // SAFETY: all rows were put there before.
        unsafe { self.draws.run(&self.context, place, logits, drawings) }.expect("a draw");
        self.draws
            .copy_to_host(&self.context, place, logits.drawn, cases.len())
            .expect("a launch");
    }

    fn draw(&mut self, cases: &[Case], ranked: bool, broken: Option<usize>) -> Vec<u32> {
        let logits = self.put_all(0, cases, ranked, broken);
        self.launch(PinnedRows { slot: 1, first: 0 }, logits, cases);
        self.drawn_tokens(1, cases.len())
    }

    fn drawn_tokens(&mut self, slot: usize, rows: usize) -> Vec<u32> {
        self.context.synchronize("draws").expect("drawn");
        self.draws.drawn(slot, rows).collect()
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_device_draws_the_host_s_tokens() {
    for vocab in [1, 2, 31, 255, 256, 257, 1000, 49_152, 151_936, 262_147] {
        let mut card = Card::new(vocab);
        // Teams of eight, four, two blocks, and one.
        let large: &[usize] = &[2, 34, 67, 133];
        let all: &[usize] = &[1, 2, 33, 34, 66, 67, 132, 133, 256];
        for &rows in if vocab > 10_000 { large } else { all } {
            let mut numbers = Numbers::of(vocab * 1000 + rows);
            let cases: Vec<Case> = (0..rows)
                .map(|_| Case::random(&mut numbers, vocab))
                .collect();
            let broken = (rows == 67).then_some(5);
            let drawn = card.draw(&cases, rows % 2 == 1, broken);
            for (row, (case, drawn)) in cases.iter().zip(drawn).enumerate() {
                let expected = sample(&mut case.logits.clone(), &case.work(), case.position);
                let expected = if broken == Some(row) {
                    NOT_FINITE
                } else {
                    expected.0
                };
                assert_eq!(
                    drawn, expected,
                    "row {row} of {rows}, vocabulary of {vocab}: {:?}",
                    case.sampling
                );
            }
        }
    }
}

/// More history tokens than the buffer holds: the rows are drawn in several passes.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn long_histories_take_turns() {
    const VOCAB: usize = 1000;
    let mut card = Card::new(VOCAB);
    let mut numbers = Numbers::of(1);
    let mut cases: Vec<Case> = (0..5).map(|_| Case::random(&mut numbers, VOCAB)).collect();
    for case in &mut cases {
        case.sampling.presence_penalty = 1.5;
        case.sampling.temperature = 1.0;
        let length = 2 * HISTORY_WORDS / 5;
        case.history = (0..length).map(|_| TokenId(numbers.next() % 900)).collect();
    }
    for (case, drawn) in cases.iter().zip(card.draw(&cases, false, None)) {
        let expected = sample(&mut case.logits.clone(), &case.work(), case.position);
        assert_eq!(drawn, expected.0);
    }
}

/// Parts of a step are launched one after the other, while the words of the first may still be in flight.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn parts_of_a_step_keep_their_words() {
    const VOCAB: usize = 49_152;
    const PART: usize = 64;
    let mut card = Card::new(VOCAB);
    let mut numbers = Numbers::of(2);
    // A long job for the card, and a short one for the host.
    let plain = |mut case: Case| {
        case.sampling = Sampling {
            temperature: 1.0,
            top_p: 0.95,
            ..Sampling::default()
        };
        (case.mask, case.bias) = (None, vec![]);
        case
    };
    // Each row has different words of every kind.
    let wordy = |mut case: Case| {
        case.sampling.presence_penalty = 1.5;
        let word = 0x9249_2492_u32.rotate_left(case.position);
        case.mask = Some(vec![word; VOCAB.div_ceil(32)]);
        case.bias = vec![(TokenId(case.position % VOCAB as u32), 3.0)];
        case
    };
    let mut cases = || {
        (0..2 * PART)
            .map(|_| Case::random(&mut numbers, VOCAB))
            .collect::<Vec<_>>()
    };
    let others: Vec<Case> = cases().into_iter().map(plain).collect();
    let step: Vec<Case> = cases().into_iter().map(wordy).collect();
    let of_others = card.put_all(0, &others, true, None);
    let parts = [0, 1].map(|part| {
        let first = part * PART;
        let cases = &step[first..][..PART];
        let logits = card.put_all(2 * PART + first, cases, true, None);
        (PinnedRows { slot: 1, first }, logits, cases)
    });
    // Other steps come first, so that the second part is written before any of this step is read. A draw overwrites
    // the answers.
    let best: Vec<u64> = others.iter().map(Case::best).collect();
    for _ in 0..16 {
        card.put(behind_logits(VOCAB), &best);
        card.launch(PinnedRows { slot: 0, first: 0 }, of_others, &others);
    }
    for (place, logits, cases) in parts {
        card.launch(place, logits, cases);
    }
    for (row, (case, drawn)) in step.iter().zip(card.drawn_tokens(1, 2 * PART)).enumerate() {
        let expected = sample(&mut case.logits.clone(), &case.work(), case.position);
        assert_eq!(drawn, expected.0, "row {row}: {:?}", case.sampling);
    }
}

#[test]
fn the_masks_of_a_usual_step_take_no_turns() {
    for vocab in [1000_usize, 49_152, 151_936, 262_147] {
        let masks = MASKED_ROWS * vocab.div_ceil(32);
        assert!(max_words(vocab, 4096) >= masks, "vocabulary of {vocab}");
    }
    let one = 1 << 20;
    assert!(max_words(151_936, one) >= one + 151_936 / 32 + 2 * MAX_LOGIT_BIASES);
}

#[test]
fn few_rows_have_large_teams() {
    for (rows, expected) in [
        (1, 8),
        (33, 8),
        (34, 4),
        (66, 4),
        (67, 2),
        (132, 2),
        (133, 1),
    ] {
        assert_eq!(cluster(rows, 132), expected);
    }
}
