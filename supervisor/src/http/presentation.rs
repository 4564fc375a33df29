//! Response format of a request, in a form that another supervisor can read.
//!
//! The journal stores it with the request. So the rest of an answer has the same format as its beginning, in any
//! supervisor.

use super::choices::Layout;
use super::error::ApiError;
use super::execute::events::{ExecuteEvents, Started};
use super::generation::Accepted;
use super::openai::request::StreamOptions;
use super::openai::stream::Chunks;
use super::openai::{Header, Kind, several, whole};
use super::responses::answer::Echo;
use super::{App, anthropic, responses, sse};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
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
            Self::Messages { is_streamed, .. } | Self::Responses { is_streamed, .. } => {
                *is_streamed
            }
        }
    }

    /// Parsers of the text.
    #[must_use]
    pub fn parsing(&self) -> Parsing {
        match self {
            Self::Execute { .. } => Parsing::default(),
            Self::OpenAi { parsing, .. }
            | Self::Messages { parsing, .. }
            | Self::Responses { parsing, .. } => *parsing,
        }
    }

    /// Number of choices of the answer.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Self::Execute { .. } | Self::Messages { .. } | Self::Responses { .. } => {
                Layout::default()
            }
            Self::OpenAi { layout, .. } => *layout,
        }
    }

    /// Records that the prompt opens reasoning.
    pub fn open_thinking(&mut self) {
        match self {
            Self::Execute { .. } => {}
            Self::OpenAi { parsing, .. }
            | Self::Messages { parsing, .. }
            | Self::Responses { parsing, .. } => {
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

    /// Response of one request. `begun`: the client already has the head of the response.
    ///
    /// # Errors
    /// If the request fails before any of the answer was sent.
    pub async fn respond(
        self,
        app: &Arc<App>,
        accepted: Accepted,
        begun: bool,
    ) -> Result<Response, ApiError> {
        self.respond_all(app, vec![accepted], begun).await
    }

    /// Response of an answer with these choices, in order. `begun`: the client already has the head of the response.
    ///
    /// # Errors
    /// If the request fails before any of the answer was sent.
    pub async fn respond_all(
        self,
        app: &Arc<App>,
        accepted: Vec<Accepted>,
        begun: bool,
    ) -> Result<Response, ApiError> {
        match self {
            Self::Execute { seed, metrics } => {
                let Accepted { stream, job, .. } = only(accepted)?;
                let started = Started {
                    job_id: job.id().to_owned(),
                    model: app.model_id.clone(),
                    seed,
                };
                let app = Arc::clone(app);
                let memory = move || app.device_bytes_in_use();
                let render = ExecuteEvents::new(started, metrics, memory);
                Ok(match begun {
                    true => sse::go_on_begun(stream, job, render),
                    false => sse::respond(stream, job, render),
                })
            }
            Self::OpenAi {
                kind,
                created,
                fingerprint,
                stream: options,
                parsing,
                must_call,
                layout,
            } => {
                let first = accepted.first();
                let id = first.map_or("", |it| it.stream.answer()).to_owned();
                let header = Header {
                    kind,
                    id,
                    created,
                    model: app.model_id.clone(),
                    fingerprint,
                    parsing,
                    must_call,
                };
                let needs_all = parsing.is_any() || options.is_none() || layout.count() > 1;
                for Accepted { stream, .. } in accepted.iter().filter(|_| needs_all) {
                    // The format of a piece depends on all earlier text, an unstreamed answer is complete, and with
                    // several choices each piece is counted.
                    stream.give_known();
                }
                match options {
                    None => whole::respond(accepted, &header, layout).await,
                    Some(options) => streamed(accepted, &header, options, layout, begun).await,
                }
            }
            Self::Messages {
                is_streamed,
                parsing,
            } => {
                let answer = only(accepted)?;
                anthropic::respond(answer, &app.model_id, is_streamed, parsing, begun).await
            }
            Self::Responses {
                created,
                is_streamed,
                parsing,
                echo,
                from,
            } => {
                let accepted = only(accepted)?;
                let header = responses::answer::Header {
                    id: accepted.job.id().to_owned(),
                    created,
                    model: app.model_id.clone(),
                    parsing,
                    echo: *echo,
                };
                let first = is_streamed.then_some(from);
                responses::respond(accepted, header, first, begun).await
            }
        }
    }
}

/// The single choice of an answer.
fn only(accepted: Vec<Accepted>) -> Result<Accepted, ApiError> {
    accepted.into_iter().next().ok_or_else(ApiError::unreadable)
}

/// Streamed answer of the OpenAI API.
async fn streamed(
    mut accepted: Vec<Accepted>,
    header: &Header,
    options: StreamOptions,
    layout: Layout,
    begun: bool,
) -> Result<Response, ApiError> {
    if layout.count() == 1
        && let Some(Accepted {
            stream,
            job,
            tokens_in,
        }) = accepted.pop()
    {
        let chunks = Chunks::new(header, options, tokens_in);
        return match begun {
            true => Ok(sse::go_on(stream, job, chunks)),
            false => sse::respond_when_known(stream, job, chunks).await,
        };
    }
    let source = several::Choices::new(accepted, header, options, layout);
    match begun {
        true => Ok(sse::go_on_with(source)),
        false => sse::respond_when_known_with(source).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::job::Job;
    use crate::http::tests::app;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use worker_orcd_ipc::{DrawnLogprobs, FinishReason, Logprobs};
    use worker_orcd_requests::record::NewRequest;
    use worker_orcd_requests::testing::{Journal, SEAT, request, step};
    use worker_orcd_text::tools::{Syntax, Thoughts};

    #[tokio::test]
    async fn an_answer_in_one_piece_is_told_whole_whatever_the_client_says_that_it_has() {
        let app = app(&[]).await;
        let mut journal = Journal::serving();
        let (id, stream) = journal.submit(NewRequest {
            logprobs: Some(0),
            ..request("job")
        });
        for (index, token) in (0..).zip([0, 1]) {
            let mut report = step(&[(id, index, token)], &[]);
            report.logprobs.push(DrawnLogprobs {
                request: id,
                index,
                logprobs: Logprobs {
                    of_token: -0.5,
                    top: vec![],
                },
            });
            journal.requests.step(SEAT, &report, journal.now).unwrap();
        }
        let end = step(&[], &[(id, FinishReason::MaxTokens)]);
        journal.requests.step(SEAT, &end, journal.now).unwrap();
        stream.mark_delivered(1);
        let accepted = Accepted {
            stream,
            job: Job::begin(Arc::clone(&app), "job".to_owned(), String::new()),
            tokens_in: 2,
        };
        let form = Form::OpenAi {
            kind: Kind::Completion,
            created: 4,
            fingerprint: String::new(),
            stream: None,
            parsing: Parsing::default(),
            must_call: false,
            layout: Layout::default(),
        };
        let answer = form.respond(&app, accepted, true).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], "ab");
        assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b"]));
    }

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
