//! `general.sampling.*`: sampling parameters recommended by a file.
//!
//! The twelve keys are llama.cpp's; converters copy them from `generation_config.json`. No value is a reason to refuse
//! a file: parameters that the sampler or the API does not support are reported by name.

use super::gguf::{Header, Value};
use std::ops::RangeInclusive;
use worker_orcd_ipc::{Sampling, SamplingAdvice};

const PREFIX: &str = "general.sampling.";

/// Maximum number of names. They go into one line of the log, and llama.cpp has twelve.
const MAX_NAMES: usize = 32;
const MAX_NAME_CHARS: usize = 64;

#[must_use]
pub fn sampling_advice(header: &Header<'_>, vocabulary: u32) -> SamplingAdvice {
    let mut advice = SamplingAdvice::default();
    let mut keys: Vec<&str> = header
        .keys()
        .filter(|key| key.starts_with(PREFIX))
        .collect();
    keys.sort_unstable();
    for key in keys {
        let value = header.get(key).and_then(number);
        let within = |range: RangeInclusive<f64>| {
            let value = value.filter(|value| range.contains(value));
            value.map(|value| value as f32)
        };
        let is_taken = match key.strip_prefix(PREFIX) {
            Some("temp") => set(&mut advice.temperature, within(Sampling::TEMPERATURE)),
            Some("top_k") => set(&mut advice.top_k, top_k(value, vocabulary)),
            Some("top_p") => set(&mut advice.top_p, within(Sampling::TOP_P)),
            Some("min_p") => set(&mut advice.min_p, within(Sampling::MIN_P)),
            Some("penalty_repeat") => {
                let penalty = within(Sampling::REPETITION_PENALTY);
                let penalty = penalty.filter(|&penalty| penalty > 0.0);
                set(&mut advice.repetition_penalty, penalty)
            }
            _ => {
                note(&mut advice.unsupported, key);
                continue;
            }
        };
        if !is_taken {
            note(&mut advice.out_of_range, key);
        }
    }
    advice
}

/// A number of any type: a temperature of 1 may be an integer.
fn number(value: &Value<'_>) -> Option<f64> {
    match *value {
        Value::Float(value) => Some(value),
        Value::Unsigned(value) => Some(value as f64),
        Value::Signed(value) => Some(value as f64),
        Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
    }
}

/// Top-k. -1 means off, as in requests to `/v1`.
fn top_k(value: Option<f64>, vocabulary: u32) -> Option<u32> {
    let value = value.map(|value| if value == -1.0 { 0.0 } else { value })?;
    let is_count = value.fract() == 0.0 && (0.0..=f64::from(vocabulary)).contains(&value);
    is_count.then_some(value as u32)
}

fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    *place = value;
    place.is_some()
}

fn note(names: &mut Vec<String>, key: &str) {
    if names.len() < MAX_NAMES {
        names.push(key.chars().take(MAX_NAME_CHARS).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gguf::parse;
    use crate::model::{GgufBuilder, Meta};

    const VOCABULARY: u32 = 100;

    fn advice(keys: &[(&str, Meta)]) -> SamplingAdvice {
        let with = |file: GgufBuilder, (key, value): &(&str, Meta)| {
            file.meta(&format!("general.sampling.{key}"), value.clone())
        };
        let file = keys.iter().fold(GgufBuilder::new(), with).build();
        sampling_advice(&parse(&file).unwrap(), VOCABULARY)
    }

    #[test]
    fn what_converters_write_is_read() {
        let read = advice(&[
            ("temp", Meta::F32(0.6)),
            ("top_k", Meta::I32(20)),
            ("top_p", Meta::F32(0.95)),
            ("min_p", Meta::F32(0.0)),
            ("penalty_repeat", Meta::F32(1.05)),
        ]);
        let expected = SamplingAdvice {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            ..SamplingAdvice::default()
        };
        assert_eq!(read, expected);
        assert_eq!(advice(&[]), SamplingAdvice::default());
    }

    #[test]
    fn any_type_of_number_is_one() {
        let read = advice(&[("temp", Meta::U32(1)), ("top_k", Meta::F32(40.0))]);
        assert_eq!((read.temperature, read.top_k), (Some(1.0), Some(40)));
        assert_eq!(advice(&[("top_k", Meta::I32(-1))]).top_k, Some(0));
    }

    #[test]
    fn what_no_request_may_ask_for_is_named_and_not_taken() {
        let wrong = [
            ("temp", Meta::F32(2.1)),
            ("temp", Meta::F32(-0.1)),
            ("temp", Meta::F32(f32::NAN)),
            ("temp", Meta::F32(f32::INFINITY)),
            ("temp", Meta::Bool(true)),
            ("temp", Meta::Str("0.5".to_owned())),
            ("temp", Meta::F32s(vec![0.5])),
            ("top_k", Meta::I32(-2)),
            ("top_k", Meta::U32(VOCABULARY + 1)),
            ("top_k", Meta::U64(u64::MAX)),
            ("top_k", Meta::F32(2.5)),
            ("top_p", Meta::F32(1.5)),
            ("min_p", Meta::F32(-1.0)),
            ("penalty_repeat", Meta::F32(0.0)),
            ("penalty_repeat", Meta::F32(2.5)),
        ];
        for (key, value) in wrong {
            let expected = SamplingAdvice {
                out_of_range: vec![format!("general.sampling.{key}")],
                ..SamplingAdvice::default()
            };
            assert_eq!(advice(&[(key, value.clone())]), expected, "{value:?}");
        }
    }

    #[test]
    fn other_keys_are_named_within_reason() {
        let one = [
            ("mirostat", Meta::I32(2)),
            ("sequence", Meta::Str("top_k;temperature".to_owned())),
        ];
        let expected = ["general.sampling.mirostat", "general.sampling.sequence"];
        assert_eq!(advice(&one).unsupported, expected);

        let many: Vec<_> = (0..200)
            .map(|n| format!("{n:03}{}", "x".repeat(500)))
            .collect();
        let many: Vec<_> = many.iter().map(|key| (&**key, Meta::U32(1))).collect();
        let names = advice(&many).unsupported;
        assert_eq!(names.len(), MAX_NAMES);
        assert!(names.iter().all(|name| name.len() == MAX_NAME_CHARS));
    }
}
