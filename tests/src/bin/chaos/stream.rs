//! One request and its answer, from the client's side.
//!
//! The last event decides whether a stream ended well. Content is compared later, piece by piece.

use super::api::{Api, End, Parts, whole};
use super::mix::{Expects, Manner, Request};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::{Client, EventStream, Response, SseEvent};

/// 50 ms: shorter gaps are the engine's own pace under load.
pub const NOTABLE_GAP: Duration = Duration::from_millis(50);

/// 10 ms for each piece: stay of a client that disconnects before an unstreamed answer.
const HUNDREDTH: Duration = Duration::from_millis(10);

/// Outcome of a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub parts: Parts,
    pub pieces: u32,
    pub end: Ending,
    /// Recoveries that the worker's own API reports.
    pub recoveries: u64,
    /// Period of the answer: from the first token of a stream, or from the request of an unstreamed answer, to the end.
    pub under_way: Option<(Instant, Instant)>,
    /// Gaps between tokens in which a fault may have occurred.
    pub gaps: Vec<(Instant, Instant)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ending {
    /// The client left.
    #[default]
    Left,
    Complete,
    /// An expected error.
    Refused,
    Cancelled,
    Quarantined,
    /// Any other error, or a missing one, with a description.
    Failed(String),
}

/// Sends a request and reads until the answer ends or the client leaves.
///
/// # Errors
/// The answer breaks off or violates its format.
pub fn ask(
    client: &Client,
    job: &str,
    request: &Request,
    manner: Manner,
) -> Result<Answer, String> {
    let mut body = request.body.clone();
    if request.api == Api::Execute {
        body["job_id"] = json!(job);
    }
    if !request.is_streamed {
        return ask_whole(client, request, &body, manner);
    }
    let opened = client.open(request.api.path(), &body).map_err(text)?;
    if opened.status != 200 {
        let answer = opened.into_response().map_err(text)?;
        return Ok(refused(&answer, request));
    }
    let mut events = EventStream::new(opened);
    let mut reading = Reading::new(request.api, job);
    while let Some(event) = events.try_next().map_err(text)? {
        reading.event(&event)?;
        match manner {
            Manner::Reads => {}
            Manner::ReadsSlowly(nap) => thread::sleep(nap),
            Manner::Cancels(after) if reading.has_words(after + 1) && !reading.has_cancelled => {
                reading.has_cancelled = true;
                cancel(client, &reading.name)?;
            }
            Manner::Vanishes(after) if reading.has_words(after + 1) && !reading.ended => {
                return Ok(reading.answer);
            }
            Manner::Cancels(_) | Manner::Vanishes(_) => {}
        }
    }
    reading.finish()
}

fn ask_whole(
    client: &Client,
    request: &Request,
    body: &Value,
    manner: Manner,
) -> Result<Answer, String> {
    let asked = Instant::now();
    let (path, body) = (request.api.path(), body.to_string());
    if let Manner::Vanishes(after) = manner {
        let mut connection = client.connect().map_err(text)?;
        let request = client.request("POST", path, &[], body.as_bytes());
        connection.send(&request).map_err(text)?;
        thread::sleep(HUNDREDTH * (after + 1));
        return Ok(Answer::default());
    }
    let answer = client.try_request("POST", path, &[], body.as_bytes());
    let answer = answer.map_err(text)?;
    if answer.status != 200 {
        return Ok(refused(&answer, request));
    }
    Ok(Answer {
        parts: whole(answer.try_json().map_err(text)?),
        pieces: 1,
        end: Ending::Complete,
        under_way: Some((asked, Instant::now())),
        ..Answer::default()
    })
}

fn refused(refusal: &Response, request: &Request) -> Answer {
    let words = refusal.text();
    let end = match request.expects {
        Expects::Refusal if refusal.status == 400 => Ending::Refused,
        _ if is_quarantined(&words) => Ending::Quarantined,
        _ => Ending::Failed(format!("refused: {} {words}", refusal.status)),
    };
    let error = refusal.try_json().unwrap_or_default()["error"].clone();
    Answer {
        // The message depends on the compiler's progress, and so on time.
        parts: whole(json!([
            refusal.status,
            error["type"],
            error["param"],
            error["code"]
        ])),
        end,
        ..Answer::default()
    }
}

fn is_quarantined(words: &str) -> bool {
    words.to_lowercase().contains("quarantined")
}

/// Received part of a stream.
pub struct Reading {
    api: Api,
    pub answer: Answer,
    pub words: u32,
    last_word: Option<Instant>,
    pub ended: bool,
    /// Id for the worker.
    pub name: String,
    has_cancelled: bool,
}

impl Reading {
    pub fn new(api: Api, job: &str) -> Self {
        Self {
            api,
            answer: Answer::default(),
            words: 0,
            last_word: None,
            ended: false,
            name: job.to_owned(),
            has_cancelled: false,
        }
    }

    pub fn has_words(&self, count: u32) -> bool {
        self.words >= count
    }

    /// # Errors
    /// The event is not permitted here.
    pub fn event(&mut self, SseEvent { name, data, .. }: &SseEvent) -> Result<(), String> {
        if self.ended {
            return Err(format!("{name} came after the end: {data}"));
        }
        let told = self.api.read(name, data)?;
        if let Some(name) = told.name {
            self.name = name;
        }
        if let Some((part, piece)) = told.piece {
            self.answer.pieces += 1;
            self.answer.parts.entry(part).or_default().push(piece);
        }
        if told.is_word {
            self.word();
        }
        match told.end {
            None => {}
            Some(End::Complete) => {
                self.ended = true;
                self.answer.end = Ending::Complete;
                let data: Value = serde_json::from_str(data).unwrap_or_default();
                self.answer.recoveries = data["recoveries"].as_u64().unwrap_or(0);
            }
            Some(End::Error(error)) => {
                self.ended = true;
                let words = error.to_string();
                self.answer.end = match words.to_lowercase() {
                    _ if is_quarantined(&words) => Ending::Quarantined,
                    lower if lower.contains("cancelled") => Ending::Cancelled,
                    _ => Ending::Failed(words),
                };
            }
        }
        Ok(())
    }

    fn word(&mut self) {
        let now = Instant::now();
        self.words += 1;
        let began = self.answer.under_way.map_or(now, |(began, _)| began);
        self.answer.under_way = Some((began, now));
        if let Some(last) = self
            .last_word
            .replace(now)
            .filter(|last| now - *last >= NOTABLE_GAP)
        {
            self.answer.gaps.push((last, now));
        }
    }

    /// # Errors
    /// The stream has no end.
    pub fn finish(self) -> Result<Answer, String> {
        if self.ended {
            Ok(self.answer)
        } else {
            Err("it broke off without an end".to_owned())
        }
    }
}

fn cancel(client: &Client, job: &str) -> Result<(), String> {
    let body = json!({ "job_id": job }).to_string();
    let answer = client.try_request("POST", "/cancel", &[], body.as_bytes());
    match answer.map_err(text)?.status {
        202 => Ok(()),
        status => Err(format!("a cancel got {status}")),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
