//! Settings of HTTP: addresses, access, and timeouts of clients.

use super::keys::{self, Keys};
use super::reader::{Reader, positive, within};
use super::tls;
use rustls::ServerConfig;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_cli::units;

/// Listening addresses and timeouts of clients.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// Empty means both loopback addresses.
    pub hosts: Vec<IpAddr>,
    pub port: u16,
    /// Names of the address settings that are set.
    pub named_addresses: Vec<String>,
    /// Allow unauthenticated clients on any address.
    pub insecure: bool,
    pub keys: Keys,
    pub admin_socket: Option<PathBuf>,
    pub tls: Option<Arc<ServerConfig>>,
    /// Accepted host names, besides the worker's addresses; `*` is any.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use this worker; `*` is every origin.
    pub cors_origins: Vec<String>,
    pub max_body_bytes: usize,
    /// Bytes of all bodies in progress.
    pub max_bodies_bytes: usize,
    pub max_connections: NonZeroUsize,
    pub read_timeout: Duration,
    pub write_timeout: Duration,
}

impl HttpConfig {
    #[must_use]
    pub fn is_loopback_only(&self) -> bool {
        self.hosts.iter().all(IpAddr::is_loopback)
    }

    /// True if listeners on these addresses satisfy the settings.
    #[must_use]
    pub fn asks_for(&self, addresses: &[SocketAddr]) -> bool {
        let hosts: BTreeSet<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
        let hosts_fit = match &self.hosts[..] {
            [] => hosts.iter().all(IpAddr::is_loopback),
            named => hosts == named.iter().copied().collect(),
        };
        let port_fits = |address: &SocketAddr| self.port == 0 || address.port() == self.port;
        !addresses.is_empty() && hosts_fit && addresses.iter().all(port_fits)
    }

    /// Sets the addresses of inherited sockets.
    ///
    /// # Errors
    /// A message for the log.
    pub fn listen_at(&mut self, addresses: &[SocketAddr]) -> Result<(), String> {
        if let Some(name) = self.named_addresses.first() {
            return Err(format!(
                "{name}: sockets were handed over, and say where to listen"
            ));
        }
        self.hosts = addresses.iter().map(SocketAddr::ip).collect();
        if !self.insecure && self.keys.clients.is_empty() && !self.is_loopback_only() {
            return Err(format!(
                "the sockets that were handed over: {BEYOND_LOOPBACK}"
            ));
        }
        Ok(())
    }
}

const BEYOND_LOOPBACK: &str = "beyond loopback anybody could use this worker, and shut it down: \
                               give --api-key-file, or --insecure if that is meant";

pub(super) fn read(reader: &mut Reader<'_>) -> HttpConfig {
    let hosts = reader.optional("host", parse_hosts).unwrap_or_default();
    let port = reader.needed("port", |text| {
        text.parse()
            .map_err(|_| format!("{text:?} is no port (0 to 65535)"))
    });
    let places = ["host", "port"]
        .into_iter()
        .filter(|it| reader.is_given(it));
    let named_addresses = places.map(|it| reader.origin(it).to_owned()).collect();
    let keys = keys::read(reader);
    let admin_socket = reader.optional("admin-socket", socket_path);
    let tls = tls::read(reader);
    let insecure = reader.switch("insecure");
    if !insecure && !reader.has("api-key-file") && !hosts.iter().all(IpAddr::is_loopback) {
        let origin = reader.origin("host").to_owned();
        reader.error(format!("{origin}: {BEYOND_LOOPBACK}"));
    }
    let allowed_hosts = reader.optional("allowed-hosts", |text| Ok(list(text)));
    let cors_origins = reader.optional("cors-origins", parse_origins);
    let max_body_bytes = reader.needed("max-body-size", units::bytes);
    let max_bodies_bytes = reader.needed("max-bodies-size", units::bytes);
    let max_connections = reader.needed("max-connections", within(1..=1_000_000)) as usize;
    HttpConfig {
        hosts,
        port,
        named_addresses,
        insecure,
        keys,
        admin_socket,
        tls,
        allowed_hosts: allowed_hosts.unwrap_or_default(),
        cors_origins: cors_origins.unwrap_or_default(),
        max_body_bytes: max_body_bytes as usize,
        max_bodies_bytes: max_bodies_bytes as usize,
        max_connections: NonZeroUsize::new(max_connections).unwrap_or(NonZeroUsize::MIN),
        read_timeout: reader.needed("read-timeout", positive),
        write_timeout: reader.needed("write-timeout", positive),
    }
}

pub(super) fn list(text: &str) -> Vec<String> {
    let items = text.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A path for a new socket, or of an existing one. A stale socket is detected when the new one is created.
fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if let Err(error) = UnixAddress::from_pathname(&path) {
        return Err(format!("{text:?} is no path of a socket: {error}"));
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(format!("{text:?} is no path of a socket")),
    };
    if !directory.is_dir() {
        return Err(format!("{} is no directory", directory.display()));
    }
    match path.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => {
            Err(format!("{text:?} is there, and no socket"))
        }
        _ => Ok(path),
    }
}

/// Parses addresses. `localhost` gives an empty list: both loopback addresses.
fn parse_hosts(text: &str) -> Result<Vec<IpAddr>, String> {
    if text == "localhost" {
        return Ok(Vec::new());
    }
    let address = |item: &str| {
        item.trim()
            .parse()
            .map_err(|_| format!("{item:?} is neither an IP address nor localhost"))
    };
    text.split(',').map(address).collect()
}

/// Parses origins as a browser writes them: scheme, host, optional port, and no path.
fn parse_origins(text: &str) -> Result<Vec<String>, String> {
    let origins = list(text);
    for origin in &origins {
        let rest = origin.split_once("://").map(|(_, rest)| rest);
        let is_one = rest.is_some_and(|rest| {
            !rest.is_empty()
                && rest
                    .bytes()
                    .all(|it| it.is_ascii_graphic() && !b"/?#@".contains(&it))
        });
        if origin != "*" && !is_one {
            return Err(format!(
                "{origin:?} is no origin, such as https://app.example, nor *"
            ));
        }
    }
    Ok(origins)
}
