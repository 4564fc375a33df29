//! `cargo xtask up`: from a fresh clone to a streamed answer.

use crate::worker::{self, Worker};
use crate::{fetch_model, kernels};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;
use worker_orcd_harness::Client;
use worker_orcd_harness::log::{Watch, event_name};

#[derive(clap::Args)]
pub struct Arguments {
    /// Another GGUF file; the default is fetched when it is missing.
    #[arg(long)]
    model: Option<PathBuf>,
    #[arg(
        long,
        default_value = "Write a short poem about a river, then say what it means."
    )]
    prompt: String,
    /// End after the answer, with a clean drain, instead of serving on.
    #[arg(long)]
    once: bool,
    /// Flags for worker-orcd, after `--`.
    #[arg(last = true)]
    worker_flags: Vec<String>,
}

const MAX_TOKENS: u32 = 200;

pub fn run(arguments: &Arguments) -> Result<()> {
    let model = match &arguments.model {
        Some(path) => path.clone(),
        None => fetch_model::run()?,
    };
    kernels::for_this_machine()?;
    worker::build()?;
    println!("loading {}", model.display());
    let worker = Worker::start(&model, &arguments.worker_flags, load_progress())?;
    println!(
        "serving on http://{}\n\n> {}\n",
        worker.client.address, arguments.prompt
    );
    stream_answer(&worker.client, &arguments.prompt)?;
    if arguments.once {
        return worker.stop();
    }
    println!(
        "\nStill serving; ^C drains and ends it. Try:\n\n{}\n",
        curl(worker.client.address)
    );
    worker.wait()
}

/// Callback that prints the percentages of the log's `model_load_progress` records on one line.
fn load_progress() -> Watch {
    Box::new(|record, _| {
        let percent = record["percent"].as_u64();
        if let (Some("model_load_progress"), Some(percent)) = (event_name(record), percent) {
            print!("{percent} % ");
            if percent >= 100 {
                println!();
            }
            // The worker continues without its terminal.
            let _ = std::io::stdout().flush();
        }
    })
}

fn stream_answer(client: &Client, prompt: &str) -> Result<()> {
    let request = json!({
        "messages": [{"role": "user", "content": prompt}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": MAX_TOKENS,
        "temperature": 0.7,
        "top_p": 0.9,
    });
    let start = Instant::now();
    let (mut first, mut tokens) = (None, 0);
    let mut events = client.try_stream("/v1/chat/completions", &request)?;
    while let Some(event) = events.try_next()? {
        if event.data == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(&event.data).context("a chunk is JSON")?;
        if let Some(error) = chunk.get("error") {
            bail!("the answer broke off: {error}");
        }
        let text = chunk["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or_default();
        // The chunk that opens the answer has a role and no text.
        if !text.is_empty() {
            first.get_or_insert_with(|| start.elapsed());
            print!("{text}");
            std::io::stdout().flush()?;
        }
        tokens = chunk["usage"]["completion_tokens"]
            .as_u64()
            .unwrap_or(tokens);
    }
    let first = first.context("the answer is empty")?;
    println!(
        "\n\n{tokens} tokens in {:.1} s, the first after {:.2} s",
        start.elapsed().as_secs_f64(),
        first.as_secs_f64()
    );
    Ok(())
}

fn curl(address: SocketAddr) -> String {
    format!(
        "  curl -N http://{address}/v1/chat/completions -H 'Content-Type: application/json' \\\n    \
         -d '{{\"stream\":true,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}'\n\n  \
         curl http://{address}/health"
    )
}
