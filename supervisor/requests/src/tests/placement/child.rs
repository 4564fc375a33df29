//! Simulated child. It computes in steps, each as long as reading the weights or computing the tokens takes, and has a
//! prefix cache.

use crate::ServedBy;
use crate::testing::{Journal, class, step};
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_ipc::{Began, Command, FinishReason, RequestId, StepReport};
use worker_orcd_lifecycle::SeatId;

/// Prompt tokens in one step.
const CHUNK: u64 = 512;

/// Tokens that a device computes in the time of reading its weights: the ratio of an H200's 990 TFLOPS to its 4.8 TB/s,
/// at two bytes a weight.
const READS_WEIGHTS: u64 = 206;

const SLOTS: usize = 64;

/// Size of the KV cache: a model of 7B parameters with four KV heads takes 57 KB a token, hence two million tokens on
/// an H200.
const KV_TOKENS: u64 = 2_000_000;

/// Number of tokens at the beginning of every history that all histories share.
pub(super) const SHARED: u64 = 512;

pub(super) struct Child {
    pub place: (usize, SeatId),
    queue: VecDeque<Work>,
    running: Vec<Work>,
    answers: Vec<(RequestId, FinishReason)>,
    /// Conversations and the lengths of their cached histories, least recently used first.
    cache: Vec<(u64, u64)>,
    /// Step in progress.
    step: Option<Step>,
    has_shared: bool,
}

struct Work {
    id: RequestId,
    conversation: u64,
    prompt: u64,
    computed: u64,
    generated: u32,
    answer: u32,
}

#[derive(Default)]
struct Step {
    ends_at: u64,
    began: Vec<Began>,
    /// Requests that get a token from the step.
    draws: Vec<RequestId>,
}

impl Child {
    pub(super) fn new(place: (usize, SeatId)) -> Self {
        Self {
            place,
            queue: VecDeque::new(),
            running: vec![],
            answers: vec![],
            cache: vec![],
            step: None,
            has_shared: false,
        }
    }

    pub(super) fn serves(&self, journal: &Journal) -> ServedBy {
        ServedBy {
            text: Arc::clone(&journal.text),
            class: class("cuda:0"),
            slots: SLOTS,
            kv_tokens: KV_TOKENS,
        }
    }

    pub(super) fn ends_at(&self) -> Option<u64> {
        self.step.as_ref().map(|step| step.ends_at)
    }

    pub(super) fn obey(&mut self, command: Command, conversation: impl Fn(RequestId) -> u64) {
        match command {
            Command::Submit(it) => self.queue.push_back(Work {
                id: it.request,
                conversation: conversation(it.request),
                prompt: it.prompt.len() as u64,
                computed: 0,
                generated: it.generated.len() as u32,
                answer: it.params.max_tokens,
            }),
            Command::Cancel { request } => {
                self.queue.retain(|work| work.id != request);
                self.running.retain(|work| work.id != request);
                self.answers.push((request, FinishReason::Cancelled));
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn begin_step(&mut self, now: u64) {
        let is_idle = self.queue.is_empty() && self.running.is_empty() && self.answers.is_empty();
        if self.step.is_some() || is_idle {
            return;
        }
        let mut step = Step {
            began: self.admit(),
            ..Step::default()
        };
        let (mut left, mut streams) = (CHUNK, 0);
        for work in &mut self.running {
            if work.computed == work.prompt {
                streams += 1;
                step.draws.push(work.id);
                continue;
            }
            let part = left.min(work.prompt - work.computed);
            left -= part;
            work.computed += part;
            if work.computed == work.prompt {
                step.draws.push(work.id);
            }
        }
        let computes = CHUNK - left + streams;
        step.ends_at = now + computes.max(READS_WEIGHTS);
        self.step = Some(step);
    }

    fn admit(&mut self) -> Vec<Began> {
        let mut began = vec![];
        while self.running.len() < SLOTS
            && let Some(next) = self.queue.front()
            && self.taken() + next.prompt <= KV_TOKENS
        {
            let mut work = self.queue.pop_front().expect("a queued request");
            let known = self
                .cache
                .iter()
                .position(|(it, _)| *it == work.conversation);
            let known = known.map_or(0, |at| self.cache.remove(at).1);
            let shared = if self.has_shared { SHARED } else { 0 };
            work.computed = known.max(shared).min(work.prompt - 1);
            self.has_shared = true;
            began.push(Began {
                request: work.id,
                cached_tokens: work.computed as u32,
            });
            self.running.push(work);
        }
        self.evict();
        began
    }

    fn taken(&self) -> u64 {
        let tokens = |work: &Work| work.prompt + u64::from(work.generated);
        self.running.iter().map(tokens).sum()
    }

    fn evict(&mut self) {
        let room = KV_TOKENS.saturating_sub(self.taken());
        let mut cached: u64 = self.cache.iter().map(|(_, tokens)| tokens).sum();
        while cached > room {
            cached -= self.cache.remove(0).1;
        }
    }

    pub(super) fn end_step(&mut self) -> StepReport {
        let did = self.step.take().expect("a step in progress");
        let mut ends = std::mem::take(&mut self.answers);
        let mut tokens = vec![];
        let mut left = vec![];
        for mut work in std::mem::take(&mut self.running) {
            if did.draws.contains(&work.id) {
                tokens.push((work.id, work.generated, work.generated % 2));
                work.generated += 1;
            }
            if work.generated == work.answer {
                ends.push((work.id, FinishReason::MaxTokens));
                let history = work.prompt + u64::from(work.answer);
                self.cache.push((work.conversation, history));
            } else {
                left.push(work);
            }
        }
        self.running = left;
        self.evict();
        StepReport {
            began: did.began,
            ..step(&tokens, &ends)
        }
    }
}
