//! One request and its answer, as its client sees it.
//!
//! HTTP/1.0: the answer ends when the connection does, and whether it ended well is told by its
//! last event. Token events are checked as they come: their numbers start at 0 and leave no gap.

use super::mix::Manner;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The worker fills silence with a comment every 15 s at the latest.
const SILENCE: Duration = Duration::from_secs(60);

/// Shorter ones are the engine's own pace under load.
const NOTABLE_GAP: Duration = Duration::from_millis(50);

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
pub fn ask(address: SocketAddr, job: &str, body: &Value, manner: Manner) -> Result<Answer, String> {
    let mut body = body.clone();
    body["job_id"] = json!(job);
    let mut reader = BufReader::new(post(address, "/execute", &body).map_err(text)?);
    let mut line = String::new();
    reader.read_line(&mut line).map_err(text)?;
    if !line.contains(" 200 ") {
        let mut rest = String::new();
        reader.read_to_string(&mut rest).map_err(text)?;
        let end = if rest.contains("QUARANTINED") {
            Ending::Quarantined
        } else {
            Ending::Failed(format!(
                "refused: {} {}",
                line.trim(),
                rest.replace("\r\n", " ")
            ))
        };
        return Ok(Answer {
            end,
            ..Answer::default()
        });
    }
    let mut reading = Reading {
        answer: Answer::default(),
        last_token: None,
        ended: false,
    };
    let mut name = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).map_err(text)? == 0 {
            return reading.finish();
        }
        if let Some(event) = line.strip_prefix("event: ") {
            name = event.trim_end().to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            reading.event(&name, data)?;
            match manner {
                Manner::Reads => {}
                Manner::ReadsSlowly(nap) => thread::sleep(nap),
                Manner::Cancels(after) if name == "token" && reading.answer.tokens == after + 1 => {
                    cancel(address, job)?;
                }
                Manner::Vanishes(after) if reading.answer.tokens > after && !reading.ended => {
                    return Ok(reading.answer);
                }
                Manner::Cancels(_) | Manner::Vanishes(_) => {}
            }
        }
    }
}

/// # Errors
/// When the worker does not answer.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, String), String> {
    let mut socket = connect(address).map_err(text)?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).map_err(text)?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status.ok_or("no status")?, body.to_owned()))
}

struct Reading {
    answer: Answer,
    last_token: Option<Instant>,
    ended: bool,
}

impl Reading {
    fn event(&mut self, name: &str, data: &str) -> Result<(), String> {
        if self.ended {
            return Err(format!("{name} came after the end"));
        }
        let data: Value = serde_json::from_str(data).map_err(text)?;
        match name {
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

fn cancel(address: SocketAddr, job: &str) -> Result<(), String> {
    let socket = post(address, "/cancel", &json!({ "job_id": job })).map_err(text)?;
    let mut status = String::new();
    BufReader::new(socket)
        .read_line(&mut status)
        .map_err(text)?;
    if status.contains(" 202 ") {
        Ok(())
    } else {
        Err(format!("a cancel got {status}"))
    }
}

fn post(address: SocketAddr, path: &str, body: &Value) -> std::io::Result<TcpStream> {
    let body = body.to_string();
    let mut socket = connect(address)?;
    let head =
        format!("POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    socket.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?;
    Ok(socket)
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.set_write_timeout(Some(SILENCE))?;
    Ok(socket)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
