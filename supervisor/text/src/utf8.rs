//! Detokenizer: bytes of tokens to text, without incomplete characters and without loss.
//!
//! A token may end inside a character. The character's first bytes then wait for the next token. Bytes that can no
//! longer become a character turn into U+FFFD exactly as in [`String::from_utf8_lossy`], so the text does not depend on
//! token boundaries.

/// Detokenizer of one stream. It holds an incomplete character of at most three bytes.
#[derive(Debug, Default, Clone)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Appends to `out` the text that these bytes make certain.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        // Fast path: nearly every token is whole characters, and none is pending.
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            out.push_str(text);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let taken = decode_certain(&self.pending, out);
        self.pending.drain(..taken);
    }

    /// Number of characters that [`push`](Self::push) would append before the character in which these bytes begin. An
    /// incomplete character that these bytes do not continue counts as one.
    #[must_use]
    pub fn characters_before(&self, bytes: &[u8]) -> usize {
        let Some(first) = bytes.first() else {
            return 0;
        };
        let with_first = [&self.pending[..], &[*first]].concat();
        let goes_on = std::str::from_utf8(&with_first).is_ok() || is_incomplete(&with_first);
        usize::from(!self.pending.is_empty() && !goes_on)
    }

    /// Ends the stream: an incomplete character becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}

/// Decodes all bytes except a tail that may still become a character. Returns the number of decoded bytes.
fn decode_certain(bytes: &[u8], out: &mut String) -> usize {
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        taken += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_the_end = taken + invalid.len() == bytes.len();
        if at_the_end && is_incomplete(invalid) {
            break;
        }
        out.push(char::REPLACEMENT_CHARACTER);
        taken += invalid.len();
    }
    taken
}

/// True for the beginning of a character, false for bytes that begin none.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(chunks: &[Vec<u8>]) -> String {
        let mut out = String::new();
        let mut detokenizer = Detokenizer::default();
        for chunk in chunks {
            detokenizer.push(chunk, &mut out);
        }
        detokenizer.finish(&mut out);
        out
    }

    /// Bytes near the edges of UTF-8's ranges.
    fn tricky_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            Just(0xc3),
            Just(0xa9),
            Just(0xe2),
            Just(0x82),
            Just(0xac),
            Just(0xf0),
            Just(0x9f),
            Just(0x98),
            Just(0x80),
            Just(0xed),
            Just(0xff),
            any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..6)
    }

    proptest! {
        #[test]
        fn streaming_equals_decoding_all_at_once(
            chunks in proptest::collection::vec(tricky_bytes(), 0..12)
        ) {
            let whole: Vec<u8> = chunks.concat();
            prop_assert_eq!(stream(&chunks), String::from_utf8_lossy(&whole).into_owned());
        }

        #[test]
        fn valid_text_is_never_replaced_and_never_waits_for_more_than_its_own_bytes(
            text in ".{0,40}"
        ) {
            let mut out = String::new();
            let mut detokenizer = Detokenizer::default();
            for (at, byte) in text.bytes().enumerate() {
                detokenizer.push(&[byte], &mut out);
                let whole = (0..=at + 1).rev().find(|end| text.is_char_boundary(*end)).unwrap();
                prop_assert_eq!(&out, &text[..whole]);
            }
        }
    }

    #[test]
    fn an_emoji_cut_into_single_bytes_arrives_whole() {
        let bytes: Vec<Vec<u8>> = "😀".bytes().map(|byte| vec![byte]).collect();
        assert_eq!(stream(&bytes), "😀");
    }

    #[test]
    fn a_stream_that_ends_inside_a_character_says_so() {
        assert_eq!(stream(&[vec![b'a', 0xf0, 0x9f]]), "a\u{fffd}");
    }
}
