//! Responses of accepted requests, in the formats of `worker_orcd_api`.

use super::body::Room;
use super::choices::Choices;
use super::error::ApiError;
use super::generation::Accepted;
use super::whole::{gather, gather_one};
use super::{App, held, sse};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use worker_orcd_api::answer_format::{AnswerFormat, Api, OpenAiOptions, RequestedFormat};
use worker_orcd_api::anthropic::stream::MessageEvents;
use worker_orcd_api::choices::Layout;
use worker_orcd_api::execute::events::{ExecuteEvents, Started};
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_api::ollama::answer::Lines;
use worker_orcd_api::openai::request::TOKEN_IDS;
use worker_orcd_api::openai::stream::Chunks;
use worker_orcd_api::openai::whole::Gathered;
use worker_orcd_api::render::{Render, Whole};
use worker_orcd_api::responses::events::Events;
use worker_orcd_api::{openai, responses};

/// Room for prompt ids that an answer in one piece repeats. `tokens_in`: prompt tokens of each choice.
///
/// # Errors
/// 400 if they never fit, 429 if other answers hold too much.
pub(super) fn room_for_ids(
    app: &App,
    format: &AnswerFormat,
    tokens_in: impl IntoIterator<Item = u32>,
) -> Result<Room, ApiError> {
    let bytes = format.repeated_id_bytes(tokens_in);
    let most = app.bodies.longest_answer();
    if bytes > most {
        let rule = format!(
            "would repeat prompts in {bytes} bytes, of which {most} fit: request fewer choices"
        );
        return Err(ApiError::invalid_field(TOKEN_IDS, Constraint::Length, rule));
    }
    app.bodies.room_for_answer(bytes)
}

/// Response of an answer with these choices, in order. `room`: of [`room_for_ids`]. `begun`: the client already has the
/// head of the response.
///
/// # Errors
/// If the request fails before any of the answer was sent.
pub async fn respond(
    format: AnswerFormat,
    app: &Arc<App>,
    accepted: Vec<Accepted>,
    room: Room,
    begun: bool,
) -> Result<Response, ApiError> {
    let created = format.created_seconds();
    let AnswerFormat {
        created: created_at,
        fingerprint,
        layout,
        requested,
        ..
    } = format;
    let RequestedFormat {
        is_streamed,
        parsing,
        api,
    } = requested;
    let first = accepted.first();
    let id = first.map_or("", |it| it.stream.answer()).to_owned();
    let model = app.model_id.clone();
    match api {
        Api::Execute { seed, metrics } => {
            let (app, job_id) = (Arc::clone(app), id);
            let started = Started {
                job_id,
                model,
                seed,
            };
            let memory = move || app.device_bytes_in_use();
            let events = ExecuteEvents::new(started, metrics, memory);
            let choices = Choices::new([(only(accepted)?, events)], layout);
            Ok(sse::respond_at_once(choices, begun))
        }
        Api::OpenAi {
            kind,
            options,
            must_call,
        } => {
            let header = openai::Header {
                kind,
                id,
                created,
                model,
                fingerprint,
                parsing,
                must_call,
            };
            match is_streamed {
                true => streamed(accepted, &header, options, layout, begun).await,
                false => whole_completion(accepted, &header, options, layout, room).await,
            }
        }
        Api::Messages => {
            let accepted = only(accepted)?;
            let events = MessageEvents::new(&id, &model, accepted.tokens_in, &parsing);
            answer(accepted, events, is_streamed, begun).await
        }
        Api::Responses { echo, from } => {
            let header = responses::answer::Header {
                id,
                created,
                model,
                parsing,
                echo: *echo,
            };
            let events = Events::new(header, from);
            answer(only(accepted)?, events, is_streamed, begun).await
        }
        Api::Ollama(kind) => {
            let lines = Lines::new(&id, &model, kind, created_at, &parsing);
            answer(only(accepted)?, lines, is_streamed, begun).await
        }
    }
}

/// The single choice of an answer.
fn only(accepted: Vec<Accepted>) -> Result<Accepted, ApiError> {
    accepted.into_iter().next().ok_or_else(ApiError::unreadable)
}

/// Answer of an API without choices.
async fn answer(
    accepted: Accepted,
    mut format: impl Whole,
    is_streamed: bool,
    begun: bool,
) -> Result<Response, ApiError> {
    // The format of a piece depends on all earlier text.
    accepted.stream.give_known();
    if is_streamed {
        let choices = Choices::new([(accepted, format)], Layout::default());
        return rendered(choices, begun).await;
    }
    let completion = gather_one(accepted, |piece| format.gather(piece)).await?;
    Ok(json(Body::from(format.whole(&completion))))
}

/// Streamed answer of the OpenAI API.
async fn streamed(
    accepted: Vec<Accepted>,
    header: &openai::Header,
    options: OpenAiOptions,
    layout: Layout,
    begun: bool,
) -> Result<Response, ApiError> {
    if header.parsing.is_any() || layout.count() > 1 || options.token_ids {
        // The format of a piece depends on all earlier text or on the last piece, and with several choices each piece is
        // counted.
        give_known(&accepted);
    }
    let choices = accepted.into_iter().enumerate().map(|(index, accepted)| {
        let choice = (index, accepted.job.id());
        let chunks = Chunks::new(header, choice, options, accepted.tokens_in);
        let chunks = chunks.with_token_ids(accepted.stream.tokens());
        (accepted, chunks)
    });
    rendered(Choices::new(choices, layout), begun).await
}

fn give_known(accepted: &[Accepted]) {
    for Accepted { stream, .. } in accepted {
        stream.give_known();
    }
}

/// Complete answer of the OpenAI API. It holds the room until it is sent.
async fn whole_completion(
    accepted: Vec<Accepted>,
    header: &openai::Header,
    options: OpenAiOptions,
    layout: Layout,
    room: Room,
) -> Result<Response, ApiError> {
    give_known(&accepted);
    let gathered = |it: &Accepted| Gathered::new(&it.stream, header.kind, options);
    let mut choices: Vec<_> = accepted.iter().map(gathered).collect();
    let ends = gather(accepted, |index, piece| choices[index].push(piece)).await?;
    let answer = openai::whole::answer(header, choices, &ends, layout);
    Ok(json(held::body(answer, room)))
}

async fn rendered<R: Render>(choices: Choices<R>, begun: bool) -> Result<Response, ApiError> {
    match begun {
        true => Ok(sse::go_on(choices)),
        false => sse::respond_when_known(choices).await,
    }
}

fn json(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::job::Job;
    use crate::http::tests::app;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use std::time::SystemTime;
    use worker_orcd_api::openai::Kind;
    use worker_orcd_ipc::{DrawnLogprobs, FinishReason, Logprobs};
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, params, request, step};
    use worker_orcd_text::tools::Parsing;

    /// Stream of a request that has ended, with the text "ab", of which the client has the first piece.
    fn ended(app: &Arc<App>) -> Accepted {
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
                    rank: 1,
                    top: vec![],
                },
            });
            journal.requests.step(SEAT, &report, journal.now).unwrap();
        }
        let end = step(&[], &[(id, FinishReason::MaxTokens)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        stream.mark_delivered(1);
        Accepted {
            stream,
            job: Job::begin(Arc::clone(app), "job".to_owned(), String::new()),
            tokens_in: 2,
        }
    }

    fn completion_of(layout: Layout, token_ids: bool) -> AnswerFormat {
        AnswerFormat {
            correlation_id: String::new(),
            created: SystemTime::UNIX_EPOCH,
            fingerprint: String::new(),
            layout,
            requested: RequestedFormat {
                is_streamed: false,
                parsing: Parsing::default(),
                api: Api::OpenAi {
                    kind: Kind::Completion,
                    options: OpenAiOptions {
                        token_ids,
                        ..OpenAiOptions::default()
                    },
                    must_call: false,
                },
            },
        }
    }

    #[tokio::test]
    async fn an_answer_in_one_piece_is_told_whole_whatever_the_client_says_that_it_has() {
        let app = app(&[]).await;
        let format = completion_of(Layout::default(), false);
        let accepted = vec![ended(&app)];
        let answer = respond(format, &app, accepted, Room::default(), true)
            .await
            .unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "ab");
        assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    }

    #[tokio::test]
    async fn repeated_prompt_ids_hold_room_until_the_answer_is_sent() {
        let app = app(&[]).await;
        let most = app.bodies.longest_answer();
        let two = completion_of(Layout { prompts: 1, n: 2 }, true);
        let bytes_of_id = two.repeated_id_bytes([1; 2]);
        let fit = (most / bytes_of_id) as u32;
        let room_for = |tokens: u32| room_for_ids(&app, &two, [tokens; 2]);
        let status = |tokens: u32| room_for(tokens).unwrap_err().status().as_u16();
        assert_eq!(status(fit + 1), 400);
        let room = room_for(fit).unwrap();
        let one = completion_of(Layout::default(), true);
        let answer = respond(one, &app, vec![ended(&app)], room, false)
            .await
            .unwrap();
        assert_eq!(status(fit), 429);
        let mut body = answer.into_body();
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(status(fit), 429, "the client has not read it");
        drop(data);
        assert!(room_for(fit).is_ok());
    }
}
