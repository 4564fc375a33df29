//! Stream that survives its connection, and the resumption in each API.

use super::super::api::Api;
use super::super::mix::Request;
use super::super::stream::Reading;
use serde_json::{Value, json};
use worker_orcd_harness::client::Streaming;
use worker_orcd_harness::{Client, EventStream};

/// Stream, over as many connections as it takes.
pub struct Stream {
    pub reading: Reading,
    events: EventStream,
    /// Last `id:` of an event, and the number of pieces up to that event.
    marked: Option<(String, usize)>,
}

impl Stream {
    /// # Errors
    /// The request is refused.
    pub fn open(client: &Client, request: &Request, job: &str) -> Result<Self, String> {
        let mut body = request.body.clone();
        if request.api == Api::Execute {
            body["job_id"] = json!(job);
        }
        let opened = client.open(request.api.path(), &body).map_err(text)?;
        Ok(Self {
            reading: Reading::new(request.api, job),
            events: accepted(opened)?,
            marked: None,
        })
    }

    /// Reads until the stream or its connection ends; true at the end of the stream. `saw` receives the number of
    /// tokens after each event.
    ///
    /// # Errors
    /// An event is not permitted.
    pub fn read(&mut self, mut saw: impl FnMut(u32)) -> Result<bool, String> {
        while let Ok(Some(event)) = self.events.try_next() {
            self.reading.event(&event)?;
            if let Some(id) = event.id {
                self.marked = Some((id, self.pieces("all").len()));
            }
            saw(self.reading.words);
        }
        Ok(self.reading.ended)
    }

    /// Resumes the stream on a connection with the next supervisor, behind the received part; from its beginning if
    /// nothing identifiable was received.
    ///
    /// # Errors
    /// The request is refused.
    pub fn rest(mut self, client: &Client, request: &Request, job: &str) -> Result<Self, String> {
        if self.reading.words == 0 {
            return Self::open(client, request, &format!("{job}-again"));
        }
        let (query, id) = self.place(request);
        let path = format!("{}/{}{query}", request.api.path(), self.reading.name);
        let header = id.as_deref().map(|id| ("Last-Event-ID", id));
        let headers: Vec<_> = header.into_iter().collect();
        let mut connection = client.connect().map_err(text)?;
        let asked = client.request("GET", &path, &headers, &[]);
        connection.send(&asked).map_err(text)?;
        let rest = accepted(connection.read_head().map_err(text)?);
        self.events = rest.map_err(|error| format!("GET {path}: {error}"))?;
        Ok(self)
    }

    /// Received position, as query and `Last-Event-ID`.
    fn place(&mut self, request: &Request) -> (String, Option<String>) {
        // Some choices may have no pieces.
        let counts = |first: usize| {
            let counts = (0..choices(&request.body)).map(|choice| {
                let pieces = self.pieces(&choice.to_string()).len();
                pieces.saturating_sub(first).to_string()
            });
            format!("?from={}", counts.collect::<Vec<_>>().join("."))
        };
        match request.api {
            Api::Execute | Api::Completions => (counts(0), None),
            // Each choice begins with its role, which does not count.
            Api::Chat => (counts(1), None),
            Api::Responses => {
                let last = self.pieces("all").last().map(|it| &it["sequence_number"]);
                let last = last.and_then(Value::as_u64).unwrap_or(0);
                (format!("?stream=true&starting_after={last}"), None)
            }
            // Events after the last one with an id are repeated.
            Api::Messages => {
                let (id, pieces) = self.marked.clone().unzip();
                let all = self
                    .reading
                    .answer
                    .parts
                    .entry("all".to_owned())
                    .or_default();
                all.truncate(pieces.unwrap_or(0));
                (String::new(), id)
            }
            Api::Embeddings => unreachable!("embeddings are no stream"),
        }
    }

    fn pieces(&self, part: &str) -> &[Value] {
        self.reading
            .answer
            .parts
            .get(part)
            .map_or(&[], Vec::as_slice)
    }
}

/// Number of choices of a request.
fn choices(body: &Value) -> u64 {
    let prompts = match &body["prompt"] {
        Value::Array(prompts) if prompts.iter().all(Value::is_string) => prompts.len() as u64,
        _ => 1,
    };
    prompts * body["n"].as_u64().unwrap_or(1)
}

fn accepted(opened: Streaming) -> Result<EventStream, String> {
    if opened.status == 200 {
        return Ok(EventStream::new(opened));
    }
    let refusal = opened.into_response().map_err(text)?;
    Err(format!("refused: {} {}", refusal.status, refusal.text()))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    /// Resumption request after these events of a stream.
    fn asked(api: Api, events: &[&str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        let answer = head.to_owned() + &events.concat();
        let server = thread::spawn(move || {
            let mut asked = String::new();
            for answer in [answer.as_str(), head] {
                let (mut connection, _) = listener.accept().unwrap();
                let mut bytes = [0; 4096];
                let count = connection.read(&mut bytes).unwrap();
                asked = String::from_utf8_lossy(&bytes[..count]).into_owned();
                connection.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        let request = Request {
            what: "test".to_owned(),
            api,
            is_streamed: true,
            body: match api {
                Api::Chat | Api::Completions => json!({"n": 2}),
                _ => json!({}),
            },
            expects: super::super::Expects::Answer,
        };
        let mut stream = Stream::open(&client, &request, "job").unwrap();
        assert!(!stream.read(|_| {}).unwrap());
        stream.rest(&client, &request, "job").unwrap();
        server.join().unwrap()
    }

    #[test]
    fn each_api_is_asked_for_the_rest_in_its_own_way() {
        let chunk = |index: u64, delta: Value| {
            let choice = json!({"index": index, "delta": delta, "text": "a"});
            format!("data: {}\n\n", json!({"id": "its-id", "choices": [choice]}))
        };
        let (role, said) = (json!({"role": "assistant"}), json!({"content": "a"}));
        let choices = [
            chunk(0, role.clone()),
            chunk(1, role),
            chunk(1, said.clone()),
            chunk(0, said.clone()),
            chunk(1, said),
        ];
        let choices: Vec<_> = choices.iter().map(String::as_str).collect();
        let found = asked(Api::Chat, &choices);
        assert!(
            found.starts_with("GET /v1/chat/completions/its-id?from=1.2 HTTP"),
            "{found}"
        );
        let found = asked(Api::Completions, &choices[2..3]);
        assert!(
            found.starts_with("GET /v1/completions/its-id?from=0.1 HTTP"),
            "of one nothing has come: {found}"
        );
        let found = asked(Api::Completions, &choices[2..]);
        assert!(
            found.starts_with("GET /v1/completions/its-id?from=1.2 HTTP"),
            "{found}"
        );

        let tokens = ["event: token\ndata: {\"i\": 0, \"t\": \"a\"}\n\n"];
        let found = asked(Api::Execute, &tokens);
        assert!(found.starts_with("GET /execute/job?from=1 HTTP"), "{found}");

        let created = "data: {\"type\": \"response.created\", \"response\": {\"id\": \"resp_1\"}, \"sequence_number\": 0}\n\n";
        let delta = "data: {\"type\": \"response.output_text.delta\", \"sequence_number\": 7}\n\n";
        let found = asked(Api::Responses, &[created, delta]);
        let path = "GET /v1/responses/resp_1?stream=true&starting_after=7 HTTP";
        assert!(found.starts_with(path), "{found}");

        let start = "data: {\"type\": \"message_start\", \"message\": {\"id\": \"msg_1\"}}\n\n";
        let delta = "id: 4\ndata: {\"type\": \"content_block_delta\"}\n\n";
        let found = asked(Api::Messages, &[start, delta]);
        assert!(found.starts_with("GET /v1/messages/msg_1 HTTP"), "{found}");
        assert!(found.contains("Last-Event-ID: 4\r\n"), "{found}");
    }

    #[test]
    fn what_has_said_nothing_is_asked_for_again() {
        let found = asked(Api::Execute, &["event: started\ndata: {}\n\n"]);
        assert!(found.starts_with("POST /execute HTTP"), "{found}");
        assert!(found.contains("job-again"), "{found}");
    }
}
