//! Body of a response: chunked, of a given length, or up to the end of the connection.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl Framing {
    pub fn of(headers: &[(String, String)]) -> Self {
        let value = |name| {
            headers
                .iter()
                .find(|(found, _)| found == name)
                .map(|(_, value)| value.as_str())
        };
        if value("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Self::Chunked;
        }
        match value("content-length").and_then(|value| value.parse().ok()) {
            Some(length) => Self::Length(length),
            None => Self::UntilClose,
        }
    }
}

/// Reads to the end of the body and no further. A stream that breaks inside a body is an error, never a short body, so
/// a test distinguishes a clean end from a cut.
#[derive(Debug)]
pub struct Body {
    stream: BufReader<TcpStream>,
    framing: Framing,
    /// Bytes left in this chunk, or in the whole body.
    left: usize,
    ended: bool,
}

impl Body {
    pub fn new(stream: BufReader<TcpStream>, framing: Framing) -> Self {
        let left = match framing {
            Framing::Length(length) => length,
            Framing::Chunked => 0,
            Framing::UntilClose => usize::MAX,
        };
        Self {
            stream,
            framing,
            left,
            ended: left == 0 && framing != Framing::Chunked,
        }
    }

    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    fn next_chunk(&mut self) -> io::Result<()> {
        let size = self.read_line()?;
        self.left = usize::from_str_radix(&size, 16)
            .map_err(|_| io::Error::other(format!("not a chunk size: {size:?}")))?;
        if self.left == 0 {
            self.ended = true;
            self.read_line()?;
        }
        Ok(())
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.framing == Framing::Chunked && self.left == 0 && !self.ended {
            self.next_chunk()?;
        }
        if self.ended {
            return Ok(0);
        }
        let room = buffer.len().min(self.left);
        let read = self.stream.read(&mut buffer[..room])?;
        if read == 0 {
            return match self.framing {
                Framing::UntilClose => Ok(0),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        self.left -= read;
        match self.framing {
            Framing::Chunked if self.left == 0 => {
                self.read_line()?;
            }
            Framing::Length(_) => self.ended = self.left == 0,
            _ => {}
        }
        Ok(read)
    }
}
