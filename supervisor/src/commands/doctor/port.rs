//! State and owner of a port.
//!
//! ```text
//! /proc/net/tcp, tcp6: port, listening, inode ──► /proc/PID/fd/N → socket:[inode] ──► /proc/PID/comm
//! ```

use crate::config::HttpConfig;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// Addresses on which a worker would listen.
pub(super) fn addresses(http: &HttpConfig) -> Vec<SocketAddr> {
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let hosts = match http.hosts.as_slice() {
        [] => &loopback,
        hosts => hosts,
    };
    let with_port = |host| SocketAddr::new(host, http.port);
    hosts.iter().copied().map(with_port).collect()
}

/// Binds and closes a socket. It never listens, so no client can connect.
pub(super) fn try_bind(address: SocketAddr) -> io::Result<()> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = match socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None) {
        // Same result as without an interface of this address.
        Err(rustix::io::Errno::AFNOSUPPORT) => return Err(io::ErrorKind::AddrNotAvailable.into()),
        socket => socket?,
    };
    // As in a worker: lingering connections of an ended process do not block the port.
    set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &address)?)
}

/// Name and PID of a process that listens on this port, if visible to this user.
pub(super) fn owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let tables = tables.into_iter().flatten();
    let sockets: BTreeSet<String> = tables.flat_map(|it| listening(&it, port)).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter(|it| {
        let name = it.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    let process = processes.find(|it| holds_one(&it.path(), &sockets))?;
    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
    let number = process.file_name().to_string_lossy().into_owned();
    Some(format!("{} (process {number})", name.trim()))
}

/// Links to sockets that listen on this port, as in `/proc/PID/fd`.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTENS: &str = "0A";
    let local = format!(":{port:04X}");
    let lines = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&local) && fields.get(3)? == &LISTENS;
        is_it.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]")))?
    });
    lines.collect()
}

fn holds_one(process: &Path, sockets: &BTreeSet<String>) -> bool {
    let descriptors = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    let links = descriptors.filter_map(|it| fs::read_link(it.path()).ok());
    links
        .filter_map(|it| it.into_os_string().into_string().ok())
        .any(|it| sockets.contains(&it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_listen_at_the_port_are_of_interest() {
        let table = "  sl  local_address rem_address   st tx rx tr when retrnsmt uid timeout inode\n   \
             0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 0 0 4711 1 0\n   \
             1: 0100007F:1F90 0100007F:9999 01 0:0 00:0 0 0 0 4712 1 0\n   \
             2: 0100007F:0050 00000000:0000 0A 0:0 00:0 0 0 0 4713 1 0\n";
        assert_eq!(listening(table, 8080), ["socket:[4711]"]);
        assert_eq!(listening(table, 80), ["socket:[4713]"]);
        assert!(listening(table, 81).is_empty());
    }
}
