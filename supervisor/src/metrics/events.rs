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

/// Declares [`Events`]. A row is a field, its metric, the name, a unit if it has one, and the help text.
macro_rules! events {
    ($($(#[$about:meta])* $field:ident: $kind:ty = $metric:expr, $name:literal $(in $unit:ident)?, $help:literal;)+) => {
        #[derive(Debug)]
        pub(crate) struct Events {
            $($(#[$about])* $field: $kind,)+
        }

        impl Events {
            pub(super) fn register(own: &mut Registry) -> Self {
                let events = Self { $($field: $metric,)+ };
                $(events!(@register own, $name, $help, events.$field.clone() $(, $unit)?);)+
                events.begin_at_zero();
                events
            }
        }
    };
    (@register $own:ident, $name:literal, $help:literal, $metric:expr) => {
        $own.register($name, $help, $metric)
    };
    (@register $own:ident, $name:literal, $help:literal, $metric:expr, $unit:ident) => {
        $own.register_with_unit($name, $help, Unit::$unit, $metric)
    };
}

events! {
    started: Counter = Counter::default(), "requests_started",
        "Requests that were let in: accepted for generation";
    /// Ends by stop reason or error code: a closed set.
    ended: Family<Label, Counter> = Family::default(), "requests_ended",
        "Requests that were let in and ended, by stop reason or error code";
    refused: Family<Label, Counter> = Family::default(), "requests_refused",
        "Requests of any route that were answered with an error instead of being let in";
    prompt_tokens: Counter = Counter::default(), "prompt_tokens",
        "Prompt tokens of requests that ended with an answer";
    /// Depends on the length of other answers: from 1 ms to 17 min.
    queue_seconds: Histogram = histogram(0.001, 21), "request_queue_time" in Seconds,
        "Time from letting a request in to its first step, of requests that ended with an answer";
    /// A long prompt takes minutes on a CPU: from 1 ms to 17 min.
    first_token_seconds: Histogram = histogram(0.001, 21), "time_to_first_token" in Seconds,
        "Time from letting a request in to its first token, of requests that ended with an answer";
    token_seconds: Histogram = histogram(0.001, 14), "request_time_per_output_token" in Seconds,
        "Mean time between the tokens of one answer";
    /// From 10 ms to 44 min.
    request_seconds: Histogram = histogram(0.01, 19), "request_duration" in Seconds,
        "Time from letting a request in to its end, of requests that ended with an answer";
    prompt_lengths: Histogram = histogram(1.0, 18), "request_prompt_tokens",
        "Length of the prompts of requests that ended with an answer, in tokens";
    answer_lengths: Histogram = histogram(1.0, 18), "request_generation_tokens",
        "Length of answers, in tokens";
}

/// Histogram whose first bucket ends at `first`, and each further one at twice the last.
fn histogram(first: f64, buckets: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, buckets))
}

impl Events {
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
