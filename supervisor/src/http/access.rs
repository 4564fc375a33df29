//! API keys: who may ask.
//!
//! With `--api-key-file`, everything needs a key but what probes ask: `/livez`, `/readyz`, and an
//! outline of `/health`, which tells nothing of files, processes or requests. The file's first key is
//! the operator's: no other may shut the worker down, which ends what the others' clients rely on.

use super::error::{ApiError, Dialect};
use super::resume::HandedOver;
use super::{App, client};
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use worker_orcd_ipc::ClientId;

const OPEN_PATHS: [&str; 3] = ["/health", "/livez", "/readyz"];

/// Digests of the accepted keys; empty means that everybody may ask.
#[derive(Debug)]
pub struct ApiKeys(RwLock<Vec<Digest256>>);

type Digest256 = [u8; 32];

impl ApiKeys {
    #[must_use]
    pub fn new(keys: &[String]) -> Self {
        Self(RwLock::new(digests(keys)))
    }

    /// Replaces all keys and returns how many there were. A worker that asks for keys goes on doing
    /// so: an empty list is not taken.
    pub fn replace(&self, keys: &[String]) -> Option<usize> {
        let mut known = self.0.write();
        if keys.is_empty() && !known.is_empty() {
            return None;
        }
        Some(std::mem::replace(&mut *known, digests(keys)).len())
    }

    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        !self.0.read().is_empty()
    }

    /// Takes the same time whichever key is given: digests are compared, all of them, to the end.
    #[must_use]
    pub fn accept(&self, authorization: Option<&str>) -> bool {
        let known = self.0.read();
        if known.is_empty() {
            return true;
        }
        let Some(given) = authorization.and_then(bearer) else {
            return false;
        };
        let given: Digest256 = Sha256::digest(given).into();
        let mut accepted = false;
        for key in known.iter() {
            let difference = key.iter().zip(&given).fold(0, |sum, (a, b)| sum | (a ^ b));
            accepted |= difference == 0;
        }
        accepted
    }

    /// True for the operator's key; where no key is asked for, everybody is the operator.
    #[must_use]
    pub fn is_operator(&self, client: ClientId) -> bool {
        let known = self.0.read();
        known
            .first()
            .is_none_or(|first| client::of_key(first) == client)
    }

    /// The client of a key that was accepted. Where no key is asked for, clients are known by
    /// address even if they send one, because anybody can make up a key.
    #[must_use]
    pub fn client(&self, authorization: Option<&str>) -> Option<ClientId> {
        let given = authorization.and_then(bearer)?;
        self.are_asked_for()
            .then(|| client::of_key(&Sha256::digest(given).into()))
    }
}

fn digests(keys: &[String]) -> Vec<Digest256> {
    keys.iter().map(|key| Sha256::digest(key).into()).collect()
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, key) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

pub async fn check(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let authorization = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let is_ours = request.extensions().get::<HandedOver>().is_some();
    if is_ours || OPEN_PATHS.contains(&path) || app.keys.accept(authorization) {
        let key = app.keys.client(authorization);
        let address = request.extensions().get().copied().map(client::of_address);
        if let Some(client) = key.or(address) {
            request.extensions_mut().insert(client);
        }
        return next.run(request).await;
    }
    ApiError::unauthorized().respond(Dialect::of_path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_bearer_key_opens() {
        let keys = ApiKeys::new(&["one".to_owned(), "two".to_owned()]);
        assert!(keys.accept(Some("Bearer one")));
        assert!(keys.accept(Some("bearer two")));
        for wrong in [
            None,
            Some("one"),
            Some("Basic one"),
            Some("Bearer "),
            Some("Bearer onetwo"),
        ] {
            assert!(!keys.accept(wrong), "{wrong:?}");
        }
        assert!(ApiKeys::new(&[]).accept(None));
    }

    #[test]
    fn each_key_is_a_client_and_where_none_is_asked_for_none_is() {
        let keys = ApiKeys::new(&["one".to_owned(), "two".to_owned()]);
        let one = keys.client(Some("Bearer one"));
        assert!(one.is_some());
        assert_eq!(keys.client(Some("bearer one ")), one);
        assert_ne!(keys.client(Some("Bearer two")), one);
        assert_eq!(ApiKeys::new(&[]).client(Some("Bearer one")), None);
    }

    #[test]
    fn the_first_key_is_the_operators() {
        let keys = ApiKeys::new(&["one".to_owned(), "two".to_owned()]);
        let client = |authorization| keys.client(Some(authorization)).unwrap();
        assert!(keys.is_operator(client("Bearer one")));
        assert!(!keys.is_operator(client("Bearer two")));
        assert!(ApiKeys::new(&[]).is_operator(client("Bearer two")));
    }
}
