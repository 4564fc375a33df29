//! Sum of events, for comparison in tests.

use super::Event;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// Text of a JSON object, as the model wrote it.
    pub(crate) arguments: String,
    pub(crate) is_whole: bool,
}

impl Message {
    pub(crate) fn add(&mut self, event: Event) {
        match (event, self.calls.last_mut()) {
            (Event::Content(text), _) => self.content.push_str(&text),
            (Event::Reasoning(text), _) => self.reasoning.push_str(&text),
            (Event::CallBegins { name }, _) => self.calls.push(Call {
                name,
                ..Call::default()
            }),
            (Event::CallArguments(text), Some(call)) => call.arguments.push_str(&text),
            (Event::CallEnds, Some(call)) => call.is_whole = true,
            // Before the first call, there is no call to add to.
            (Event::CallArguments(_) | Event::CallEnds, None) => {}
        }
    }
}
