//! Gaps of streams while prompts arrive, compared with those without.

use super::served::Served;
use super::{Settings, print};
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::bench::{Burst, Latencies};

#[derive(Debug, Clone, Args)]
pub struct Arriving {
    /// Streams that run while prompts arrive.
    #[arg(id = "mixed-streams", long = "mixed-streams", default_value_t = 32)]
    pub streams: usize,
    /// Tokens of a prompt that arrives; its answer is one token.
    #[arg(long, default_value_t = 1024)]
    arriving_tokens: usize,
    /// Milliseconds from one arrival to the next.
    #[arg(long, default_value_t = 100)]
    every_ms: u64,
    /// Tokens of each stream, at most: as many as would take half of the patience alone.
    #[arg(long, default_value_t = 1024)]
    mixed_tokens: usize,
}

impl Arriving {
    pub fn longest(&self, settings: &Settings) -> usize {
        self.arriving_tokens
            .max(settings.prompt_tokens + self.mixed_tokens)
            + 1
    }
}

/// Outcome of the prompts that arrived.
#[derive(Debug, Default)]
struct Arrived {
    first_tokens: Latencies,
    answered: usize,
    /// Not sent, because as many prompts were waiting as there are slots.
    held_back: usize,
}

impl Served {
    pub fn mixed(&self, settings: &Settings, arriving: &Arriving) -> Result<()> {
        let streams = |tokens| -> Vec<Value> {
            (0..arriving.streams)
                .map(|_| self.request(settings.prompt_tokens, tokens))
                .collect()
        };
        // The first round has the first batch of this size.
        Burst::run(self.address, &streams(settings.tokens.min(32)))?;
        let alone = Burst::run(self.address, &streams(settings.tokens))?;
        let alone = alone.gaps().context("the streams never ran together")?;
        let usual = alone.quantile(0.5).as_secs_f64();
        let tokens = (settings.patience / 2.0 / usual) as usize;
        let tokens = tokens.max(settings.tokens).min(arriving.mixed_tokens);

        let is_over = AtomicBool::new(false);
        let requests = streams(tokens);
        let (burst, arrived) = thread::scope(|scope| {
            let arrivals = scope.spawn(|| self.arrivals(arriving, &is_over));
            let burst = Burst::run(self.address, &requests);
            is_over.store(true, Ordering::Relaxed);
            (burst, arrivals.join().expect("arrivals do not panic"))
        });
        let (burst, arrived) = (burst?, arrived?);
        ensure!(
            burst.tokens() == (arriving.streams * tokens) as u64,
            "{} tokens came, not {tokens} of each stream",
            burst.tokens()
        );
        let mixed = burst.gaps().context("the streams never ran together")?;
        print(&json!({
            "what": "mixed", "side": "served", "streams": arriving.streams,
            "arriving_tokens": arriving.arriving_tokens, "every_ms": arriving.every_ms,
            "tokens_each": tokens, "alone": alone.summary(), "mixed": mixed.summary(),
            "p99_over_p50_alone": mixed.quantile(0.99).as_secs_f64() / usual,
            "tokens_per_second": burst.decode_rate(), "answered": arrived.answered,
            "held_back": arrived.held_back, "first_tokens": arrived.first_tokens.summary(),
        }));
        Ok(())
    }

    /// Sends one prompt after another at its time, whether or not the previous ones are answered.
    fn arrivals(&self, arriving: &Arriving, is_over: &AtomicBool) -> io::Result<Arrived> {
        let (began, every) = (Instant::now(), Duration::from_millis(arriving.every_ms));
        let mut arrived = Arrived::default();
        thread::scope(|scope| {
            let mut waiting = Vec::new();
            for number in 0.. {
                thread::sleep((began + every * number).saturating_duration_since(Instant::now()));
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let unanswered = waiting
                    .iter()
                    .filter(|it: &&thread::ScopedJoinHandle<'_, _>| !it.is_finished());
                if unanswered.count() >= arriving.streams {
                    arrived.held_back += 1;
                    continue;
                }
                let body = self.request(arriving.arriving_tokens, 1);
                waiting.push(scope.spawn(move || Burst::run(self.address, &[body])));
            }
            for answer in waiting {
                let stream = &answer.join().expect("a reader does not panic")?.streams[0];
                if stream.tokens_in != arriving.arriving_tokens as u64 {
                    let told = format!("a prompt that arrived has {} tokens", stream.tokens_in);
                    return Err(io::Error::other(told));
                }
                arrived.first_tokens.push(stream.time_to_first());
                arrived.answered += 1;
            }
            Ok(arrived)
        })
    }
}
