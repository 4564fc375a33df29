//! Operator routes: `/shutdown`, `/restart` and `/devices/N/...`, which affect all clients, and `/crashes`, which
//! reports on the requests of all clients.
//!
//! | option | served where, and for which callers |
//! |---|---|
//! | `--admin-socket` | on that Unix socket, to every process that may open it |
//! | `--admin-key-file` | over TCP, to a key of that file; these keys open all other routes, too |
//! | neither | over TCP, to the first key of `--api-key-file`; without keys, to every caller |
//!
//! Both options may be set. With either one, no client key opens an operator route. The socket
//! ([`admin_socket`](super::admin_socket)) also serves health, metrics and the like, but no inference routes: a process
//! with access to the socket is an operator, so no client should need it.

use super::access::Caller;
use super::error::ApiError;
use super::{App, PROBES};
use axum::http::Extensions;

/// Extension of each request on the admin socket.
#[derive(Debug, Clone, Copy)]
pub struct AtSocket;

#[must_use]
pub fn is_at_socket(extensions: &Extensions) -> bool {
    extensions.get::<AtSocket>().is_some()
}

#[must_use]
pub fn is_operators(path: &str) -> bool {
    ["/shutdown", "/restart", "/crashes"].contains(&path)
        || path.starts_with("/crashes/")
        || path.starts_with("/devices/")
}

/// Error for a `caller` without access here, or `None`.
#[must_use]
pub fn refusal(app: &App, path: &str, caller: Caller, is_at_socket: bool) -> Option<ApiError> {
    if is_at_socket {
        let is_here = is_operators(path) || path == "/" || PROBES.contains(&path);
        return (!is_here).then(|| ApiError::not_found(elsewhere()));
    }
    if !is_operators(path) {
        return None;
    }
    let why = match (app.keys.are_apart(), app.has_admin_socket) {
        (false, true) => "this is answered at the socket of --admin-socket, and nowhere else",
        (false, false) => "only the first key of --api-key-file may do this",
        (true, false) => "only a key of --admin-key-file may do this",
        (true, true) => "only a key of --admin-key-file may do this, or who asks at --admin-socket",
    };
    let may = caller == Caller::Operator && (app.keys.are_apart() || !app.has_admin_socket);
    (!may).then(|| ApiError::forbidden(why))
}

fn elsewhere() -> String {
    let probes = PROBES.join(", ");
    format!(
        "the admin socket answers /shutdown, /restart, /devices/{{number}}/drain and /readmit, /crashes, \
         /crashes/{{id}}, {probes} and /; everything else is answered over TCP"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_routes_are_known_by_their_paths() {
        for path in [
            "/shutdown",
            "/restart",
            "/crashes",
            "/crashes/7",
            "/devices/0/drain",
        ] {
            assert!(is_operators(path), "{path}");
        }
        for path in [
            "/",
            "/health",
            "/crash",
            "/crashes-of-mine",
            "/v1/shutdown",
            "/cancel",
        ] {
            assert!(!is_operators(path), "{path}");
        }
    }
}
