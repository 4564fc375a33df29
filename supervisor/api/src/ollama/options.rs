//! Object `options`, and `keep_alive`: sampling, stop strings and the length of an answer; hints about loading, of which
//! only those are accepted whose effect holds already.

use crate::fields::{Fields, Names, nested};
use crate::json::Json;
use crate::limits::RequestLimits;
use crate::sampling::{ModelTerms, generate_seed, read_sampling_with, read_stop};
use crate::schema;
use worker_orcd_ipc::Sampling;

pub(super) const FIELDS: &[&str] = &[OPTIONS, KEEP_ALIVE];

const OPTIONS: &str = "options";
const KEEP_ALIVE: &str = "keep_alive";
/// Name of the repetition penalty.
const PENALTY: &str = "repeat_penalty";
const LENGTH: &str = "num_predict";
const CONTEXT: &str = "num_ctx";

const KNOWN: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    LENGTH,
    PENALTY,
    "frequency_penalty",
    "presence_penalty",
    CONTEXT,
];

/// Always refused. Clients send them with the value null.
const REFUSED: &[&str] = &[
    "draft_num_predict",
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "penalize_newline",
    "repeat_last_n",
    "tfs_z",
    "typical_p",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

const NAMES: Names = &[KNOWN, REFUSED];

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) sampling: Sampling,
    pub(super) stop: Vec<String>,
    pub(super) max_tokens: u32,
}

/// Reads the options of an answer, and `keep_alive`.
pub(super) fn read(fields: &mut Fields<'_>, limits: &RequestLimits, model: &ModelTerms) -> Options {
    read_keep_alive(fields);
    let most = limits.max_tokens_out.unwrap_or(model.context);
    let most = most.min(model.context);
    let given = nested(fields, OPTIONS, NAMES, |mut fields| {
        read_context(&mut fields, model);
        // Endless, and until the context is full: both end here at the limit.
        for open in [-1.0, -2.0] {
            fields.take_number(LENGTH, open);
        }
        let tokens = fields.integer(LENGTH, 1..=u64::from(u32::MAX));
        // A random one.
        fields.take_number("seed", -1.0);
        let read = Options {
            sampling: read_sampling_with(&mut fields, model, PENALTY),
            stop: read_stop(&mut fields),
            max_tokens: tokens.map_or(most, |tokens| (tokens as u32).min(most)),
        };
        fields.finish().map(|()| read)
    });
    given.unwrap_or_else(|| Options {
        sampling: Sampling {
            seed: generate_seed(),
            ..model.defaults
        },
        stop: Vec::new(),
        max_tokens: most,
    })
}

/// Reads the options of an embedding, which are about loading, and `keep_alive`.
pub(super) fn read_of_embedding(fields: &mut Fields<'_>, model: &ModelTerms) {
    read_keep_alive(fields);
    nested(fields, OPTIONS, NAMES, |mut fields| {
        read_context(&mut fields, model);
        fields.finish()
    });
}

/// Reads the length of the context, which is at least as long as any that is accepted.
fn read_context(fields: &mut Fields<'_>, model: &ModelTerms) {
    fields.integer(CONTEXT, 1..=u64::from(model.context));
}

/// The model stays loaded, so any duration but 0 is accepted: seconds, or a text such as `5m`. Negative ones have no
/// end.
fn read_keep_alive(fields: &mut Fields<'_>) {
    let shape = || {
        let text = schema::pattern("^-?[1-9][0-9]*[smh]$");
        schema::any_of([schema::integer(&(1..=u64::MAX)), schema::values([-1]), text])
    };
    let holds = |value: Json<'_>| match value.text() {
        Some(text) => is_duration(&text),
        None => value.whole().is_some_and(|it| it > 0) || value.integer() == Some(-1),
    };
    let rule = "must be a duration other than 0, such as 5m or -1: the model stays loaded";
    fields.only(KEEP_ALIVE, shape, holds, rule);
}

fn is_duration(text: &str) -> bool {
    let number = text.strip_suffix(['s', 'm', 'h']).unwrap_or_default();
    let number = number.strip_prefix('-').unwrap_or(number);
    matches!(number.as_bytes(), [b'1'..=b'9', others @ ..] if others.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_other_than_0_and_a_unit() {
        for text in ["5m", "-1m", "10s", "24h"] {
            assert!(is_duration(text), "{text}");
        }
        for text in [
            "", "0", "0m", "-0s", "5", "m", "5 m", "1.5h", "--5m", "5d", "5mm",
        ] {
            assert!(!is_duration(text), "{text}");
        }
    }
}
