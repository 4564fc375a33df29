//! Figures of a benchmark, as vLLM defines them (`vllm/benchmarks/serve.py`, `calculate_metrics`;
//! `vllm/benchmarks/lib/endpoint_request_func.py`).
//!
//! - TTFT, time to first token: from sending a request to the first chunk of its answer.
//! - ITL, inter-token latency: from each chunk to the next, whatever its content; all answers together.
//! - E2EL, end-to-end latency: from sending a request to the last chunk.
//! - TPOT, time per output token: (E2EL - TTFT) / (tokens - 1), of each answer of more than one token.
//! - Throughput: completed requests, and tokens of their usage, per second of the whole run.
//! - Goodput: answers within all limits, per second. The TPOT of an answer of one token is 0 here.
//!
//! A chunk has at least one choice. Percentiles are interpolated linearly, as in numpy.

use super::load::{Answer, Outcome};
use serde_json::{Map, Value, json};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// Latency limit of a good answer, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    figure: Figure,
    ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    Ttft,
    Tpot,
    E2el,
}

impl Limit {
    /// Parses `ttft:200`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (name, ms) = text.split_once(':').ok_or("is no FIGURE:MS")?;
        let figure = match name {
            "ttft" => Figure::Ttft,
            "tpot" => Figure::Tpot,
            "e2el" => Figure::E2el,
            _ => return Err(format!("{name:?} is none of ttft, tpot, e2el")),
        };
        let ms = ms.parse().ok().filter(|ms: &f64| *ms >= 0.0);
        let ms = ms.ok_or("has no milliseconds behind the colon")?;
        Ok(Self { figure, ms })
    }

    fn is_kept_by(self, answer: &Answer) -> bool {
        let found = match self.figure {
            Figure::Ttft => answer.ttft(),
            Figure::Tpot => answer.tpot().unwrap_or_default(),
            Figure::E2el => answer.e2el(),
        };
        found <= self.ms
    }
}

/// Latencies, in milliseconds.
impl Answer {
    fn ttft(&self) -> f64 {
        self.chunks.first().copied().map_or(0.0, ms)
    }

    fn e2el(&self) -> f64 {
        self.chunks.last().copied().map_or(0.0, ms)
    }

    fn tpot(&self) -> Option<f64> {
        let others = self.usage.completion_tokens.checked_sub(1)?;
        (others > 0).then(|| (self.e2el() - self.ttft()) / others as f64)
    }

    fn itl(&self) -> impl Iterator<Item = f64> {
        self.chunks.windows(2).map(|pair| ms(pair[1] - pair[0]))
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `None`: no values were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summary {
    mean: f64,
    median: f64,
    p99: f64,
}

impl Summary {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let sum: f64 = sorted.iter().sum();
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            p99: quantile(&sorted, 0.99)?,
            mean: sum / sorted.len() as f64,
        })
    }
}

/// Quantile, interpolated between the two nearest values.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = share * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

#[derive(Debug)]
pub(super) struct Figures {
    pub(super) completed: u64,
    pub(super) failed: u64,
    errors: Map<String, Value>,
    seconds: f64,
    input_tokens: u64,
    output_tokens: u64,
    /// Good answers; `None` without limits.
    good: Option<u64>,
    /// Latencies by name.
    latencies: [(&'static str, Option<Summary>); 4],
}

impl Figures {
    pub(super) fn of(outcome: &Outcome, limits: &[Limit]) -> Self {
        let answers = &outcome.answers;
        let is_good = |answer: &&Answer| limits.iter().all(|limit| limit.is_kept_by(answer));
        let failures = outcome.failures.iter();
        let errors = failures.map(|(code, (count, _))| (code.clone(), json!(count)));
        Self {
            completed: answers.len() as u64,
            failed: outcome.failures.values().map(|(count, _)| count).sum(),
            errors: errors.collect(),
            seconds: outcome.duration.as_secs_f64(),
            input_tokens: answers.iter().map(|it| it.usage.prompt_tokens).sum(),
            output_tokens: answers.iter().map(|it| it.usage.completion_tokens).sum(),
            good: (!limits.is_empty()).then(|| answers.iter().filter(is_good).count() as u64),
            latencies: [
                ("ttft", Summary::of(answers.iter().map(Answer::ttft))),
                ("tpot", Summary::of(answers.iter().filter_map(Answer::tpot))),
                ("itl", Summary::of(answers.iter().flat_map(Answer::itl))),
                ("e2el", Summary::of(answers.iter().map(Answer::e2el))),
            ],
        }
    }

    fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }

    fn tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }

    /// Figures under vLLM's field names.
    pub(super) fn json(&self) -> Map<String, Value> {
        let fields = [
            ("duration", json!(self.seconds)),
            ("completed", json!(self.completed)),
            ("failed", json!(self.failed)),
            ("errors", json!(self.errors)),
            ("total_input_tokens", json!(self.input_tokens)),
            ("total_output_tokens", json!(self.output_tokens)),
            ("request_throughput", json!(self.rate(self.completed))),
            (
                "request_goodput",
                json!(self.good.map(|good| self.rate(good))),
            ),
            ("output_throughput", json!(self.rate(self.output_tokens))),
            ("total_token_throughput", json!(self.rate(self.tokens()))),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        let mut fields = Map::from_iter(fields);
        for (name, found) in self.latencies {
            let mut put = |which: &str, value: Option<f64>| {
                fields.insert(format!("{which}_{name}_ms"), json!(value));
            };
            put("mean", found.map(|it| it.mean));
            put("median", found.map(|it| it.median));
            put("p99", found.map(|it| it.p99));
        }
        fields
    }
}

impl Display for Figures {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: String| writeln!(out, "{name:<20}{value:>12}");
        line("completed", self.completed.to_string())?;
        line("failed", self.failed.to_string())?;
        line("seconds", format!("{:.3}", self.seconds))?;
        line("input tokens", self.input_tokens.to_string())?;
        line("output tokens", self.output_tokens.to_string())?;
        line("requests/s", format!("{:.3}", self.rate(self.completed)))?;
        if let Some(good) = self.good {
            line("good requests/s", format!("{:.3}", self.rate(good)))?;
        }
        line(
            "output tokens/s",
            format!("{:.2}", self.rate(self.output_tokens)),
        )?;
        line("all tokens/s", format!("{:.2}", self.rate(self.tokens())))?;
        writeln!(
            out,
            "\n{:<8}{:>12}{:>12}{:>12}",
            "ms", "mean", "median", "p99"
        )?;
        for (name, found) in self.latencies {
            let cell = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.2}"));
            let (mean, median) = (found.map(|it| it.mean), found.map(|it| it.median));
            let cells = [mean, median, found.map(|it| it.p99)].map(cell);
            let [mean, median, p99] = cells;
            writeln!(
                out,
                "{:<8}{mean:>12}{median:>12}{p99:>12}",
                name.to_uppercase()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::Usage;
    use super::*;

    fn answer(chunks: &[u64], completion_tokens: u64) -> Answer {
        let usage = Usage {
            prompt_tokens: 10,
            completion_tokens,
        };
        let chunks = chunks.iter().copied().map(Duration::from_millis);
        Answer {
            chunks: chunks.collect(),
            usage,
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            duration: Duration::from_secs(2),
            // Two tokens in one chunk, a chunk without a token, and an answer of one token.
            answers: vec![
                answer(&[100, 150, 300], 5),
                answer(&[20, 60, 62], 2),
                answer(&[40], 1),
            ],
            failures: [("429".to_owned(), (2, "full".to_owned()))].into(),
        }
    }

    #[test]
    fn figures_are_those_of_vllm() {
        let json = Figures::of(&outcome(), &[]).json();
        let is = |name: &str, expected: f64| {
            let found = json[name].as_f64().unwrap_or(f64::NAN);
            assert!(
                (found - expected).abs() < 1e-6,
                "{name}: {found}, {expected}"
            );
        };
        is("completed", 3.0);
        is("failed", 2.0);
        assert_eq!(json["errors"], json!({"429": 2}));
        is("total_input_tokens", 30.0);
        is("total_output_tokens", 8.0);
        is("request_throughput", 1.5);
        is("output_throughput", 4.0);
        is("total_token_throughput", 19.0);
        is("mean_ttft_ms", 160.0 / 3.0);
        is("median_ttft_ms", 40.0);
        // Between 40 and 100, at 1.98 of 2.
        is("p99_ttft_ms", 98.8);
        // 200 / 4 and 42 / 1; one token has none.
        is("mean_tpot_ms", 46.0);
        is("median_tpot_ms", 46.0);
        is("mean_itl_ms", (50.0 + 150.0 + 40.0 + 2.0) / 4.0);
        is("median_itl_ms", 45.0);
        is("mean_e2el_ms", (300.0 + 62.0 + 40.0) / 3.0);
        assert!(json["request_goodput"].is_null());
    }

    #[test]
    fn good_is_who_keeps_every_limit() {
        let good = |limits: &[&str]| {
            let limits = limits.iter().map(|limit| Limit::parse(limit).unwrap());
            let figures = Figures::of(&outcome(), &limits.collect::<Vec<_>>());
            figures.json()["request_goodput"].as_f64().unwrap()
        };
        assert_eq!(good(&["ttft:100"]), 1.5);
        assert_eq!(good(&["ttft:99"]), 1.0);
        assert_eq!(good(&["tpot:45"]), 1.0);
        assert_eq!(good(&["ttft:30", "e2el:62"]), 0.5);
        for wrong in ["ttft", "itl:3", "ttft:fast", "ttft:-1", "ttft:NaN"] {
            assert!(Limit::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_not_measured_has_no_number() {
        let nothing = Outcome {
            duration: Duration::from_secs(1),
            ..Outcome::default()
        };
        let figures = Figures::of(&nothing, &[]);
        assert!(figures.json()["p99_e2el_ms"].is_null());
        let table = figures.to_string();
        assert!(
            table.contains("TTFT               -           -           -"),
            "{table}"
        );
    }
}
