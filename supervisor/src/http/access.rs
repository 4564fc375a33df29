//! Authentication by key.
//!
//! A key is in `Authorization: Bearer KEY`, or in `x-api-key: KEY`, which Anthropic's clients send. The first takes
//! precedence.
//!
//! With `--api-key-file`, every route needs a key except those of probes: `/livez`, `/readyz`, and an outline of
//! `/health` without files, processes and requests. The status page needs none either: it has no data, and its script
//! sends the key that the user enters. [`admin`] defines the operator's keys and routes.

use super::error::{ApiError, Dialect, Respond as _};
use super::resume::HandedOver;
use super::{App, admin, client, page};
use crate::config::keys::Keys;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, Request};
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::Arc;
use worker_orcd_ipc::ClientId;

/// Paths without authentication.
pub const OPEN_PATHS: [&str; 3] = ["/health", "/livez", "/readyz"];

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Authorization of a request, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// Caller without a valid key, if one is needed.
    Stranger,
    Client,
    Operator,
}

/// Accepted keys.
#[derive(Debug)]
pub struct KnownKeys(RwLock<Digests>);

type Digest256 = [u8; 32];

#[derive(Debug)]
struct Digests {
    /// Empty: every caller is a client.
    clients: Vec<Digest256>,
    admins: Vec<Digest256>,
}

impl KnownKeys {
    #[must_use]
    pub fn new(keys: &Keys) -> Self {
        Self(RwLock::new(Digests::of(keys)))
    }

    /// Replaces all keys. Returns the number of client keys, or `None` without a change if a kind that has keys would
    /// lose them all.
    pub fn replace(&self, keys: &Keys) -> Option<usize> {
        let mut known = self.0.write();
        let is_lost = |new: &[String], old: &[Digest256]| new.is_empty() && !old.is_empty();
        if is_lost(&keys.clients, &known.clients) || is_lost(&keys.admins, &known.admins) {
            return None;
        }
        Some(
            std::mem::replace(&mut *known, Digests::of(keys))
                .clients
                .len(),
        )
    }

    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        !self.0.read().clients.is_empty()
    }

    /// True if the operator has keys of its own.
    #[must_use]
    pub fn are_apart(&self) -> bool {
        !self.0.read().admins.is_empty()
    }

    /// Authorization of a key, in constant time: all digests are compared to the end.
    #[must_use]
    pub fn caller(&self, authorization: Option<&str>) -> Caller {
        let known = self.0.read();
        let given = authorization.and_then(bearer);
        let given = given.map(|given| Digest256::from(Sha256::digest(given)));
        let is_among = |keys| given.is_some_and(|given| is_among(keys, &given));
        let (is_client, is_admin) = (is_among(&known.clients), is_among(&known.admins));
        let is_first = is_among(known.clients.get(..1).unwrap_or_default());
        let is_operator = match (known.admins.is_empty(), known.clients.is_empty()) {
            (false, _) => is_admin,
            (true, false) => is_first,
            (true, true) => true,
        };
        match is_operator {
            true => Caller::Operator,
            false if is_client || known.clients.is_empty() => Caller::Client,
            false => Caller::Stranger,
        }
    }

    /// Client of an accepted key. Without authentication, clients are identified by address even if they send a key,
    /// which could be arbitrary.
    #[must_use]
    pub fn client(&self, authorization: Option<&str>) -> Option<ClientId> {
        let given = authorization.and_then(bearer)?;
        self.are_asked_for()
            .then(|| client::of_key(&Sha256::digest(given).into()))
    }
}

impl Digests {
    fn of(keys: &Keys) -> Self {
        let digests = |keys: &[String]| keys.iter().map(|key| Sha256::digest(key).into()).collect();
        Self {
            clients: digests(&keys.clients),
            admins: digests(&keys.admins),
        }
    }
}

fn is_among(keys: &[Digest256], given: &Digest256) -> bool {
    let mut found = false;
    for key in keys {
        let difference = key.iter().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
        found |= difference == 0;
    }
    found
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, key) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// The `Authorization` header of a request, or its equivalent from `x-api-key`.
fn authorization(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    if headers.contains_key(AUTHORIZATION) {
        return text(AUTHORIZATION).map(Cow::Borrowed);
    }
    text(API_KEY).map(|key| Cow::Owned(format!("Bearer {key}")))
}

pub async fn check(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let authorization = authorization(request.headers());
    let authorization = authorization.as_deref();
    let is_at_socket = admin::is_at_socket(request.extensions());
    let caller = if is_at_socket {
        Caller::Operator
    } else if request.extensions().get::<HandedOver>().is_some() {
        // The earlier supervisor has authorized it.
        Caller::Client
    } else {
        app.keys.caller(authorization)
    };
    let dialect = Dialect::of_path(path);
    let is_open = OPEN_PATHS.contains(&path) || page::is_asked_for(&request);
    if caller == Caller::Stranger && !is_open {
        return ApiError::unauthorized().respond(dialect);
    }
    if let Some(refusal) = admin::refusal(&app, path, caller, is_at_socket) {
        return refusal.respond(dialect);
    }
    let key = app.keys.client(authorization);
    let address = request.extensions().get().copied().map(client::of_address);
    if let Some(client) = key.or(address) {
        request.extensions_mut().insert(client);
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(clients: &[&str], admins: &[&str]) -> Keys {
        let owned = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        Keys {
            clients: owned(clients),
            admins: owned(admins),
        }
    }

    fn known(clients: &[&str], admins: &[&str]) -> KnownKeys {
        KnownKeys::new(&keys(clients, admins))
    }

    #[test]
    fn only_a_known_bearer_key_opens() {
        let keys = known(&["one", "two"], &[]);
        assert_eq!(keys.caller(Some("Bearer one")), Caller::Operator);
        assert_eq!(keys.caller(Some("bearer two")), Caller::Client);
        for wrong in [
            None,
            Some("one"),
            Some("Basic one"),
            Some("Bearer "),
            Some("Bearer onetwo"),
        ] {
            assert_eq!(keys.caller(wrong), Caller::Stranger, "{wrong:?}");
        }
    }

    #[test]
    fn a_key_is_a_bearer_s_or_anthropic_s() {
        let given = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            authorization(&headers).map(Cow::into_owned)
        };
        let (bearer, other) = (("authorization", "Bearer one"), ("x-api-key", "two"));
        assert_eq!(given(&[bearer]).as_deref(), Some("Bearer one"));
        assert_eq!(given(&[other]).as_deref(), Some("Bearer two"));
        assert_eq!(given(&[other, bearer]).as_deref(), Some("Bearer one"));
        assert_eq!(given(&[]), None);
    }

    #[test]
    fn each_key_is_a_client_and_where_none_is_asked_for_none_is() {
        let keys = known(&["one", "two"], &[]);
        let one = keys.client(Some("Bearer one"));
        assert!(one.is_some());
        assert_eq!(keys.client(Some("bearer one ")), one);
        assert_ne!(keys.client(Some("Bearer two")), one);
        assert_eq!(known(&[], &["boss"]).client(Some("Bearer one")), None);
    }

    #[test]
    fn the_operator_has_a_key_of_its_own_or_the_first_one_or_needs_none() {
        use Caller::{Client, Operator, Stranger};
        let (nobody, wrong) = (None, Some("Bearer wrong"));
        let [one, two, boss] = ["Bearer one", "Bearer two", "Bearer boss"].map(Some);
        for (clients, admins, expected) in [
            (&[][..], &[][..], [Operator; 5]),
            (
                &["one", "two"],
                &[],
                [Stranger, Stranger, Operator, Client, Stranger],
            ),
            (
                &["one", "two"],
                &["boss"],
                [Stranger, Stranger, Client, Client, Operator],
            ),
            (&[], &["boss"], [Client, Client, Client, Client, Operator]),
        ] {
            let keys = known(clients, admins);
            let callers = [nobody, wrong, one, two, boss].map(|given| keys.caller(given));
            assert_eq!(callers, expected, "{clients:?} {admins:?}");
        }
    }

    #[test]
    fn keys_that_are_asked_for_are_replaced_and_never_removed() {
        let known = known(&["one", "two"], &["boss"]);
        assert_eq!(known.replace(&keys(&["one"], &[])), None);
        assert_eq!(known.replace(&keys(&[], &["boss"])), None);
        assert_eq!(known.caller(Some("Bearer two")), Caller::Client);
        assert_eq!(known.replace(&keys(&["three"], &["chief"])), Some(2));
        assert_eq!(known.caller(Some("Bearer two")), Caller::Stranger);
        assert_eq!(known.caller(Some("Bearer boss")), Caller::Stranger);
        assert_eq!(known.caller(Some("Bearer chief")), Caller::Operator);
    }
}
