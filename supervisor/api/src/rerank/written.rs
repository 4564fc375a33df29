//! Answer of `/v1/rerank`: documents by descending score.

use super::read::Rerank;
use crate::answer::absent_not_null;
use crate::embeddings::written::{ListObject, PromptUsage};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
pub struct Ranking {
    id: String,
    object: ListObject,
    model: String,
    results: Vec<Ranked>,
    usage: PromptUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = absent_not_null)]
struct Ranked {
    index: usize,
    #[schemars(range(min = 0.0, max = 1.0))]
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Document {
    text: String,
}

/// `scores`: in the order of the request's documents. `tokens`: sum over all prompts. Equal scores keep the order of
/// the documents.
#[must_use]
pub fn answer(id: String, model: String, scores: Vec<f32>, asked: Rerank, tokens: u64) -> Ranking {
    let ranked = |(index, (relevance_score, text)): (usize, (f32, String))| Ranked {
        index,
        relevance_score,
        document: asked.returns_documents.then_some(Document { text }),
    };
    let scored = scores.into_iter().zip(asked.documents).enumerate();
    let mut results: Vec<Ranked> = scored.map(ranked).collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(asked.top_n.unwrap_or(usize::MAX));
    Ranking {
        id,
        object: ListObject::List,
        model,
        results,
        usage: PromptUsage::of(tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(top_n: Option<usize>, returns_documents: bool) -> Rerank {
        Rerank {
            query: "q".to_owned(),
            documents: ["a", "b", "c"].map(str::to_owned).to_vec(),
            top_n,
            returns_documents,
        }
    }

    fn answered(asked: Rerank) -> serde_json::Value {
        let scores = vec![0.25, 0.5, 0.25];
        json!(answer("i".to_owned(), "m".to_owned(), scores, asked, 7))
    }

    #[test]
    fn the_best_come_first_and_equals_in_their_order() {
        let result = |index: usize, score: f32| json!({"index": index, "relevance_score": score});
        let results = [result(1, 0.5), result(0, 0.25), result(2, 0.25)];
        let expected = json!({
            "id": "i", "object": "list", "model": "m", "results": results,
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
        });
        assert_eq!(answered(asked(None, false)), expected);
        assert_eq!(
            answered(asked(Some(2), false))["results"],
            json!(results[..2])
        );
        assert_eq!(answered(asked(Some(9), false))["results"], json!(results));
    }

    #[test]
    fn documents_are_told_where_they_are_asked_for() {
        let documents = answered(asked(Some(1), true))["results"][0]["document"].clone();
        assert_eq!(documents, json!({"text": "b"}));
    }
}
