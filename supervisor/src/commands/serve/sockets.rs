//! Where a worker listens, and the places that its children need, before anything is opened.

use super::inheritance::{Inherited, Sockets};
use crate::child::socket::PrivateDir;
use crate::config::{Config, HttpConfig};
use std::io;
use std::net::TcpListener as StdListener;
use std::os::unix::fs::OpenOptionsExt as _;

/// Sockets of a service manager, or else those of an earlier supervisor, if they are still asked for.
pub(super) fn sockets(
    config: &mut Config,
    handed: Vec<StdListener>,
    inherited: &mut Option<Inherited>,
) -> Result<Sockets, String> {
    let given = !handed.is_empty();
    listen_at(&mut config.http, &handed)?;
    match (check_places(config), &inherited) {
        // The child has what it needs, and a directory is made again for the next one.
        (Err(reason), Some(last)) if last.is_of_an_upgrade() => {
            tracing::error!(reason, "directory_missing");
        }
        (checked, _) => checked?,
    }
    Ok(match inherited {
        Some(last) if !given => last.sockets(&config.http),
        _ => Sockets {
            listeners: handed,
            given,
            before: Vec::new(),
        },
    })
}

/// Checks the places that every child will need, and for whose lack no child can be blamed.
pub(super) fn check_places(config: &Config) -> Result<(), String> {
    PrivateDir::create().map_err(|error| error.to_string())?;
    let Some(trace) = &config.load.trace else {
        return Ok(());
    };
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        // Nobody may be reading a FIFO yet.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(&trace.path);
    let named = |error| format!("--trace-logits {}: {error}", trace.path.display());
    opened.map(drop).map_err(named)
}

/// Where sockets were handed over, they say where the worker listens.
fn listen_at(http: &mut HttpConfig, handed: &[StdListener]) -> Result<(), String> {
    if handed.is_empty() {
        return Ok(());
    }
    let addresses: io::Result<Vec<_>> = handed.iter().map(StdListener::local_addr).collect();
    let addresses = addresses.map_err(|error| format!("a socket that was handed over: {error}"))?;
    http.listen_at(&addresses)
}
