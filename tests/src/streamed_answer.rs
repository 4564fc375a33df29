//! Streamed answer of any API as its client received it, and the request for the rest.

use crate::{Client, EventStream, SseEvent};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Figures that depend on the time, and on earlier requests.
const OF_THE_MOMENT: &[&str] = &[
    "cached_tokens",
    "created",
    "created_at",
    "decode_time_ms",
    "recoveries",
    "started_at",
];

/// Ids that differ between answers to equal requests.
const NAMES: &[&str] = &["id", "item_id", "call_id"];

/// Streamed answer that a client can resume.
#[derive(Debug)]
pub struct Answer {
    path: &'static str,
    events: Vec<SseEvent>,
}

impl Answer {
    /// Sends a request to `path`, and returns the first events and the stream that goes on with it.
    #[must_use]
    pub fn begin(
        client: &Client,
        path: &'static str,
        body: &Value,
        events: usize,
    ) -> (Self, EventStream) {
        let mut stream = client.stream(path, body);
        let events = stream.by_ref().take(events).collect();
        (Self { path, events }, stream)
    }

    /// Whole answer in normal form: equal for equal requests.
    #[must_use]
    pub fn whole(client: &Client, path: &'static str, body: &Value) -> Vec<Value> {
        let (mut answer, stream) = Self::begin(client, path, body, 0);
        answer.extend(stream);
        answer.normalized()
    }

    pub fn extend(&mut self, events: impl Iterator<Item = SseEvent>) {
        self.events.extend(events);
    }

    /// Requests the rest.
    #[must_use]
    pub fn ask_for_rest(&mut self, client: &Client) -> EventStream {
        let id = every_byte_encoded(&self.id());
        let (place, header) = self.place();
        let headers: Vec<_> = header.iter().map(|id| ("Last-Event-ID", &**id)).collect();
        let path = format!("{}/{id}{place}", self.path);
        let mut connection = client.connect().expect("a connection");
        let request = client.request("GET", &path, &headers, &[]);
        connection.send(&request).expect("sent");
        let streaming = connection.read_head().expect("an answer");
        assert_eq!(streaming.status, 200, "{path} {header:?}");
        EventStream::new(streaming)
    }

    fn id(&self) -> String {
        let first = self.events[0].json();
        let places = ["/job_id", "/id", "/message/id", "/response/id"];
        let id = places.iter().find_map(|it| first.pointer(it)?.as_str());
        id.expect("an answer has a name").to_owned()
    }

    /// Query and `Last-Event-ID` for the rest. Drops the received part of an incomplete piece.
    fn place(&mut self) -> (String, Option<String>) {
        let chunks = self.chunks();
        match (self.path, chunks.len()) {
            ("/v1/responses", _) => {
                let last = self.events.last().expect("an event").json();
                let number = &last["sequence_number"];
                (format!("?stream=true&starting_after={number}"), None)
            }
            ("/v1/chat/completions" | "/v1/completions", 2..) => {
                let has_role = self.path == "/v1/chat/completions";
                let counts = chunks.values().map(|count| count - usize::from(has_role));
                let counts: Vec<String> = counts.map(|it| it.to_string()).collect();
                (format!("?from={}", counts.join(".")), None)
            }
            _ => {
                while self.events.last().is_some_and(|it| it.id.is_none()) {
                    self.events.pop();
                }
                (
                    String::new(),
                    self.events.last().and_then(|it| it.id.clone()),
                )
            }
        }
    }

    /// Number of chunks of each choice.
    fn chunks(&self) -> BTreeMap<u64, usize> {
        let mut counts = BTreeMap::new();
        for event in self.events.iter().filter(|it| it.data.starts_with('{')) {
            let index = event.json()["choices"][0]["index"].as_u64();
            *counts.entry(index.unwrap_or_default()).or_default() += 1;
        }
        counts
    }

    /// All events, choice after choice, in normal form: equal for equal requests.
    #[must_use]
    pub fn normalized(&self) -> Vec<Value> {
        let mut names = BTreeMap::new();
        let events = self.events.iter().map(|event| {
            let mut data = serde_json::from_str(&event.data).unwrap_or_else(|_| json!(event.data));
            let index = data["choices"][0]["index"].as_u64();
            equalize(&mut data, &mut names);
            (index.unwrap_or(u64::MAX), json!([event.name, data]))
        });
        let mut events: Vec<_> = events.collect();
        events.sort_by_key(|(index, _)| *index);
        events.into_iter().map(|(_, event)| event).collect()
    }
}

/// Removes figures of [`OF_THE_MOMENT`], and numbers ids in order of appearance.
fn equalize(value: &mut Value, names: &mut BTreeMap<String, usize>) {
    match value {
        Value::Object(fields) => {
            for name in OF_THE_MOMENT {
                fields.remove(*name);
            }
            add_up_prompt(fields);
            for (key, field) in fields {
                match field {
                    Value::String(name) if NAMES.contains(&key.as_str()) => {
                        let next = names.len();
                        *field = json!(names.entry(name.clone()).or_insert(next));
                    }
                    field => equalize(field, names),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| equalize(it, names)),
        _ => {}
    }
}

/// Adds cached tokens to the input tokens, from which Anthropic's API excludes them.
fn add_up_prompt(usage: &mut Map<String, Value>) {
    let cached = usage.remove("cache_read_input_tokens");
    if let (Some(cached), Some(input)) = (cached, usage.get_mut("input_tokens")) {
        *input = json!(cached.as_u64().zip(input.as_u64()).map(|(a, b)| a + b));
    }
}

/// Percent-encodes every byte, which a client may do.
fn every_byte_encoded(step: &str) -> String {
    let mut encoded = String::new();
    for byte in step.bytes() {
        let _ = write!(encoded, "%{byte:02x}");
    }
    encoded
}
