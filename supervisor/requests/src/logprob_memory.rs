//! Memory limit for log probabilities of prompts, shared by all requests. The memory is reserved at admission, before
//! the prompt is computed.
//!
//! A prompt token is a few bytes in a request body, but hundreds of bytes with log probabilities: in the record, in the
//! write-ahead log, and in the answer until the client has read it. A reservation is released with the record, which
//! the connection holds until the client has read the answer; a TLS connection holds it until the answer is written.

use crate::record::NewRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Limit of all reservations, in bytes. An echoed prompt of 131,072 tokens with 20 alternatives per token fits.
pub const MOST_BYTES: u64 = 256 << 20;

/// Estimated bytes per token. `OF_LIKELY_TOKEN`: per alternative of an echo. `OF_LIKELY_OBJECT`: per alternative in an
/// answer's `prompt_logprobs`, where each is an object with its text.
const OF_TOKEN: u64 = 256;
const OF_LIKELY_TOKEN: u64 = 64;
const OF_LIKELY_OBJECT: u64 = 96;

/// Number of reserved bytes.
#[derive(Debug, Default)]
pub struct LogprobMemory(Arc<AtomicU64>);

/// Reservation of a request, released on drop.
#[derive(Debug)]
pub struct LogprobReservation {
    of: Arc<AtomicU64>,
    bytes: u64,
}

impl LogprobMemory {
    /// Number of free bytes.
    pub fn left(&self) -> u64 {
        MOST_BYTES.saturating_sub(self.0.load(Ordering::Relaxed))
    }

    /// Reserves `bytes`, even beyond the limit. `None` for zero bytes.
    pub fn take(&self, bytes: u64) -> Option<LogprobReservation> {
        if bytes == 0 {
            return None;
        }
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Some(LogprobReservation {
            of: Arc::clone(&self.0),
            bytes,
        })
    }
}

impl Drop for LogprobReservation {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl NewRequest {
    /// Estimated bytes for the log probabilities of the prompt. 0 if they are not requested.
    pub fn prompt_logprob_bytes(&self) -> u64 {
        let tokens = self.prompt.len() as u64;
        let echoed = self.echo.and(self.params.logprobs);
        let echo = of_each_token(echoed, OF_LIKELY_TOKEN).saturating_mul(tokens);
        let objects = of_each_token(self.prompt_logprobs, OF_LIKELY_OBJECT).saturating_mul(tokens);
        echo.saturating_add(objects)
    }
}

/// Estimated bytes of a token with `top` alternatives of this size.
fn of_each_token(top: Option<u8>, of_likely: u64) -> u64 {
    top.map_or(0, |top| OF_TOKEN + of_likely * u64::from(top))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_code::ErrorCode;
    use crate::refusal::Refusal;
    use crate::registry::Registry;
    use crate::testing::{params, request};
    use std::time::Duration;
    use worker_orcd_ipc::TokenId;

    #[test]
    fn only_prompts_that_are_told_with_log_probabilities_count() {
        let of = |echo, logprobs, prompt_logprobs| {
            let prompt = vec![TokenId(0); 10];
            let asked = NewRequest {
                echo,
                prompt_logprobs,
                params: params(|it| it.logprobs = logprobs),
                prompt,
                ..request("a")
            };
            asked.prompt_logprob_bytes()
        };
        assert_eq!(of(None, Some(20), None), 0);
        assert_eq!(of(Some(0), None, None), 0);
        assert_eq!(of(Some(0), Some(0), None), 10 * OF_TOKEN);
        let echo = 10 * (OF_TOKEN + 20 * OF_LIKELY_TOKEN);
        assert_eq!(of(Some(3), Some(20), None), echo);
        let objects = 10 * (OF_TOKEN + 5 * OF_LIKELY_OBJECT);
        assert_eq!(of(None, Some(20), Some(5)), objects);
        assert_eq!(of(Some(3), Some(20), Some(5)), echo + objects);
    }

    #[test]
    fn the_longest_prompt_of_usual_models_fits() {
        assert!(of_each_token(Some(20), OF_LIKELY_TOKEN) * 131_072 <= MOST_BYTES);
        assert!(of_each_token(Some(20), OF_LIKELY_OBJECT) * 120_000 <= MOST_BYTES);
    }

    /// Request with a seventh of the memory.
    fn with_prompt_logprobs(job_id: &str) -> NewRequest {
        NewRequest {
            prompt: vec![TokenId(0); 24_000],
            echo: Some(0),
            params: params(|it| it.logprobs = Some(20)),
            ..request(job_id)
        }
    }

    #[test]
    fn prompts_that_are_told_share_memory_until_their_records_are_gone() {
        let registry = Registry::new(100, 0, Duration::ZERO);
        let admit = |job: &str| {
            registry
                .admit(&[with_prompt_logprobs(job)])
                .map(|mut all| all.remove(0))
        };
        let rooms: Vec<_> = (0..7).map(|n| admit(&n.to_string()).unwrap()).collect();
        let refusal = admit("8").unwrap_err();
        assert!(
            matches!(refusal, Refusal::ToldPromptsFull { .. }),
            "{refusal}"
        );
        assert_eq!(refusal.code(), ErrorCode::QueueFull);
        assert!(refusal.retry_after().is_some());
        assert_eq!(registry.live(), 7, "a refused request leaves no state");
        registry.admit(&[request("others")]).unwrap();
        // An ended request holds its memory until the answer is read.
        registry.release("0", rooms[0].id, Duration::ZERO);
        assert!(admit("8").is_err());
        drop(rooms);
        let again: Vec<_> = (8..15).map(|n| admit(&n.to_string()).unwrap()).collect();
        assert!(admit("15").is_err());
        drop(again);
        admit("15").unwrap();
    }

    #[test]
    fn what_would_never_have_room_is_no_matter_of_time() {
        let registry = Registry::new(100, 0, Duration::ZERO);
        let parts: Vec<_> = (0..8)
            .map(|n| with_prompt_logprobs(&n.to_string()))
            .collect();
        let refusal = registry.admit(&parts).unwrap_err();
        assert!(matches!(refusal, Refusal::TellsTooMuch { .. }), "{refusal}");
        assert_eq!(refusal.code(), ErrorCode::InvalidRequest);
        assert_eq!(registry.live(), 0);
        registry.admit(&parts[..7]).unwrap();
    }
}
