//! Stop strings, matched on text and across token boundaries.
//!
//! Only text that may still become a stop string is held back, so a client never receives the beginning of one. The
//! match that is complete first wins. Of two that are complete at the same character, the one that began first wins. So
//! the result does not depend on token boundaries.

/// Stop strings of one stream, and the text held back for them.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// Empty strings match nothing.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self {
            patterns: stops.iter().map(|stop| Pattern::new(stop)).collect(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Appends to `out` the text that can no longer be part of a stop string. Returns the index of the stop string that
    /// became complete: it and all following text are dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stopped {
            return None;
        }
        if self.patterns.is_empty() {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            if let Some(index) = self.step(byte) {
                let end = before + at + 1;
                let start = end - self.patterns[index].bytes.len();
                out.push_str(&self.held[..start]);
                self.held.clear();
                self.stopped = true;
                return Some(index);
            }
        }
        self.release(out);
        None
    }

    /// Appends text in which no stop string ends. One that begins there may end in later text.
    pub fn pass(&mut self, text: &str, out: &mut String) {
        if self.stopped {
            return;
        }
        self.held.push_str(text);
        for byte in text.bytes() {
            for pattern in &mut self.patterns {
                pattern.pass(byte);
            }
        }
        self.release(out);
    }

    /// Ends the stream: held text is appended to `out`.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.stopped = true;
    }

    /// Feeds one byte to every pattern. Returns the index of the longest complete pattern, the first of equal ones.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for index in 0..self.patterns.len() {
            if self.patterns[index].step(byte)
                && complete.is_none_or(|best| {
                    self.patterns[index].bytes.len() > self.patterns[best].bytes.len()
                })
            {
                complete = Some(index);
            }
        }
        complete
    }

    /// Releases the text before the longest beginning of a stop string. A stop string begins at a character boundary,
    /// so the held text does too.
    fn release(&mut self, out: &mut String) {
        let keep = self
            .patterns
            .iter()
            .map(|pattern| pattern.matched)
            .max()
            .unwrap_or(0);
        let free = self.held.len() - keep;
        out.push_str(&self.held[..free]);
        self.held.drain(..free);
    }
}

/// Matcher by Knuth, Morris and Pratt: time is linear in the text for any stop string.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `fallback[n]`: length of the longest proper prefix that is also a suffix of the first `n + 1` bytes.
    fallback: Vec<usize>,
    /// Length of the longest prefix of the pattern that the text ends with, in bytes.
    matched: usize,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length - 1];
            }
            if bytes[at] == bytes[length] {
                length += 1;
            }
            fallback[at] = length;
        }
        Self {
            bytes,
            fallback,
            matched: 0,
        }
    }

    /// True if this byte completes the pattern.
    fn step(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }

    /// Steps, and goes on after a complete pattern.
    fn pass(&mut self, byte: u8) {
        if self.step(byte) {
            self.matched = self.fallback[self.matched - 1];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(stops: &[String], chunks: &[String]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops);
        let mut out = String::new();
        for chunk in chunks {
            if let Some(index) = matcher.push(chunk, &mut out) {
                return (out, Some(index));
            }
        }
        matcher.finish(&mut out);
        (out, None)
    }

    /// Index of the longest stop string at the end of the text, the first of equal ones.
    fn at_end(stops: &[String], text: &str) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (index, stop) in stops.iter().enumerate() {
            if !stop.is_empty()
                && text.ends_with(stop.as_str())
                && best.is_none_or(|best| stop.len() > stops[best].len())
            {
                best = Some(index);
            }
        }
        best
    }

    /// Reference implementation: tests every prefix of the text that ends after `passed` bytes.
    fn naive(stops: &[String], text: &str, passed: usize) -> (String, Option<usize>) {
        for end in (passed + 1..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            if let Some(index) = at_end(stops, &text[..end]) {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        /// As vLLM looks for stop strings behind `min_tokens`: a match may begin before, and ends behind.
        #[test]
        fn a_stop_string_ends_behind_the_text_that_is_passed(
            stops in proptest::collection::vec("[ab\u{e9}]{0,4}", 0..4),
            passed in proptest::collection::vec("[abc\u{e9}]{0,5}", 0..5),
            chunks in proptest::collection::vec("[abc\u{e9}]{0,5}", 0..5),
        ) {
            let (mut matcher, mut out) = (StopMatcher::new(&stops), String::new());
            for chunk in &passed {
                matcher.pass(chunk, &mut out);
            }
            let found = chunks.iter().find_map(|chunk| matcher.push(chunk, &mut out));
            matcher.finish(&mut out);
            let (before, text) = (passed.concat(), passed.concat() + &chunks.concat());
            prop_assert_eq!((out, found), naive(&stops, &text, before.len()));
        }

        #[test]
        fn streaming_equals_the_naive_rule(
            stops in proptest::collection::vec("[ab\u{e9}]{0,4}", 0..4),
            chunks in proptest::collection::vec("[abc\u{e9}]{0,5}", 0..10),
        ) {
            let text = chunks.concat();
            prop_assert_eq!(stream(&stops, &chunks), naive(&stops, &text, 0));
        }

        #[test]
        fn only_what_could_begin_a_stop_is_held_back(
            stops in proptest::collection::vec("[ab]{1,4}", 1..4),
            text in "[abc]{0,20}",
        ) {
            let mut matcher = StopMatcher::new(&stops);
            let mut out = String::new();
            for (at, c) in text.char_indices() {
                if matcher.push(&c.to_string(), &mut out).is_some() {
                    break;
                }
                let seen = &text[..at + 1];
                let could_begin = |from: usize| {
                    stops.iter().any(|stop| stop.len() > seen.len() - from
                        && stop.starts_with(&seen[from..]))
                };
                let first = (0..seen.len()).find(|from| could_begin(*from)).unwrap_or(seen.len());
                prop_assert_eq!(&out, &seen[..first]);
            }
        }
    }

    #[test]
    fn a_stop_string_across_three_tokens_never_leaks() {
        let stops = ["</end>".to_owned()];
        let mut matcher = StopMatcher::new(&stops);
        let mut out = String::new();
        assert_eq!(matcher.push("so <", &mut out), None);
        assert_eq!(out, "so ");
        assert_eq!(matcher.push("/en", &mut out), None);
        assert_eq!(out, "so ");
        assert_eq!(matcher.push("d> more", &mut out), Some(0));
        assert_eq!(out, "so ");
    }

    #[test]
    fn a_false_start_is_given_back() {
        let stops = ["aab".to_owned()];
        let chunks = ["aa".to_owned(), "aac".to_owned()];
        assert_eq!(stream(&stops, &chunks), ("aaaac".to_owned(), None));
    }
}
