//! Events of an answer as a stream of server-sent events or lines: what each API writes for them.

use crate::choices::Layout;
use serde::Serialize;
use worker_orcd_requests::{Completion, Failure, Piece};

/// Event format of an API. All methods append, so several events share a chunk.
pub trait Render: Send + Unpin + 'static {
    /// Media type of the stream.
    const CONTENT_TYPE: &'static str = EVENT_STREAM;

    /// Writes the events before all others.
    fn begin(&mut self, _out: &mut Vec<u8>) {}
    /// Writes a piece of text. `index`: of the last token in it.
    fn text(&mut self, piece: &Piece, out: &mut Vec<u8>);
    /// Processes text that the client already has, before all text that is written.
    fn known(&mut self, _piece: &Piece) {}
    /// Writes what follows each batch of text. `tokens_out`: number of all accepted tokens.
    fn progress(&mut self, _tokens_out: u32, _out: &mut Vec<u8>) {}
    /// Writes the end of a choice.
    fn finished(&mut self, completion: &Completion, out: &mut Vec<u8>);
    /// Writes what follows the ends of all choices.
    fn end(&mut self, _ends: &[Completion], _layout: Layout, _out: &mut Vec<u8>) {}
    fn failed(&mut self, failure: &Failure, out: &mut Vec<u8>);
    /// Writes a keep-alive after a long silence.
    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(COMMENT);
    }
    /// Writes a sign of life while the child is being replaced.
    fn recovering(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(RECOVERING);
    }
}

/// Event format of an API that also has answers in one piece.
pub trait Whole: Render {
    /// Adds a piece to the answer in one piece.
    fn gather(&mut self, piece: &Piece);
    /// The answer in one piece, as JSON.
    fn whole(self, completion: &Completion) -> Vec<u8>;
}

/// Media type of server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream";
/// Media type of JSON objects, one on each line.
pub const LINES: &str = "application/x-ndjson";

/// Comments, which clients ignore.
pub const COMMENT: &[u8] = b": keep-alive\n\n";
pub const RECOVERING: &[u8] = b": recovering\n\n";
/// Sign of life between JSON objects: white space before a value is insignificant (RFC 8259, section 2), and an empty
/// line would not be.
pub const SPACE: &[u8] = b" ";

/// Writes `event: NAME`, `data: JSON`. Neither may contain a line break.
pub fn write_event(out: &mut Vec<u8>, name: &str, data: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_data(out, data);
}

/// Writes `data: JSON`. JSON escapes line breaks, so it is always one line.
pub fn write_data(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    write_json(out, data);
    out.extend_from_slice(b"\n\n");
}

pub fn write_json(out: &mut Vec<u8>, data: &impl Serialize) {
    // Neither writing to memory nor serializing these types can fail.
    let _ = serde_json::to_writer(out, data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data_whatever_the_text() {
        let mut out = Vec::new();
        write_event(
            &mut out,
            "token",
            &serde_json::json!({"t": "a\nb\r\n\u{2028}"}),
        );
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "event: token\ndata: {\"t\":\"a\\nb\\r\\n\u{2028}\"}\n\n"
        );
    }
}
