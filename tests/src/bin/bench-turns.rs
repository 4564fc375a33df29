//! The turns of an agent: prompt tokens that a server computes, over those that are new. Prints one JSON object.
//!
//! A conversation begins with some thousand tokens. Each turn appends a question or the result of a tool, and the answer is one's
//! own. Thoughts, the first part of an answer, stay in the prompt up to the next question, which is where templates of reasoning
//! models remove them. New tokens of a turn are those behind the longest common prefix of its prompt and of the turn before
//! with its answer. So an answer is not new, but what follows removed thoughts is.
//!
//! Models have random weights and the layers of a family (`tests/oracle/families.py`); llama.cpp's server has the same file.

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use worker_orcd_tests::families::{Family, written_for};
use worker_orcd_tests::model::{oracle_python, repository_root};
use worker_orcd_tests::{Client, Worker};

#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 20)]
    turns: usize,
    /// Tokens of the beginning.
    #[arg(long, default_value_t = 4000)]
    beginning: usize,
    /// Names of families.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "qwen3,qwen35,qwen35moe,gemma3,gemma4,gpt-oss"
    )]
    families: Vec<String>,
}

const CONTEXT: usize = 16_384;
/// Tokens of an answer, of which the first are thoughts.
const ANSWER: usize = 120;
const THOUGHTS: usize = 60;
const QUESTION: usize = 40;
const RESULT: usize = 150;

/// `count` tokens that no other call returns in this order.
fn tokens(count: usize, seed: usize) -> Vec<u32> {
    let token = |place: usize| 300 + (place * 7919 + seed * 104_729) % 4000;
    (0..count).map(|place| token(place) as u32).collect()
}

/// Tokens of a conversation, with thoughts since the last question and without any.
struct Conversation {
    prompt: Vec<u32>,
    without_thoughts: Vec<u32>,
}

impl Conversation {
    fn ask(&mut self, turn: usize) {
        let (count, is_question) = match turn % 2 {
            0 => (QUESTION, true),
            _ => (RESULT, false),
        };
        if is_question {
            self.prompt.clone_from(&self.without_thoughts);
        }
        let next = tokens(count, turn + 1);
        self.prompt.extend(&next);
        self.without_thoughts.extend(&next);
    }

    fn add(&mut self, answer: &[u32]) {
        self.prompt.extend(answer);
        self.without_thoughts.extend(&answer[THOUGHTS..]);
    }
}

/// Prompt tokens of all turns.
#[derive(Default)]
struct Counts {
    prompts: usize,
    new: usize,
    computed: usize,
}

/// `answer` returns the answer's tokens and the number of computed tokens of the prompt.
fn talk(
    options: &Options,
    mut answer: impl FnMut(&[u32]) -> Result<(Vec<u32>, usize)>,
) -> Result<Counts> {
    let beginning = tokens(options.beginning, 0);
    let mut conversation = Conversation {
        prompt: Vec::new(),
        without_thoughts: beginning.clone(),
    };
    let (mut counts, mut before) = (Counts::default(), beginning.clone());
    // The beginning is in the cache: other conversations have it, too.
    answer(&beginning)?;
    for turn in 0..options.turns {
        conversation.ask(turn);
        let prompt = &conversation.prompt;
        let known = before
            .iter()
            .zip(prompt)
            .take_while(|(a, b)| a == b)
            .count();
        let (tokens, computed) = answer(prompt)?;
        ensure!(tokens.len() == ANSWER, "{} tokens", tokens.len());
        counts.prompts += prompt.len();
        counts.new += prompt.len() - known;
        counts.computed += computed;
        conversation.add(&tokens);
        before.clone_from(&conversation.prompt);
    }
    Ok(counts)
}

fn ids(tokens: &Value) -> Vec<u32> {
    let all = tokens.as_array().into_iter().flatten();
    all.filter_map(|it| it.as_u64().map(|it| it as u32))
        .collect()
}

fn ours(client: &Client, prompt: &[u32]) -> Result<(Vec<u32>, usize)> {
    let body = json!({
        "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
    });
    let answer = client.post("/v1/completions", &body);
    ensure!(answer.status == 200, "{}", answer.text());
    let answer = answer.json();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let cached = cached.context("cached tokens")? as usize;
    Ok((
        ids(&answer["choices"][0]["token_ids"]),
        prompt.len() - cached,
    ))
}

/// llama.cpp's server, which ends with its standard input.
struct LlamaServer {
    process: Child,
    client: Client,
}

impl LlamaServer {
    fn start(model: &Path) -> Result<Self> {
        let script = repository_root().join("tests/oracle/llama_server.py");
        let mut process = Command::new(oracle_python())
            .arg(script)
            .arg(model)
            .args(["--threads", "2", "--context", &CONTEXT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = process.stdout.take().context("standard output")?;
        let lines = BufReader::new(output).lines();
        let url = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()))
            .context("llama.cpp's server ended")?;
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let address: SocketAddr = address.parse()?;
        Ok(Self {
            process,
            client: Client::new(address),
        })
    }

    fn answer(&self, prompt: &[u32]) -> Result<(Vec<u32>, usize)> {
        let body = json!({
            "prompt": prompt, "n_predict": ANSWER, "temperature": 0, "ignore_eos": true, "return_tokens": true,
            "cache_prompt": true,
        });
        let answer = self.client.post("/completion", &body);
        ensure!(answer.status == 200, "{}", answer.text());
        let answer = answer.json();
        let computed = answer["timings"]["prompt_n"].as_u64();
        let computed = computed.context("computed tokens")? as usize;
        Ok((ids(&answer["tokens"]), computed))
    }
}

impl Drop for LlamaServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn measure(family: &Family, options: &Options) -> Result<Value> {
    let path = family.path.as_ref().context("a file")?;
    let worker = Worker::with_model(path).start();
    let client = worker.client();
    let own = talk(options, |prompt| ours(&client, prompt))?;
    drop(worker);
    let server = LlamaServer::start(path)?;
    let other = talk(options, |prompt| server.answer(prompt))?;
    let over =
        |counts: &Counts| (counts.computed as f64 / counts.new as f64 * 100.0).round() / 100.0;
    Ok(json!({
        "model": family.name,
        "prompt tokens": own.prompts,
        "new": own.new,
        "computed": own.computed,
        "over new": over(&own),
        "llama.cpp: computed": other.computed,
        "llama.cpp: over new": over(&other),
    }))
}

fn main() -> Result<()> {
    let options = Options::parse();
    let folder = tempfile::tempdir()?;
    let families = written_for(folder.path(), CONTEXT);
    let mut rows = Vec::new();
    for name in &options.families {
        let family = families.iter().find(|it| it.name == *name);
        let family = family.with_context(|| format!("no family is named {name:?}"))?;
        rows.push(measure(family, &options)?);
    }
    println!(
        "{}",
        json!({"bench": "turns", "turns": options.turns, "beginning": options.beginning, "models": rows})
    );
    Ok(())
}
