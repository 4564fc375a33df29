//! Fields that have the same names in several APIs: sampling and stop strings.

use crate::fields::Fields;
use crate::json::{Json, Kind};
use crate::logit_bias;
use crate::mistakes::Constraint;
use crate::schema;
use std::ops::RangeInclusive;
use uuid::Uuid;
use worker_orcd_ipc::{GenerationParams, Sampling};
use worker_orcd_text::tools::ChatTerms;

/// Fields of [`read_sampling`], [`read_params`] and [`read_stop`].
pub const NAMES: &[&str] = &[
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    logit_bias::FIELD,
    "stop",
    SPECULATION,
];

/// Whether the request may have drafts. `true` is the default; where the operator set `--speculation off`, there are none
/// either way. It is accepted there, because drafts change no answer.
const SPECULATION: &str = "speculation";

/// Largest number of stop strings. The OpenAI API allows four; code completion templates and evaluation harnesses send
/// a dozen. Each is compared at every character.
pub(super) const MAX_STOPS: usize = 32;
pub(super) const MAX_STOP_CHARS: usize = 256;

/// Bits of a generated seed, so that every JSON reader represents it exactly.
const GENERATED_SEED_BITS: u32 = 53;

/// Limits and defaults of a request that depend on the model.
#[derive(Debug, Clone)]
pub struct ModelTerms {
    pub vocabulary: u32,
    /// Length of the context, in tokens.
    pub context: u32,
    /// Components of a hidden state.
    pub n_embd: u32,
    pub defaults: Sampling,
    pub chat: ChatTerms,
}

impl ModelTerms {
    /// Terms without a model. All limits are open, so that the response is 503 and not a mistake that depends on the
    /// model.
    pub const UNKNOWN: Self = Self {
        vocabulary: u32::MAX,
        context: u32::MAX,
        n_embd: u32::MAX,
        defaults: Sampling::DEFAULT,
        chat: ChatTerms::UNKNOWN,
    };
}

/// Reads the sampling fields. Absent ones take the model's defaults; an absent seed is generated.
pub fn read_sampling(fields: &mut Fields, model: &ModelTerms) -> Sampling {
    read_sampling_with(fields, model, "repetition_penalty")
}

/// [`read_sampling`] for an API with this name of the repetition penalty.
pub(crate) fn read_sampling_with(
    fields: &mut Fields,
    model: &ModelTerms,
    penalty: &str,
) -> Sampling {
    let defaults = &model.defaults;
    let mut number = |name: &str, range: RangeInclusive<f64>, default: f32| {
        fields
            .number(name, range)
            .map_or(default, |number| number as f32)
    };
    let temperature = number("temperature", Sampling::TEMPERATURE, defaults.temperature);
    let top_p = number("top_p", Sampling::TOP_P, defaults.top_p);
    let min_p = number("min_p", Sampling::MIN_P, defaults.min_p);
    let frequency_penalty = number(
        "frequency_penalty",
        Sampling::FREQUENCY_PENALTY,
        defaults.frequency_penalty,
    );
    let presence_penalty = number(
        "presence_penalty",
        Sampling::PRESENCE_PENALTY,
        defaults.presence_penalty,
    );
    let (above, most) = Sampling::REPETITION_PENALTY.into_inner();
    let repetition_penalty = fields.number_above(penalty, above, most);
    // A positive value that underflows to zero as 32-bit float stays positive.
    let repetition_penalty = repetition_penalty.map_or(defaults.repetition_penalty, |number| {
        (number as f32).max(f32::MIN_POSITIVE)
    });
    Sampling {
        temperature,
        top_k: fields
            .integer("top_k", 0..=u64::from(model.vocabulary))
            .map_or(defaults.top_k, |top_k| top_k as u32),
        top_p,
        min_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        seed: fields
            .integer("seed", 0..=u64::MAX)
            .unwrap_or_else(generate_seed),
    }
}

/// Reads the other parameters that all APIs have in common. `sampling`: from [`read_sampling`].
pub fn read_params(
    fields: &mut Fields,
    model: &ModelTerms,
    sampling: Sampling,
) -> GenerationParams {
    GenerationParams {
        sampling,
        logit_bias: logit_bias::read(fields, model.vocabulary),
        without_drafts: fields.boolean(SPECULATION) == Some(false),
        ..GenerationParams::default()
    }
}

/// A string, or a list of up to [`MAX_STOPS`].
pub fn read_stop(fields: &mut Fields) -> Vec<String> {
    let length = 1..=MAX_STOP_CHARS;
    let shape = || {
        let stop = schema::text_of(&length);
        schema::any_of([stop.clone(), schema::list(stop, &(0..=MAX_STOPS))])
    };
    let Some(value) = fields.given("stop", shape) else {
        return Vec::new();
    };
    match value.kind() {
        Kind::Text => fields.text_of("stop", value, &length).into_iter().collect(),
        Kind::List => read_stops(fields, value, &length),
        _ => {
            let rule = "must be a string or a list of strings";
            fields.error("stop", Constraint::Type, rule);
            Vec::new()
        }
    }
}

fn read_stops(fields: &mut Fields, list: Json<'_>, length: &RangeInclusive<usize>) -> Vec<String> {
    let (first, count) = list.first(MAX_STOPS);
    if count > MAX_STOPS {
        let rule = format!("must have at most {MAX_STOPS} strings");
        fields.error("stop", Constraint::Length, rule);
        return Vec::new();
    }
    let items = first.into_iter().enumerate();
    items
        .filter_map(|(index, item)| fields.text_of(&format!("stop[{index}]"), item, length))
        .collect()
}

/// Random seed of a request without one.
pub(crate) fn generate_seed() -> u64 {
    Uuid::new_v4().as_u64_pair().1 & ((1 << GENERATED_SEED_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;
    use serde_json::{Value, json};

    const MODEL: ModelTerms = ModelTerms {
        vocabulary: 10,
        context: 100,
        n_embd: 64,
        defaults: Sampling::DEFAULT,
        chat: ChatTerms::UNKNOWN,
    };

    fn fields(text: &str) -> Fields<'_> {
        Fields::parse(text, &[NAMES]).unwrap()
    }

    #[test]
    fn sampling_has_the_contract_s_defaults_and_ranges() {
        let mut given = fields("{\"seed\": 7}");
        let sampling = read_sampling(&mut given, &MODEL);
        assert_eq!(
            sampling,
            Sampling {
                temperature: 1.0,
                seed: 7,
                ..Sampling::default()
            }
        );
        given.finish().unwrap();

        let wrong = json!({
            "temperature": 2.1, "top_p": -0.1, "min_p": 1.5, "top_k": 11,
            "repetition_penalty": 0, "frequency_penalty": 3, "presence_penalty": "x", "seed": -1
        });
        let wrong = wrong.to_string();
        let mut wrong = fields(&wrong);
        read_sampling(&mut wrong, &MODEL);
        assert_eq!(wrong.finish().unwrap_err().count(), 8);
    }

    #[test]
    fn what_is_given_wins_over_a_default_even_where_it_switches_off() {
        let defaults = Sampling {
            temperature: 0.5,
            top_k: 5,
            top_p: 0.5,
            min_p: 0.5,
            repetition_penalty: 1.5,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            seed: 3,
        };
        let model = ModelTerms { defaults, ..MODEL };
        let mut nothing = fields("{\"seed\": 7, \"top_k\": null}");
        let expected = Sampling {
            seed: 7,
            ..defaults
        };
        assert_eq!(read_sampling(&mut nothing, &model), expected);

        let mut everything = fields(
            "{\"seed\": 7, \"temperature\": 0, \"top_k\": 0, \"top_p\": 1, \"min_p\": 0, \
             \"repetition_penalty\": 1, \"frequency_penalty\": 0, \"presence_penalty\": 0}",
        );
        let expected = Sampling {
            seed: 7,
            ..Sampling::default()
        };
        assert_eq!(read_sampling(&mut everything, &model), expected);
        everything.finish().unwrap();
    }

    #[test]
    fn a_request_has_drafts_unless_it_declines_them() {
        let read = |body: &str| {
            let mut fields = fields(body);
            let params = read_params(&mut fields, &MODEL, Sampling::DEFAULT);
            fields.finish().map(|()| params.without_drafts)
        };
        for (body, declines) in [
            ("{}", false),
            ("{\"speculation\": null}", false),
            ("{\"speculation\": true}", false),
            ("{\"speculation\": false}", true),
        ] {
            assert_eq!(read(body).unwrap(), declines, "{body}");
        }
        let mistakes = read("{\"speculation\": \"off\"}").unwrap_err();
        assert_eq!(mistakes.listed()[0].field, "speculation");
    }

    #[test]
    fn stops_are_one_or_up_to_thirty_two_non_empty_strings() {
        let read = |value: Value| -> Result<Vec<String>, Mistakes> {
            let body = json!({"stop": value}).to_string();
            let mut fields = fields(&body);
            let stops = read_stop(&mut fields);
            fields.finish().map(|()| stops)
        };
        assert_eq!(read(json!("a")).unwrap(), ["a"]);
        assert_eq!(read(json!(["a", "b"])).unwrap(), ["a", "b"]);
        assert_eq!(read(Value::Null).unwrap(), Vec::<String>::new());
        let mistakes = read(json!(["", 3, "c"])).unwrap_err();
        assert_eq!(mistakes.listed()[0].field, "stop[0]");
        assert_eq!(mistakes.listed()[1].field, "stop[1]");
        assert_eq!(read(json!(vec!["a"; 32])).unwrap().len(), 32);
        assert!(read(json!(vec!["a"; 33])).is_err());
        assert!(read(json!(3)).is_err());
    }

    #[test]
    fn generated_seeds_survive_a_double() {
        for _ in 0..100 {
            let seed = generate_seed();
            assert_eq!(seed as f64 as u64, seed);
        }
    }
}
