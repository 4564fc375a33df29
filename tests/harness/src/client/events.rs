//! Server-sent events as the WHATWG specification reads them (event, data, id, comments).

use super::Streaming;
use serde_json::Value;
use std::io::{self, BufRead};
use std::net::{Shutdown, TcpStream};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// `message` when the server names none.
    pub name: String,
    pub data: String,
    /// Value that a client sends as `Last-Event-ID`.
    pub id: Option<String>,
}

/// Iterator over events until the body ends.
#[derive(Debug)]
pub struct EventStream {
    streaming: Streaming,
    /// Comment lines so far. They are keep-alives without content.
    pub comments: usize,
}

/// Events of a complete `/execute` stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    pub events: Vec<SseEvent>,
}

impl SseEvent {
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| {
            panic!("event {} is not JSON ({error}): {}", self.name, self.data)
        })
    }
}

impl EventStream {
    #[must_use]
    pub fn new(streaming: Streaming) -> Self {
        let kind = streaming.header("content-type").unwrap_or_default();
        assert!(
            kind.starts_with("text/event-stream"),
            "content type {kind:?}"
        );
        Self {
            streaming,
            comments: 0,
        }
    }

    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.streaming.header(name)
    }

    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        self.streaming.body.get_ref().socket()
    }

    /// Disconnects without notice, like a client after the death of its process.
    pub fn disconnect(self) {
        // An error means that the peer closed first.
        let _ = self.socket().shutdown(Shutdown::Both);
    }

    /// # Errors
    /// The connection breaks inside the body.
    pub fn try_next(&mut self) -> io::Result<Option<SseEvent>> {
        let mut name = String::from("message");
        let (mut data, mut id): (Option<String>, Option<String>) = (None, None);
        loop {
            let mut line = String::new();
            if self.streaming.body.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                if let Some(data) = data {
                    return Ok(Some(SseEvent { name, data, id }));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => self.comments += 1,
                "event" => name = value.to_owned(),
                "id" => id = Some(value.to_owned()),
                "data" => match &mut data {
                    None => data = Some(value.to_owned()),
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                },
                _ => {}
            }
        }
    }

    /// Text of the next comment; drops events before it. Panics when there is none.
    pub fn wait_for_comment(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.streaming.body.read_line(&mut line);
            assert!(
                read.expect("a body") > 0,
                "the stream ended without a comment"
            );
            if let Some(words) = line.strip_prefix(':') {
                self.comments += 1;
                return words.trim().to_owned();
            }
        }
    }

    /// Next event of this name; drops others. Panics when there is none.
    pub fn wait_for(&mut self, name: &str) -> SseEvent {
        self.find(|event| event.name == name)
            .unwrap_or_else(|| panic!("the stream ended without a {name} event"))
    }

    /// Events up to the end of the body.
    #[must_use]
    pub fn transcript(self) -> Transcript {
        Transcript {
            events: self.collect(),
        }
    }
}

impl Iterator for EventStream {
    type Item = SseEvent;

    /// Panics when the connection breaks: a test that expects this calls
    /// [`EventStream::try_next`].
    fn next(&mut self) -> Option<SseEvent> {
        self.try_next()
            .unwrap_or_else(|error| panic!("the stream broke: {error}"))
    }
}

impl Transcript {
    /// Text of all `token` events.
    #[must_use]
    pub fn text(&self) -> String {
        let tokens = self.events.iter().filter(|event| event.name == "token");
        tokens
            .map(|event| event.json()["t"].as_str().expect("t is text").to_owned())
            .collect()
    }

    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        self.events
            .iter()
            .map(|event| event.name.as_str())
            .collect()
    }

    #[must_use]
    pub fn last(&self) -> &SseEvent {
        self.events.last().expect("at least one event")
    }

    /// Asserts the contract's shape: `started`, then `token`s numbered from 0 without a gap, then exactly one `end` or
    /// `error`.
    pub fn assert_well_formed(&self) -> &Self {
        assert_eq!(self.events[0].name, "started", "{:?}", self.names());
        let (last, middle) = self.events[1..].split_last().expect("a terminal event");
        assert!(
            ["end", "error"].contains(&last.name.as_str()),
            "{:?}",
            self.names()
        );
        let mut expected = 0;
        for event in middle {
            match event.name.as_str() {
                "token" => {
                    assert_eq!(event.json()["i"], expected, "token events are counted");
                    expected += 1;
                }
                "metrics" => {}
                other => panic!("a {other} event in the middle"),
            }
        }
        self
    }

    /// JSON of the terminal event, which must be an `end`.
    pub fn end(&self) -> Value {
        self.assert_well_formed();
        assert_eq!(self.last().name, "end", "{:?}", self.last());
        self.last().json()
    }

    /// JSON of the terminal event, which must be an `error` with this code.
    pub fn error(&self, code: &str) -> Value {
        self.assert_well_formed();
        assert_eq!(self.last().name, "error", "{:?}", self.last());
        let error = self.last().json();
        assert_eq!(error["code"], code, "{error}");
        error
    }
}
