//! Answer in one piece: the same `response` object that ends a stream.

use super::answer::{Header, Progress};
use super::output::Output;
use crate::render::write_json;
use worker_orcd_requests::{Completion, Piece};

#[derive(Debug)]
pub struct Whole {
    header: Header,
    output: Output,
}

impl Whole {
    #[must_use]
    pub fn new(header: Header) -> Self {
        let only_one_call = !header.echo.parallel_tool_calls;
        let output = Output::new(&header.id, header.parsing, only_one_call);
        Self { header, output }
    }

    pub fn push(&mut self, piece: &Piece) {
        self.output.push(piece, &mut Vec::new());
    }

    /// The response as JSON.
    #[must_use]
    pub fn finish(mut self, completion: &Completion) -> Vec<u8> {
        self.output.finish(completion.stop_reason, &mut Vec::new());
        let ended = Progress::ended(completion, self.output.reasoning_tokens);
        let mut body = Vec::new();
        write_json(&mut body, &self.header.response(&self.output.items, &ended));
        body
    }
}
