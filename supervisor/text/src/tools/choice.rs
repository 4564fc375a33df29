//! Selection of a model's parsers: by its chat template, unless the operator sets them.

use super::{Parameters, Parsing, ReasoningFormat, Syntax, harmony, thinking};
use std::str::FromStr as _;
use strum::VariantArray as _;

/// Operator's setting: automatic, off, or one parser.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice<T> {
    #[default]
    ByTemplate,
    None,
    One(T),
}

impl<T> Choice<T> {
    fn resolve(self, by_template: Option<T>) -> Option<T> {
        match self {
            Self::ByTemplate => by_template,
            Self::None => None,
            Self::One(one) => Some(one),
        }
    }
}

/// Capabilities of a model's chat template and of the parsers of its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTerms {
    /// Parsers that answers may need. A request without tools needs none for calls.
    pub parsing: Parsing,
    /// The template reads `tools`.
    pub shows_tools: bool,
    /// The template reads `tool_calls` of messages.
    pub shows_calls: bool,
}

impl ChatTerms {
    /// Capabilities assumed before a model is loaded: nothing is refused.
    pub const UNKNOWN: Self = Self {
        parsing: Parsing {
            calls: Some(Syntax::Hermes),
            thinking: Some(ReasoningFormat::Tagged),
            parameters: Parameters::NONE,
        },
        shows_tools: true,
        shows_calls: true,
    };

    /// Parsers of an answer. `tools`: the list that the template shows.
    #[must_use]
    pub fn parsing_of(&self, tools: Option<&str>) -> Parsing {
        let tools = self.parsing.calls.zip(tools);
        let typed = tools.filter(|(syntax, _)| *syntax == Syntax::Qwen3Coder);
        Parsing {
            calls: tools.map(|(syntax, _)| syntax),
            thinking: self.parsing.thinking,
            parameters: typed.map_or(Parameters::NONE, |(_, tools)| Parameters::of_tools(tools)),
        }
    }
}

/// Settings `--tool-call-parser` and `--reasoning-parser`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choices {
    pub calls: Choice<Syntax>,
    pub thinking: Choice<ReasoningFormat>,
}

impl Choices {
    /// # Errors
    /// If the value is unknown. The message lists the known values.
    pub fn parse_calls(text: &str) -> Result<Choice<Syntax>, String> {
        let known = Syntax::VARIANTS.iter().map(|syntax| (*syntax).into());
        let known: Vec<&'static str> = known.collect();
        match (text, Syntax::from_str(text)) {
            ("none", _) => Ok(Choice::None),
            (_, Ok(syntax)) => Ok(Choice::One(syntax)),
            _ => Err(format!("{text:?} is neither {} nor none", known.join(", "))),
        }
    }

    /// # Errors
    /// If the value is unknown. The message lists the known values.
    pub fn parse_thinking(text: &str) -> Result<Choice<ReasoningFormat>, String> {
        match text {
            "none" => Ok(Choice::None),
            "think" => Ok(Choice::One(ReasoningFormat::Tagged)),
            "harmony" => Ok(Choice::One(ReasoningFormat::Channels)),
            "gemma4" => Ok(Choice::One(ReasoningFormat::Gemma4)),
            _ => Err(format!(
                "{text:?} is neither think, harmony, gemma4 nor none"
            )),
        }
    }

    /// Message if the two settings contradict each other. `None` if they agree.
    #[must_use]
    pub fn conflict(self) -> Option<&'static str> {
        let are_messages = self.thinking == Choice::One(ReasoningFormat::Channels);
        match self.calls {
            Choice::One(Syntax::Harmony) => {
                let may_be = are_messages || self.thinking == Choice::ByTemplate;
                (!may_be).then_some("harmony needs --reasoning-parser harmony")
            }
            Choice::One(_) if are_messages => {
                Some("must be harmony beside --reasoning-parser harmony")
            }
            _ => None,
        }
    }

    /// Capabilities by a model's chat template, which is empty if there is none.
    #[must_use]
    pub fn resolve(self, jinja: &str) -> ChatTerms {
        let has_channels = match self.calls {
            Choice::One(syntax) => syntax == Syntax::Harmony,
            Choice::ByTemplate | Choice::None => harmony::is_taught_by(jinja),
        };
        let taught = match has_channels {
            true => Some(ReasoningFormat::Channels),
            false => thinking::of_template(jinja),
        };
        let thinking = self.thinking.resolve(taught);
        let calls = match thinking {
            Some(ReasoningFormat::Channels) => self.calls.resolve(Some(Syntax::Harmony)),
            _ => self.calls.resolve(Syntax::of_template(jinja)),
        };
        // Harmony covers both or neither: calls are messages if and only if reasoning is.
        let fits =
            |it: &Syntax| (*it == Syntax::Harmony) == (thinking == Some(ReasoningFormat::Channels));
        ChatTerms {
            parsing: Parsing {
                calls: calls.filter(fits),
                thinking,
                parameters: Parameters::NONE,
            },
            shows_tools: asks_for(jinja, "tools"),
            shows_calls: jinja.contains("tool_calls"),
        }
    }
}

/// True if a template uses a variable of this name: between `{{` or `{%` and their end, outside quotes, and not as a
/// part of another expression (`message.tools`). Time is linear in the template's length.
fn asks_for(jinja: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let (mut is_code, mut quote, mut before) = (false, None, ' ');
    for (at, c) in jinja.char_indices() {
        let rest = &jinja[at..];
        match (is_code, quote) {
            (false, _) => is_code = rest.starts_with("{{") || rest.starts_with("{%"),
            (true, Some(open)) if c == open && before != '\\' => quote = None,
            (true, Some(_)) => {}
            (true, None) if matches!(c, '"' | '\'') => quote = Some(c),
            (true, None) if rest.starts_with("}}") || rest.starts_with("%}") => is_code = false,
            (true, None) => {
                let begins = !is_of_name(before) && before != '.';
                let behind = rest.strip_prefix(name);
                if begins && behind.is_some_and(|behind| !behind.starts_with(is_of_name)) {
                    return true;
                }
            }
        }
        before = c;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_s_word_goes_before_the_template_s() {
        let jinja = "<tool_call> <think>";
        let both = Choices::default().resolve(jinja).parsing;
        assert_eq!(both.calls, Some(Syntax::Hermes));
        assert_eq!(both.thinking, Some(ReasoningFormat::Tagged));
        assert_eq!(Choices::default().resolve("").parsing, Parsing::default());
        let chosen = Choices {
            calls: Choices::parse_calls("phi").unwrap(),
            thinking: Choices::parse_thinking("none").unwrap(),
        };
        let parsing = chosen.resolve(jinja).parsing;
        assert_eq!((parsing.calls, parsing.thinking), (Some(Syntax::Phi), None));
    }

    #[test]
    fn messages_are_taken_apart_as_a_whole_or_not_at_all() {
        let jinja = "{{ '<|channel|>final<|message|>' }}";
        let of = |calls: Option<&str>, thinking: Option<&str>, jinja: &str| {
            let choices = Choices {
                calls: calls.map_or(Choice::ByTemplate, |it| Choices::parse_calls(it).unwrap()),
                thinking: thinking.map_or(Choice::ByTemplate, |it| {
                    Choices::parse_thinking(it).unwrap()
                }),
            };
            let parsing = choices.resolve(jinja).parsing;
            (
                choices.conflict().is_some(),
                parsing.calls,
                parsing.thinking,
            )
        };
        let both = (
            false,
            Some(Syntax::Harmony),
            Some(ReasoningFormat::Channels),
        );
        assert_eq!(of(None, None, jinja), both);
        assert_eq!(of(Some("harmony"), None, "<think>"), both);
        assert_eq!(of(None, Some("harmony"), "<tool_call>"), both);
        assert_eq!(of(Some("harmony"), Some("harmony"), ""), both);
        let no_calls = (false, None, Some(ReasoningFormat::Channels));
        assert_eq!(of(Some("none"), None, jinja), no_calls);
        assert_eq!(of(None, Some("none"), jinja), (false, None, None));
        let tagged = (false, None, Some(ReasoningFormat::Tagged));
        assert_eq!(of(None, Some("think"), jinja), tagged);
        assert_eq!(
            of(Some("hermes"), None, jinja),
            (false, Some(Syntax::Hermes), None)
        );
        for (calls, thinking) in [
            ("harmony", "think"),
            ("harmony", "none"),
            ("hermes", "harmony"),
        ] {
            assert!(
                of(Some(calls), Some(thinking), jinja).0,
                "{calls} {thinking}"
            );
        }
    }

    #[test]
    fn a_template_that_has_no_use_for_tools_is_known() {
        let shows = |jinja: &str| Choices::default().resolve(jinja).shows_tools;
        for jinja in [
            "{%- if tools %}",
            "{{ tools | tojson }}",
            "You {{ 'have' }}{% for tool in tools%}",
            "{%- if not tools is defined %}",
        ] {
            assert!(shows(jinja), "{jinja}");
        }
        for jinja in [
            "You have tools.",
            "{{ 'tools' }} tools {% if message.tools and message['tools'] %}",
            "{{ my_tools }}{{ tools_in_user_message }}{{ '}} tools \\' tools' }}",
            "",
        ] {
            assert!(!shows(jinja), "{jinja}");
        }
        let calls = |jinja: &str| Choices::default().resolve(jinja).shows_calls;
        assert!(calls("{% if 'tool_calls' in message %}") && !calls("{{ tool_call }}"));
    }

    /// Inputs that would take minutes if time were quadratic.
    #[test]
    fn long_templates_are_looked_through_once() {
        for unit in ["{{", "{%", "{{ x }}", "{{ '", "tools "] {
            let jinja = unit.repeat(8_000_000 / unit.len());
            assert!(!Choices::default().resolve(&jinja).shows_tools, "{unit}");
        }
    }

    #[test]
    fn every_parser_has_a_word_and_others_are_refused_with_all_of_them() {
        for word in [
            "hermes",
            "llama3",
            "mistral",
            "phi",
            "harmony",
            "qwen3_coder",
            "gemma4",
        ] {
            assert!(
                matches!(Choices::parse_calls(word), Ok(Choice::One(_))),
                "{word}"
            );
        }
        assert_eq!(Choices::parse_calls("none"), Ok(Choice::None));
        let said = Choices::parse_calls("Hermes").unwrap_err();
        assert!(
            said.contains("hermes, llama3, mistral, phi, harmony, qwen3_coder, gemma4"),
            "{said}"
        );
        assert!(Choices::parse_thinking("qwen3").is_err());
    }
}
