//! The document against its source tables; `tests/tests/openapi.rs` checks it against a running worker.

use super::answers::Why;
use crate::http::tests::app;
use serde_json::Value;
use std::collections::BTreeSet;
use strum::VariantArray as _;
use worker_orcd_api::answer_format::AnswerRequest;
use worker_orcd_api::execute::EXECUTE;
use worker_orcd_api::fields::Fields;
use worker_orcd_api::openai::Kind;
use worker_orcd_api::openai::request::reader;
use worker_orcd_api::request::Reader;
use worker_orcd_api::responses::request::RESPONSE;
use worker_orcd_requests::error_code::ErrorCode;

async fn document(flags: &[&str]) -> Value {
    let app = app(flags).await;
    super::of(&app)
}

#[tokio::test]
async fn every_field_that_a_reader_knows_by_name_is_described() {
    let app = app(&[]).await;
    let body = super::of(&app)["paths"]["/execute"]["post"]["requestBody"].to_string();
    for name in EXECUTE.names.concat() {
        assert!(body.contains(&format!("\"{name}\":{{")), "{name}");
    }
    let unread = |reader: Reader<AnswerRequest>| {
        let read = |fields: Fields<'_>| drop(app.read_named(fields, None, reader.read));
        let description = Fields::described(reader.names, read);
        let described: BTreeSet<&str> = description.names().collect();
        let mut names = reader.names.concat();
        names.retain(|name| !described.contains(name));
        names.join(" ")
    };
    let refused = "previous_response_id conversation prompt context_management moderation";
    assert_eq!(unread(RESPONSE), refused);
    for kind in [Kind::Chat, Kind::Completion] {
        assert_eq!(unread(reader(kind)), "audio moderation web_search_options");
    }
}

#[tokio::test]
async fn limits_are_the_operator_s() {
    let document = document(&["--max-tokens-out", "77", "--max-prompt-chars", "99"]).await;
    let schema = |path: &str| {
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            .to_string()
    };
    assert!(schema("/execute").contains("\"maximum\":77"));
    assert!(schema("/execute").contains("\"maxLength\":99"));
}

#[tokio::test]
async fn every_status_that_an_error_may_have_is_an_answer_of_some_route() {
    let document = document(&[]).await;
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|item| item.as_object().unwrap().values());
    let answers = operations.flat_map(|it| it["responses"].as_object().unwrap().keys());
    let sent: BTreeSet<String> = answers.cloned().collect();
    for why in Why::VARIANTS {
        let is_there = sent.contains(&why.status().to_string());
        // Only with authentication.
        assert!(is_there || *why == Why::Unauthorized, "{why:?}");
    }
    let known: BTreeSet<u16> = Why::VARIANTS.iter().map(|why| why.status()).collect();
    for code in ErrorCode::VARIANTS {
        assert!(known.contains(&code.http_status()), "{code}");
    }
}

/// A second type of a name would get a number behind it, and the references by name would lead to the first.
#[tokio::test]
async fn every_answer_has_a_component_of_its_own_name() {
    let document = document(&[]).await;
    let components = document["components"]["schemas"].as_object().unwrap();
    let numbered = |name: &&String| name.ends_with(|it: char| it.is_ascii_digit());
    assert_eq!(components.keys().find(numbered), None);
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let (name, _) = reference.split_once('"').unwrap();
        assert!(components.contains_key(name), "{name}");
    }
}
