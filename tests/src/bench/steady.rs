//! Speed of an undisturbed stream, alternately with a standby and without.

use super::pause::{self, Mode};
use crate::worker::request;
use serde_json::{Value, json};
use std::time::Instant;
use worker_orcd_harness::Client;

const PROMPT_TOKENS: usize = 100;
const TOKENS: u32 = 256;

/// Tokens per second of a worker without a standby and of one with, `rounds` of each.
#[must_use]
pub fn measure(device: &str, rounds: usize) -> Value {
    let modes = [Mode::WeightsKept, Mode::Standby];
    let workers = modes.map(|mode| pause::worker(device, mode, &[]).start());
    pause::ready_child(&workers[1].client(), modes[1]);
    let mut rates = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // The order alternates, because the machine's load changes.
        for place in [round % 2, (round + 1) % 2] {
            rates[place].push(rate(&workers[place].client()));
        }
    }
    let ratios = rates[0].iter().zip(&rates[1]);
    let ratio = median(ratios.map(|(without, with)| with / without).collect());
    let [without, with] = rates.map(median);
    json!({
        "tokens_per_second_without": round(without),
        "tokens_per_second_with_standby": round(with),
        "median_of_with_to_without": round(ratio),
    })
}

/// Tokens per second from the first token to the last.
fn rate(client: &Client) -> f64 {
    let prompt = "a".to_owned() + &" a".repeat(PROMPT_TOKENS - 1);
    let mut body = request(&prompt, TOKENS);
    body["ignore_eos"] = json!(true);
    body["temperature"] = json!(0.0);
    let mut stream = client.execute(&body);
    let mut arrivals = Vec::new();
    loop {
        let event = stream.try_next().expect("the stream goes on");
        match event.expect("the stream has an end").name.as_str() {
            "token" => arrivals.push(Instant::now()),
            "end" => break,
            _ => {}
        }
    }
    let (first, last) = (arrivals[0], arrivals[arrivals.len() - 1]);
    (arrivals.len() - 1) as f64 / (last - first).as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
