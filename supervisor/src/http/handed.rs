//! Listening sockets that a service manager made beforehand and hands over, by sd_listen_fds(3): systemd's socket
//! units. They outlive this process, so clients that come between two supervisors wait and are not refused.

use listenfd::ListenFd;
use std::io;
use std::net::TcpListener;

/// The sockets that were handed to this process; none where nobody does so. To be called once, before there are
/// threads: the variables are taken out of the environment, so that no child believes that it was meant.
///
/// # Errors
/// When one of them is no TCP socket.
pub fn listeners() -> io::Result<Vec<TcpListener>> {
    let mut handed = ListenFd::from_env();
    let mut listeners = Vec::with_capacity(handed.len());
    for index in 0..handed.len() {
        listeners.extend(handed.take_tcp_listener(index)?);
    }
    for listener in &listeners {
        listener.set_nonblocking(true)?;
    }
    Ok(listeners)
}
