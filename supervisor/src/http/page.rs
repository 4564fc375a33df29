//! `GET /` in a browser: the status page, one file without a build step (`page/status.html`).
//!
//! It is static and has no data of this worker. Its script requests `/health`, `/crashes` and `/v1/chat/completions`
//! like any client, with the key that the user enters. So it needs no key itself. Programs get JSON at the same path
//! ([`super::routes::root`]).
//!
//! The content security policy allows only the compiled-in script and style, by their digests, and requests to this
//! worker. It forbids the script to create markup from text.

use crate::accept;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const PAGE: &str = include_str!("page/status.html");

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (digest_of("script"), digest_of("style"));
    [
        "default-src 'none'",
        &format!("script-src '{script}'"),
        &format!("style-src '{style}'"),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    .join("; ")
});

/// True for a navigation of a browser to the worker's address.
#[must_use]
pub fn is_asked_for<B>(request: &Request<B>) -> bool {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    is_read && request.uri().path() == "/" && is_wanted(request.headers())
}

/// True if `Accept` names HTML, with at least the priority of JSON.
#[must_use]
pub fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let weight = |media_type| accept::weight(accept.unwrap_or_default(), media_type);
    let html = weight("text/html");
    html > 0.0 && html >= weight("application/json")
}

#[must_use]
pub fn page() -> Response {
    let mut response = PAGE.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
        (VARY, "Accept"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // The policy is printable ASCII.
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// `sha256-…` of the content of the page's only element of that name.
fn digest_of(element: &str) -> String {
    let (_, rest) = PAGE.split_once(&format!("<{element}>")).unwrap_or_default();
    let (content, _) = rest
        .split_once(&format!("</{element}>"))
        .unwrap_or_default();
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constructs that need a looser policy, or create markup from text.
    const FORBIDDEN: [&str; 12] = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        " style=",
        " onclick",
        " src=",
        "@import",
        "url(",
        "http",
    ];

    #[test]
    fn the_page_is_one_file_that_needs_nothing_else_and_makes_no_markup_of_text() {
        for element in ["script", "style"] {
            let opened = format!("<{element}");
            assert_eq!(PAGE.matches(&opened).count(), 1, "{element}");
            assert_eq!(PAGE.matches(&format!("{opened}>")).count(), 1, "{element}");
        }
        // `X-Frame-Options` and the like must be headers, and `http` occurs in no other word.
        let page = PAGE.replace("http://www.w3.org/2000/svg", "");
        for forbidden in FORBIDDEN {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn browsers_want_the_page_and_programs_do_not() {
        let wants = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            is_wanted(&headers)
        };
        assert!(wants(
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
        ));
        assert!(wants("application/json;q=0.5, text/html"));
        for program in [
            "*/*",
            "application/json",
            "application/json, text/html;q=0.9",
        ] {
            assert!(!wants(program), "{program}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }

    #[test]
    fn the_page_is_asked_for_at_the_root_by_reading() {
        let asked = |method, path| {
            let request = Request::builder().method(method).uri(path);
            is_asked_for(&request.header(ACCEPT, "text/html").body(()).unwrap())
        };
        assert!(asked("GET", "/") && asked("HEAD", "/?from=a-bookmark"));
        assert!(!asked("POST", "/") && !asked("GET", "/metrics") && !asked("GET", "//"));
    }
}
