//! Descriptors from a service manager, as in sd_listen_fds(3): listening sockets of systemd's socket units, and the
//! content of its descriptor store. They outlive this process, so clients that connect between two supervisors wait and
//! are not refused.

use listenfd::ListenFd;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

#[derive(Debug, Default)]
pub struct HandedDescriptors {
    pub listeners: Vec<TcpListener>,
    /// Handoff bundles of earlier supervisors ([`handoff`](worker_orcd_engine::handoff)).
    pub bundles: Vec<UnixDatagram>,
}

/// Descriptors that were passed to this process; empty without a service manager. Must be called once, before any
/// thread starts: it removes the variables from the environment, so that no child uses them.
///
/// # Errors
/// If a descriptor is neither a TCP socket nor one of this program.
pub fn descriptors() -> io::Result<HandedDescriptors> {
    let mut handed = ListenFd::from_env();
    let mut descriptors = HandedDescriptors::default();
    for index in 0..handed.len() {
        match handed.take_unix_datagram(index) {
            Ok(bundle) => descriptors.bundles.extend(bundle),
            Err(_) => descriptors
                .listeners
                .extend(handed.take_tcp_listener(index)?),
        }
    }
    for listener in &descriptors.listeners {
        listener.set_nonblocking(true)?;
    }
    Ok(descriptors)
}
