//! Fields of `/v1/rerank`.

use crate::error::ApiError;
use crate::fields::{self, Fields, Names, each, element};
use crate::json::Json;
use crate::limits::RequestLimits;
use crate::mistakes::{Constraint, Mistakes};
use crate::no_effect::{accept, text};
use crate::request::Reader;
use crate::sampling::ModelTerms;
use crate::schema;

pub const DOCUMENTS: &str = "documents";

/// Largest number of documents of one request.
const MAX_DOCUMENTS: usize = 1024;

const NAMES: Names = &[&[
    "model",
    "query",
    DOCUMENTS,
    "top_n",
    "return_documents",
    "user",
]];

/// Body of `/v1/rerank`.
pub const RERANK: Reader<Rerank> = Reader::new(NAMES, read_rerank);

const DOCUMENT: Names = &[&["text"]];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rerank {
    pub query: String,
    /// Never empty.
    pub documents: Vec<String>,
    /// Number of returned results; `None`: all.
    pub top_n: Option<usize>,
    /// Include the document in each result.
    pub returns_documents: bool,
}

fn read_rerank(
    mut fields: Fields<'_>,
    limits: &RequestLimits,
    _model: &ModelTerms,
) -> Result<Rerank, ApiError> {
    let max_chars = limits.max_prompt_chars.unwrap_or(usize::MAX);
    let query = fields.must("query", |it, name| it.text(name, &(1..=max_chars)));
    let documents = fields.must(DOCUMENTS, |it, _| read_documents(it, max_chars));
    let top_n = fields.integer("top_n", 0..=u64::from(u32::MAX));
    let returns_documents = fields.boolean("return_documents").unwrap_or(false);
    accept(&mut fields, &[text("user")]);
    fields.finish().map_err(ApiError::invalid)?;
    Ok(Rerank {
        query: query.ok_or_else(ApiError::unreadable)?,
        documents: documents.ok_or_else(ApiError::unreadable)?,
        // 0 means all in vLLM.
        top_n: top_n.filter(|it| *it > 0).map(|it| it as usize),
        returns_documents,
    })
}

/// `None` if absent; an empty list if an element is invalid.
fn read_documents(fields: &mut Fields<'_>, max_chars: usize) -> Option<Vec<String>> {
    let list = fields.given(DOCUMENTS, || {
        let object = fields::shape(DOCUMENT, |fields| read_object(fields, max_chars));
        let document = schema::any_of([schema::text_of(&(0..=max_chars)), object]);
        schema::list(document, &(1..=MAX_DOCUMENTS))
    })?;
    let mut documents = Vec::new();
    let count = each(
        fields.mistakes(),
        DOCUMENTS,
        list,
        |index, item, outside| {
            let document = read_document(item, max_chars, outside)?;
            if index < MAX_DOCUMENTS {
                documents.push(document);
            }
            Ok(())
        },
    );
    let (constraint, rule) = match count {
        None => (Constraint::Type, "must be a list of texts".to_owned()),
        Some(0) => (Constraint::Length, "must not be empty".to_owned()),
        Some(count) if count > MAX_DOCUMENTS => {
            let rule = format!("may hold {MAX_DOCUMENTS} texts at most");
            (Constraint::Length, rule)
        }
        _ => return Some(documents),
    };
    fields.error(DOCUMENTS, constraint, rule);
    Some(Vec::new())
}

/// A text, or `{"text": …}`, as in Jina and Cohere.
fn read_document(item: Json<'_>, max_chars: usize, outside: &Mistakes) -> Result<String, Mistakes> {
    if let Some(text) = item.text() {
        if text.chars().count() <= max_chars {
            return Ok(text.into_owned());
        }
        let rule = format!("must have at most {max_chars} characters");
        return Err(outside.only("", Constraint::Length, rule));
    }
    let object = Fields::of(item, DOCUMENT, outside);
    let rule = "must be a text or an object with one";
    element(object, outside, rule, |it| read_object(it, max_chars))
}

fn read_object(mut fields: Fields<'_>, max_chars: usize) -> Result<String, Mistakes> {
    let text = fields.must("text", |it, name| it.text(name, &(0..=max_chars)));
    fields.finish().map(|()| text.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Dialect;

    fn read(body: &str) -> Result<Rerank, String> {
        let limits = RequestLimits {
            max_prompt_chars: Some(5),
            ..RequestLimits::NONE
        };
        let fields = Fields::parse(body, NAMES).unwrap();
        let read = read_rerank(fields, &limits, &ModelTerms::UNKNOWN);
        read.map_err(|error| error.body(Dialect::OpenAi)["error"]["param"].to_string())
    }

    fn with(documents: &str) -> Result<Rerank, String> {
        read(&format!("{{\"query\": \"q\", \"documents\": {documents}}}"))
    }

    #[test]
    fn documents_are_texts_and_objects_with_one() {
        let found = with("[\"a\", {\"text\": \"b\"}, \"\"]").unwrap();
        assert_eq!(found.documents, ["a", "b", ""]);
        assert_eq!((&*found.query, found.top_n), ("q", None));
        assert!(!found.returns_documents);
        let many = format!("[{}]", vec!["\"a\""; MAX_DOCUMENTS + 1].join(","));
        for (wrong, field) in [
            ("[]", "documents"),
            ("\"a\"", "documents"),
            (&many, "documents"),
            ("[\"a\", 3]", "documents[1]"),
            ("[\"longer\"]", "documents[0]"),
            ("[{}]", "documents[0].text"),
            ("[{\"text\": \"longer\"}]", "documents[0].text"),
            (
                "[{\"text\": \"a\", \"image\": \"b\"}]",
                "documents[0].image",
            ),
        ] {
            assert_eq!(with(wrong).unwrap_err(), format!("\"{field}\""), "{wrong}");
        }
        assert_eq!(read("{\"query\": \"q\"}").unwrap_err(), "\"documents\"");
        let no_query = "{\"documents\": [\"a\"], \"query\": \"\"}";
        assert_eq!(read(no_query).unwrap_err(), "\"query\"");
    }

    #[test]
    fn the_other_fields_say_how_it_is_answered() {
        let with = |field: &str| {
            read(&format!(
                "{{\"query\": \"q\", \"documents\": [\"a\"], {field}}}"
            ))
        };
        assert_eq!(with("\"top_n\": 2").unwrap().top_n, Some(2));
        assert_eq!(with("\"top_n\": 0").unwrap().top_n, None);
        assert!(
            with("\"return_documents\": true")
                .unwrap()
                .returns_documents
        );
        assert!(with("\"user\": \"u\"").is_ok());
        for (name, value) in [
            ("top_n", "-1"),
            ("return_documents", "3"),
            ("user", "3"),
            ("texts", "[\"a\"]"),
        ] {
            let found = with(&format!("\"{name}\": {value}"));
            assert_eq!(found.unwrap_err(), format!("\"{name}\""));
        }
    }
}
