//! `GET /v1/responses/{id}?stream=true&starting_after=N`: the rest of a stream after the event with that
//! `sequence_number`, as in OpenAI's API. Without a number, the stream is sent from its beginning.

use crate::http::error::ApiError;
use axum::http::Uri;
use worker_orcd_api::mistakes::Constraint;

/// Prefix of the paths of this API.
const PATH: &str = "/v1/responses/";

/// Number of the first event to send. `None` for a path of another API.
///
/// # Errors
/// If the query has other parameters or values.
pub(in crate::http) fn first_event(uri: &Uri) -> Result<Option<u64>, ApiError> {
    if !uri.path().starts_with(PATH) {
        return Ok(None);
    }
    let query = uri.query().unwrap_or_default();
    let mut first = 0;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let wrong = |field, rule| ApiError::invalid_field(field, Constraint::Range, rule);
        match pair.split_once('=') {
            Some(("stream", "true")) => {}
            Some(("stream", _)) => return Err(wrong("stream", "may be true only")),
            Some(("starting_after", number)) => {
                let last: Option<u64> = number.parse().ok();
                let after = last.and_then(|last| last.checked_add(1));
                let rule = "must be a whole number, 0 or more";
                first = after.ok_or_else(|| wrong("starting_after", rule))?;
            }
            _ => {
                let message = "all that can be said here is stream and starting_after";
                return Err(ApiError::bad_request(message));
            }
        }
    }
    Ok(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_told_by_the_number_of_an_event() {
        let first = |uri: &str| first_event(&uri.parse().unwrap());
        assert_eq!(first("/v1/responses/a").unwrap(), Some(0));
        assert_eq!(first("/v1/responses/a?stream=true").unwrap(), Some(0));
        let after = "/v1/responses/a?stream=true&starting_after=7";
        assert_eq!(first(after).unwrap(), Some(8));
        assert_eq!(first("/v1/completions/a?from=7").unwrap(), None);
        let most = format!("starting_after={}", u64::MAX);
        for wrong in [
            "stream=false",
            "starting_after=-1",
            "starting_after=",
            "from=1",
            &most,
        ] {
            assert!(
                first(&format!("/v1/responses/a?{wrong}")).is_err(),
                "{wrong}"
            );
        }
    }
}
