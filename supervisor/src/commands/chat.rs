//! `worker-orcd chat`: a conversation with a worker that runs, or with any server of the OpenAI API.
//!
//! On a terminal each line is a message, and the conversation goes on until ^D. Words behind the
//! command, or what comes through a pipe, are one message, and its answer is all that is printed, so
//! that it can be piped on.
//!
//! Deliberately absent: a model, a template, tokens. All of that is the server's.

use crate::config::keys::read_keys;
use crate::logging::printable;
use crate::outgoing::{self, Url};
use anyhow::{Context as _, Result, anyhow, bail};
use axum::http::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::Path;

/// What clients of the OpenAI API are given their key in.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// An error is short; what is longer is none of ours.
const MAX_ERROR_BYTES: usize = 64 << 10;

#[must_use]
pub fn command_line() -> Command {
    let value = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help(help)
    };
    Command::new("chat")
        .about("Talk to a running worker, or to any server of the OpenAI API")
        .arg(
            value("url", "URL", "Where it listens, without /v1")
                .default_value("http://localhost:8080"),
        )
        .arg(value(
            "api-key-file",
            "FILE",
            "The first key in it is sent [default: OPENAI_API_KEY, if it is set]",
        ))
        .arg(value(
            "model",
            "NAME",
            "For servers that have more than one",
        ))
        .arg(value(
            "system",
            "TEXT",
            "A message of the system before all others",
        ))
        .arg(
            value("max-tokens", "N", "Length of an answer, at most")
                .value_parser(value_parser!(u32)),
        )
        .arg(value("temperature", "T", "0 is the likeliest").value_parser(value_parser!(f64)))
        .arg(value("seed", "N", "For the same answer again").value_parser(value_parser!(u64)))
        .arg(
            Arg::new("message")
                .value_name("MESSAGE")
                .action(ArgAction::Append)
                .help("One message, and then the end"),
        )
}

/// # Errors
/// Why there is no answer.
pub fn run(arguments: &ArgMatches) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(chat(&mut Chat::new(arguments)?, arguments))
}

async fn chat(chat: &mut Chat, arguments: &ArgMatches) -> Result<()> {
    let words = arguments.get_many::<String>("message");
    let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
    if !words.is_empty() {
        return chat.say(&words.join(" ")).await;
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let mut text = String::new();
        stdin.lock().read_to_string(&mut text)?;
        return chat.say(text.trim_end()).await;
    }
    loop {
        eprint!("> ");
        let mut line = String::new();
        if stdin.lock().read_line(&mut line)? == 0 {
            eprintln!();
            return Ok(());
        }
        if line.trim().is_empty() {
            continue;
        }
        // The conversation goes on as if that had not been said.
        if let Err(error) = chat.say(line.trim_end()).await {
            eprintln!("{}", printable(&format!("{error:#}")));
        }
    }
}

struct Chat {
    url: Url,
    key: Option<String>,
    /// Fields of every request, beside the messages.
    fields: Map<String, Value>,
    messages: Vec<Value>,
}

impl Chat {
    fn new(arguments: &ArgMatches) -> Result<Self> {
        let text = |name: &str| arguments.get_one::<String>(name);
        let url = text("url").map_or("", |url| url.trim_end_matches('/'));
        let url = Url::parse(&format!("{url}/v1/chat/completions")).map_err(|why| anyhow!(why))?;
        let key = match text("api-key-file") {
            Some(file) => read_keys(Path::new(file))
                .map_err(|why| anyhow!(why))?
                .into_iter()
                .next(),
            None => std::env::var(KEY_VARIABLE)
                .ok()
                .filter(|key| !key.is_empty()),
        };
        let given = [
            ("model", text("model").map(|it| json!(it))),
            (
                "max_tokens",
                arguments.get_one::<u32>("max-tokens").map(|it| json!(it)),
            ),
            (
                "temperature",
                arguments.get_one::<f64>("temperature").map(|it| json!(it)),
            ),
            ("seed", arguments.get_one::<u64>("seed").map(|it| json!(it))),
            ("stream", Some(json!(true))),
        ];
        let fields = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let system = text("system").map(|text| message("system", text));
        Ok(Self {
            url,
            key,
            fields: fields.collect(),
            messages: system.into_iter().collect(),
        })
    }

    /// Says one thing, and prints the answer as it comes. Both stay in the conversation.
    async fn say(&mut self, text: &str) -> Result<()> {
        self.messages.push(message("user", text));
        match self.answer().await {
            Ok(answer) => {
                self.messages.push(message("assistant", &answer));
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    async fn answer(&self) -> Result<String> {
        let mut fields = self.fields.clone();
        fields.insert("messages".to_owned(), json!(self.messages));
        let request = Request::post(&self.url.path).header(CONTENT_TYPE, "application/json");
        let request = match &self.key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        };
        let request = request.body(Value::from(fields).to_string().into())?;
        let answer = outgoing::send(&self.url, request).await;
        let answer = answer.map_err(|why| anyhow!("{}: {why}", self.url.authority))?;
        let status = answer.status();
        if !status.is_success() {
            bail!("{status}: {}", refusal(answer.into_body()).await);
        }
        print_answer(answer.into_body()).await
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// The words of an error, or what came in its place.
async fn refusal(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if bytes.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let said = serde_json::from_str(&text)
        .ok()
        .and_then(|it: Value| words_of(&it));
    said.unwrap_or(text)
}

fn words_of(error: &Value) -> Option<String> {
    error["error"]["message"].as_str().map(str::to_owned)
}

/// Prints the text of a stream, and gives it back whole.
async fn print_answer(mut body: Incoming) -> Result<String> {
    // A model may say what would clear a terminal; whoever pipes wants each byte.
    let is_terminal = io::stdout().is_terminal();
    let (mut answer, mut lines) = (String::new(), Lines::default());
    let mut is_complete = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.context("the answer broke off")?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        for line in lines.take(data) {
            let Some(data) = line.strip_prefix("data:").map(str::trim) else {
                continue;
            };
            if data == "[DONE]" {
                is_complete = true;
                continue;
            }
            let text = text_of(data)?;
            answer.push_str(&text);
            let text = if is_terminal { safe(&text) } else { text };
            print!("{text}");
            io::stdout().flush()?;
        }
    }
    println!();
    if !is_complete {
        bail!("the answer ended before it was complete");
    }
    Ok(answer)
}

/// Text of one chunk, which may have none.
fn text_of(chunk: &str) -> Result<String> {
    let chunk: Value = serde_json::from_str(chunk).context("the answer is no stream of chunks")?;
    if let Some(why) = words_of(&chunk) {
        bail!("{why}");
    }
    let text = chunk["choices"][0]["delta"]["content"].as_str();
    Ok(text.unwrap_or_default().to_owned())
}

/// Line breaks and tabs stay; what a terminal would obey is told.
fn safe(text: &str) -> String {
    let pieces = text.split_inclusive(['\n', '\t']);
    let safe = |piece: &str| match piece.char_indices().next_back() {
        Some((end, c @ ('\n' | '\t'))) => format!("{}{c}", printable(&piece[..end])),
        _ => printable(piece),
    };
    pieces.map(safe).collect()
}

/// Bytes, line by line.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// All lines that are whole by now.
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        let whole = String::from_utf8_lossy(&whole).into_owned();
        whole.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_wherever_the_bytes_were_cut() {
        let text = "data: {\"a\": \"é\"}\n\n: still here\r\ndata: [DONE]\n\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let (one, other) = text.as_bytes().split_at(cut);
            let mut found = lines.take(one);
            found.extend(lines.take(other));
            assert_eq!(found, text.lines().collect::<Vec<_>>(), "{cut}");
        }
    }

    #[test]
    fn a_chunk_is_text_or_an_error() {
        let chunk = |text: &str| text_of(text).map_err(|error| error.to_string());
        assert_eq!(
            chunk("{\"choices\": [{\"delta\": {\"content\": \"a\"}}]}"),
            Ok("a".to_owned())
        );
        assert_eq!(chunk("{\"choices\": []}"), Ok(String::new()));
        assert_eq!(
            chunk("{\"error\": {\"message\": \"gone\"}}"),
            Err("gone".to_owned())
        );
        assert!(chunk("no JSON").is_err());
    }

    #[test]
    fn a_terminal_is_told_lines_and_no_commands() {
        assert_eq!(safe("a\n\tb\n"), "a\n\tb\n");
        let cleared = safe("a\u{1b}[2J\nb");
        assert!(
            !cleared.contains('\u{1b}') && cleared.ends_with("\nb"),
            "{cleared}"
        );
    }
}
