//! A step launched before the end of the previous one draws the same tokens as one launched after it, and shows the
//! logits of its draws.

use crate::load;
use crate::support::{MIXED, Model, config, pages, tokens};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use worker_orcd_gpu::device::cuda::CudaExecutor;
use worker_orcd_gpu::device::{
    Batch, Checkpoint, Executor, NoTap, PageId, SampleWork, SequenceWork, TO_BE_DRAWN, Tap,
};
use worker_orcd_gpu::model::ModelConfig;
use worker_orcd_ipc::{Drawn, RequestId, Sampling, TokenId};

const DRAWN: usize = 40;

struct Stream {
    request: RequestId,
    sampling: Sampling,
    tokens: Vec<TokenId>,
    prompt: usize,
    pages: Vec<PageId>,
}

impl Stream {
    /// Greedy, sampled, and sampled with penalties in turn; prompts end on both sides of a page boundary.
    fn new(index: usize) -> Self {
        let prompt = 5 + index * 7 % 60;
        let drawn = Sampling {
            temperature: 0.9,
            top_p: 0.95,
            seed: index as u64,
            ..Sampling::default()
        };
        let sampling = match index % 3 {
            0 => Sampling::default(),
            1 => drawn,
            _ => Sampling {
                repetition_penalty: 1.3,
                presence_penalty: 0.5,
                ..drawn
            },
        };
        Self {
            request: RequestId(index as u64),
            sampling,
            tokens: tokens(prompt, index),
            prompt,
            pages: pages(index as u32 * 4, 4),
        }
    }

    /// All tokens from a position on.
    fn work(&self, first: usize) -> SequenceWork<'_> {
        let (prompt, generated) = self.tokens.split_at(self.prompt);
        SequenceWork {
            request: self.request,
            tokens: &self.tokens[first..],
            first_position: first as u32,
            pages: &self.pages,
            sample: Some(SampleWork::new(self.sampling, prompt, generated)),
            drafts: 0,
        }
    }

    fn newest(&self) -> SequenceWork<'_> {
        self.work(self.tokens.len() - 1)
    }

    /// The sequence takes part in the step: some sequences leave before the others.
    fn is_in(&self, step: usize) -> bool {
        self.request.0 % 5 != 3 || step < 20
    }

    fn fill(&mut self, drawn: Drawn) {
        assert_eq!(drawn.request, self.request);
        let at = self.prompt + drawn.index as usize;
        assert_eq!(self.tokens[at], TO_BE_DRAWN);
        self.tokens[at] = drawn.token;
    }
}

fn prefill(executor: &mut CudaExecutor, streams: &mut [Stream]) {
    for stream in streams {
        let sequences = [stream.work(0)];
        let batch = Batch {
            step: 1,
            sequences: &sequences,
        };
        let drawn = executor.step(&batch, &mut NoTap).expect("a prompt");
        stream.tokens.push(drawn[0].token);
    }
}

fn one_after_the_other(executor: &mut CudaExecutor, count: usize) -> Vec<Vec<TokenId>> {
    let mut streams: Vec<Stream> = (0..count).map(Stream::new).collect();
    prefill(executor, &mut streams);
    for stream in &mut streams {
        for step in 0..DRAWN {
            if !stream.is_in(step) {
                break;
            }
            let sequences = [stream.newest()];
            let batch = Batch {
                step: 1,
                sequences: &sequences,
            };
            let drawn = executor.step(&batch, &mut NoTap).expect("a step");
            stream.tokens.push(drawn[0].token);
        }
    }
    streams.into_iter().map(|stream| stream.tokens).collect()
}

fn a_step_ahead(executor: &mut CudaExecutor, count: usize, tap: &mut dyn Tap) -> Vec<Vec<TokenId>> {
    let mut streams: Vec<Stream> = (0..count).map(Stream::new).collect();
    prefill(executor, &mut streams);
    let mut flights: VecDeque<Vec<usize>> = VecDeque::new();
    for step in 0..=DRAWN {
        let mut in_step: Vec<usize> = (0..count)
            .filter(|i| step < DRAWN && streams[*i].is_in(step))
            .collect();
        // The order of a batch is arbitrary.
        let places = step % 3 % in_step.len().max(1);
        in_step.rotate_left(places);
        if !in_step.is_empty() {
            let sequences: Vec<_> = in_step.iter().map(|i| streams[*i].newest()).collect();
            let batch = Batch {
                step: step as u64,
                sequences: &sequences,
            };
            executor.begin(&batch, &mut NoTap).expect("a launch");
            let draws: Vec<_> = sequences.iter().map(|work| work.sample).collect();
            executor.draw(&draws, tap).expect("a launch");
            for &i in &in_step {
                streams[i].tokens.push(TO_BE_DRAWN);
            }
            flights.push_back(in_step);
        }
        if flights.len() == 2 || step == DRAWN {
            let drawn = executor.finish(tap).expect("a step");
            let in_step = flights.pop_front().expect("a flight");
            assert_eq!(drawn.len(), in_step.len());
            for (i, row) in in_step.into_iter().zip(drawn) {
                streams[i].fill(row);
            }
        }
    }
    streams.into_iter().map(|stream| stream.tokens).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_same_tokens_with_a_step_ahead() {
    let model = Model::random(config(None), MIXED);
    let mut executor = load(&model);
    for count in [1, 3, 8, 9, 40, 130] {
        let expected = one_after_the_other(&mut executor, count);
        let found = a_step_ahead(&mut executor, count, &mut NoTap);
        for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(expected, found, "stream {index} of {count}");
        }
    }
}

/// Logits of every other stream at a checkpoint: a hash of each row by stream and position.
struct Rows {
    checkpoint: Checkpoint,
    seen: BTreeMap<(usize, u32), u64>,
}

impl Rows {
    fn at(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            seen: BTreeMap::new(),
        }
    }
}

impl Tap for Rows {
    fn wants(&self, request: RequestId, checkpoint: &Checkpoint) -> bool {
        *checkpoint == self.checkpoint && request.0 % 2 == 1
    }

    fn see(&mut self, request: RequestId, checkpoint: &Checkpoint, position: u32, row: &[f32]) {
        assert!(self.wants(request, checkpoint));
        let bits: Vec<u8> = row.iter().flat_map(|value| value.to_ne_bytes()).collect();
        let mut hasher = DefaultHasher::new();
        bits.hash(&mut hasher);
        let place = (request.0 as usize, position);
        let before = self.seen.insert(place, hasher.finish());
        assert_eq!(before, None, "a row is shown once: {place:?}");
    }
}

/// Streams with a vocabulary so large that some rows are copied synchronously, and with a small one. The reference rows
/// come from the same tokens as a prompt, which shows each of its rows before the next step begins.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_tokens_were_drawn_from_is_shown_when_their_step_has_ended() {
    for (vocab_size, counts) in [(101, &[2, 9, 130][..]), (200_000, &[8, 100])] {
        let config = ModelConfig {
            vocab_size,
            ..config(None)
        };
        let model = Model::random(config, MIXED);
        let mut executor = load(&model);
        for &count in counts {
            let mut found = Rows::at(Checkpoint::Logits);
            let tokens = a_step_ahead(&mut executor, count, &mut found);
            assert!(!found.seen.is_empty());
            let mut expected = Rows::at(Checkpoint::PromptLogits);
            for (index, tokens) in tokens
                .iter()
                .enumerate()
                .filter(|(index, _)| index % 2 == 1)
            {
                let stream = Stream {
                    tokens: tokens.clone(),
                    ..Stream::new(index)
                };
                let sequences = [stream.work(0)];
                let batch = Batch {
                    step: 1,
                    sequences: &sequences,
                };
                executor.step(&batch, &mut expected).expect("a prompt");
                let drew = found.seen.keys().filter(|(stream, _)| *stream == index);
                // All tokens but the first, which the prompt drew, and the newest, without a draw so far.
                assert_eq!(drew.count(), tokens.len() - stream.prompt - 1);
            }
            for (place, found) in &found.seen {
                let expected = expected.seen.get(place);
                assert_eq!(
                    Some(found),
                    expected,
                    "{place:?} of {count}, {vocab_size} tokens"
                );
            }
        }
    }
}

/// A subset of the vocabulary that depends on the tokens so far.
fn mask(tokens: &[TokenId]) -> Vec<u32> {
    let newest = tokens.last().expect("a prompt").0 + tokens.len() as u32;
    let vocab = config(None).vocab_size as u32;
    let mut words = vec![0; vocab.div_ceil(32) as usize];
    for token in (0..vocab).filter(|token| (token * 7 + newest).is_multiple_of(5)) {
        words[token as usize / 32] |= 1 << (token % 32);
    }
    words
}

fn masked_one_after_the_other(executor: &mut CudaExecutor, count: usize) -> Vec<Vec<TokenId>> {
    let mut streams: Vec<Stream> = (0..count).map(Stream::new).collect();
    prefill(executor, &mut streams);
    for stream in &mut streams {
        for _ in 0..DRAWN {
            let mask = mask(&stream.tokens);
            let mut sequences = [stream.newest()];
            let sample = sequences[0].sample.as_mut().expect("a row that draws");
            sample.allowed = Some(&mask);
            let batch = Batch {
                step: 1,
                sequences: &sequences,
            };
            let drawn = executor.step(&batch, &mut NoTap).expect("a step");
            stream.tokens.push(drawn[0].token);
        }
    }
    streams.into_iter().map(|stream| stream.tokens).collect()
}

/// A step is launched after one that has not ended; after the end of that one its masks are computed, and it draws.
/// Some rows occasionally draw nothing, and run once more.
fn drawn_late(executor: &mut CudaExecutor, count: usize) -> Vec<Vec<TokenId>> {
    let mut streams: Vec<Stream> = (0..count).map(Stream::new).collect();
    prefill(executor, &mut streams);
    let goes_on = |it: &Stream| it.tokens.len() - it.prompt < 1 + DRAWN;
    let mut before: Option<Vec<usize>> = None;
    for step in 0.. {
        let in_step: Vec<usize> = (0..count).filter(|i| goes_on(&streams[*i])).collect();
        let sequences: Vec<_> = in_step.iter().map(|i| streams[*i].newest()).collect();
        let batch = Batch {
            step: step as u64,
            sequences: &sequences,
        };
        if !in_step.is_empty() {
            executor.begin(&batch, &mut NoTap).expect("a launch");
        }
        if let Some(drawing) = before.take() {
            let drawn = executor.finish(&mut NoTap).expect("a step");
            assert_eq!(drawn.len(), drawing.len());
            for (i, row) in drawing.into_iter().zip(drawn) {
                streams[i].fill(row);
            }
        }
        if in_step.is_empty() {
            break;
        }
        let masks: Vec<_> = in_step.iter().map(|i| mask(&streams[*i].tokens)).collect();
        let rows = in_step.iter().zip(&masks);
        let draws: Vec<_> = rows
            .map(|(&i, mask)| {
                let mut sample = streams[i].newest().sample?;
                sample.allowed = Some(mask);
                ((i + step) % 4 != 3).then_some(sample)
            })
            .collect();
        executor.draw(&draws, &mut NoTap).expect("a launch");
        let drawing = in_step
            .iter()
            .zip(&draws)
            .filter(|(_, draw)| draw.is_some());
        let drawing: Vec<usize> = drawing.map(|(i, _)| *i).collect();
        for i in &drawing {
            streams[*i].tokens.push(TO_BE_DRAWN);
        }
        before = Some(drawing);
    }
    streams.into_iter().map(|stream| stream.tokens).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_same_tokens_where_masks_come_after_the_launch_and_some_rows_draw_nothing() {
    let model = Model::random(config(None), MIXED);
    let mut executor = load(&model);
    for count in [1, 3, 8, 9, 40, 130] {
        let expected = masked_one_after_the_other(&mut executor, count);
        let found = drawn_late(&mut executor, count);
        for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(expected, found, "stream {index} of {count}");
        }
    }
}
