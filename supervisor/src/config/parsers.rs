//! Parsers of reasoning and tool calls, if the operator selects them.

use super::reader::Reader;
use worker_orcd_text::tools::Choices;

const CALLS: &str = "tool-call-parser";

pub(super) fn read(reader: &mut Reader<'_>) -> Choices {
    let calls = reader.optional(CALLS, Choices::parse_calls);
    let thinking = reader.optional("reasoning-parser", Choices::parse_thinking);
    let parsers = Choices {
        calls: calls.unwrap_or_default(),
        thinking: thinking.unwrap_or_default(),
    };
    if let Some(why) = parsers.conflict() {
        let origin = reader.origin(CALLS);
        reader.error(format!("{origin}: {why}"));
    }
    parsers
}
