//! Origin checks: the host name of a request, and the web page that sent it.
//!
//! A browser sends requests for any page. A page may map its own name to this machine's address (DNS rebinding) and
//! then access a worker on loopback as if it were its own server; `Host` reveals this. A page may also POST without a
//! preflight, as long as an HTML form could send the request, such as `/shutdown`; `Origin` and `Sec-Fetch-Site` reveal
//! this. All other changing requests must be JSON, which needs a preflight; `--cors-origins` lists the allowed origins.

use super::access::Caller;
use super::error::{ApiError, Dialect, Respond as _};
use super::{App, admin};
use crate::config::HttpConfig;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{HOST, ORIGIN, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Time for which a browser caches a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(600);

/// Response headers that a page's script may read.
const EXPOSED: [HeaderName; 4] = [
    RETRY_AFTER,
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
];

/// Accepted host names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    Any,
    /// Addresses and `localhost` are always accepted: a page cannot claim them.
    Only(Vec<String>),
}

impl Names {
    /// Accepted host names. On loopback, any other name indicates DNS rebinding.
    #[must_use]
    pub fn of(config: &HttpConfig) -> Self {
        let names = &config.allowed_hosts;
        let is_public = !config.is_loopback_only() && names.is_empty();
        if is_public || names.iter().any(|name| name == "*") {
            return Self::Any;
        }
        Self::Only(names.clone())
    }

    fn include(&self, authority: &str) -> bool {
        let Self::Only(names) = self else {
            return true;
        };
        let name = without_port(authority).trim_end_matches('.');
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        address.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|it| is(it))
    }
}

/// CORS layer: answers preflights, and sets the headers of allowed origins.
#[must_use]
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED)
        .max_age(PREFLIGHT_AGE);
    if origins.iter().any(|origin| origin == "*") {
        return Some(layer.allow_origin(AllowOrigin::any()));
    }
    // Invalid header values were refused with the settings.
    let origins = origins
        .iter()
        .filter_map(|origin| HeaderValue::from_str(origin).ok());
    Some(layer.allow_origin(AllowOrigin::list(origins)))
}

pub async fn check(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    match refusal(&app, &request) {
        None => next.run(request).await,
        Some(error) => error.respond(Dialect::of_path(request.uri().path())),
    }
}

fn refusal(app: &App, request: &Request<Body>) -> Option<ApiError> {
    // Browsers do not use Unix sockets.
    if admin::is_at_socket(request.extensions()) {
        return None;
    }
    let headers = request.headers();
    if headers.get_all(HOST).iter().count() > 1 {
        return Some(ApiError::bad_request("there may be one Host header only"));
    }
    let given = text(headers, HOST);
    let authorities = [given, request.uri().authority().map(|it| it.as_str())];
    if !authorities
        .into_iter()
        .flatten()
        .all(|it| app.names.include(it))
    {
        let message = "this worker does not answer to that Host; --allowed-hosts names more";
        return Some(ApiError::forbidden(message));
    }
    // A key is sufficient proof. Without keys every caller is the operator, except pages of other origins.
    let is_guarded =
        admin::is_operators(request.uri().path()) && app.keys.caller(None) == Caller::Operator;
    if is_guarded && is_cross_site(headers, given) {
        let message = "pages of other sites may ask nothing of the operator's";
        return Some(ApiError::forbidden(message));
    }
    None
}

fn is_cross_site(headers: &HeaderMap, host: Option<&str>) -> bool {
    let site = text(headers, HeaderName::from_static("sec-fetch-site"));
    if headers.contains_key("sec-fetch-site") && !matches!(site, Some("same-origin" | "none")) {
        return true;
    }
    if !headers.contains_key(ORIGIN) {
        return false;
    }
    let origin = text(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
    !matches!((origin, host), (Some((_, origin)), Some(host)) if origin == host)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn without_port(authority: &str) -> &str {
    let host = authority.rsplit('@').next().unwrap_or(authority);
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_ours_and_other_names_must_be_given() {
        let names = Names::Only(vec!["box.lan".to_owned()]);
        for ours in [
            "localhost",
            "LocalHost:80",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "192.168.0.7:1",
            "box.lan",
            "BOX.lan:8080",
            "localhost.",
        ] {
            assert!(names.include(ours), "{ours}");
        }
        for theirs in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "box.lan.evil.example",
            "",
            "localhost@evil.example",
        ] {
            assert!(!names.include(theirs), "{theirs}");
        }
        assert!(Names::Any.include("evil.example"));
    }

    #[test]
    fn a_page_of_another_origin_is_another_site() {
        let asked = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            is_cross_site(&headers.collect(), Some("localhost:80"))
        };
        assert!(!asked(&[]), "no browser");
        assert!(!asked(&[
            ("origin", "http://localhost:80"),
            ("sec-fetch-site", "same-origin")
        ]));
        for theirs in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "http://localhost:81")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert!(asked(theirs), "{theirs:?}");
        }
    }
}
