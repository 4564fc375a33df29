//! What servers have in common that tests play on loopback: a thread that answers, and payloads that break off.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Answers each connection, one behind the other, until the test process ends.
///
/// # Panics
/// When no port is free.
pub(crate) fn serve(answer: impl Fn(TcpStream) -> io::Result<()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that is gone has what it wanted.
            let _ = answer(stream);
        }
    });
    address
}

/// How a payload comes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Delivery {
    #[default]
    Whole,
    /// The connection breaks behind this many bytes of one answer.
    CutAfter(usize),
    /// It stays, and nothing more comes.
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
            // Until the client is gone.
            while out.read(&mut [0]).is_ok_and(|read| read > 0) {}
        }
        Ok(())
    }
}
