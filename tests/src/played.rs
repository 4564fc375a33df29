//! Shared code of fake servers on loopback: an accept loop, and payloads that break off.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Serves one connection after another until the test process ends.
///
/// # Panics
/// No port is free.
pub(crate) fn serve(answer: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that disconnects is done.
            let _ = answer(stream);
        }
    });
    address
}

/// Defect of a payload.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Delivery {
    #[default]
    Whole,
    /// The connection breaks after this many bytes of one response.
    CutAfter(usize),
    /// The connection stays, and no more bytes come.
    SilentAfter(usize),
}

impl Delivery {
    pub(crate) fn send(self, out: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        let most = match self {
            Self::Whole => bytes.len(),
            Self::CutAfter(most) | Self::SilentAfter(most) => most.min(bytes.len()),
        };
        out.write_all(&bytes[..most])?;
        if matches!(self, Self::SilentAfter(_)) {
            // Until the client disconnects.
            while out.read(&mut [0]).is_ok_and(|read| read > 0) {}
        }
        Ok(())
    }
}
