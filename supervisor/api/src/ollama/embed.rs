//! `/api/embed`: fields and answer. The vectors are those of `/v1/embeddings`. Also the fields of `/api/show`.

use super::answer::nanoseconds;
use super::options;
use super::request::{TRUNCATE, refuse};
use crate::embeddings::read::{Embeddings, Format, INPUT, read_inputs};
use crate::embeddings::written::unit;
use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::limits::RequestLimits;
use crate::request::Reader;
use crate::sampling::ModelTerms;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

const NAMES: Names = &[&["model", INPUT, "dimensions", TRUNCATE], options::FIELDS];

/// Body of `/api/embed`.
pub const EMBED: Reader<Embeddings> = Reader::new(NAMES, read);

/// Unit vectors, one for each input. Durations are in nanoseconds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddings")]
pub struct Embedded {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

fn read(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<Embeddings, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let inputs = fields.must(INPUT, |it, _| read_inputs(it, max_chars, model.vocabulary));
    let dimensions = fields.integer("dimensions", 1..=u64::from(model.n_embd));
    refuse(&mut fields, &[TRUNCATE]);
    options::read_of_embedding(&mut fields, model);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(Embeddings {
        inputs: inputs.ok_or_else(ApiError::unreadable)?,
        format: Format::Float,
        dimensions: dimensions.map(|it| it as usize),
    })
}

/// `vectors`: `[n_embd]` each, of any norm. `tokens`: sum over all inputs.
#[must_use]
pub fn answer(
    vectors: Vec<Vec<f32>>,
    dimensions: Option<usize>,
    model: String,
    tokens: u64,
    took: Duration,
) -> Embedded {
    let vectors = vectors.into_iter();
    Embedded {
        model,
        embeddings: vectors.map(|it| unit(it, dimensions)).collect(),
        total_duration: nanoseconds(took),
        load_duration: 0,
        prompt_eval_count: tokens,
    }
}

/// Fields of `/api/show` that must be empty or false.
const NOT_SHOWN: &[&str] = &["name", "options", "system", "template", "verbose"];

/// Body of `/api/show`.
pub const SHOW: Reader<()> = Reader::new(&[&["model"], NOT_SHOWN], |mut fields, _, _| {
    let is_named = fields.has("model").then_some(());
    fields.required("model", is_named);
    refuse(&mut fields, NOT_SHOWN);
    fields.finish().map_err(ApiError::invalid)
});
