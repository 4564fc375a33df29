//! Answer of `/v1/embeddings`: unit vectors, as numbers or in base64.

use super::read::Format;
use crate::string_enums;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use schemars::JsonSchema;
use serde::Serialize;

string_enums! {
    ListObject: List = "list";
    EmbeddingObject: Embedding = "embedding";
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Embeddings {
    object: ListObject,
    data: Vec<Datum>,
    model: String,
    usage: PromptUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
struct Datum {
    object: EmbeddingObject,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
enum Vector {
    Float(#[schemars(inner(range(min = -1.0, max = 1.0)))] Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PromptUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl PromptUsage {
    pub(crate) fn of(tokens: u64) -> Self {
        Self {
            prompt_tokens: tokens,
            total_tokens: tokens,
        }
    }
}

/// `vectors`: `[n_embd]` each, of any norm. `tokens`: sum over all inputs.
#[must_use]
pub fn answer(
    vectors: Vec<Vec<f32>>,
    format: Format,
    dimensions: Option<usize>,
    model: String,
    tokens: u64,
) -> Embeddings {
    let data = vectors.into_iter().enumerate();
    let datum = |(index, vector): (usize, Vec<f32>)| Datum {
        object: EmbeddingObject::Embedding,
        index,
        embedding: Vector::of(unit(vector, dimensions), format),
    };
    Embeddings {
        object: ListObject::List,
        data: data.map(datum).collect(),
        model,
        usage: PromptUsage::of(tokens),
    }
}

/// The first `dimensions` components, scaled to length 1.
pub(crate) fn unit(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    normalize(&mut vector);
    vector
}

/// Scales to length 1. A zero vector stays.
fn normalize(vector: &mut [f32]) {
    let squares = vector.iter().map(|it| f64::from(*it) * f64::from(*it));
    let length = squares.sum::<f64>().sqrt();
    if length > 0.0 {
        for value in vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

impl Vector {
    fn of(vector: Vec<f32>, format: Format) -> Self {
        match format {
            Format::Float => Self::Float(vector),
            Format::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|it| it.to_le_bytes()).collect();
                Self::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_has_the_fields_of_its_api() {
        let vectors = vec![vec![3.0, -4.0], vec![0.0, 2.0]];
        let found = answer(vectors, Format::Float, None, "m".to_owned(), 7);
        let expected = json!({
            "object": "list",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [0.6_f32, -0.8_f32]},
                {"object": "embedding", "index": 1, "embedding": [0.0, 1.0]},
            ],
            "model": "m",
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        });
        assert_eq!(json!(found), expected);
    }

    #[test]
    fn a_vector_that_was_cut_has_length_1_again() {
        let found = answer(
            vec![vec![3.0, -4.0, 12.0]],
            Format::Float,
            Some(2),
            String::new(),
            1,
        );
        assert_eq!(found.data[0].embedding, Vector::Float(vec![0.6, -0.8]));
    }

    #[test]
    fn base64_has_little_endian_floats() {
        let found = Vector::of(vec![1.0, -0.5], Format::Base64);
        // Bytes 00 00 80 3f, 00 00 00 bf.
        assert_eq!(found, Vector::Base64("AACAPwAAAL8=".to_owned()));
    }

    #[test]
    fn neither_zeros_nor_the_largest_numbers_become_no_number() {
        for (value, expected) in [
            (0.0, 0.0),
            (f32::MAX, 0.5_f32.sqrt()),
            (f32::MIN_POSITIVE, 0.5_f32.sqrt()),
        ] {
            let mut vector = [value, value];
            normalize(&mut vector);
            assert_eq!(vector, [expected, expected]);
        }
    }
}
