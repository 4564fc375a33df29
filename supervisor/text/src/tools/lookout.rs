//! Watching text for marks, whatever pieces it comes in.
//!
//! Held back are white space and what may be the beginning of a mark; of everything else it is certain that
//! it is text. Each character is looked at once, and again as often as a mark is long.

#[derive(Debug, Clone, Default)]
pub(super) struct Lookout {
    /// White space behind the last text.
    space: String,
    /// The beginning of some mark.
    begun: String,
}

impl Lookout {
    /// True when the character completes a mark. `tell` gets what is certainly text.
    pub(super) fn push(&mut self, c: char, marks: &[&str], mut tell: impl FnMut(&str)) -> bool {
        if self.begun.is_empty() && c.is_whitespace() {
            self.space.push(c);
            return false;
        }
        self.begun.push(c);
        if marks.contains(&self.begun.as_str()) {
            return true;
        }
        // Its first character begins no mark; perhaps one of the others does.
        while !is_begun(marks, &self.begun) {
            let first = self.begun.remove(0);
            self.space.push(first);
            if !first.is_whitespace() {
                tell(&self.space);
                self.space.clear();
            }
        }
        false
    }

    /// Nothing is held but white space.
    pub(super) fn holds_space_only(&self) -> bool {
        self.begun.is_empty()
    }

    /// What is held.
    pub(super) fn take(&mut self) -> String {
        let mut held = std::mem::take(&mut self.space);
        held.push_str(&std::mem::take(&mut self.begun));
        held
    }
}

/// True if the text is the beginning of a mark, or nothing.
pub(super) fn is_begun(marks: &[&str], text: &str) -> bool {
    text.is_empty() || marks.iter().any(|mark| mark.starts_with(text))
}
