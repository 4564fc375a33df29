//! Check of the `sse` fuzz target. The tests that replay its seeds run it too.

use serde_json::Value;
use std::time::Duration;
use worker_orcd_api::answer_format::OpenAiOptions;
use worker_orcd_api::choices::Layout;
use worker_orcd_api::execute::events::{ExecuteEvents, Started};
use worker_orcd_api::openai::stream::Chunks;
use worker_orcd_api::openai::{Header, Kind};
use worker_orcd_api::render::Render;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_requests::{Completion, Drafts, Failure, Piece, StopReason};
use worker_orcd_text::tools::Parsing;
use worker_orcd_text::{Detokenizer, StopMatcher};

/// Tokens, stop strings and end of a stream, all read from the seed's bytes.
struct Story<'a> {
    dialect: u8,
    fails: bool,
    stops: Vec<String>,
    tokens: Vec<&'a [u8]>,
}

/// Event that a client of the specification receives.
struct Event {
    name: String,
    id: Option<u32>,
    data: String,
}

/// Renders and reads back a stream. True when it ended at a stop string.
pub fn check(data: &[u8]) -> bool {
    let Some(story) = Story::read(data) else {
        return false;
    };
    let (out, text, stopped) = match story.dialect % 3 {
        0 => story.rendered(ExecuteEvents::new(started(), story.dialect >= 128, || {
            Some(7)
        })),
        1 => story.rendered(chunks(Kind::Chat, story.dialect)),
        _ => story.rendered(chunks(Kind::Completion, story.dialect)),
    };
    let events = events(&out);
    match story.dialect % 3 {
        0 => is_a_job(&events, &text, story.fails),
        _ => is_chunks(&events, &text, story.fails),
    }
    stopped
}

impl<'a> Story<'a> {
    fn read(data: &'a [u8]) -> Option<Self> {
        let (&dialect, rest) = data.split_first()?;
        let (&shape, mut rest) = rest.split_first()?;
        let mut piece = || {
            let (&length, behind) = rest.split_first()?;
            let (piece, behind) = behind.split_at(usize::from(length % 16).min(behind.len()));
            rest = behind;
            Some(piece)
        };
        let stops = (0..shape % 5)
            .map_while(|_| piece())
            .map(|stop| String::from_utf8_lossy(stop).into_owned())
            .collect();
        let tokens = std::iter::from_fn(piece).collect();
        Some(Self {
            dialect,
            fails: shape >= 128,
            stops,
            tokens,
        })
    }

    /// Renders the stream as `requests/progress.rs` does. Returns the bytes, the text in them, and whether it stopped.
    fn rendered(&self, mut render: impl Render) -> (Vec<u8>, String, bool) {
        let (mut out, mut told, mut stopped) = (Vec::new(), String::new(), false);
        let mut detokenizer = Detokenizer::default();
        let mut stop = StopMatcher::new(&self.stops);
        render.begin(&mut out);
        let (mut count, mut number) = (0, 0);
        for token in &self.tokens {
            let mut text = String::new();
            let mut piece = Piece {
                text: String::new(),
                index: count,
                number,
                echoes: false,
                logprobs: None,
            };
            detokenizer.push(token, &mut text);
            stopped = stop.push(&text, &mut piece.text).is_some();
            if !piece.text.is_empty() {
                render.text(&piece, &mut out);
                number += 1;
                told.push_str(&piece.text);
            }
            count += 1;
            render.progress(count, &mut out);
            if stopped {
                break;
            }
        }
        if self.fails {
            render.failed(&Failure::new(ErrorCode::Internal, told.clone()), &mut out);
        } else {
            let matched = stopped.then(|| self.stops.first().cloned()).flatten();
            let completion = completion(count, matched);
            render.finished(&completion, &mut out);
            render.end(&[completion], Layout::default(), &mut out);
        }
        (out, told, stopped)
    }
}

fn started() -> Started {
    Started {
        job_id: "a \"b\"\r\n".to_owned(),
        model: "m\n\ndata: x".to_owned(),
        seed: u64::MAX,
    }
}

fn chunks(kind: Kind, bits: u8) -> Chunks {
    let header = Header {
        kind,
        id: "chatcmpl-1".to_owned(),
        created: 1,
        model: "m\n\ndata: x".to_owned(),
        fingerprint: "fp_1".to_owned(),
        parsing: Parsing::default(),
        must_call: false,
    };
    let options = OpenAiOptions {
        include_usage: bits & 64 != 0,
        continuous_usage: bits & 32 != 0,
        ..OpenAiOptions::default()
    };
    Chunks::new(&header, (0, "chatcmpl-1"), options, 3)
}

fn completion(tokens_out: u32, stop_sequence: Option<String>) -> Completion {
    Completion {
        stop_reason: StopReason::Eos,
        stop_sequence,
        tokens_in: 3,
        cached_tokens: 0,
        tokens_out,
        drafts: Drafts::default(),
        queued_for: None,
        first_token_after: Duration::ZERO,
        decode_time: Duration::ZERO,
        recoveries: 0,
    }
}

/// Events by the WHATWG specification. All output must belong to an event.
fn events(out: &[u8]) -> Vec<Event> {
    let text = std::str::from_utf8(out).expect("a stream is UTF-8");
    assert!(!text.contains('\r'), "a line ends with a line feed");
    let text = text.strip_suffix("\n\n").expect("the last event is whole");
    text.split("\n\n").map(event).collect()
}

fn event(block: &str) -> Event {
    let mut event = Event {
        name: "message".to_owned(),
        id: None,
        data: String::new(),
    };
    for line in block.split('\n') {
        let (field, value) = line.split_once(": ").expect("a field and its value");
        match field {
            "event" => event.name = value.to_owned(),
            "id" => event.id = Some(value.parse().expect("an id is a number")),
            "data" => {
                assert!(event.data.is_empty(), "data is one line");
                event.data = value.to_owned();
            }
            other => panic!("{other} is no field of ours"),
        }
    }
    assert!(!event.data.is_empty(), "an event without data is dropped");
    event
}

fn json(event: &Event) -> Value {
    serde_json::from_str(&event.data).expect("data is JSON")
}

fn is_job_text(event: &Event, number: usize, last_id: &mut Option<u32>) -> String {
    let data = json(event);
    assert_eq!(data["i"], number, "token events are counted");
    assert!(event.id > *last_id, "ids grow");
    *last_id = event.id;
    data["t"].as_str().expect("text").to_owned()
}

fn is_a_job(events: &[Event], text: &str, fails: bool) {
    assert_eq!(events[0].name, "started");
    assert_eq!(json(&events[0])["seed"], u64::MAX);
    let (last, middle) = events[1..].split_last().expect("an end");
    assert_eq!(last.name, if fails { "error" } else { "end" });
    json(last);
    let tokens = middle.iter().filter(|event| event.name == "token");
    let mut last_id = None;
    let told: String = tokens
        .enumerate()
        .map(|(number, event)| is_job_text(event, number, &mut last_id))
        .collect();
    assert_eq!(told, text);
    let others = middle.iter().filter(|event| event.name != "token");
    assert!(others.into_iter().all(|event| event.name == "metrics"));
}

fn is_chunks(events: &[Event], text: &str, fails: bool) {
    assert!(
        events
            .iter()
            .all(|event| event.name == "message" && event.id.is_none())
    );
    let (last, chunks) = events.split_last().expect("an end");
    if fails {
        assert!(json(last)["error"]["message"].is_string());
    } else {
        assert_eq!(last.data, "[DONE]");
    }
    let told: String = chunks
        .iter()
        .map(json)
        .filter_map(|chunk| {
            let choice = &chunk["choices"][0];
            let piece = choice["delta"]["content"]
                .as_str()
                .or(choice["text"].as_str());
            piece.map(str::to_owned)
        })
        .collect();
    assert_eq!(told, text);
}
