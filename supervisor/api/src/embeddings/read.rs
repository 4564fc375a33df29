//! Fields of `/v1/embeddings`.

use crate::error::ApiError;
use crate::fields::{Fields, Names};
use crate::json::{Json, Kind};
use crate::limits::RequestLimits;
use crate::mistakes::Constraint;
use crate::no_effect::{accept, text};
use crate::request::{Input, Reader};
use crate::sampling::ModelTerms;
use crate::token_ids;

/// Field of the texts.
pub const INPUT: &str = "input";

/// Largest number of texts of one request.
const MAX_INPUTS: usize = 256;

const NAMES: Names = &[&["model", INPUT, "encoding_format", "dimensions", "user"]];

/// Body of `/v1/embeddings`.
pub const EMBEDDINGS: Reader<Embeddings> = Reader::new(NAMES, read_embeddings);

#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// Never empty.
    pub inputs: Vec<Input>,
    pub format: Format,
    /// Length of a returned vector; `None`: all components.
    pub dimensions: Option<usize>,
}

/// Encoding of a vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// A list of numbers.
    #[default]
    Float,
    /// Little-endian 32-bit floats in base64.
    Base64,
}

fn read_embeddings(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<Embeddings, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let inputs = fields.must(INPUT, |it, _| read_inputs(it, max_chars, model.vocabulary));
    let formats = [("float", Format::Float), ("base64", Format::Base64)];
    let format = fields.word("encoding_format", &formats).unwrap_or_default();
    let dimensions = fields.integer("dimensions", 1..=u64::from(model.n_embd));
    accept(&mut fields, &[text("user")]);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(Embeddings {
        inputs: inputs.ok_or_else(ApiError::unreadable)?,
        format,
        dimensions: dimensions.map(|it| it as usize),
    })
}

/// Reads a text or token ids, or a list of texts or of lists of token ids.
pub(crate) fn read_inputs(
    fields: &mut Fields<'_>,
    max_chars: usize,
    vocabulary: u32,
) -> Option<Vec<Input>> {
    let shape = || token_ids::inputs_shape(max_chars, vocabulary, MAX_INPUTS);
    let input = fields.given(INPUT, shape)?;
    let (elements, count) = input.first(MAX_INPUTS);
    let are_ids = elements.first().is_some_and(|it| it.kind() == Kind::Number);
    let is_one = input.kind() == Kind::Text || are_ids;
    let (constraint, rule) = match input.kind() {
        _ if is_one => return one(fields, input, max_chars, vocabulary).map(|it| vec![it]),
        Kind::List if count == 0 => (Constraint::Length, "must not be empty".to_owned()),
        Kind::List if count > MAX_INPUTS => {
            let rule = format!("may hold {MAX_INPUTS} texts at most");
            (Constraint::Length, rule)
        }
        Kind::List => {
            let elements = elements.into_iter();
            // Stops at the first mistake.
            return elements
                .map(|it| one(fields, it, max_chars, vocabulary))
                .collect();
        }
        _ => {
            let rule = "must be a text, token ids, or a list of either";
            (Constraint::Type, rule.to_owned())
        }
    };
    fields.error(INPUT, constraint, rule);
    None
}

fn one(
    fields: &mut Fields<'_>,
    given: Json<'_>,
    max_chars: usize,
    vocabulary: u32,
) -> Option<Input> {
    if given.kind() == Kind::Text {
        let text = fields.text_of(INPUT, given, &(1..=max_chars));
        return text.map(Input::Prompt);
    }
    if given.kind() != Kind::List {
        let rule = "must hold texts or lists of token ids";
        fields.error(INPUT, Constraint::Type, rule);
        return None;
    }
    let ids = token_ids::read_list(given, vocabulary).filter(|ids| !ids.is_empty());
    if ids.is_none() {
        let rule = "must hold ids of the vocabulary, one or more";
        fields.error(INPUT, Constraint::Range, rule);
    }
    ids.map(Input::Tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Dialect;
    use worker_orcd_ipc::TokenId;

    fn read(body: &str) -> Result<Embeddings, String> {
        let terms = ModelTerms {
            vocabulary: 10,
            n_embd: 4,
            ..ModelTerms::UNKNOWN
        };
        let limits = RequestLimits {
            max_prompt_chars: Some(5),
            ..RequestLimits::NONE
        };
        let fields = Fields::parse(body, NAMES).unwrap();
        let read = read_embeddings(fields, &limits, &terms);
        read.map_err(|error| error.body(Dialect::OpenAi)["error"]["param"].to_string())
    }

    #[test]
    fn texts_and_ids_come_alone_and_in_lists() {
        let text = |text: &str| Input::Prompt(text.to_owned());
        let ids = |ids: &[u32]| Input::Tokens(ids.iter().map(|id| TokenId(*id)).collect());
        for (input, expected) in [
            ("\"a\"", vec![text("a")]),
            ("[\"a\", \"b\"]", vec![text("a"), text("b")]),
            ("[1, 9]", vec![ids(&[1, 9])]),
            ("[[1], [2, 3]]", vec![ids(&[1]), ids(&[2, 3])]),
            ("[\"a\", [2]]", vec![text("a"), ids(&[2])]),
        ] {
            let found = read(&format!("{{\"input\": {input}}}")).unwrap();
            assert_eq!(found.inputs, expected, "{input}");
            assert_eq!((found.format, found.dimensions), (Format::Float, None));
        }
    }

    #[test]
    fn what_is_no_text_of_a_fit_length_is_refused() {
        let many = format!("[{}]", vec!["\"a\""; MAX_INPUTS + 1].join(","));
        let full = format!("[{}]", vec!["\"a\""; MAX_INPUTS].join(","));
        let wrong = [
            "\"\"",
            "[]",
            "[\"\"]",
            "[[]]",
            "[10]",
            "[-1]",
            "[1.5]",
            "{}",
            "3",
            "true",
            "[null]",
            "[1, \"a\"]",
            "[[1], 2]",
            "[[\"a\"]]",
            "\"longer\"",
            &many,
        ];
        for input in wrong {
            let found = read(&format!("{{\"input\": {input}}}"));
            assert_eq!(found, Err("\"input\"".to_owned()), "{input}");
        }
        assert_eq!(read("{}"), Err("\"input\"".to_owned()));
        let read = read(&format!("{{\"input\": {full}}}")).unwrap();
        assert_eq!(read.inputs.len(), MAX_INPUTS);
    }

    #[test]
    fn the_other_fields_say_how_it_is_answered() {
        let with = |field: &str| read(&format!("{{\"input\": \"a\", {field}}}"));
        let found = with("\"encoding_format\": \"base64\", \"dimensions\": 4, \"user\": \"u\"");
        let found = found.unwrap();
        assert_eq!(found.format, Format::Base64);
        assert_eq!(found.dimensions, Some(4));
        for (name, value) in [
            ("encoding_format", "\"int8\""),
            ("dimensions", "0"),
            ("dimensions", "5"),
            ("user", "1"),
            ("input_type", "\"query\""),
        ] {
            let found = with(&format!("\"{name}\": {value}"));
            assert_eq!(found, Err(format!("\"{name}\"")));
        }
    }
}
