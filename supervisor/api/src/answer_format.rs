//! Format of an answer, in a form that another supervisor can read.
//!
//! The journal stores it with the request. So the rest of an answer has the same format as its beginning, in any
//! supervisor.

use crate::choices::{Layout, More};
use crate::request::GenerationRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::time::SystemTime;
use worker_orcd_text::tools::Parsing;

/// Request for an answer: its text, and its format.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerRequest {
    pub generation: GenerationRequest,
    /// Further choices.
    pub more: More,
    pub requested: RequestedFormat,
}

impl AnswerRequest {
    /// Request for one choice.
    #[must_use]
    pub fn one(generation: GenerationRequest, requested: RequestedFormat) -> Self {
        let more = More::default();
        Self {
            generation,
            more,
            requested,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerFormat {
    pub correlation_id: String,
    /// Time at which the answer began.
    pub created: SystemTime,
    /// The model's fingerprint.
    pub fingerprint: String,
    /// Number of choices.
    pub layout: Layout,
    pub requested: RequestedFormat,
}

/// Format that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedFormat {
    pub is_streamed: bool,
    /// Parsers of the text.
    pub parsing: Parsing,
    pub api: Api,
}

impl RequestedFormat {
    /// Whether the choice with this index has log probabilities of its prompt, if they are requested. All choices of a
    /// chat have one prompt, and its answer has them once.
    #[must_use]
    pub fn lists_prompt_at(&self, index: u32) -> bool {
        let is_chat = matches!(&self.api, Api::OpenAi { kind, .. } if *kind == OpenAiKind::Chat);
        index == 0 || !is_chat
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Api {
    Execute {
        seed: u64,
        metrics: bool,
    },
    OpenAi {
        kind: OpenAiKind,
        options: OpenAiOptions,
        /// The grammar allows tool calls alone.
        must_call: bool,
    },
    /// Anthropic's Messages API.
    Messages,
    /// OpenAI's Responses API.
    Responses {
        echo: Box<Echo>,
        /// First event for a client that resumes.
        #[serde(skip)]
        from: u64,
    },
    Ollama(OllamaKind),
}

/// Endpoint of the OpenAI API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenAiKind {
    Chat,
    Completion,
}

/// Endpoint of Ollama's API that generates text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OllamaKind {
    Chat,
    Generate,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAiOptions {
    /// A stream ends with the usage.
    pub include_usage: bool,
    /// Every chunk of a stream has the usage so far.
    pub continuous_usage: bool,
    /// Answers and chunks have the ids of their tokens.
    pub token_ids: bool,
    /// Whole answers have log probabilities of the prompt, with this many of the most likely tokens.
    pub prompt_logprobs: Option<u8>,
}

/// Fields of the request that the answer repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    pub temperature: Option<Number>,
    pub top_p: Option<Number>,
    pub max_output_tokens: u32,
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
    pub effort: Option<String>,
    /// Format that constrains the answer. `None`: text.
    pub format: Option<Value>,
    pub verbosity: Option<String>,
    #[serde(default)]
    pub top_logprobs: u8,
    pub metadata: BTreeMap<String, String>,
}

/// Longest id in a JSON list, in bytes: ten digits and a comma.
const MAX_ID_BYTES: usize = 11;

impl AnswerFormat {
    /// Upper bound of the bytes of prompt ids that an answer in one piece repeats: a completion has those of a prompt in
    /// each of its choices. `tokens_in`: prompt tokens of each choice.
    #[must_use]
    pub fn repeated_id_bytes(&self, tokens_in: impl IntoIterator<Item = u32>) -> usize {
        let has_ids = matches!(
            &self.requested.api,
            Api::OpenAi { kind: OpenAiKind::Completion, options, .. } if options.token_ids
        );
        if !has_ids || self.requested.is_streamed {
            return 0;
        }
        let choices = self.layout.places().zip(tokens_in);
        let repeated = choices.filter(|(choice, _)| choice.k > 0);
        let bytes = repeated.map(|(_, tokens)| tokens as usize * MAX_ID_BYTES);
        bytes.fold(0, usize::saturating_add)
    }

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

    /// Time at which the answer began, in Unix seconds.
    #[must_use]
    pub fn created_seconds(&self) -> u64 {
        let since = self.created.duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }

    /// Sets the first event for a client that resumes.
    pub fn resume_from(&mut self, first: u64) {
        if let Api::Responses { from, .. } = &mut self.requested.api {
            *from = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use worker_orcd_text::tools::{Parameters, ReasoningFormat, Syntax};

    const TOOLS: &str = "[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":\
        {\"properties\":{\"b\":{\"type\":\"integer\"}}}}}]";

    #[test]
    fn it_is_read_as_it_was_written() {
        let echo = Echo {
            temperature: Number::from_f64(0.8),
            top_p: Number::from_f64(1.0),
            max_output_tokens: 6,
            tool_choice: json!({"type": "function", "name": "a"}),
            parallel_tool_calls: false,
            effort: Some("low".to_owned()),
            format: Some(json!({"type": "json_object"})),
            verbosity: None,
            top_logprobs: 2,
            metadata: [("a".to_owned(), "\"b\"".to_owned())].into(),
        };
        let apis = [
            Api::Execute {
                seed: u64::MAX,
                metrics: true,
            },
            Api::OpenAi {
                kind: OpenAiKind::Chat,
                options: OpenAiOptions {
                    include_usage: true,
                    ..OpenAiOptions::default()
                },
                must_call: true,
            },
            Api::OpenAi {
                kind: OpenAiKind::Completion,
                options: OpenAiOptions::default(),
                must_call: false,
            },
            Api::Messages,
            Api::Responses {
                echo: Box::new(echo),
                from: 0,
            },
            Api::Ollama(OllamaKind::Generate),
        ];
        for (api, is_streamed) in apis.into_iter().zip([true, false].into_iter().cycle()) {
            let format = AnswerFormat {
                correlation_id: "a \"b\"".to_owned(),
                created: SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_891_012),
                fingerprint: "fp_1".to_owned(),
                layout: Layout { prompts: 1, n: 3 },
                requested: RequestedFormat {
                    is_streamed,
                    parsing: Parsing {
                        calls: Some(Syntax::Mistral),
                        thinking: Some(ReasoningFormat::Opened),
                        parameters: Parameters::of_tools(TOOLS),
                    },
                    api,
                },
            };
            assert_eq!(format.created_seconds(), 1234);
            let read = AnswerFormat::read(&format.write());
            assert_eq!(read, Some(format));
        }
        assert_eq!(AnswerFormat::read("{}"), None);
    }

    #[test]
    fn prompt_ids_are_counted_where_an_answer_repeats_them() {
        let bytes = |kind, token_ids, is_streamed| {
            let format = AnswerFormat {
                correlation_id: String::new(),
                created: SystemTime::UNIX_EPOCH,
                fingerprint: String::new(),
                layout: Layout { prompts: 2, n: 3 },
                requested: RequestedFormat {
                    is_streamed,
                    parsing: Parsing::default(),
                    api: Api::OpenAi {
                        kind,
                        options: OpenAiOptions {
                            token_ids,
                            ..OpenAiOptions::default()
                        },
                        must_call: false,
                    },
                },
            };
            format.repeated_id_bytes([5, 5, 5, 7, 7, 7])
        };
        let longest = format!("{},", u32::MAX).len();
        let repeated = (2 * 5 + 2 * 7) * longest;
        assert_eq!(bytes(OpenAiKind::Completion, true, false), repeated);
        assert_eq!(bytes(OpenAiKind::Completion, true, true), 0);
        assert_eq!(bytes(OpenAiKind::Completion, false, false), 0);
        assert_eq!(bytes(OpenAiKind::Chat, true, false), 0);
    }
}
