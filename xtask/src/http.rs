//! An HTTP/1.1 client small enough to measure with: one request a connection, bodies with a
//! length, chunked, or up to the end of the stream; server-sent events as they come.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any pause that a healthy worker makes.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    body: Body,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    pub name: String,
    pub data: String,
}

#[derive(Debug)]
struct Body {
    stream: BufReader<TcpStream>,
    framing: Framing,
}

#[derive(Debug, Clone, Copy)]
enum Framing {
    /// Bytes left.
    Length(u64),
    /// Bytes left in the current chunk.
    Chunked(u64),
    Finished,
    ToEnd,
}

pub fn get(address: SocketAddr, path: &str) -> Result<Response> {
    send(address, "GET", path, None)
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Result<Response> {
    send(address, "POST", path, Some(body))
}

fn send(address: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Result<Response> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
        .with_context(|| format!("nothing answers at {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    Response::read(BufReader::with_capacity(64 << 10, stream))
}

impl Response {
    fn read(mut stream: BufReader<TcpStream>) -> Result<Self> {
        let status_line = header_line(&mut stream)?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .with_context(|| format!("no HTTP status: {status_line:?}"))?;
        let mut framing = Framing::ToEnd;
        loop {
            let line = header_line(&mut stream)?.to_ascii_lowercase();
            match line.split_once(':') {
                None => break,
                Some(("content-length", value)) => framing = Framing::Length(value.trim().parse()?),
                Some(("transfer-encoding", value)) if value.trim() == "chunked" => {
                    framing = Framing::Chunked(0);
                }
                Some(_) => {}
            }
        }
        Ok(Self {
            status,
            body: Body { stream, framing },
        })
    }

    pub fn text(mut self) -> Result<String> {
        let mut text = String::new();
        self.body.read_to_string(&mut text)?;
        Ok(text)
    }

    pub fn json(self) -> Result<Value> {
        let status = self.status;
        let text = self.text()?;
        serde_json::from_str(&text).with_context(|| format!("no JSON (status {status})"))
    }

    /// Insists on 200, for callers that have no use for anything else.
    pub fn ok(self) -> Result<Self> {
        match self.status {
            200 => Ok(self),
            status => bail!("status {status}: {}", self.text()?),
        }
    }

    pub fn events(self) -> impl Iterator<Item = Result<SseEvent>> {
        Events {
            body: BufReader::new(self.body),
        }
    }
}

fn header_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        bail!("the connection closed before an answer");
    }
    Ok(line.trim_end().to_owned())
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if let Framing::Chunked(0) = self.framing {
            self.framing = self.next_chunk()?;
        }
        let left = match self.framing {
            Framing::Finished | Framing::Length(0) => return Ok(0),
            Framing::ToEnd => return self.stream.read(out),
            Framing::Length(left) | Framing::Chunked(left) => left,
        };
        let limit = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        let n = self.stream.read(&mut out[..limit])?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let left = left - n as u64;
        self.framing = match self.framing {
            Framing::Chunked(_) => Framing::Chunked(left),
            _ => Framing::Length(left),
        };
        if let Framing::Chunked(0) = self.framing {
            self.stream.read_exact(&mut [0; 2])?;
        }
        Ok(n)
    }
}

impl Body {
    fn next_chunk(&mut self) -> std::io::Result<Framing> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match u64::from_str_radix(line.trim(), 16) {
            Ok(0) => Ok(Framing::Finished),
            Ok(size) => Ok(Framing::Chunked(size)),
            Err(_) => Err(std::io::ErrorKind::InvalidData.into()),
        }
    }
}

struct Events {
    body: BufReader<Body>,
}

impl Iterator for Events {
    type Item = Result<SseEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut name, mut data) = (String::from("message"), String::new());
        loop {
            let mut line = String::new();
            match self.body.read_line(&mut line) {
                Err(error) => return Some(Err(error.into())),
                Ok(0) => return None,
                Ok(_) => {}
            }
            let line = line.trim_end_matches(['\r', '\n']);
            // Comments begin with a colon and are skipped by every client.
            match line
                .split_once(':')
                .map(|(field, value)| (field, value.trim_start()))
            {
                None if line.is_empty() && !data.is_empty() => {
                    return Some(Ok(SseEvent { name, data }));
                }
                Some(("event", value)) => value.clone_into(&mut name),
                Some(("data", value)) if data.is_empty() => value.clone_into(&mut data),
                Some(("data", value)) => data = format!("{data}\n{value}"),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves one canned answer.
    fn serve(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    #[test]
    fn chunks_are_joined_and_events_cut_at_blank_lines() {
        let address = serve(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             10\r\nevent: token\ndat\r\n9\r\na: {}\n\n: \r\nE\r\nx\n\ndata: two\n\n\r\n0\r\n\r\n",
        );
        let events: Vec<_> = get(address, "/")
            .unwrap()
            .events()
            .map(Result::unwrap)
            .collect();
        let expected = [("token", "{}"), ("message", "two")];
        let expected = expected.map(|(name, data)| SseEvent {
            name: name.into(),
            data: data.into(),
        });
        assert_eq!(events, expected);
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        let address = serve("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
        assert!(get(address, "/").unwrap().text().is_err());
    }

    #[test]
    fn a_status_that_is_not_200_shows_its_body() {
        let address = serve("HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nbusy");
        assert_eq!(
            get(address, "/").unwrap().ok().unwrap_err().to_string(),
            "status 503: busy"
        );
    }
}
