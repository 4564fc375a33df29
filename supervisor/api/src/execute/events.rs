//! Events of an answer of `/execute`.
//!
//! `id:` of a `token` event is the token's position in the answer. It grows, and skips tokens without text of their
//! own. `i` counts the events, so that a client can detect a gap.

#![expect(
    clippy::disallowed_methods,
    reason = "an answer contains how long it took"
)]

use crate::answer::absent_not_null;
use crate::error::Code;
use crate::render::{Render, write_data, write_event, write_json};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant, SystemTime};
use strum::VariantArray as _;
use worker_orcd_requests::{Completion, Failure, Piece, StopReason};
use worker_orcd_text::calendar::rfc3339;

/// Time between two `metrics` events of a request with metrics.
const METRICS_INTERVAL: Duration = Duration::from_secs(1);

/// `started`, `token`…, optional `metrics`, and one `end` or `error`.
#[derive(Debug)]
pub struct ExecuteEvents<M> {
    started: Started,
    /// Bytes in use on the device, if known.
    memory: M,
    /// Time of the last metrics event; `None` without metrics.
    metrics: Option<Instant>,
    first_text_at: Option<Instant>,
}

/// Facts of the first event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct Started {
    pub job_id: String,
    pub model: String,
    pub seed: u64,
}

/// Data of an event. Its variant is the event's name.
#[derive(Debug, Serialize, JsonSchema, strum::IntoStaticStr, strum::VariantNames)]
#[serde(untagged)]
#[strum(serialize_all = "snake_case")]
pub enum ExecuteEvent<'a> {
    Started(ExecuteStarted<'a>),
    Token(ExecuteToken<'a>),
    Metrics(ExecuteMetrics),
    End(ExecuteEnd<'a>),
    Error(ExecuteError<'a>),
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecuteStarted<'a> {
    #[serde(flatten)]
    started: &'a Started,
    started_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecuteToken<'a> {
    t: &'a str,
    i: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecuteMetrics {
    tokens_out: u32,
    decode_time_ms: u64,
    vram_bytes: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
pub struct ExecuteEnd<'a> {
    tokens_out: u32,
    tokens_in: u32,
    decode_time_ms: u64,
    #[schemars(extend("enum" = reasons()))]
    stop_reason: &'static str,
    recoveries: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_sequence_matched: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ExecuteError<'a> {
    code: Code,
    message: &'a str,
    retriable: bool,
}

fn reasons() -> Vec<&'static str> {
    StopReason::VARIANTS.iter().map(|it| it.name()).collect()
}

fn write(event: &ExecuteEvent<'_>, out: &mut Vec<u8>) {
    write_event(out, event.into(), event);
}

impl<M: Fn() -> Option<u64>> ExecuteEvents<M> {
    pub fn new(started: Started, wants_metrics: bool, memory: M) -> Self {
        Self {
            started,
            memory,
            metrics: wants_metrics.then(Instant::now),
            first_text_at: None,
        }
    }
}

impl<M: Fn() -> Option<u64> + Send + Unpin + 'static> Render for ExecuteEvents<M> {
    fn begin(&mut self, out: &mut Vec<u8>) {
        let event = ExecuteEvent::Started(ExecuteStarted {
            started: &self.started,
            started_at: rfc3339(SystemTime::now()),
        });
        write(&event, out);
    }

    /// Writes a `token` event. `id:` is the token's position, which also counts tokens without text; `i` has no gap.
    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.first_text_at.get_or_insert_with(Instant::now);
        out.extend_from_slice(b"event: token\nid: ");
        write_json(out, &piece.index);
        out.push(b'\n');
        let (t, i) = (piece.text.as_str(), piece.number);
        write_data(out, &ExecuteToken { t, i });
    }

    fn progress(&mut self, tokens_out: u32, out: &mut Vec<u8>) {
        let Some(last) = &mut self.metrics else {
            return;
        };
        if last.elapsed() < METRICS_INTERVAL {
            return;
        }
        *last = Instant::now();
        let decoding = self.first_text_at.map_or(Duration::ZERO, |at| at.elapsed());
        let event = ExecuteEvent::Metrics(ExecuteMetrics {
            tokens_out,
            decode_time_ms: decoding.as_millis() as u64,
            vram_bytes: (self.memory)(),
        });
        write(&event, out);
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let event = ExecuteEvent::End(ExecuteEnd {
            tokens_out: completion.tokens_out,
            tokens_in: completion.tokens_in,
            decode_time_ms: completion.decode_time.as_millis() as u64,
            stop_reason: completion.stop_reason.name(),
            recoveries: completion.recoveries,
            stop_sequence_matched: completion.stop_sequence.as_deref(),
        });
        write(&event, out);
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        let event = ExecuteEvent::Error(ExecuteError {
            code: Code(failure.code.as_str()),
            message: &failure.message,
            retriable: failure.retriable,
        });
        write(&event, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_s_id_is_its_place_and_its_number_counts_events() {
        let started = Started {
            job_id: "a".to_owned(),
            model: "m".to_owned(),
            seed: 1,
        };
        let mut render = ExecuteEvents::new(started, false, || None);
        let mut out = Vec::new();
        for (number, (text, index)) in (0..).zip([("x", 0), ("\n", 3)]) {
            let text = text.to_owned();
            let piece = Piece {
                text,
                index,
                number,
                echoes: false,
                logprobs: None,
            };
            render.text(&piece, &mut out);
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "event: token\nid: 0\ndata: {\"t\":\"x\",\"i\":0}\n\n\
             event: token\nid: 3\ndata: {\"t\":\"\\n\",\"i\":1}\n\n"
        );
    }
}
