//! Search for marks in a text that arrives in pieces.
//!
//! White space and text that may begin a mark are held back. All other text is released at once. Each character is
//! processed once, and after an incomplete mark at most once per character of that mark.

#[derive(Debug, Clone, Default)]
pub(super) struct Lookout {
    /// White space after the last text.
    space: String,
    /// Beginning of a mark.
    begun: String,
}

impl Lookout {
    /// Returns true if the character completes a mark. `tell` receives text that is certainly no part of a mark.
    pub(super) fn push(&mut self, c: char, marks: &[&str], mut tell: impl FnMut(&str)) -> bool {
        if self.begun.is_empty() && c.is_whitespace() {
            self.space.push(c);
            return false;
        }
        self.begun.push(c);
        if marks.contains(&self.begun.as_str()) {
            return true;
        }
        // The first character begins no mark; one of the following may.
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

    /// True if only white space is held.
    pub(super) fn holds_space_only(&self) -> bool {
        self.begun.is_empty()
    }

    /// Takes the held text.
    pub(super) fn take(&mut self) -> String {
        let mut held = std::mem::take(&mut self.space);
        held.push_str(&std::mem::take(&mut self.begun));
        held
    }
}

/// True if the text is empty or begins a mark.
pub(super) fn is_begun(marks: &[&str], text: &str) -> bool {
    text.is_empty() || marks.iter().any(|mark| mark.starts_with(text))
}
