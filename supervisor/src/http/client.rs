//! The client of a request, whose share of the worker it uses: its API key, or its address where no
//! keys are asked for.
//!
//! A [`ClientId`] is cut from a SHA-256, so that neither key nor address goes any further than
//! here. Behind a proxy and without keys everybody is one client.

use axum::http::Extensions;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use worker_orcd_ipc::ClientId;

/// The address that a connection comes from; all its requests carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub IpAddr);

#[must_use]
pub fn of_key(digest: &[u8; 32]) -> ClientId {
    named(b"key", digest)
}

#[must_use]
pub fn of_address(Address(address): Address) -> ClientId {
    match address.to_canonical() {
        IpAddr::V4(address) => named(b"v4", &address.octets()),
        // Whoever has one address of a network has all of them.
        IpAddr::V6(address) => named(b"v6", &address.octets()[..8]),
    }
}

/// The client as [`access`](super::access) found it. Without a connection, as in tests, all are
/// one.
#[must_use]
pub fn of_request(extensions: &Extensions) -> ClientId {
    extensions.get().copied().unwrap_or_default()
}

fn named(kind: &[u8], name: &[u8]) -> ClientId {
    let digest = Sha256::new()
        .chain_update(kind)
        .chain_update(name)
        .finalize();
    ClientId(
        digest
            .iter()
            .take(8)
            .fold(0, |id, byte| id << 8 | u64::from(*byte)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> ClientId {
        of_address(Address(address.parse().unwrap()))
    }

    #[test]
    fn one_host_is_one_client_however_it_is_reached() {
        assert_eq!(client("10.0.0.1"), client("::ffff:10.0.0.1"));
        assert_eq!(
            client("2001:db8::1"),
            client("2001:db8::ffff:2"),
            "one network"
        );
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_ne!(client("10.0.0.1"), client("10.0.0.2"));
        assert_ne!(of_key(&[1; 32]), of_key(&[2; 32]));
    }
}
