//! The same figures over HTTP, through supervisor, socket and child.

use super::long::Crowd;
use super::mixed::Arriving;
use super::prompts::{Alphabet, TOKEN_CHARS, text};
use super::{Measure, Settings, median, print, structured};
use anyhow::{Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use worker_orcd_tests::bench::Burst;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Client, Worker, WorkerBuilder, wait};

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// What prompts are made of.
    #[arg(long, value_enum, default_value = "letters")]
    alphabet: Alphabet,
    /// Print the greedy continuation of this text.
    #[arg(long)]
    show: Option<String>,
    /// From the process's start to being ready, so many times.
    #[arg(long, default_value_t = 3)]
    starts: usize,
    /// Streams, and how many positions are behind them.
    #[arg(long, value_delimiter = ',', default_values = ["1x4096", "32x4096", "1x32768"])]
    long: Vec<Crowd>,
    #[command(flatten)]
    arriving: Arriving,
}

impl Arguments {
    /// Crowds to measure, if any.
    fn crowds(&self) -> &[Crowd] {
        if self.settings.measures(Measure::Long) {
            &self.long
        } else {
            &[]
        }
    }

    /// Arriving prompts, if they are measured.
    fn arriving(&self) -> Option<&Arriving> {
        let is_measured = self.settings.measures(Measure::Mixed);
        is_measured.then_some(&self.arriving)
    }

    /// Most streams at once, of those with a measured rate.
    fn company(&self) -> usize {
        let long = self.crowds().iter().map(|crowd| crowd.streams);
        let mixed = self.arriving().map(|arriving| arriving.streams);
        let is_structured = self.settings.measures(Measure::Structured);
        let structured = structured::STREAMS.into_iter().filter(|_| is_structured);
        let most = long.chain(mixed).chain(structured).max().unwrap_or(1);
        self.settings.largest_batch().max(most)
    }

    /// Longest sequence.
    fn context(&self) -> usize {
        let settings = &self.settings;
        let long = self.crowds().iter();
        let long = long.map(|crowd| crowd.positions + settings.tokens);
        let mixed = self.arriving().map(|arriving| arriving.longest(settings));
        let longest = long.chain(mixed).max().unwrap_or(0);
        settings.context().max(longest)
    }

    /// Ready worker, and the time from the start of its process.
    fn start(&self) -> (Worker, f64) {
        let settings = &self.settings;
        // Arriving prompts have slots beside the streams that they disturb.
        let places = self.arriving().map_or(0, |arriving| 2 * arriving.streams);
        let running = self.company().max(places);
        // Slots of each device, which has its part of the streams.
        let devices = settings.device.split(',').count();
        let builder: WorkerBuilder = Worker::with_model(&settings.model)
            .arg("--device", &settings.device)
            .arg("--max-running", running.div_ceil(devices))
            .arg("--max-queue", 2 * running)
            .arg("--max-context", self.context())
            .arg("--max-prompt-chars", TOKEN_CHARS * self.context())
            .arg("--kv-cache-size", format!("{}MiB", settings.kv_cache));
        let builder = match settings.chunk {
            Some(chunk) => builder.arg("--prefill-chunk", chunk),
            None => builder,
        };
        let began = Instant::now();
        let worker = builder.start();
        // The HTTP probe succeeds before the line of the log has passed the pipe.
        let (ready, _) = wait::until("the log to say so", || worker.log.next("ready", began));
        (worker, (ready - began).as_secs_f64())
    }
}

/// Sequential requests for each prompt length.
const PROMPT_ROUNDS: usize = 21;
/// Streams that are compared alone and in a batch.
const COMPARED: usize = 4;
const SHOWN_TOKENS: u32 = 48;

/// # Errors
/// The worker does not start, a stream fails, or two answers differ.
pub fn run(arguments: &Arguments) -> Result<()> {
    let settings = &arguments.settings;
    let mut starts = Vec::new();
    for _ in 1..arguments.starts.max(1) {
        starts.push(arguments.start().1);
    }
    let (worker, seconds) = arguments.start();
    starts.push(seconds);
    print(&json!({
        "what": "ready", "side": "served", "median_seconds": median(&mut starts),
        "all_seconds": starts,
    }));
    let served = Served {
        client: worker.client(),
        address: worker.client().address,
        alphabet: arguments.alphabet,
        asked: AtomicU64::new(0),
    };
    if let Some(prompt) = &arguments.show {
        served.show(prompt);
    }
    served.check(settings, arguments.company())?;
    for what in &settings.measure {
        match what {
            Measure::Decode => served.decode(settings)?,
            Measure::Prompt => served.prompts(settings)?,
            Measure::Long => served.long(settings, &arguments.long)?,
            Measure::Mixed => served.mixed(settings, &arguments.arriving)?,
            Measure::Structured => structured::run(worker.client(), settings)?,
        }
    }
    Ok(())
}

pub struct Served {
    client: Client,
    pub address: SocketAddr,
    alphabet: Alphabet,
    /// Counter of prompts' seeds, so that no prompt repeats.
    asked: AtomicU64,
}

impl Served {
    /// Greedy request with a new prompt.
    pub fn request(&self, prompt_tokens: usize, tokens: usize) -> Value {
        let seed = self.asked.fetch_add(1, Ordering::Relaxed);
        let mut body = request(&text(seed, prompt_tokens, self.alphabet), tokens as u32);
        body["temperature"] = json!(0.0);
        body["ignore_eos"] = json!(true);
        body
    }

    fn show(&self, prompt: &str) {
        let mut body = request(prompt, SHOWN_TOKENS);
        body["temperature"] = json!(0.0);
        let text = self.client.execute(&body).transcript().text();
        print(&json!({"what": "text", "side": "served", "prompt": prompt, "text": text}));
    }

    /// Compares the same requests alone and among as many others as are measured.
    fn check(&self, settings: &Settings, company: usize) -> Result<()> {
        let bodies: Vec<_> = (0..company)
            .map(|index| {
                let mut body = self.request(17 + index % 64, settings.check_tokens);
                if index % 4 == 1 {
                    body["temperature"] = json!(1.0);
                    body["seed"] = json!(index);
                }
                body
            })
            .collect();
        let alone: Vec<_> = bodies
            .iter()
            .take(COMPARED)
            .map(|it| self.text(it))
            .collect();
        let together: Vec<_> = std::thread::scope(|scope| {
            let readers: Vec<_> = bodies
                .iter()
                .map(|body| scope.spawn(|| self.text(body)))
                .collect();
            let texts = readers.into_iter().map(|reader| reader.join());
            texts
                .take(COMPARED)
                .map(|text| text.expect("no reader panics"))
                .collect()
        });
        let is_equal = alone == together;
        print(&json!({
            "what": "check", "side": "served", "equal": is_equal, "streams": company,
            "compared": alone.len(),
        }));
        ensure!(is_equal, "a text in company differs from the text alone");
        Ok(())
    }

    fn text(&self, body: &Value) -> String {
        let mut body = body.clone();
        body["job_id"] = request("", 1)["job_id"].take();
        self.client.execute(&body).transcript().text()
    }

    /// Measures the time to the first token.
    fn prompts(&self, settings: &Settings) -> Result<()> {
        for length in &settings.prompts {
            let mut times = Vec::new();
            for round in settings.rounds(PROMPT_ROUNDS) {
                let burst = Burst::run(self.address, &[self.request(*length, 2)])?;
                let stream = &burst.streams[0];
                ensure!(
                    stream.tokens_in == *length as u64,
                    "a prompt meant to have {length} tokens has {}",
                    stream.tokens_in
                );
                if round > 0 {
                    times.push(stream.time_to_first().as_secs_f64() * 1e3);
                }
            }
            print(&json!({
                "what": "prompt", "side": "served", "tokens": length,
                "median_ms": median(&mut times), "least_ms": times[0],
                "most_ms": times[times.len() - 1],
            }));
        }
        Ok(())
    }

    fn decode(&self, settings: &Settings) -> Result<()> {
        for batch in &settings.batches {
            let (mut rates, mut whole, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
            for round in settings.rounds(settings.rounds) {
                let requests: Vec<_> = (0..*batch)
                    .map(|_| self.request(settings.prompt_tokens, settings.tokens))
                    .collect();
                let burst = Burst::run(self.address, &requests)?;
                let wanted = (batch * settings.tokens) as u64;
                ensure!(
                    burst.tokens() == wanted,
                    "{} of {wanted} tokens came",
                    burst.tokens()
                );
                if round > 0 {
                    rates.extend(burst.decode_rate());
                    whole.push(wanted as f64 / burst.whole().as_secs_f64());
                    let times = burst.streams.iter().map(|stream| stream.time_to_first());
                    firsts.extend(times.map(|time| time.as_secs_f64() * 1e3));
                }
            }
            print(&json!({
                "what": "decode", "side": "served", "batch": batch,
                "tokens_per_second": (!rates.is_empty()).then(|| median(&mut rates)),
                "least": rates.first(), "most": rates.last(),
                "with_prompts_tokens_per_second": median(&mut whole),
                "median_first_token_ms": median(&mut firsts),
            }));
        }
        Ok(())
    }
}
