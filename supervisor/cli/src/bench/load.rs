//! Load generator of a benchmark: sends the requests and records the arrival time of each chunk.
//!
//! The clock of a request starts when it is sent, on a new connection that is already open (`vllm bench serve` reuses
//! connections). An answer that breaks off, or has no `[DONE]` or no usage, counts as failed and adds nothing to the
//! figures.

use crate::remote::{DONE, Events, Refusal, Remote, accepted, code_of, words_of};
use clap::ArgMatches;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

const PATH: &str = "/v1/completions";

/// Common words, each of which is one token in most vocabularies.
const WORDS: [&str; 32] = [
    "time", "people", "way", "water", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home",
];

/// Complete answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    /// Arrival times of the chunks, since the request was sent. Never empty.
    pub(super) chunks: Vec<Duration>,
    pub(super) usage: Usage,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
}

impl Usage {
    fn of(chunk: &Value) -> Option<Self> {
        let usage = &chunk["usage"];
        Some(Self {
            prompt_tokens: usage["prompt_tokens"].as_u64()?,
            completion_tokens: usage["completion_tokens"].as_u64()?,
        })
    }
}

#[derive(Debug)]
struct Failure {
    code: String,
    words: String,
}

impl Failure {
    fn new(code: &str, words: impl ToString) -> Self {
        Self {
            code: code.to_owned(),
            words: words.to_string(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let words = refusal.to_string();
        let status = || refusal.status.as_str().to_owned();
        Self {
            code: refusal.code.unwrap_or_else(status),
            words,
        }
    }
}

/// Result of all requests.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Time from the first request to the last answer.
    pub(super) duration: Duration,
    pub(super) answers: Vec<Answer>,
    /// Failures by code: number, and message of the first.
    pub(super) failures: BTreeMap<String, (u64, String)>,
}

/// Requests and their send times.
#[derive(Debug)]
pub(super) struct Load {
    /// Send times since the start, and bodies.
    requests: Vec<(Duration, Value)>,
    max_concurrency: usize,
    timeout: Duration,
}

impl Load {
    pub(super) fn new(arguments: &ArgMatches) -> Self {
        let count = |name: &str| arguments.get_one::<u32>(name).map(|count| *count as usize);
        let number = |name: &str| arguments.get_one::<f64>(name).copied();
        let (requests, words) = (count("num-prompts"), count("input-len"));
        let seed = arguments.get_one::<u64>("seed").copied();
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed.unwrap_or_default());
        let fields = fields(arguments);
        let body = |_| {
            let mut body = fields.clone();
            let prompt = prompt(&mut random, words.unwrap_or_default());
            body.insert("prompt".to_owned(), json!(prompt));
            Value::from(body)
        };
        let bodies: Vec<Value> = (0..requests.unwrap_or_default()).map(body).collect();
        // Drawn after the prompts: these are then independent of the rate.
        let arrivals = arrivals(&mut random, bodies.len(), number("request-rate"));
        Self {
            requests: arrivals.into_iter().zip(bodies).collect(),
            max_concurrency: count("max-concurrency").unwrap_or(Semaphore::MAX_PERMITS),
            timeout: Duration::from_secs_f64(number("timeout").unwrap_or_default()),
        }
    }

    pub(super) async fn run(self, server: Remote) -> Outcome {
        let (server, permits) = (
            Arc::new(server),
            Arc::new(Semaphore::new(self.max_concurrency)),
        );
        let (begin, mut running) = (Instant::now(), JoinSet::new());
        for (at, body) in self.requests {
            tokio::time::sleep_until(begin + at).await;
            let (server, permits) = (server.clone(), permits.clone());
            running.spawn(async move {
                let _permit = permits.acquire().await;
                let answer = tokio::time::timeout(self.timeout, answer(&server, &body)).await;
                answer.unwrap_or_else(|_| Err(Failure::new("timed_out", "no whole answer in time")))
            });
        }
        let answers = running.join_all().await;
        let mut outcome = Outcome {
            duration: begin.elapsed(),
            ..Outcome::default()
        };
        for answer in answers {
            match answer {
                Ok(answer) => outcome.answers.push(answer),
                Err(Failure { code, words }) => {
                    outcome.failures.entry(code).or_insert((0, words)).0 += 1;
                }
            }
        }
        outcome
    }
}

/// Fields of every request except its prompt.
fn fields(arguments: &ArgMatches) -> Map<String, Value> {
    let given = [
        (
            "model",
            arguments.get_one::<String>("model").map(|it| json!(it)),
        ),
        (
            "max_tokens",
            arguments.get_one::<u32>("output-len").map(|it| json!(it)),
        ),
        (
            "ignore_eos",
            arguments.get_flag("ignore-eos").then_some(json!(true)),
        ),
        ("stream", Some(json!(true))),
        ("stream_options", Some(json!({"include_usage": true}))),
    ];
    let given = given.into_iter();
    given
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

fn prompt(random: &mut Xoshiro256PlusPlus, words: usize) -> String {
    let word = |_| WORDS[random.random_range(0..WORDS.len())];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

/// Send times: a Poisson process, stretched so that the last request is sent when a steady rate would send it, as in
/// vLLM. Without a rate, all requests are sent at once.
fn arrivals(random: &mut Xoshiro256PlusPlus, count: usize, rate: Option<f64>) -> Vec<Duration> {
    let Some(rate) = rate else {
        return vec![Duration::ZERO; count];
    };
    let mut elapsed = 0.0;
    let arrival = |_| {
        elapsed -= (1.0 - random.random::<f64>()).ln();
        elapsed
    };
    let arrivals: Vec<f64> = (0..count).map(arrival).collect();
    let stretch = count as f64 / rate / elapsed;
    let arrivals = arrivals.into_iter();
    arrivals
        .map(|at| Duration::from_secs_f64(at * stretch))
        .collect()
}

async fn answer(server: &Remote, body: &Value) -> Result<Answer, Failure> {
    let connected = server.connect().await;
    let connection = connected.map_err(|why| Failure::new("connection_failed", why))?;
    let request = server.post(PATH, body);
    let request = request.map_err(|why| Failure::new("no_request", why))?;
    let sent = Instant::now();
    let head = connection.send(request).await;
    let head = head.map_err(|why| Failure::new("broken_off", why))?;
    let mut events = Events::of(accepted(head).await?);
    let (mut chunks, mut usage) = (Vec::new(), None);
    loop {
        let data = events.next().await;
        let at = sent.elapsed();
        let data = data.map_err(|why| Failure::new("broken_off", format!("{why:#}")))?;
        let Some(data) = data else {
            return Err(Failure::new(
                "incomplete",
                "the answer ended without [DONE]",
            ));
        };
        if data == DONE {
            break;
        }
        let chunk: Value =
            serde_json::from_str(&data).map_err(|why| Failure::new("no_json", why))?;
        if let Some(words) = words_of(&chunk) {
            let code = code_of(&chunk).unwrap_or("error".to_owned());
            return Err(Failure { code, words });
        }
        // The usage chunk has no choices.
        if chunk["choices"]
            .as_array()
            .is_some_and(|choices| !choices.is_empty())
        {
            chunks.push(at);
        }
        usage = Usage::of(&chunk).or(usage);
    }
    match usage {
        Some(usage) if !chunks.is_empty() => Ok(Answer { chunks, usage }),
        Some(_) => Err(Failure::new("incomplete", "the answer has no chunk")),
        None => Err(Failure::new(
            "no_usage",
            "the server did not count the tokens",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random() -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(7)
    }

    #[test]
    fn a_prompt_has_its_words_and_is_the_seeds() {
        let (one, same) = (prompt(&mut random(), 20), prompt(&mut random(), 20));
        assert_eq!(one.split(' ').count(), 20);
        assert_eq!(one, same);
        let mut random = random();
        assert_ne!(prompt(&mut random, 20), prompt(&mut random, 20));
    }

    #[test]
    fn arrivals_are_in_order_and_end_where_a_steady_rate_would() {
        let arrivals = arrivals(&mut random(), 1000, Some(50.0));
        assert!(arrivals.is_sorted());
        let end = arrivals[999].as_secs_f64();
        assert!((end - 20.0).abs() < 1e-6, "{end}");
        // A share of 1/e of exponentially distributed gaps is longer than the mean.
        let gaps = arrivals
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64());
        let long = gaps.filter(|gap| *gap > 1.0 / 50.0).count();
        assert!((320..420).contains(&long), "{long}");
    }

    #[test]
    fn without_a_rate_all_are_there_at_once() {
        assert_eq!(arrivals(&mut random(), 3, None), [Duration::ZERO; 3]);
    }
}
