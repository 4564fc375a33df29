//! Small HTTP/1.1 and SSE client over a plain `TcpStream`.

mod body;
mod events;

pub use events::{EventStream, SseEvent, Transcript};

use body::{Body, Framing};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A longer wait is a hang: streams of tests have a comment every 15 s at the latest, and whole answers of large bodies take
/// up to a minute beside other work.
pub const READ_TIMEOUT: Duration = Duration::from_secs(180);

/// Client of one worker: address and API key.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub api_key: Option<String>,
    /// Time limit of each read and write.
    pub patience: Duration,
}

/// Complete response.
#[derive(Debug, Clone)]
pub struct Response {
    pub status: u16,
    /// Names in lower case, in the order received.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Response with an unread body.
#[derive(Debug)]
pub struct Streaming {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: BufReader<Body>,
}

/// TCP connection that can send any bytes.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Client {
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            api_key: None,
            patience: READ_TIMEOUT,
        }
    }

    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self {
            api_key: Some(key.to_owned()),
            ..self.clone()
        }
    }

    /// # Errors
    /// The port refuses the connection.
    pub fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(10))?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream: BufReader::new(stream),
        })
    }

    #[must_use]
    pub fn get(&self, path: &str) -> Response {
        self.try_get(path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    #[must_use]
    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Response {
        self.try_request("POST", path, &[], body)
            .unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// # Errors
    /// The connection breaks before the response is complete.
    pub fn try_get(&self, path: &str) -> io::Result<Response> {
        self.try_request("GET", path, &[], &[])
    }

    /// # Errors
    /// The connection breaks before the response is complete.
    pub fn try_request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let mut connection = self.connect()?;
        connection.send(&self.request(method, path, headers, body))?;
        connection.read_response()
    }

    /// Bytes of a request, for a test that sends only part of them.
    #[must_use]
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if let Some(key) = &self.api_key {
            head.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        if method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
            if !headers
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
            {
                head.push_str("Content-Type: application/json\r\n");
            }
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        [head.as_bytes(), body].concat()
    }

    /// POSTs and returns after the head of the response.
    ///
    /// # Errors
    /// The connection breaks before that.
    pub fn open(&self, path: &str, body: &Value) -> io::Result<Streaming> {
        let mut connection = self.connect()?;
        connection.send(&self.request("POST", path, &[], body.to_string().as_bytes()))?;
        connection.read_head()
    }

    /// POSTs to an SSE route. Panics unless the answer is 200 with an event stream.
    #[must_use]
    pub fn stream(&self, path: &str, body: &Value) -> EventStream {
        self.try_stream(path, body)
            .unwrap_or_else(|error| panic!("POST {path}: {error}"))
    }

    /// # Errors
    /// The connection breaks before the head, or the status is not 200.
    pub fn try_stream(&self, path: &str, body: &Value) -> io::Result<EventStream> {
        let streaming = self.open(path, body)?;
        if streaming.status == 200 {
            return Ok(EventStream::new(streaming));
        }
        let refusal = streaming.into_response()?;
        let told = format!("status {}: {}", refusal.status, refusal.text());
        Err(io::Error::other(told))
    }

    #[must_use]
    pub fn execute(&self, request: &Value) -> EventStream {
        self.stream("/execute", request)
    }

    /// Value of a metric without labels.
    ///
    /// # Errors
    /// There is no response, or it lacks the metric.
    pub fn try_metric(&self, name: &str) -> io::Result<u64> {
        let [value] = self.try_metrics([name])?;
        Ok(value)
    }

    /// Values of metrics without labels in one response, so that they are of the same moment.
    ///
    /// # Errors
    /// There is no response, or it lacks one of the metrics.
    pub fn try_metrics<const N: usize>(&self, names: [&str; N]) -> io::Result<[u64; N]> {
        let text = self.try_get("/metrics")?.text();
        let mut values = [0; N];
        for (value, name) in values.iter_mut().zip(names) {
            let mut lines = text.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let found = found.and_then(|it| it.parse().ok());
            *value = found.ok_or_else(|| io::Error::other(format!("{name} has no value")))?;
        }
        Ok(values)
    }

    /// Waits until a child computes for a request.
    pub fn wait_until_it_computes(&self) {
        crate::wait::until("something runs", || {
            let running = self.health()["load"]["running"].as_u64();
            (running > Some(0)).then_some(())
        });
    }

    #[must_use]
    pub fn health(&self) -> Value {
        self.get("/health").json()
    }
}

impl Response {
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[must_use]
    pub fn json(&self) -> Value {
        self.try_json().unwrap_or_else(|error| panic!("{error}"))
    }

    /// # Errors
    /// The body is not JSON.
    pub fn try_json(&self) -> io::Result<Value> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let told = format!("not JSON ({error}): {} {}", self.status, self.text());
            io::Error::other(told)
        })
    }
}

impl Streaming {
    /// # Errors
    /// The connection breaks before the body is complete.
    pub fn into_response(mut self) -> io::Result<Response> {
        let mut body = Vec::new();
        self.body.read_to_end(&mut body)?;
        Ok(Response {
            status: self.status,
            headers: self.headers,
            body,
        })
    }

    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }
}

impl Connection {
    /// # Errors
    /// The peer closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Reads until the peer closes, and returns the bytes; a reset counts as closing.
    ///
    /// # Errors
    /// The peer neither sends nor closes within the read timeout.
    pub fn read_to_close(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
            _ => Ok(bytes),
        }
    }

    /// # Errors
    /// The connection breaks before the response is complete.
    pub fn read_response(self) -> io::Result<Response> {
        self.read_head()?.into_response()
    }

    /// # Errors
    /// The connection breaks, or the bytes are not HTTP.
    pub fn read_head(mut self) -> io::Result<Streaming> {
        let status_line = self.read_line()?;
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| io::Error::other(format!("not a status line: {status_line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.read_line()?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let framing = Framing::of(&headers);
        Ok(Streaming {
            status,
            headers,
            body: BufReader::new(Body::new(self.stream, framing)),
        })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves one fixed response.
    fn serve(answer: &'static str) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        Client::new(address)
    }

    #[test]
    fn chunks_are_joined_and_events_cut_at_blank_lines() {
        let client = serve(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n\
             10\r\nevent: token\ndat\r\n9\r\na: {}\n\n: \r\nE\r\nx\n\ndata: two\n\n\r\n0\r\n\r\n",
        );
        let mut stream = client.stream("/", &Value::Null);
        let events: Vec<_> = stream.by_ref().map(|it| (it.name, it.data)).collect();
        let expected = [("token", "{}"), ("message", "two")];
        assert_eq!(events, expected.map(|(a, b)| (a.into(), b.into())));
        assert_eq!(stream.comments, 1);
    }

    #[test]
    fn a_body_that_ends_early_is_an_error() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        ] {
            assert!(serve(answer).try_get("/").is_err(), "{answer}");
        }
    }

    #[test]
    fn a_status_that_is_not_200_shows_its_body() {
        let client = serve("HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nbusy");
        let refused = client.try_stream("/", &Value::Null).unwrap_err();
        assert_eq!(refused.to_string(), "status 503: busy");
    }
}
