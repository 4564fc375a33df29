//! One request and its answer, as its client sees it.
//!
//! Whether it ended well is told by its last event. Token events are checked as they come: their
//! numbers start at 0 and leave no gap.

use super::mix::Manner;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::{Client, EventStream, Response, SseEvent};

/// Shorter ones are the engine's own pace under load.
pub const NOTABLE_GAP: Duration = Duration::from_millis(50);

/// What came of a request.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub text: String,
    pub tokens: u32,
    pub end: Ending,
    /// `stop_reason`, `tokens_out`, `tokens_in` and the stop string of the `end` event.
    pub facts: Value,
    pub recoveries: u64,
    /// Between two token events, when something may have happened.
    pub gaps: Vec<(Instant, Instant)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ending {
    /// The client left.
    #[default]
    Left,
    Complete,
    Cancelled,
    Quarantined,
    /// Any other error, or none where there should have been one; in words.
    Failed(String),
}

/// Asks and reads until the answer ends or the client has had enough.
///
/// # Errors
/// When the answer breaks off or breaks the rules.
pub fn ask(client: &Client, job: &str, body: &Value, manner: Manner) -> Result<Answer, String> {
    let mut body = body.clone();
    body["job_id"] = json!(job);
    let opened = client.open("/execute", &body).map_err(text)?;
    if opened.status != 200 {
        return refused(&opened.into_response().map_err(text)?);
    }
    let mut events = EventStream::new(opened);
    let mut reading = Reading {
        answer: Answer::default(),
        last_token: None,
        ended: false,
    };
    while let Some(event) = events.try_next().map_err(text)? {
        reading.event(&event)?;
        match manner {
            Manner::Reads => {}
            Manner::ReadsSlowly(nap) => thread::sleep(nap),
            Manner::Cancels(after)
                if event.name == "token" && reading.answer.tokens == after + 1 =>
            {
                cancel(client, job)?;
            }
            Manner::Vanishes(after) if reading.answer.tokens > after && !reading.ended => {
                return Ok(reading.answer);
            }
            Manner::Cancels(_) | Manner::Vanishes(_) => {}
        }
    }
    reading.finish()
}

fn refused(refusal: &Response) -> Result<Answer, String> {
    let words = refusal.text();
    let end = if words.contains("QUARANTINED") {
        Ending::Quarantined
    } else {
        Ending::Failed(format!("refused: {} {words}", refusal.status))
    };
    Ok(Answer {
        end,
        ..Answer::default()
    })
}

struct Reading {
    answer: Answer,
    last_token: Option<Instant>,
    ended: bool,
}

impl Reading {
    fn event(&mut self, SseEvent { name, data, .. }: &SseEvent) -> Result<(), String> {
        if self.ended {
            return Err(format!("{name} came after the end"));
        }
        let data: Value = serde_json::from_str(data).map_err(text)?;
        match name.as_str() {
            "started" => {}
            "token" => self.token(&data)?,
            "end" => {
                self.ended = true;
                self.answer.end = Ending::Complete;
                self.answer.recoveries = data["recoveries"].as_u64().unwrap_or(0);
                self.answer.facts = json!([
                    data["stop_reason"],
                    data["tokens_out"],
                    data["tokens_in"],
                    data["stop_sequence_matched"],
                ]);
            }
            "error" => {
                self.ended = true;
                self.answer.end = match data["code"].as_str() {
                    Some("CANCELLED") => Ending::Cancelled,
                    Some("QUARANTINED") => Ending::Quarantined,
                    _ => Ending::Failed(data.to_string()),
                };
            }
            _ => return Err(format!("an event named {name:?}")),
        }
        Ok(())
    }

    fn token(&mut self, data: &Value) -> Result<(), String> {
        let (now, index) = (Instant::now(), data["i"].as_u64());
        if index != Some(u64::from(self.answer.tokens)) {
            return Err(format!(
                "token {index:?} where {} was due",
                self.answer.tokens
            ));
        }
        self.answer
            .text
            .push_str(data["t"].as_str().ok_or("a token without text")?);
        self.answer.tokens += 1;
        if let Some(last) = self
            .last_token
            .replace(now)
            .filter(|last| now - *last >= NOTABLE_GAP)
        {
            self.answer.gaps.push((last, now));
        }
        Ok(())
    }

    fn finish(self) -> Result<Answer, String> {
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
