//! `GET /execute/{job_id}`, `/v1/chat/completions/{id}`, `/v1/completions/{id}`, `/v1/messages/{id}`,
//! `/v1/responses/{id}`, `/api/chat/{id}`, `/api/generate/{id}`: the rest of an answer, after its connection was lost with
//! an earlier supervisor. Answers of Ollama's API have no id, so only another supervisor asks for the rest of one.
//!
//! A response of the Responses API is resumed from an event's number ([`rest`]). For the others `?from=N` is the number
//! of text pieces that the client has (for `/execute`: its last event had `i` = N − 1), and `Last-Event-ID` is the
//! `id:` of its last event, as browsers send it. Without either, the answer is sent from its beginning.
//!
//! For several choices, `?from=12.9.14` is the number of chunks of each choice that the client has, in the order of
//! `index`, without the chunk of the role, and with that of `finish_reason`. Their chunks have no `id:`.

use super::connection::Attachment;
use super::error::{Answered, ApiError};
use super::generation::Accepted;
use super::job::Job;
use super::respond;
use super::responses::rest;
use super::{App, client};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, Uri};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::once;
use std::future::ready;
use std::io;
use std::sync::Arc;
use worker_orcd_api::answer_format::AnswerFormat;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_requests::{Position, RequestStream, Skip};

/// Marks a request that arrived with an inherited connection. It is an extension and no header, so clients cannot set
/// it.
#[derive(Debug, Clone)]
pub struct HandedOver {
    /// Received position in each part of the answer; `None`: the client does not have the head yet.
    pub sent: Option<Vec<Skip>>,
}

pub async fn resume(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Answered {
    let Path(id) = id.map_err(|_| ApiError::bad_request("the path is not UTF-8"))?;
    let sent = request.extensions().get::<HandedOver>();
    let is_begun = sent.is_some_and(|handed| handed.sent.is_some());
    let response = match find(&app, &id, &request) {
        Ok(Rest {
            accepted,
            format,
            begun,
        }) => {
            let lengths = accepted.iter().map(|it| it.tokens_in);
            let room = respond::room_for_ids(&app, &format, lengths);
            // The request was admitted earlier, so it is answered also without room.
            let room = room.unwrap_or_default();
            respond::respond(format, &app, accepted, room, begun).await
        }
        Err(error) => Err(error),
    };
    match response {
        // The client is in the middle of a text: only the end of the connection can report the error.
        Err(_) if is_begun => Ok(Response::new(Body::from_stream(once(ready(lost()))))),
        response => Ok(response?),
    }
}

struct Rest {
    accepted: Vec<Accepted>,
    format: AnswerFormat,
    begun: bool,
}

fn lost() -> io::Result<Bytes> {
    Err(io::ErrorKind::NotFound.into())
}

fn find(app: &Arc<App>, id: &str, request: &Request<Body>) -> Result<Rest, ApiError> {
    let extensions = request.extensions();
    let first_event = rest::first_event(request.uri())?;
    let (place, owner, begun) = match extensions.get::<HandedOver>() {
        Some(handed) => {
            let skips = handed.sent.clone().unwrap_or_default();
            (Place::from(skips), None, handed.sent.is_some())
        }
        None => {
            let place = match first_event {
                Some(_) => Place::from(Vec::new()),
                None => read_place(request.uri(), request.headers())?,
            };
            let owner = client::of_request(extensions);
            let begun = place.skips.iter().any(|skip| *skip != Skip::Nothing);
            (place, Some(owner), begun)
        }
    };
    let nobody = || ApiError::not_found("there is no job of this name whose client is waited for");
    let parts = app.engine.parts_to_resume(id, owner).ok_or_else(nobody)?;
    place.check(parts)?;
    let found = app.engine.resume(id, owner, &place.skips);
    let (streams, format) = found.ok_or_else(nobody)?;
    let mut format = AnswerFormat::read(&format).ok_or_else(nobody)?;
    if format.layout.count() != streams.len() {
        return Err(nobody());
    }
    if let Some(first) = first_event {
        format.resume_from(first);
    }
    let correlation_id = format.correlation_id.clone();
    if let Some(connection) = extensions.get::<Attachment>() {
        connection.attach(id, &correlation_id, Position::of(&streams));
    }
    if owner.is_some() {
        tracing::info!(job_id = id, correlation_id, "execute_resumed");
    }
    let accept = |stream: RequestStream| {
        let name = stream.job_id().to_owned();
        Accepted {
            tokens_in: stream.tokens_in(),
            job: Job::begin(Arc::clone(app), name, correlation_id.clone()),
            stream,
        }
    };
    Ok(Rest {
        accepted: streams.into_iter().map(accept).collect(),
        format,
        begun,
    })
}

/// The client's position, and the field that has it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    field: &'static str,
    /// One for each part; empty at the beginning.
    skips: Vec<Skip>,
}

impl From<Vec<Skip>> for Place {
    fn from(skips: Vec<Skip>) -> Self {
        Self {
            field: "from",
            skips,
        }
    }
}

impl Place {
    /// # Errors
    /// If it is no position in an answer of `parts` parts.
    fn check(&self, parts: usize) -> Result<(), ApiError> {
        let message = match self.field {
            _ if self.skips.is_empty() || self.skips.len() == parts => return Ok(()),
            "from" => {
                format!("must be {parts} numbers with dots between them, one for each choice")
            }
            _ => "is no place in an answer of several choices; from says it".to_owned(),
        };
        Err(ApiError::invalid_field(
            self.field,
            Constraint::Range,
            message,
        ))
    }
}

fn read_place(uri: &Uri, headers: &HeaderMap) -> Result<Place, ApiError> {
    let wrong = |field: &str| {
        ApiError::invalid_field(
            field,
            Constraint::Range,
            "must be a whole number, 0 or more",
        )
    };
    if let Some(query) = uri.query().filter(|query| !query.is_empty()) {
        let Some(("from", from)) = query.split_once('=') else {
            let message = "the only thing that can be said here is from";
            return Err(ApiError::bad_request(message));
        };
        let read = |pieces: &str| match pieces.parse().map_err(|_| wrong("from"))? {
            0 => Ok(Skip::Nothing),
            pieces => Ok(Skip::Pieces(pieces)),
        };
        let skips: Result<Vec<_>, _> = from.split('.').map(read).collect();
        return skips.map(Place::from);
    }
    let field = "Last-Event-ID";
    let skips = match headers.get("last-event-id") {
        None => Vec::new(),
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.parse().ok());
            let id = id.ok_or_else(|| wrong(field))?;
            vec![Skip::ThroughToken(id)]
        }
    };
    Ok(Place { field, skips })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::Dialect;

    fn place(uri: &str, last_event: Option<&str>) -> Option<Place> {
        let mut headers = HeaderMap::new();
        if let Some(id) = last_event {
            headers.insert("last-event-id", id.parse().unwrap());
        }
        read_place(&uri.parse().unwrap(), &headers).ok()
    }

    fn skips(uri: &str, last_event: Option<&str>) -> Option<Vec<Skip>> {
        place(uri, last_event).map(|place| place.skips)
    }

    #[test]
    fn the_place_is_told_by_number_or_by_last_event() {
        assert_eq!(skips("/execute/a", None), Some(vec![]));
        assert_eq!(skips("/execute/a?from=0", None), Some(vec![Skip::Nothing]));
        assert_eq!(
            skips("/execute/a?from=7", None),
            Some(vec![Skip::Pieces(7)])
        );
        let last = Some(vec![Skip::ThroughToken(0)]);
        assert_eq!(skips("/execute/a", Some("0")), last);
        let wrong = [
            "?from=-1",
            "?from=",
            "?form=1",
            "?from=1&from=2",
            "?from=1.",
            "?from=.1",
            "?from=1..2",
            "?from=1,2",
        ];
        for wrong in wrong {
            assert_eq!(skips(&format!("/execute/a{wrong}"), None), None, "{wrong}");
        }
        assert_eq!(skips("/execute/a", Some("x")), None);
    }

    #[test]
    fn of_several_choices_it_is_a_number_for_each() {
        let three = place("/v1/completions/a?from=3.0.12", None).unwrap();
        assert_eq!(
            three.skips,
            [Skip::Pieces(3), Skip::Nothing, Skip::Pieces(12)]
        );
        assert!(three.check(3).is_ok());
        let refused = |place: &Place, parts| {
            let error = place.check(parts).unwrap_err();
            error.body(Dialect::OpenAi)["error"]["param"].clone()
        };
        assert_eq!(refused(&three, 2), "from");
        assert_eq!(refused(&place("/a?from=3", None).unwrap(), 3), "from");
        let by_event = place("/a", Some("3")).unwrap();
        assert!(by_event.check(1).is_ok());
        assert_eq!(refused(&by_event, 3), "Last-Event-ID");
        assert!(place("/a", None).unwrap().check(3).is_ok());
    }
}
