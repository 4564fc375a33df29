//! Descriptors that a service manager hands over, by sd_listen_fds(3): the listening sockets of systemd's socket
//! units, and what its descriptor store kept. They outlive this process, so clients that come between two
//! supervisors wait and are not refused.

use listenfd::ListenFd;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;

#[derive(Debug, Default)]
pub struct HandedDescriptors {
    pub listeners: Vec<TcpListener>,
    /// Parcels of earlier supervisors ([`estate`](crate::estate)).
    pub parcels: Vec<UnixDatagram>,
}

/// What was handed to this process; nothing where nobody does so. To be called once, before there are
/// threads: the variables are taken out of the environment, so that no child believes that it was meant.
///
/// # Errors
/// When something is neither a TCP socket nor of this program.
pub fn descriptors() -> io::Result<HandedDescriptors> {
    let mut handed = ListenFd::from_env();
    let mut descriptors = HandedDescriptors::default();
    for index in 0..handed.len() {
        match handed.take_unix_datagram(index) {
            Ok(parcel) => descriptors.parcels.extend(parcel),
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
