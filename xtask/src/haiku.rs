//! `cargo xtask haiku`: proof that streamed tokens come from a model.
//!
//! A unique prompt (the current minute in words and a fresh nonce) is streamed over HTTP with a seed made of the time.
//! Then every streamed token is derived again from the logits trace, by a sampler written from the definitions in
//! another language (`tests/oracle/rederive.py`). The haiku must contain the minute. A small model often omits it; the
//! command then fails with that reason.

use crate::worker::{self, Worker};
use crate::{fetch_model, paths, process, python};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
pub struct Arguments {
    /// A GGUF file; the default model is fetched when it is missing.
    #[arg(long)]
    model: Option<PathBuf>,
}

const PATIENCE: Duration = Duration::from_secs(30);
/// More than any vocabulary has, so that the trace contains whole rows.
const ALL_VALUES: u32 = 1_000_000;

pub fn run(arguments: &Arguments) -> Result<()> {
    let model = match &arguments.model {
        Some(path) => path.clone(),
        None => fetch_model::run()?,
    };
    let python = python::interpreter()?;
    worker::build()?;
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace.jsonl");
    let flags = [
        "--trace-logits".to_owned(),
        trace.to_string_lossy().into_owned(),
        "--trace-values".to_owned(),
        ALL_VALUES.to_string(),
    ];
    let worker = Worker::start(&model, &flags, Box::new(|_, _| {}))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let word = minute_word(now.as_secs() / 60 % 60);
    let request = request(&word, now);
    println!("the word is {word:?}\n");
    let start = Instant::now();
    let haiku = stream(&worker, &request)?;
    let took = start.elapsed();
    worker.stop()?;
    println!("{}\n", haiku.text);

    ensure!(took <= PATIENCE, "it took {took:?}, more than {PATIENCE:?}");
    let transcript = folder.path().join("transcript.json");
    fs::write(&transcript, json!([haiku.transcript(&request)]).to_string())?;
    process::run(
        Command::new(python)
            .arg(paths::oracle_script("rederive.py"))
            .arg(&model)
            .arg(&trace)
            .arg(&transcript),
    )?;
    ensure!(
        has_word(&haiku.text, &word),
        "the model streamed real tokens, but its haiku does not contain {word:?}"
    );
    println!(
        "a haiku with {word:?}, {} tokens in {:.1} s",
        haiku.tokens,
        took.as_secs_f64()
    );
    Ok(())
}

/// Whether the text contains the word as a whole: "one" is not in "stone", nor "seven" in "seventy-seven".
fn has_word(text: &str, word: &str) -> bool {
    let is_of_a_word = |letter: char| letter.is_alphanumeric() || letter == '-';
    text.to_lowercase()
        .split(|letter| !is_of_a_word(letter))
        .any(|found| found.trim_matches('-') == word)
}

fn request(word: &str, now: Duration) -> Value {
    let nonce = nonce(now);
    json!({
        "job_id": format!("haiku-{nonce}"),
        "messages": [{
            "role": "user",
            "content": format!(
                "Write a haiku that contains the word \"{word}\". Reference: {nonce}. \
                 Answer with the haiku only."
            ),
        }],
        "max_tokens": 64,
        "temperature": 0.7,
        "top_p": 0.95,
        "seed": u64::try_from(now.as_nanos() & u128::from(u32::MAX)).expect("32 bits"),
    })
}

/// Haiku as received.
struct Haiku {
    text: String,
    tokens: u64,
    end: Value,
    seed: u64,
}

impl Haiku {
    fn transcript(&self, request: &Value) -> Value {
        json!({
            "text": self.text,
            "tokens_in": self.end["tokens_in"],
            "tokens_out": self.end["tokens_out"],
            "stop_reason": self.end["stop_reason"],
            "parameters": {
                "seed": self.seed,
                "temperature": request["temperature"],
                "top_p": request["top_p"],
            },
        })
    }
}

/// Streams a haiku. Checks the order `started → token… → end` and the server's token count.
fn stream(worker: &Worker, request: &Value) -> Result<Haiku> {
    let (mut text, mut next, mut seed, mut end) = (String::new(), 0, None, None);
    let mut events = worker.client.try_stream("/execute", request)?;
    while let Some(event) = events.try_next()? {
        let data: Value = serde_json::from_str(&event.data)?;
        ensure!(end.is_none(), "a {} event after the end", event.name);
        match event.name.as_str() {
            "started" if seed.is_none() => seed = data["seed"].as_u64(),
            "token" => {
                ensure!(seed.is_some(), "a token before the start");
                ensure!(data["i"] == next, "token {} in place of {next}", data["i"]);
                next += 1;
                text.push_str(data["t"].as_str().context("a token has text")?);
            }
            "metrics" => {}
            "end" => end = Some(data),
            other => bail!("an unexpected {other} event: {data}"),
        }
    }
    let end = end.context("the stream has no end")?;
    let tokens = end["tokens_out"]
        .as_u64()
        .context("the end counts its tokens")?;
    ensure!(
        tokens > 0 && tokens >= next,
        "{next} token events, but {tokens} tokens"
    );
    Ok(Haiku {
        text,
        tokens,
        end,
        seed: seed.context("no started event")?,
    })
}

/// Eight characters derived from the time and this process.
fn nonce(now: Duration) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{}-{}", now.as_nanos(), std::process::id()));
    digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn minute_word(minute: u64) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 6] = ["", "", "twenty", "thirty", "forty", "fifty"];
    let index = |value| usize::try_from(value).expect("a minute is small");
    match (minute / 10, minute % 10) {
        (0 | 1, _) => SMALL[index(minute)].to_owned(),
        (tens, 0) => TENS[index(tens)].to_owned(),
        (tens, ones) => format!("{}-{}", TENS[index(tens)], SMALL[index(ones)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_spelled_out() {
        let words = [0, 9, 13, 20, 37, 59].map(minute_word);
        assert_eq!(
            words,
            [
                "zero",
                "nine",
                "thirteen",
                "twenty",
                "thirty-seven",
                "fifty-nine"
            ]
        );
    }

    #[test]
    fn a_minute_is_a_word_of_its_own() {
        for (text, word) in [
            ("One drop, two drops", "one"),
            ("at Ten\u{2014}", "ten"),
            ("- thirty-seven leaves", "thirty-seven"),
            ("rain - five - falls", "five"),
        ] {
            assert!(has_word(text, word), "{word} in {text:?}");
        }
        for (text, word) in [
            ("a stone", "one"),
            ("tender grass", "ten"),
            ("seventeen", "seven"),
            ("thirty-seven", "seven"),
            ("", "one"),
        ] {
            assert!(!has_word(text, word), "{word} in {text:?}");
        }
    }

    #[test]
    fn a_nonce_has_eight_characters_and_does_not_come_back() {
        let (one, two) = (
            nonce(Duration::from_nanos(1)),
            nonce(Duration::from_nanos(2)),
        );
        assert_eq!(one.len(), 8);
        assert_ne!(one, two);
    }
}
