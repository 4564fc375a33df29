//! Counters and histograms of HTTP events.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Duration;
use strum::VariantArray as _;
use worker_orcd_requests::error_code::{CLIENT_GONE, ErrorCode, OTHER_REFUSALS};
use worker_orcd_requests::{Completion, StopReason};

type Label = [(&'static str, &'static str); 1];

/// Outcome of an embedding request.
const EMBEDDED: &str = "EMBEDDED";

#[derive(Debug)]
pub(crate) struct Events {
    started: Counter,
    /// Ends by stop reason or error code: a closed set.
    ended: Family<Label, Counter>,
    refused: Family<Label, Counter>,
    prompt_tokens: Counter,
    queue_seconds: Histogram,
    first_token_seconds: Histogram,
    token_seconds: Histogram,
    request_seconds: Histogram,
    prompt_lengths: Histogram,
    answer_lengths: Histogram,
}

impl Events {
    pub(super) fn register(own: &mut Registry) -> Self {
        let lengths = || Histogram::new(exponential_buckets(1.0, 2.0, 18));
        let events = Self {
            started: Counter::default(),
            ended: Family::default(),
            refused: Family::default(),
            prompt_tokens: Counter::default(),
            // Depends on the length of other answers: from 1 ms to 17 min.
            queue_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 21)),
            // A long prompt takes minutes on a CPU: from 1 ms to 17 min.
            first_token_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 21)),
            token_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            // From 10 ms to 44 min.
            request_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 19)),
            prompt_lengths: lengths(),
            answer_lengths: lengths(),
        };
        events.register_counters(own);
        events.register_histograms(own);
        events.begin_at_zero();
        events
    }

    /// Counts an admitted request.
    pub(crate) fn started(&self) {
        self.started.inc();
    }

    pub(crate) fn finished(&self, completion: &Completion, took: Duration) {
        let reason = completion.stop_reason.name();
        self.ended.get_or_create(&[("outcome", reason)]).inc();
        self.prompt_tokens.inc_by(completion.tokens_in.into());
        self.prompt_lengths.observe(completion.tokens_in.into());
        self.answer_lengths.observe(completion.tokens_out.into());
        if let Some(queued_for) = completion.queued_for {
            self.queue_seconds.observe(queued_for.as_secs_f64());
        }
        let first_token = completion.first_token_after;
        self.first_token_seconds.observe(first_token.as_secs_f64());
        self.request_seconds.observe(took.as_secs_f64());
        if completion.tokens_out > 1 {
            let each = completion.decode_time / (completion.tokens_out - 1);
            self.token_seconds.observe(each.as_secs_f64());
        }
    }

    /// Counts a completed embedding request.
    pub(crate) fn embedded(&self, tokens_in: u32, queued_for: Option<Duration>, took: Duration) {
        self.ended.get_or_create(&[("outcome", EMBEDDED)]).inc();
        self.prompt_tokens.inc_by(tokens_in.into());
        self.prompt_lengths.observe(tokens_in.into());
        if let Some(queued_for) = queued_for {
            self.queue_seconds.observe(queued_for.as_secs_f64());
        }
        self.request_seconds.observe(took.as_secs_f64());
    }

    /// Counts an admitted request that failed.
    pub(crate) fn failed(&self, code: &'static str) {
        self.ended.get_or_create(&[("outcome", code)]).inc();
    }

    /// Counts a refused request.
    pub(crate) fn refused(&self, code: &'static str) {
        self.refused.get_or_create(&[("code", code)]).inc();
    }

    fn register_counters(&self, own: &mut Registry) {
        own.register(
            "requests_started",
            "Requests that were let in: accepted for generation",
            self.started.clone(),
        );
        own.register(
            "requests_ended",
            "Requests that were let in and ended, by stop reason or error code",
            self.ended.clone(),
        );
        own.register(
            "requests_refused",
            "Requests of any route that were answered with an error instead of being let in",
            self.refused.clone(),
        );
        own.register(
            "prompt_tokens",
            "Prompt tokens of requests that ended with an answer",
            self.prompt_tokens.clone(),
        );
    }

    fn register_histograms(&self, own: &mut Registry) {
        let seconds = [
            (
                "request_queue_time",
                "Time from letting a request in to its first step, of requests that ended with an \
                 answer",
                &self.queue_seconds,
            ),
            (
                "time_to_first_token",
                "Time from letting a request in to its first token, of requests that ended with an \
                 answer",
                &self.first_token_seconds,
            ),
            (
                "request_time_per_output_token",
                "Mean time between the tokens of one answer",
                &self.token_seconds,
            ),
            (
                "request_duration",
                "Time from letting a request in to its end, of requests that ended with an answer",
                &self.request_seconds,
            ),
        ];
        for (name, help, histogram) in seconds {
            own.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        own.register(
            "request_prompt_tokens",
            "Length of the prompts of requests that ended with an answer, in tokens",
            self.prompt_lengths.clone(),
        );
        own.register(
            "request_generation_tokens",
            "Length of answers, in tokens",
            self.answer_lengths.clone(),
        );
    }

    /// Creates all labels at zero, so that the first increment of each is visible.
    fn begin_at_zero(&self) {
        let reasons = [
            StopReason::MaxTokens,
            StopReason::Eos,
            StopReason::StopSequence,
        ];
        let codes = || ErrorCode::VARIANTS.iter().map(|code| code.as_str());
        let answered = reasons.map(StopReason::name).into_iter().chain([EMBEDDED]);
        for outcome in answered.chain(codes()) {
            self.ended.get_or_create(&[("outcome", outcome)]).inc_by(0);
        }
        let gone = self.ended.get_or_create(&[("outcome", CLIENT_GONE)]);
        gone.inc_by(0);
        for code in codes().chain(OTHER_REFUSALS) {
            self.refused.get_or_create(&[("code", code)]).inc_by(0);
        }
    }
}
