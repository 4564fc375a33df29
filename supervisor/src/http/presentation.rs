//! Responses of accepted requests, in the formats of `worker_orcd_api`.

use super::error::ApiError;
use super::generation::Accepted;
use super::job::Job;
use super::openai::several;
use super::whole::{gather, gather_one};
use super::{App, sse};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use worker_orcd_api::anthropic::stream::MessageEvents;
use worker_orcd_api::choices::Layout;
use worker_orcd_api::execute::events::{ExecuteEvents, Started};
use worker_orcd_api::ollama::answer::Lines;
use worker_orcd_api::openai::Header;
use worker_orcd_api::openai::request::StreamOptions;
use worker_orcd_api::openai::stream::Chunks;
use worker_orcd_api::openai::whole::Gathered;
use worker_orcd_api::presentation::Form;
use worker_orcd_api::render::Render;
use worker_orcd_api::responses::events::Events;
use worker_orcd_api::responses::whole::Whole;
use worker_orcd_api::{anthropic, ollama, openai, responses};
use worker_orcd_requests::RequestStream;
use worker_orcd_text::tools::Parsing;

/// Response of one request. `begun`: the client already has the head of the response.
///
/// # Errors
/// If the request fails before any of the answer was sent.
pub async fn respond(
    form: Form,
    app: &Arc<App>,
    accepted: Accepted,
    begun: bool,
) -> Result<Response, ApiError> {
    respond_all(form, app, vec![accepted], begun).await
}

/// Response of an answer with these choices, in order. `begun`: the client already has the head of the response.
///
/// # Errors
/// If the request fails before any of the answer was sent.
pub async fn respond_all(
    form: Form,
    app: &Arc<App>,
    accepted: Vec<Accepted>,
    begun: bool,
) -> Result<Response, ApiError> {
    match form {
        Form::Execute { seed, metrics } => {
            let Accepted { stream, job, .. } = only(accepted)?;
            let started = Started {
                job_id: job.id().to_owned(),
                model: app.model_id.clone(),
                seed,
            };
            let app = Arc::clone(app);
            let memory = move || app.device_bytes_in_use();
            let render = ExecuteEvents::new(started, metrics, memory);
            Ok(match begun {
                true => sse::go_on_begun(stream, job, render),
                false => sse::respond(stream, job, render),
            })
        }
        Form::OpenAi {
            kind,
            created,
            fingerprint,
            stream: options,
            parsing,
            must_call,
            layout,
        } => {
            let first = accepted.first();
            let id = first.map_or("", |it| it.stream.answer()).to_owned();
            let header = Header {
                kind,
                id,
                created,
                model: app.model_id.clone(),
                fingerprint,
                parsing,
                must_call,
            };
            let needs_all = parsing.is_any() || options.is_none() || layout.count() > 1;
            for Accepted { stream, .. } in accepted.iter().filter(|_| needs_all) {
                // The format of a piece depends on all earlier text, an unstreamed answer is complete, and with
                // several choices each piece is counted.
                stream.give_known();
            }
            match options {
                None => whole_completion(accepted, &header, layout).await,
                Some(options) => streamed(accepted, &header, options, layout, begun).await,
            }
        }
        Form::Messages {
            is_streamed,
            parsing,
        } => message(only(accepted)?, &app.model_id, is_streamed, parsing, begun).await,
        Form::Responses {
            created,
            is_streamed,
            parsing,
            echo,
            from,
        } => {
            let accepted = only(accepted)?;
            let header = responses::answer::Header {
                id: accepted.job.id().to_owned(),
                created,
                model: app.model_id.clone(),
                parsing,
                echo: *echo,
            };
            let first = is_streamed.then_some(from);
            response(accepted, header, first, begun).await
        }
        Form::Ollama(header) => lines(only(accepted)?, &app.model_id, header, begun).await,
    }
}

/// The single choice of an answer.
fn only(accepted: Vec<Accepted>) -> Result<Accepted, ApiError> {
    accepted.into_iter().next().ok_or_else(ApiError::unreadable)
}

/// Streamed answer of the OpenAI API.
async fn streamed(
    mut accepted: Vec<Accepted>,
    header: &Header,
    options: StreamOptions,
    layout: Layout,
    begun: bool,
) -> Result<Response, ApiError> {
    if layout.count() == 1
        && let Some(Accepted {
            stream,
            job,
            tokens_in,
        }) = accepted.pop()
    {
        let chunks = Chunks::new(header, options, tokens_in);
        return rendered(stream, job, chunks, begun).await;
    }
    let source = several::Choices::new(accepted, header, options, layout);
    match begun {
        true => Ok(sse::go_on_with(source)),
        false => sse::respond_when_known_with(source).await,
    }
}

/// Complete answer of the OpenAI API.
async fn whole_completion(
    accepted: Vec<Accepted>,
    header: &Header,
    layout: Layout,
) -> Result<Response, ApiError> {
    let gathered = |it: &Accepted| {
        Gathered::new(
            it.job.id().to_owned(),
            header.kind,
            it.stream.has_logprobs(),
        )
    };
    let mut choices: Vec<_> = accepted.iter().map(gathered).collect();
    let ends = gather(accepted, |index, piece| choices[index].push(piece)).await?;
    Ok(json(openai::whole::answer(header, choices, &ends, layout)))
}

/// Answer of Anthropic's API.
async fn message(
    answer: Accepted,
    model: &str,
    is_streamed: bool,
    parsing: Parsing,
    begun: bool,
) -> Result<Response, ApiError> {
    // The block of a piece depends on all earlier text.
    answer.stream.give_known();
    if is_streamed {
        let Accepted {
            stream,
            job,
            tokens_in,
        } = answer;
        let events = MessageEvents::new(job.id(), model, tokens_in, parsing);
        return rendered(stream, job, events, begun).await;
    }
    let (id, mut text) = (answer.job.id().to_owned(), String::new());
    let completion = gather_one(answer, |piece| text.push_str(&piece.text)).await?;
    let answer = anthropic::whole::answer(&id, model, parsing, &text, &completion);
    Ok(axum::Json(answer).into_response())
}

/// Answer of the Responses API: streamed from event `first` on, or whole if `first` is `None`.
async fn response(
    accepted: Accepted,
    header: responses::answer::Header,
    first: Option<u64>,
    begun: bool,
) -> Result<Response, ApiError> {
    // The format of a piece depends on all earlier text.
    accepted.stream.give_known();
    if let Some(first) = first {
        let Accepted { stream, job, .. } = accepted;
        return rendered(stream, job, Events::new(header, first), begun).await;
    }
    let mut whole = Whole::new(header);
    let completion = gather_one(accepted, |piece| whole.push(piece)).await?;
    Ok(json(whole.finish(&completion)))
}

/// Answer of Ollama's API.
async fn lines(
    accepted: Accepted,
    model: &str,
    header: ollama::Header,
    begun: bool,
) -> Result<Response, ApiError> {
    // The format of a piece depends on all earlier text.
    accepted.stream.give_known();
    let is_streamed = header.is_streamed;
    let lines = Lines::new(accepted.job.id(), model, header);
    if is_streamed {
        return rendered(accepted.stream, accepted.job, lines, begun).await;
    }
    let mut text = String::new();
    let completion = gather_one(accepted, |piece| text.push_str(&piece.text)).await?;
    Ok(json(lines.whole(&text, &completion)))
}

async fn rendered<R: Render>(
    stream: RequestStream,
    job: Job,
    render: R,
    begun: bool,
) -> Result<Response, ApiError> {
    match begun {
        true => Ok(sse::go_on(stream, job, render)),
        false => sse::respond_when_known(stream, job, render).await,
    }
}

fn json(body: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::app;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use worker_orcd_api::openai::Kind;
    use worker_orcd_ipc::{DrawnLogprobs, FinishReason, Logprobs};
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, params, request, step};

    #[tokio::test]
    async fn an_answer_in_one_piece_is_told_whole_whatever_the_client_says_that_it_has() {
        let app = app(&[]).await;
        let mut journal = Journal::serving();
        let (id, stream) = journal.submit(NewRequest {
            params: params(|it| it.logprobs = Some(0)),
            ..request("job")
        });
        for (index, token) in (0..).zip([0, 1]) {
            let mut report = step(&[(id, index, token)], &[]);
            report.logprobs.push(DrawnLogprobs {
                request: id,
                index,
                logprobs: Logprobs {
                    of_token: -0.5,
                    top: vec![],
                },
            });
            journal.requests.step(SEAT, &report, journal.now).unwrap();
        }
        let end = step(&[], &[(id, FinishReason::MaxTokens)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        stream.mark_delivered(1);
        let accepted = Accepted {
            stream,
            job: Job::begin(Arc::clone(&app), "job".to_owned(), String::new()),
            tokens_in: 2,
        };
        let form = Form::OpenAi {
            kind: Kind::Completion,
            created: 4,
            fingerprint: String::new(),
            stream: None,
            parsing: Parsing::default(),
            must_call: false,
            layout: Layout::default(),
        };
        let answer = respond(form, &app, accepted, true).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "ab");
        assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    }
}
