//! `worker-orcd chat`: a conversation with a running worker, or with any server of the OpenAI API.
//!
//! On a terminal each line is a message, until ^D. Otherwise the arguments or standard input are the only message, and
//! only the answer is printed, so that the output can be piped.
//!
//! Deliberately absent: model, template and tokens; these are the server's.

use crate::remote::{self, DONE, Events, Remote, words_of};
use anyhow::{Context as _, Result, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use worker_orcd_text::printable::printable;

const PATH: &str = "/v1/chat/completions";

#[must_use]
pub fn command_line() -> Command {
    let value = |name: &'static str, value_name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help(help)
    };
    Command::new("chat")
        .about("Talk to a running worker, or to any server of the OpenAI API")
        .args(remote::arguments())
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
                .help("Send one message and exit"),
        )
}

/// # Errors
/// If there is no answer.
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
        return chat.send(&words.join(" ")).await;
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        let mut text = String::new();
        stdin.lock().read_to_string(&mut text)?;
        return chat.send(text.trim_end()).await;
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
        // The failed message is not part of the conversation.
        if let Err(error) = chat.send(line.trim_end()).await {
            eprintln!("{}", printable(&format!("{error:#}")));
        }
    }
}

struct Chat {
    server: Remote,
    /// Fields of every request except the messages.
    fields: Map<String, Value>,
    messages: Vec<Value>,
}

impl Chat {
    fn new(arguments: &ArgMatches) -> Result<Self> {
        let text = |name: &str| arguments.get_one::<String>(name);
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
            server: Remote::new(arguments)?,
            fields: fields.collect(),
            messages: system.into_iter().collect(),
        })
    }

    /// Sends a message and prints the answer as it arrives. Appends both to the conversation.
    async fn send(&mut self, text: &str) -> Result<()> {
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
        let request = self.server.post(PATH, &Value::from(fields))?;
        let answer = self.server.ask(request).await?;
        print_answer(Events::of(answer)).await
    }
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// Prints the text of a stream. Returns the complete text.
async fn print_answer(mut events: Events) -> Result<String> {
    // Text of a model may contain terminal escapes; a pipe receives each byte unchanged.
    let is_terminal = io::stdout().is_terminal();
    let (mut answer, mut is_complete) = (String::new(), false);
    while let Some(data) = events.next().await? {
        if data == DONE {
            is_complete = true;
            continue;
        }
        let text = text_of(&data)?;
        answer.push_str(&text);
        let text = if is_terminal { safe(&text) } else { text };
        print!("{text}");
        io::stdout().flush()?;
    }
    println!();
    if !is_complete {
        bail!("the answer ended before it was complete");
    }
    Ok(answer)
}

/// Text of one chunk; may be empty.
fn text_of(chunk: &str) -> Result<String> {
    let chunk: Value = serde_json::from_str(chunk).context("the answer is no stream of chunks")?;
    if let Some(why) = words_of(&chunk) {
        bail!("{why}");
    }
    let text = chunk["choices"][0]["delta"]["content"].as_str();
    Ok(text.unwrap_or_default().to_owned())
}

/// Escapes control characters except line breaks and tabs.
fn safe(text: &str) -> String {
    let pieces = text.split_inclusive(['\n', '\t']);
    let safe = |piece: &str| match piece.char_indices().next_back() {
        Some((end, c @ ('\n' | '\t'))) => format!("{}{c}", printable(&piece[..end])),
        _ => printable(piece),
    };
    pieces.map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
