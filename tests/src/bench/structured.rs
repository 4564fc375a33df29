//! Cost of answers under a schema: their own slowdown, and that of unconstrained streams beside them.
//!
//! Each figure is a ratio of two adjacent measurements in alternating order, so that a machine that slows down affects
//! both. A rate is of whole answers, prompts included; prompts are short.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;

/// Free texts in the array: enough that no answer is complete before its token limit.
const ITEMS: u32 = 1000;

/// 2 min for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Structured {
    client: Client,
    /// Tokens of each answer.
    tokens: u32,
    asked: AtomicU64,
}

/// Tokens per second of the answers on both sides.
#[derive(Debug, Clone, Copy)]
struct Rates {
    held: f64,
    free: f64,
}

impl Structured {
    #[must_use]
    pub fn new(mut client: Client, tokens: u32) -> Self {
        client.patience = PATIENCE;
        Self {
            client,
            tokens,
            asked: AtomicU64::new(0),
        }
    }

    /// Streams under a schema, relative to as many without one.
    ///
    /// # Errors
    /// An answer fails, or ends early.
    pub fn constrained(&self, streams: usize, rounds: usize) -> Result<Value> {
        let company = |is_held: bool| vec![is_held; streams];
        let figure = compare(rounds, |is_held| {
            let answers = self.ask(&company(is_held))?;
            let whole = answers.iter().copied().max().context("answers")?;
            let tokens = streams as f64 * f64::from(self.tokens);
            Ok(tokens / whole.as_secs_f64())
        })?;
        Ok(finding("constrained", streams, figure))
    }

    /// Streams without a schema beside a constrained one, relative to the same beside an unconstrained one.
    ///
    /// # Errors
    /// An answer fails, or ends early.
    pub fn neighbours(&self, streams: usize, rounds: usize) -> Result<Value> {
        let figure = compare(rounds, |is_held| {
            let mut company = vec![false; streams];
            company[0] = is_held;
            let answers = self.ask(&company)?;
            let of_neighbours = answers[1..].iter().copied().max().context("neighbours")?;
            let tokens = (streams - 1) as f64 * f64::from(self.tokens);
            Ok(tokens / of_neighbours.as_secs_f64())
        })?;
        Ok(finding("neighbours", streams, figure))
    }

    /// Duration of each answer, of requests sent together.
    fn ask(&self, are_held: &[bool]) -> Result<Vec<Duration>> {
        let bodies: Vec<Value> = are_held.iter().map(|is_held| self.body(*is_held)).collect();
        thread::scope(|scope| {
            let began = Instant::now();
            let asked = |body| move || self.answer(body, began);
            let threads: Vec<_> = bodies.iter().map(|it| scope.spawn(asked(it))).collect();
            let answers = threads.into_iter().map(|it| it.join());
            answers
                .map(|answer| answer.expect("no reader panics"))
                .collect()
        })
    }

    fn answer(&self, body: &Value, began: Instant) -> Result<Duration> {
        let answer = self.client.post("/v1/completions", body);
        let took = began.elapsed();
        ensure!(answer.status == 200, "{}", answer.text());
        let answer = answer.json();
        let tokens = &answer["usage"]["completion_tokens"];
        ensure!(
            *tokens == self.tokens,
            "an answer was to have {} tokens and has {tokens}: {answer}",
            self.tokens
        );
        Ok(took)
    }

    /// Request with a new prompt.
    fn body(&self, is_held: bool) -> Value {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let mut body = json!({
            "prompt": format!("{number} A list of names:"), "max_tokens": self.tokens,
            "temperature": 0.8, "seed": number,
        });
        if is_held {
            let name = json!({"type": "string"});
            let item = json!({
                "type": "object", "properties": {"name": name}, "required": ["name"],
                "additionalProperties": false,
            });
            let schema = json!({"type": "array", "items": item, "minItems": ITEMS});
            body["structured_outputs"] = json!({"json": schema});
        } else {
            body["ignore_eos"] = json!(true);
        }
        body
    }
}

/// Runs each side once to warm up, then both sides in each round.
fn compare(rounds: usize, rate: impl Fn(bool) -> Result<f64>) -> Result<Vec<Rates>> {
    let mut found = Vec::new();
    for round in 0..=rounds {
        let held_first = round % 2 == 0;
        let (first, second) = (rate(held_first)?, rate(!held_first)?);
        let (held, free) = match held_first {
            true => (first, second),
            false => (second, first),
        };
        if round > 0 {
            found.push(Rates { held, free });
        }
    }
    Ok(found)
}

fn finding(figure: &str, streams: usize, rounds: Vec<Rates>) -> Value {
    let of = |number: fn(&Rates) -> f64| {
        let mut numbers: Vec<f64> = rounds.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    };
    let median = |numbers: &[f64]| numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN);
    let ratios = of(|it| it.held / it.free);
    let round = |number: f64| (number * 1e3).round() / 1e3;
    json!({
        "figure": figure, "streams": streams,
        "with_a_schema": round(median(&of(|it| it.held))),
        "without": round(median(&of(|it| it.free))),
        "median_of_ratios": round(median(&ratios)),
        "least_ratio": ratios.first().copied().map(round),
        "largest_ratio": ratios.last().copied().map(round),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_what_rounds_compare_and_the_first_round_does_not_count() {
        let asked = std::cell::RefCell::new(Vec::new());
        let rate = |is_held: bool| {
            asked.borrow_mut().push(is_held);
            Ok(match (is_held, asked.borrow().len()) {
                (_, ..3) => 1.0,
                (true, _) => 90.0,
                (false, _) => 100.0,
            })
        };
        let found = compare(3, rate).unwrap();
        let order = [true, false, false, true, true, false, false, true];
        assert_eq!(*asked.borrow(), order);
        let told = finding("constrained", 8, found);
        assert_eq!(told["median_of_ratios"], 0.9);
        assert_eq!(
            (&told["with_a_schema"], &told["without"]),
            (&json!(90.0), &json!(100.0))
        );
    }
}
