//! `GET /execute/{job_id}`, `/v1/chat/completions/{id}`, `/v1/completions/{id}`, `/v1/messages/{id}`,
//! `/v1/responses/{id}`: the rest of an answer whose connection an earlier supervisor lost.
//!
//! A response is asked for by the number of an event ([`rest`]). Of the others
//! `?from=N` says that the client has N pieces of text (for `/execute`, that its last event had `i` = N − 1), and
//! `Last-Event-ID` is the `id:` of the last event that it has, as browsers send it. Without either,
//! the answer is told from its beginning.

use super::connection::Attachment;
use super::error::{ApiError, Dialect};
use super::generation::Accepted;
use super::job::Job;
use super::presentation::Presentation;
use super::responses::rest;
use super::{App, client};
use crate::engine::Skip;
use crate::http::mistakes::Constraint;
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

/// A request that came with its connection from an earlier supervisor. Only this process can say so: it is no
/// header, but an extension.
#[derive(Debug, Clone)]
pub struct HandedOver {
    /// What the client has of the answer; `None` where it has no head either.
    pub told: Option<Skip>,
}

pub async fn resume(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let dialect = Dialect::of_path(request.uri().path());
    let Ok(Path(id)) = id else {
        return ApiError::bad_request("the path is not UTF-8").respond(dialect);
    };
    let told = request.extensions().get::<HandedOver>();
    let is_begun = told.is_some_and(|handed| handed.told.is_some());
    let response = match find(&app, &id, &request) {
        Ok(Rest {
            accepted,
            presentation,
            begun,
        }) => presentation.form.respond(&app, accepted, begun).await,
        Err(error) => Err(error),
    };
    match response {
        Ok(response) => response,
        // The client is in the middle of a text, and no answer but the end of the connection is left.
        Err(_) if is_begun => Response::new(Body::from_stream(once(ready(lost())))),
        Err(error) => error.respond(dialect),
    }
}

struct Rest {
    accepted: Accepted,
    presentation: Presentation,
    begun: bool,
}

fn lost() -> io::Result<Bytes> {
    Err(io::ErrorKind::NotFound.into())
}

fn find(app: &Arc<App>, id: &str, request: &Request<Body>) -> Result<Rest, ApiError> {
    let extensions = request.extensions();
    let first_event = rest::first_event(request.uri())?;
    let (skip, owner, begun) = match extensions.get::<HandedOver>() {
        Some(handed) => (handed.told.unwrap_or_default(), None, handed.told.is_some()),
        None => {
            let skip = match first_event {
                Some(_) => Skip::Nothing,
                None => read_skip(request.uri(), request.headers())?,
            };
            let owner = client::of_request(extensions);
            (skip, Some(owner), skip != Skip::Nothing)
        }
    };
    let nobody = "there is no job of this name whose client is waited for";
    let found = app.engine.resume(id, owner, skip);
    let (stream, presentation) = found.ok_or_else(|| ApiError::not_found(nobody))?;
    let mut presentation =
        Presentation::read(&presentation).ok_or_else(|| ApiError::not_found(nobody))?;
    if let Some(first) = first_event {
        presentation.form.tell_from(first);
    }
    let correlation_id = presentation.correlation_id.clone();
    if let Some(connection) = extensions.get::<Attachment>() {
        connection.attach(id, &correlation_id, stream.position());
    }
    if owner.is_some() {
        tracing::info!(job_id = id, correlation_id, "execute_resumed");
    }
    let tokens_in = stream.tokens_in();
    let job = Job::begin(Arc::clone(app), id.to_owned(), correlation_id);
    let accepted = Accepted {
        stream,
        job,
        tokens_in,
    };
    Ok(Rest {
        accepted,
        presentation,
        begun,
    })
}

fn read_skip(uri: &Uri, headers: &HeaderMap) -> Result<Skip, ApiError> {
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
        return match from.parse().map_err(|_| wrong("from"))? {
            0 => Ok(Skip::Nothing),
            pieces => Ok(Skip::Pieces(pieces)),
        };
    }
    match headers.get("last-event-id") {
        None => Ok(Skip::Nothing),
        Some(id) => {
            let id = id.to_str().ok().and_then(|id| id.parse().ok());
            id.map(Skip::ThroughToken)
                .ok_or_else(|| wrong("Last-Event-ID"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(uri: &str, last_event: Option<&str>) -> Option<Skip> {
        let mut headers = HeaderMap::new();
        if let Some(id) = last_event {
            headers.insert("last-event-id", id.parse().unwrap());
        }
        read_skip(&uri.parse().unwrap(), &headers).ok()
    }

    #[test]
    fn the_place_is_told_by_number_or_by_last_event() {
        assert_eq!(skip("/execute/a", None), Some(Skip::Nothing));
        assert_eq!(skip("/execute/a?from=0", None), Some(Skip::Nothing));
        assert_eq!(skip("/execute/a?from=7", None), Some(Skip::Pieces(7)));
        assert_eq!(skip("/execute/a", Some("0")), Some(Skip::ThroughToken(0)));
        for wrong in ["?from=-1", "?from=", "?form=1", "?from=1&from=2"] {
            assert_eq!(skip(&format!("/execute/a{wrong}"), None), None, "{wrong}");
        }
        assert_eq!(skip("/execute/a", Some("x")), None);
    }
}
