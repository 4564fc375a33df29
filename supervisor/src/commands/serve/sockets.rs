//! Listening addresses, and paths that children need.

use super::handoff::{Predecessor, Sockets};
use crate::config::{Config, HttpConfig};
use std::io;
use std::net::TcpListener as StdListener;
use std::os::unix::fs::OpenOptionsExt as _;
use worker_orcd_engine::child::socket::PrivateDir;

/// Sockets of a service manager, or else those of an earlier supervisor, if the settings still name them.
pub(super) fn sockets(
    config: &mut Config,
    handed: Vec<StdListener>,
    inherited: &mut Option<Predecessor>,
) -> Result<Sockets, String> {
    let given = !handed.is_empty();
    listen_at(&mut config.http, &handed)?;
    match (check_addresses(config), &inherited) {
        // The running child needs no directory. The next one gets a new one.
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

/// Checks paths that every child needs. Their absence would not be a child's fault.
pub(super) fn check_addresses(config: &Config) -> Result<(), String> {
    PrivateDir::create().map_err(|error| error.to_string())?;
    let Some(trace) = &config.load.trace else {
        return Ok(());
    };
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        // A FIFO may have no reader yet.
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(&trace.path);
    let named = |error| format!("--trace-logits {}: {error}", trace.path.display());
    opened.map(drop).map_err(named)
}

/// Inherited sockets determine the listening addresses.
fn listen_at(http: &mut HttpConfig, handed: &[StdListener]) -> Result<(), String> {
    if handed.is_empty() {
        return Ok(());
    }
    let addresses: io::Result<Vec<_>> = handed.iter().map(StdListener::local_addr).collect();
    let addresses = addresses.map_err(|error| format!("a socket that was handed over: {error}"))?;
    http.listen_at(&addresses)
}
