//! `worker-orcd bench`: latency and throughput of a running worker, or of any server of the OpenAI API.
//!
//! ```text
//! seed ─→ prompts, arrivals ─→ load: one stream each ─→ answers, failures ─→ figures ─→ table or JSON
//! ```
//!
//! Requests, figures, options and JSON fields are those of `vllm bench serve`, so the results of two servers are
//! comparable.
//!
//! Deliberately absent: a tokenizer (the server counts tokens), data sets, and warm-up.

mod figures;
mod load;

use crate::remote::{self, Remote};
use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use figures::{Figures, Limit};
use load::Load;
use serde_json::{Map, Value, json};
use worker_orcd_text::printable::printable;

#[must_use]
pub fn command_line() -> Command {
    let value = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help(help)
    };
    let count = |name, help| value(name, "N", help).value_parser(value_parser!(u32).range(1..));
    let flag = |name, help| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("bench")
        .about("Measure latency and throughput of a running worker, or of any server of the OpenAI API")
        .args(remote::arguments())
        .arg(value("model", "NAME", "For servers that have more than one"))
        .arg(count("num-prompts", "Requests in all").default_value("100"))
        .arg(count("input-len", "Words of each prompt; of most models a token each").default_value("128"))
        .arg(count("output-len", "Tokens of each answer, at most").default_value("128"))
        .arg(flag("ignore-eos", "Answers go on to --output-len (no part of the OpenAI API)"))
        .arg(
            value("request-rate", "R", "Requests per second, at random times [default: all at once]")
                .value_parser(positive),
        )
        .arg(count("max-concurrency", "Requests at a time [default: no limit]"))
        .arg(
            value("seed", "N", "Of the prompts' words and of the times")
                .default_value("0")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            value("goodput", "FIGURE:MS", "Requests within all of these are good: ttft, tpot, e2el")
                .num_args(1..)
                .action(ArgAction::Append)
                .value_parser(Limit::parse),
        )
        .arg(
            value("timeout", "S", "Seconds after which a request has failed")
                .default_value("600")
                .value_parser(positive),
        )
        .arg(flag("json", "One JSON object in place of a table"))
}

/// # Errors
/// If requests failed; the figures are printed first.
pub fn run(arguments: &ArgMatches) -> Result<()> {
    let limits = arguments.get_many::<Limit>("goodput");
    let limits: Vec<Limit> = limits.into_iter().flatten().copied().collect();
    let server = Remote::new(arguments)?;
    let load = Load::new(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(load.run(server));
    let figures = Figures::of(&outcome, &limits);
    if arguments.get_flag("json") {
        let mut whole = asked(arguments);
        whole.append(&mut figures.json());
        println!("{}", Value::from(whole));
    } else {
        print!("{figures}");
    }
    for (code, (count, example)) in &outcome.failures {
        eprintln!("{}", printable(&format!("{count} × {code}: {example}")));
    }
    match figures.failed {
        0 => Ok(()),
        failed => bail!("{failed} of {} requests failed", failed + figures.completed),
    }
}

/// Parameters of the measurement.
fn asked(arguments: &ArgMatches) -> Map<String, Value> {
    let count = |name: &str| json!(arguments.get_one::<u32>(name));
    let fields = [
        ("num_prompts", count("num-prompts")),
        ("input_len", count("input-len")),
        ("output_len", count("output-len")),
        (
            "request_rate",
            json!(arguments.get_one::<f64>("request-rate")),
        ),
        ("max_concurrency", count("max-concurrency")),
        ("seed", json!(arguments.get_one::<u64>("seed"))),
    ];
    let fields = fields.into_iter();
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("is no number above 0".to_owned()),
    }
}
