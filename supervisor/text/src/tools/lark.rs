//! Grammar of an answer with tool calls that are constrained by their tools.
//!
//! ```text
//! start: reasoning, then   calls             if the model must call
//!                          text, then calls  if it may
//! ```
//!
//! Calls have the form that the model's template teaches: the name and the marks are fixed. The arguments are JSON that
//! matches the tool's schema, spelled as by Python's `json.dumps`, which models are trained on, tags with such values
//! (`%parameters`) or a dictionary (`%dict`), which the grammar compiler expands. The grammar is in llguidance's variant of
//! Lark. A mark that is a control token is written by its id, any other mark as text.

use super::parameters::OfFunction;
use super::{Parsing, ReasoningFormat, Syntax, dict, function, harmony_rules, thinking};
use crate::Tokenizer;
use crate::json_texts;
use crate::structure::json_rule;
use serde_json::{Value, json};
use std::fmt::Write as _;
use worker_orcd_ipc::{Grammar, TokenId};

/// Any text.
pub(super) const TEXT: &str = "/(.|\\n)*/";

/// Schema of a function without parameters.
const NO_PARAMETERS: &str =
    "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}";

/// Function that an answer may call, with constrained arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Path of its parameters in the request, such as `tools[0].function.parameters`.
    pub path: String,
    pub name: String,
    /// JSON Schema of the arguments, of type object. `None`: no arguments.
    pub parameters: Option<String>,
    /// A schema keyword that is not supported is an error. If false, it is ignored.
    pub is_strict: bool,
}

/// Constraints on the tool calls of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRules {
    pub functions: Vec<Function>,
    /// The answer consists of calls, after optional reasoning.
    pub must_call: bool,
    /// Several calls are allowed.
    pub may_repeat: bool,
}

impl Function {
    /// Grammar of the arguments alone. Compiling it shows whether the arguments cause an error.
    #[must_use]
    pub fn grammar(&self, syntax: Option<Syntax>) -> Grammar {
        let arguments = match syntax {
            Some(Syntax::Qwen3Coder) => self.tags(),
            Some(Syntax::Gemma4) => self.dict(None),
            _ => self.arguments(),
        };
        Grammar::Lark(format!("start: {arguments}\n"))
    }

    pub(super) fn arguments(&self) -> String {
        let settings = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "lenient": !self.is_strict,
        });
        json_rule(self.schema(), &settings)
    }

    /// Rule of the parameters as tags.
    fn tags(&self) -> String {
        let schema = json_texts::map_object(self.schema(), &mut str::to_owned);
        let types = OfFunction::of_schema(Some(self.schema())).written();
        format!(
            "%parameters {{\"schema\":{},\"types\":{types},\"lenient\":{}}}",
            schema.as_deref().unwrap_or(NO_PARAMETERS),
            !self.is_strict,
        )
    }

    /// Rule of the arguments as a dictionary. `quote`: the control token around strings.
    fn dict(&self, quote: Option<&str>) -> String {
        let schema = json_texts::map_object(self.schema(), &mut str::to_owned);
        format!(
            "%dict {{\"schema\":{},\"quote\":{},\"lenient\":{}}}",
            schema.as_deref().unwrap_or(NO_PARAMETERS),
            json!(quote),
            !self.is_strict,
        )
    }

    fn schema(&self) -> &str {
        self.parameters.as_deref().unwrap_or(NO_PARAMETERS)
    }
}

impl CallRules {
    /// Grammar of a whole answer.
    #[must_use]
    pub fn grammar(&self, parsing: &Parsing, words: &Words<'_>) -> Grammar {
        if parsing.thinking == Some(ReasoningFormat::Channels) {
            return harmony_rules::calls(&self.functions, self.must_call, words);
        }
        let syntax = parsing.calls.unwrap_or(Syntax::Hermes);
        let form = Form::of(syntax, words, &self.functions);
        let (before, mut rules) = reasoning(parsing.thinking, words);
        let calls = form.calls(self.may_repeat);
        let opener = form.opener.map(|opener| words.mark(opener));
        if self.must_call {
            let opener = opener.unwrap_or_default();
            let _ = writeln!(rules, "answer: {opener} {calls}");
        } else {
            rules.push_str(&free(parsing, form.opener, words, &calls));
        }
        for (index, function) in self.functions.iter().enumerate() {
            let _ = writeln!(rules, "call_{index}: {}", form.call(function));
        }
        let each = (0..self.functions.len()).map(|index| format!("call_{index}"));
        let each: Vec<String> = each.collect();
        let _ = writeln!(rules, "call: {}", each.join(" | "));
        Grammar::Lark(format!("start: {before}answer\n{rules}"))
    }
}

/// Rules of an answer that is text, or text followed by calls. The text contains no opener that is text, because text
/// after an opener is parsed as a call. It does not begin with the opening tag of reasoning.
fn free(parsing: &Parsing, opener: Option<&str>, words: &Words<'_>, calls: &str) -> String {
    let is_text = |mark: &&str| words.control(mark).is_none();
    let openers = parsing.calls.map(|it| it.marks().openers);
    let openers = openers.into_iter().flatten().copied().filter(is_text);
    let openers: Vec<&str> = openers.collect();
    let mut text = TEXT.to_owned();
    match parsing.thinking {
        Some(ReasoningFormat::Tagged) if is_text(&thinking::OPEN) => {
            let _ = write!(text, " & ~/{}(.|\\n)*/", in_regex(thinking::OPEN));
        }
        Some(ReasoningFormat::Gemma4) if is_text(&thinking::CHANNEL) => {
            let open = in_regex(thinking::CHANNEL) + thinking::THOUGHT;
            let _ = write!(text, " & ~/(.|\\n)*{open}(.|\\n)*/");
        }
        _ => {}
    }
    let without = |text: &str, openers: &[&str]| match openers {
        [] => text.to_owned(),
        openers => {
            let openers: Vec<String> = openers.iter().map(|it| in_regex(it)).collect();
            format!("{text} & ~/(.|\\n)*({})(.|\\n)*/", openers.join("|"))
        }
    };
    let plain = without(&text, &openers);
    match opener {
        // A call may be the whole answer: a text that begins as a call must be one.
        None => format!(
            "answer: {calls} | PLAIN\nPLAIN: (/[ \\n\\r\\t]*[^ \\n\\r\\t{{]/ {TEXT})? & ({plain})\n"
        ),
        Some(opener) if is_text(&opener) => {
            let others = openers.iter().copied().filter(|it| *it != opener);
            let text = without(&text, &others.collect::<Vec<_>>());
            let opener = Words::quoted(opener);
            format!(
                "answer: PLAIN | before {calls}\nbefore[suffix={opener}]: {text}\nPLAIN: {plain}\n"
            )
        }
        Some(opener) => {
            let opener = words.mark(opener);
            format!("answer: PLAIN ({opener} {calls})?\nPLAIN: {plain}\n")
        }
    }
}

/// Call format of one family, as parts of rules.
struct Form {
    opener: Option<&'static str>,
    /// Text between the opener and the first call, then between two calls, then after the last.
    first: String,
    next: String,
    last: String,
    shape: Shape,
}

enum Shape {
    /// An object with this key of the arguments.
    Object(&'static str),
    /// A name, this rule, and the arguments.
    Named(String),
    /// Tags of a function and its parameters.
    Tags,
    /// A name and a dictionary, with this control token around strings.
    Dict(Option<String>),
}

impl Form {
    fn of(syntax: Syntax, words: &Words<'_>, functions: &[Function]) -> Self {
        let list = |opener: &'static str, last: String| Self {
            opener: Some(opener),
            first: Words::quoted("["),
            next: Words::quoted(", "),
            last,
            shape: Shape::Object("arguments"),
        };
        match syntax {
            Syntax::Hermes | Syntax::Qwen3Coder => {
                let (open, close) = (words.mark("<tool_call>"), words.mark("</tool_call>"));
                let line = Words::quoted("\n");
                Self {
                    opener: Some("<tool_call>"),
                    first: line.clone(),
                    next: format!("{line} {close} {line} {open} {line}"),
                    last: format!("{line} {close}"),
                    shape: match syntax {
                        Syntax::Qwen3Coder => Shape::Tags,
                        _ => Shape::Object("arguments"),
                    },
                }
            }
            Syntax::Gemma4 => {
                let (open, close) = (words.mark("<|tool_call>"), words.mark("<tool_call|>"));
                Self {
                    opener: Some("<|tool_call>"),
                    first: String::new(),
                    next: format!("{close} {open}"),
                    last: close,
                    shape: Shape::Dict(
                        words
                            .is_control(dict::QUOTE)
                            .then(|| words.mark(dict::QUOTE)),
                    ),
                }
            }
            Syntax::Llama3 => Self {
                opener: None,
                first: String::new(),
                next: Words::quoted("; "),
                last: String::new(),
                shape: Shape::Object("parameters"),
            },
            // Newer Mistral vocabularies have this token, and the newer format.
            Syntax::Mistral
                if words.control("[ARGS]").is_some()
                    && functions.iter().all(|it| is_plain(&it.name)) =>
            {
                Self {
                    opener: Some("[TOOL_CALLS]"),
                    first: String::new(),
                    next: words.mark("[TOOL_CALLS]"),
                    last: String::new(),
                    shape: Shape::Named(words.mark("[ARGS]")),
                }
            }
            Syntax::Mistral => list("[TOOL_CALLS]", Words::quoted("]")),
            Syntax::Phi if words.control("<|tool_call|>").is_some() => {
                let close = words.mark("<|/tool_call|>");
                list("<|tool_call|>", format!("{} {close}", Words::quoted("]")))
            }
            // Unreachable for Harmony: its own grammar is built before this one.
            Syntax::Phi | Syntax::Harmony => list("functools", Words::quoted("]")),
        }
    }

    /// Rule after the opener.
    fn calls(&self, may_repeat: bool) -> String {
        let Self {
            first, next, last, ..
        } = self;
        match may_repeat {
            true => format!("{first} call ({next} call)* {last}"),
            false => format!("{first} call {last}"),
        }
    }

    fn call(&self, function: &Function) -> String {
        match &self.shape {
            Shape::Object(key) => {
                let begin = format!("{{\"name\": {}, \"{key}\": ", json!(function.name));
                let (begin, end) = (Words::quoted(&begin), Words::quoted("}"));
                format!("{begin} {} {end}", function.arguments())
            }
            Shape::Named(args) => {
                let name = Words::quoted(&function.name);
                format!("{name} {args} {}", function.arguments())
            }
            Shape::Tags => {
                let begin = format!("{}{}>\n", function::FUNCTION, function.name);
                let (begin, end) = (Words::quoted(&begin), Words::quoted("</function>"));
                format!("{begin} {} {end}", function.tags())
            }
            Shape::Dict(quote) => {
                let begin = Words::quoted(&format!("{}{}", dict::CALL, function.name));
                format!("{begin} {}", function.dict(quote.as_deref()))
            }
        }
    }
}

/// True if a name cannot be confused with the marks around it.
fn is_plain(name: &str) -> bool {
    name.chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// Text before `answer` in the first rule, and the rules that it uses.
pub(crate) fn reasoning(
    thinks: Option<ReasoningFormat>,
    words: &Words<'_>,
) -> (&'static str, String) {
    let Some(thinks) = thinks else {
        return ("", String::new());
    };
    if thinks == ReasoningFormat::Channels {
        return harmony_rules::before_form(words);
    }
    let (open, close) = match thinks {
        ReasoningFormat::Gemma4 => {
            let channel = words.mark(thinking::CHANNEL);
            let thought = Words::quoted(thinking::THOUGHT);
            (format!("{channel} {thought}"), thinking::CHANNEL_END)
        }
        _ => (words.mark(thinking::OPEN), thinking::CLOSE),
    };
    let mut rules = match words.control(close) {
        Some(_) => format!("thinking: {TEXT} {}\n", words.mark(close)),
        None => format!("thinking[suffix={}]: {TEXT}\n", Words::quoted(close)),
    };
    rules.push_str("lines: \"\\n\" | \"\\n\\n\"\n");
    if thinks == ReasoningFormat::Opened {
        return ("thinking lines? ", rules);
    }
    let _ = writeln!(rules, "thought: {open} thinking lines?");
    ("thought? ", rules)
}

fn in_regex(text: &str) -> String {
    regex::escape(text).replace('/', "\\/")
}

/// Spelling of texts in a grammar, for one vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct Words<'a> {
    tokenizer: &'a Tokenizer,
}

impl<'a> Words<'a> {
    #[must_use]
    pub fn of(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer }
    }

    /// Control token with this text.
    fn control(&self, text: &str) -> Option<TokenId> {
        let found = self.tokenizer.control_of(std::iter::once(text));
        found.first().copied()
    }

    pub(super) fn is_control(&self, text: &str) -> bool {
        self.control(text).is_some()
    }

    pub(super) fn mark(&self, text: &str) -> String {
        match self.control(text) {
            Some(TokenId(id)) => format!("<[{id}]>"),
            None => Self::quoted(text),
        }
    }

    /// String literal. Lark's are JSON strings, except that U+007F must be escaped.
    #[must_use]
    pub(crate) fn quoted(text: &str) -> String {
        Value::from(text).to_string().replace('\u{7f}', "\\u007f")
    }
}

#[cfg(test)]
#[path = "lark_tests.rs"]
mod tests;
