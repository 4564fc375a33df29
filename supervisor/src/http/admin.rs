//! The operator's routes: `/shutdown`, `/restart` and `/devices/N/...`, which change what everybody relies on, and
//! `/crashes`, which tells of everybody's requests.
//!
//! | given | where they are answered, and to whom |
//! |---|---|
//! | `--admin-socket` | at that Unix socket, to whoever may open it |
//! | `--admin-key-file` | over TCP, to a key of that file; those keys open everything else, too |
//! | neither | over TCP, to the first key of `--api-key-file`; to everybody where no key is asked for |
//!
//! Both may be given. No key of a client opens any of them once one is. At the socket
//! ([`admin_socket`](super::admin_socket)) there is besides what tells of the worker, and none of what clients
//! ask for: whoever is given that socket to send requests to would be the operator, too.

use super::access::Caller;
use super::error::ApiError;
use super::{App, PROBES};
use axum::http::Extensions;

/// Marks each request that comes through the admin socket.
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

/// Why `caller` is not answered here, where that is so.
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
