//! `POST /v1/rerank` and `/rerank`: relevance of documents to a query, as in vLLM, Jina and llama-server.
//!
//! A reranker's model file has a prompt template for a query and a document, and a classification head. So each
//! document is a prompt on [the path of embeddings](super::pooled), and its vector has one component. Control tokens in
//! text of clients stay text, unless the operator sets otherwise.

use super::client;
use super::embeddings::RANK;
use super::error::{Answered, ApiError};
use super::generation::Asked;
use super::pooled::{Batch, Prompts};
use axum::extract::{Extension, State};
use std::sync::Arc;
use uuid::Uuid;
use worker_orcd_api::rerank::read::{DOCUMENTS, RERANK};
use worker_orcd_api::rerank::written;
use worker_orcd_engine::LoadedModel;
use worker_orcd_ipc::Pooling;

const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

pub async fn rerank((State(app), Extension(correlation), request): Asked) -> Answered {
    let client = client::of_request(request.extensions());
    let (model, asked, room) = app.receive(request, RERANK).await?;
    let template = template(&model)?;
    let mut prompts = Prompts::default();
    for document in &asked.documents {
        let pieces = filled(template, &asked.query, document);
        let tokens = app.tokens_of_pieces(&model, pieces, DOCUMENTS).await?;
        prompts.add(&app, &model, DOCUMENTS, tokens)?;
    }
    let held = prompts.room(&app)?;
    let id = format!("rerank-{}", Uuid::new_v4().simple());
    let batch = Batch {
        app: Arc::clone(&app),
        id: id.clone(),
        correlation,
        client,
        pooling: Pooling::Rank,
    };
    let tokens = prompts.tokens;
    let scores = batch.run(prompts, 1).await?;
    drop(held);
    let bytes = asked.documents.iter().map(String::len).sum();
    let answer = written::answer(id, app.model_id.clone(), scores.concat(), asked, tokens);
    app.answered(DOCUMENTS, bytes, answer, room).await
}

/// Prompt template of this model.
///
/// # Errors
/// If the model is no reranker.
pub fn template(model: &LoadedModel) -> Result<&str, ApiError> {
    let facts = &model.facts;
    let template = facts.rerank_template.as_deref();
    template.filter(|it| has_both_once(it)).ok_or_else(|| {
        let why = match facts.pooling_type {
            Some(RANK) => {
                "is a reranker of a kind that is not served: its file lacks the head (cls.output.weight, of two rows) \
                 or the prompt (tokenizer.chat_template.rerank, with {query} and {document} once each), or is of an architecture \
                 that has none"
            }
            _ => "gives no scores: its file is not that of a reranker (pooling type rank)",
        };
        ApiError::no_such_model(format!("this model {why}"))
    })
}

/// Both placeholders must occur exactly once: repeated ones would multiply a client's text.
fn has_both_once(template: &str) -> bool {
    let mut placeholders = [QUERY, DOCUMENT].into_iter();
    placeholders.all(|place| template.matches(place).count() == 1)
}

/// Pieces of a prompt, with true for text of a client. Placeholders in text of a client are not expanded.
fn filled(template: &str, query: &str, document: &str) -> Vec<(String, bool)> {
    let (mut pieces, mut rest) = (Vec::new(), template);
    loop {
        let placeholders = [(QUERY, query), (DOCUMENT, document)];
        let found = placeholders.map(|(name, text)| rest.find(name).map(|at| (at, name, text)));
        let Some((at, name, text)) = found.into_iter().flatten().min() else {
            pieces.push((rest.to_owned(), false));
            return pieces;
        };
        pieces.push((rest[..at].to_owned(), false));
        pieces.push((text.to_owned(), true));
        rest = &rest[at + name.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_and_a_document_are_put_into_the_prompt_and_not_into_each_other() {
        let pieces = filled("a{query}b{document}", "{document}", "{query}");
        let sent: Vec<_> = pieces.iter().map(|(text, own)| (&**text, *own)).collect();
        let expected = [
            ("a", false),
            ("{document}", true),
            ("b", false),
            ("{query}", true),
            ("", false),
        ];
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_prompt_has_one_place_for_each() {
        assert!(has_both_once("a{document}b{query}"));
        for wrong in [
            "",
            "{query}",
            "{query}{document}{query}",
            "{document}{query}{document}",
        ] {
            assert!(!has_both_once(wrong), "{wrong}");
        }
    }
}
