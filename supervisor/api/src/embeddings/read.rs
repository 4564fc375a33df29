//! Fields of `/v1/embeddings`.

use crate::error::ApiError;
use crate::fields::{Fields, Names, among};
use crate::json::{Json, Kind};
use crate::limits::RequestLimits;
use crate::mistakes::Constraint;
use crate::openai::request::token;
use crate::request::Input;
use crate::sampling::ModelTerms;
use crate::schema::{self, Shape};

/// Field of the texts.
pub const INPUT: &str = "input";

/// Largest number of texts of one request.
const MAX_INPUTS: usize = 256;

/// Every field of `/v1/embeddings`.
pub const NAMES: Names = |name| among(name, &[FIELDS]);

const FIELDS: &[&str] = &["model", INPUT, "encoding_format", "dimensions", "user"];

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

/// # Errors
/// All mistakes in the request.
pub fn read_embeddings(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    model: &ModelTerms,
) -> Result<Embeddings, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let inputs = read_inputs(&mut fields, max_chars, model.vocabulary);
    let inputs = fields.required(INPUT, inputs);
    let formats = [("float", Format::Float), ("base64", Format::Base64)];
    let format = fields.word("encoding_format", &formats).unwrap_or_default();
    let dimensions = fields.integer("dimensions", 1..=u64::from(model.n_embd));
    fields.only(
        "user",
        schema::text,
        |value| value.kind() == Kind::Text,
        "must be a string",
    );
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
    fields.describe(INPUT, || inputs_shape(max_chars, vocabulary));
    let input = fields.take(INPUT)?;
    match input.kind() {
        Kind::Text => one(fields, input, max_chars, vocabulary).map(|it| vec![it]),
        Kind::List => match first_kind(input) {
            Some(Kind::Number) => one(fields, input, max_chars, vocabulary).map(|it| vec![it]),
            Some(_) => read_list(fields, input, max_chars, vocabulary),
            None => {
                fields.error(INPUT, Constraint::Length, "must not be empty");
                None
            }
        },
        _ => {
            let rule = "must be a text, token ids, or a list of either";
            fields.error(INPUT, Constraint::Type, rule);
            None
        }
    }
}

fn inputs_shape(max_chars: usize, vocabulary: u32) -> Shape {
    let text = schema::text_of(&(1..=max_chars));
    let last_id = u64::from(vocabulary.saturating_sub(1));
    let ids = schema::list(schema::integer(&(0..=last_id)), &(1..=usize::MAX));
    let one = schema::any_of([text.clone(), ids.clone()]);
    schema::any_of([text, ids, schema::list(one, &(1..=MAX_INPUTS))])
}

fn first_kind(list: Json<'_>) -> Option<Kind> {
    let mut first = None;
    list.each_element(|element| {
        first.get_or_insert(element.kind());
    });
    first
}

fn read_list(
    fields: &mut Fields<'_>,
    list: Json<'_>,
    max_chars: usize,
    vocabulary: u32,
) -> Option<Vec<Input>> {
    let (mut elements, mut count) = (Vec::new(), 0);
    list.each_element(|element| {
        count += 1;
        if count <= MAX_INPUTS {
            elements.push(element);
        }
    });
    if count > MAX_INPUTS {
        let rule = format!("may hold {MAX_INPUTS} texts at most");
        fields.error(INPUT, Constraint::Length, rule);
        return None;
    }
    let elements = elements.into_iter();
    // Stops at the first mistake.
    elements
        .map(|element| one(fields, element, max_chars, vocabulary))
        .collect()
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
    let (mut ids, mut all_known) = (Vec::new(), true);
    given.each_element(|id| match token(id, vocabulary) {
        Some(id) if all_known => ids.push(id),
        _ => all_known = false,
    });
    if ids.is_empty() || !all_known {
        let rule = "must hold ids of the vocabulary, one or more";
        fields.error(INPUT, Constraint::Range, rule);
        return None;
    }
    Some(Input::Tokens(ids))
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
