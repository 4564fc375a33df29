//! Grammars of answers in [`harmony`](super::harmony)'s messages. A response format constrains the last message; calls
//! are messages to functions.
//!
//! ```text
//! start: reasoning, then   the last message's header and the constrained text
//!                          a call                       if the model must call
//!                          texts, and a text or a call  if it may
//! ```
//!
//! An answer has one call: the model ends its turn after it.

use super::harmony::{CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, START};
use super::lark::{Function, TEXT, Words};
use std::fmt::Write as _;
use worker_orcd_ipc::Grammar;

/// Text before `answer` in the first rule, and the rules that it uses: reasoning, and the header of the last message.
pub(super) fn before_form(words: &Words<'_>) -> (&'static str, String) {
    let header = header("final", words);
    let rules = format!("last: {header}\n{}", inner(words, "thought", "analysis"));
    ("thought* last ", rules)
}

/// Grammar of a whole answer with calls of these functions.
pub(super) fn calls(functions: &[Function], must_call: bool, words: &Words<'_>) -> Grammar {
    let mut rules = inner(words, "thought", "analysis");
    if must_call {
        rules.push_str("start: thought* call\n");
    } else {
        rules.push_str("start: (thought | remark)* (call | last)\n");
        rules.push_str(&inner(words, "remark", "commentary"));
        let headers = ["final", "commentary"].map(|channel| header(channel, words));
        let _ = writeln!(rules, "last: ({}) {TEXT}", headers.join(" | "));
    }
    for (index, function) in functions.iter().enumerate() {
        let _ = writeln!(rules, "call_{index}: {}", call(function, words));
    }
    let each: Vec<String> = (0..functions.len())
        .map(|it| format!("call_{it}"))
        .collect();
    let _ = writeln!(rules, "call: {}", each.join(" | "));
    Grammar::Lark(rules)
}

/// Rule of a message of this channel, up to the beginning of the next message.
fn inner(words: &Words<'_>, name: &str, channel: &str) -> String {
    let (header, start) = (header(channel, words), words.mark(START));
    let next = format!("{start} {}", Words::quoted("assistant"));
    match words.is_control(END) {
        true => format!("{name}: {header} {TEXT} {} {next}\n", words.mark(END)),
        false => {
            let end = Words::quoted(END);
            format!("{name}: {header} {name}_text {next}\n{name}_text[suffix={end}]: {TEXT}\n")
        }
    }
}

fn header(channel: &str, words: &Words<'_>) -> String {
    let [open, message] = [CHANNEL, MESSAGE].map(|mark| words.mark(mark));
    format!("{open} {} {message}", Words::quoted(channel))
}

fn call(function: &Function, words: &Words<'_>) -> String {
    let [open, constrain, message] = [CHANNEL, CONSTRAIN, MESSAGE].map(|mark| words.mark(mark));
    let to = Words::quoted(&format!("commentary to={FUNCTIONS}{} ", function.name));
    let json = Words::quoted("json");
    format!(
        "{open} {to} {constrain} {json} {message} {}",
        function.arguments()
    )
}
