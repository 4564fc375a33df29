//! Format of an answer, in a form that another supervisor can read.
//!
//! The journal stores it with the request. So the rest of an answer has the same format as its beginning, in any
//! supervisor.

use crate::choices::Layout;
use crate::ollama;
use crate::openai::Kind;
use crate::openai::request::StreamOptions;
use crate::responses::answer::Echo;
use serde::{Deserialize, Serialize};
use worker_orcd_text::tools::Parsing;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presentation {
    pub correlation_id: String,
    pub form: Form,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    Execute {
        seed: u64,
        metrics: bool,
    },
    OpenAi {
        kind: Kind,
        /// Unix seconds.
        created: u64,
        /// The model's fingerprint.
        fingerprint: String,
        /// `None`: the answer is not streamed.
        stream: Option<StreamOptions>,
        /// Parsers of its text.
        parsing: Parsing,
        /// The grammar allows tool calls alone.
        #[serde(default)]
        must_call: bool,
        /// Number of choices.
        layout: Layout,
    },
    /// Anthropic's Messages API.
    Messages {
        is_streamed: bool,
        /// Parsers of its text.
        parsing: Parsing,
    },
    /// OpenAI's Responses API.
    Responses {
        /// Unix seconds.
        created: u64,
        is_streamed: bool,
        /// Parsers of its text.
        parsing: Parsing,
        echo: Box<Echo>,
        /// First event for a client that resumes.
        #[serde(skip)]
        from: u64,
    },
    /// Ollama's API.
    Ollama(ollama::Header),
}

impl Presentation {
    /// `None` if another version wrote it.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    #[must_use]
    pub fn write(&self) -> String {
        // All maps have string keys; there is no other source of errors.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Form {
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        match self {
            Self::Execute { .. } => true,
            Self::OpenAi { stream, .. } => stream.is_some(),
            Self::Messages { is_streamed, .. }
            | Self::Responses { is_streamed, .. }
            | Self::Ollama(ollama::Header { is_streamed, .. }) => *is_streamed,
        }
    }

    /// Parsers of the text.
    #[must_use]
    pub fn parsing(&self) -> Parsing {
        match self {
            Self::Execute { .. } => Parsing::default(),
            Self::OpenAi { parsing, .. }
            | Self::Messages { parsing, .. }
            | Self::Responses { parsing, .. }
            | Self::Ollama(ollama::Header { parsing, .. }) => *parsing,
        }
    }

    /// Number of choices of the answer.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Self::OpenAi { layout, .. } => *layout,
            _ => Layout::default(),
        }
    }

    /// Records that the prompt opens reasoning.
    pub fn open_thinking(&mut self) {
        match self {
            Self::Execute { .. } => {}
            Self::OpenAi { parsing, .. }
            | Self::Messages { parsing, .. }
            | Self::Responses { parsing, .. }
            | Self::Ollama(ollama::Header { parsing, .. }) => {
                parsing.open_thinking();
            }
        }
    }

    /// Sets the first event for a client that resumes.
    pub fn resume_from(&mut self, first: u64) {
        if let Self::Responses { from, .. } = self {
            *from = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use worker_orcd_text::tools::{Syntax, Thoughts};

    #[test]
    fn it_is_read_as_it_was_written() {
        let forms = [
            Form::Execute {
                seed: u64::MAX,
                metrics: true,
            },
            Form::OpenAi {
                kind: Kind::Chat,
                created: 3,
                fingerprint: "fp_1".to_owned(),
                stream: Some(StreamOptions::default()),
                parsing: Parsing {
                    calls: Some(Syntax::Mistral),
                    thinking: Some(Thoughts::Opened),
                },
                must_call: true,
                layout: Layout { prompts: 1, n: 3 },
            },
            Form::OpenAi {
                kind: Kind::Completion,
                created: 4,
                fingerprint: String::new(),
                stream: None,
                parsing: Parsing::default(),
                must_call: false,
                layout: Layout::default(),
            },
            Form::Messages {
                is_streamed: true,
                parsing: Parsing {
                    calls: Some(Syntax::Hermes),
                    thinking: Some(Thoughts::Tagged),
                },
            },
            Form::Responses {
                created: 5,
                is_streamed: true,
                parsing: Parsing::default(),
                echo: Box::new(Echo {
                    temperature: serde_json::Number::from_f64(0.8),
                    top_p: serde_json::Number::from_f64(1.0),
                    max_output_tokens: 6,
                    tool_choice: json!({"type": "function", "name": "a"}),
                    parallel_tool_calls: false,
                    effort: Some("low".to_owned()),
                    format: Some(json!({"type": "json_object"})),
                    verbosity: None,
                    top_logprobs: 2,
                    metadata: [("a".to_owned(), "\"b\"".to_owned())].into(),
                }),
                from: 0,
            },
            Form::Ollama(ollama::Header {
                kind: ollama::Kind::Generate,
                created_at: "2026-11-21T12:00:00.250Z".to_owned(),
                is_streamed: true,
                parsing: Parsing::default(),
            }),
        ];
        for form in forms {
            let presentation = Presentation {
                correlation_id: "a \"b\"".to_owned(),
                form,
            };
            let read = Presentation::read(&presentation.write());
            assert_eq!(read, Some(presentation));
        }
        assert_eq!(Presentation::read("{}"), None);
    }
}
