//! An admitted request: its ids, log lines and metrics.

#![expect(
    clippy::disallowed_methods,
    reason = "an answer contains how long it took"
)]

use super::App;
use crate::logging::TextDigest;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker_orcd_engine::LoadedModel;
use worker_orcd_requests::error_code::CLIENT_GONE;
use worker_orcd_requests::{Completion, Embedding, Failure, RequestStream};

/// Logs `execute_end` exactly once, also if the client disconnects.
#[derive(Debug)]
pub struct Job {
    app: Arc<App>,
    id: String,
    correlation_id: String,
    started_at: Instant,
    ended: bool,
}

impl Job {
    #[must_use]
    pub fn begin(app: Arc<App>, id: String, correlation_id: String) -> Self {
        app.metrics.events.started();
        Self {
            app,
            id,
            correlation_id,
            started_at: Instant::now(),
            ended: false,
        }
    }

    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    #[must_use]
    pub fn correlation_id(&self) -> &str {
        &self.correlation_id
    }

    #[must_use]
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    fn device(&self) -> String {
        self.app.devices.to_string()
    }

    /// Generation of the child at the end; `None` during its replacement.
    fn generation(&self) -> Option<u32> {
        let snapshot = self.app.engine.snapshot();
        snapshot.child().map(|child| child.generation)
    }

    /// Logs `execute_start`. `digest`: of the prompt's text; `None` for token ids.
    pub(super) fn log_start(
        &self,
        stream: &RequestStream,
        digest: Option<&TextDigest>,
        model: &LoadedModel,
    ) {
        tracing::info!(
            job_id = self.id,
            correlation_id = self.correlation_id,
            model = self.app.model_id,
            device = model.device.id,
            generation = self.generation(),
            prompt_chars = digest.map(|digest| digest.chars),
            prompt_sha256 = digest.map(|digest| digest.sha256.as_str()),
            tokens_in = stream.tokens_in(),
            max_tokens = stream.max_tokens(),
            "execute_start"
        );
    }

    pub fn finished(&mut self, completion: &Completion) {
        self.ended = true;
        let took = self.started_at.elapsed();
        self.app.metrics.events.finished(completion, took);
        self.log_end(&End::Answered(completion));
    }

    /// Marks the end as logged and counted by another supervisor.
    pub fn mark_logged(&mut self) {
        self.ended = true;
    }

    /// Records the end of an embedding of `tokens_in` tokens.
    pub fn embedded(&mut self, tokens_in: u32, embedding: &Embedding) {
        self.ended = true;
        let took = self.started_at.elapsed();
        let queued_for = embedding.queued_for;
        let events = &self.app.metrics.events;
        events.embedded(tokens_in, queued_for, took);
        self.log_end(&End::Embedded(tokens_in, embedding));
    }

    pub fn failed(&mut self, failure: &Failure) {
        self.ended = true;
        self.app.metrics.events.failed(failure.code.as_str());
        self.log_end(&End::Failed(failure));
    }

    fn log_end(&self, end: &End<'_>) {
        let (completion, failure, code) = match end {
            End::Answered(completion) => (Some(completion), None, None),
            End::Embedded(..) => (None, None, None),
            End::Failed(failure) => (None, Some(failure), Some(failure.code.as_str())),
            End::ClientGone => (None, None, Some(CLIENT_GONE)),
        };
        let embedding = match end {
            End::Embedded(tokens_in, embedding) => Some((*tokens_in, embedding.recoveries)),
            End::Answered(_) | End::Failed(_) | End::ClientGone => None,
        };
        let answer = completion.map(|it| (it.tokens_in, it.recoveries));
        let (tokens_in, recoveries) = answer.or(embedding).unzip();
        let ms = |time: Duration| time.as_millis() as u64;
        tracing::info!(
            job_id = self.id,
            correlation_id = self.correlation_id,
            model = self.app.model_id,
            device = self.device(),
            generation = self.generation(),
            stop_reason = completion.map(|it| it.stop_reason.name()),
            tokens_in,
            tokens_out = completion.map(|it| it.tokens_out),
            first_token_ms = completion.map(|it| ms(it.first_token_after)),
            decode_time_ms = completion.map(|it| ms(it.decode_time)),
            recoveries,
            code,
            retriable = failure.map(|it| it.retriable),
            reason = failure.map(|it| it.message.as_str()),
            "execute_end"
        );
    }
}

enum End<'a> {
    Answered(&'a Completion),
    /// Tokens of an embedding, and its result.
    Embedded(u32, &'a Embedding),
    Failed(&'a Failure),
    ClientGone,
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended && !self.app.has_left() {
            self.app.metrics.events.failed(CLIENT_GONE);
            self.log_end(&End::ClientGone);
        }
    }
}
