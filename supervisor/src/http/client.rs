//! Client of a request, for fair sharing: its API key, or its address without authentication.
//!
//! A [`ClientId`] is a truncated SHA-256, so neither key nor address leaves this module. Behind a proxy and without
//! keys all requests have the same client.

use axum::http::Extensions;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use worker_orcd_ipc::ClientId;

/// Peer address of a connection, an extension of all its requests.
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
        // A host usually controls its whole /64 network.
        IpAddr::V6(address) => named(b"v6", &address.octets()[..8]),
    }
}

/// Client as [`access`](super::access) determined it. Without a connection, as in tests, all requests have the same.
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
