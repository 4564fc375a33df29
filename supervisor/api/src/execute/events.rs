//! Events of an answer of `/execute`.
//!
//! `id:` of a `token` event is the token's position in the answer. It grows, and skips tokens without text of their
//! own. `i` counts the events, so that a client can detect a gap.

#![expect(
    clippy::disallowed_methods,
    reason = "an answer contains how long it took"
)]

use crate::render::{Render, write_event, write_json};
use serde_json::json;
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_requests::{Completion, Failure, Piece};
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

/// Content of the first event.
#[derive(Debug)]
pub struct Started {
    pub job_id: String,
    pub model: String,
    pub seed: u64,
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
        let started = json!({
            "job_id": self.started.job_id,
            "model": self.started.model,
            "seed": self.started.seed,
            "started_at": rfc3339(SystemTime::now()),
        });
        write_event(out, "started", &started);
    }

    /// Writes a `token` event. `id:` is the token's position, which also counts tokens without text; `i` has no gap.
    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        self.first_text_at.get_or_insert_with(Instant::now);
        out.extend_from_slice(b"event: token\nid: ");
        write_json(out, &piece.index);
        out.extend_from_slice(b"\ndata: {\"t\":");
        write_json(out, &piece.text);
        out.extend_from_slice(b",\"i\":");
        write_json(out, &piece.number);
        out.extend_from_slice(b"}\n\n");
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
        write_event(
            out,
            "metrics",
            &json!({
                "tokens_out": tokens_out,
                "decode_time_ms": decoding.as_millis() as u64,
                "vram_bytes": (self.memory)(),
            }),
        );
    }

    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>) {
        let mut end = json!({
            "tokens_out": completion.tokens_out,
            "tokens_in": completion.tokens_in,
            "decode_time_ms": completion.decode_time.as_millis() as u64,
            "stop_reason": completion.stop_reason.name(),
            "recoveries": completion.recoveries,
        });
        if let Some(stop) = &completion.stop_sequence {
            end["stop_sequence_matched"] = json!(stop);
        }
        write_event(out, "end", &end);
    }

    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>) {
        write_event(
            out,
            "error",
            &json!({
                "code": failure.code.as_str(),
                "message": failure.message,
                "retriable": failure.retriable,
            }),
        );
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
