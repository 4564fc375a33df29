//! Byte-level BPE of long texts, a window at a time.
//!
//! The engine keeps some hundred bytes of book-keeping for each byte of a text. So it is given
//! windows: the words of one are those of the whole text, but for its last two, which what
//! follows may change (a run goes on, white space is shared with the next word). They are cut again
//! in the next window, which begins with them. Cutting goes from left to right and looks at
//! nothing in front of a word, so the ids are those of the whole text.

use super::word::{MOST_BYTES_AT_ONCE, Undivided};
use tokenizers::{Encoding, Tokenizer as Engine};
use worker_orcd_ipc::TokenId;

/// Shorter texts are encoded whole, as they always were.
const WINDOW_BYTES: usize = 4 << 10;

/// Appends the ids of a text that holds no special tokens.
///
/// # Errors
/// When a word does not fit the largest window.
pub(super) fn encode(engine: &Engine, text: &str, out: &mut Vec<TokenId>) -> Result<(), Undivided> {
    encode_by(engine, text, WINDOW_BYTES, out)
}

fn encode_by(
    engine: &Engine,
    mut text: &str,
    least: usize,
    out: &mut Vec<TokenId>,
) -> Result<(), Undivided> {
    let mut window = least;
    while text.len() > window {
        let bytes = whole_words(engine, beginning(text, window), out);
        if bytes > 0 {
            text = &text[bytes..];
            window = least;
        } else if window < MOST_BYTES_AT_ONCE {
            window = (window * 2).min(MOST_BYTES_AT_ONCE);
        } else {
            return Err(Undivided);
        }
    }
    // Without normalizer, post-processor or truncation nothing in there can fail.
    if let Ok(encoding) = engine.encode_fast(text, false) {
        out.extend(encoding.get_ids().iter().map(|id| TokenId(*id)));
    }
    Ok(())
}

/// Appends the ids of all words but the last two, and says how many bytes those were.
fn whole_words(engine: &Engine, window: &str, out: &mut Vec<TokenId>) -> usize {
    let Ok(encoding) = engine.encode(window, false) else {
        return 0;
    };
    let whole = tokens_before_the_last_two_words(&encoding);
    let ids = encoding.get_ids().iter().take(whole);
    out.extend(ids.map(|id| TokenId(*id)));
    let offsets = encoding.get_offsets();
    offsets.get(whole).map_or(0, |(start, _)| *start)
}

fn tokens_before_the_last_two_words(encoding: &Encoding) -> usize {
    let words = encoding.get_word_ids();
    let Some(last) = words.last().copied().flatten() else {
        return 0;
    };
    let is_whole = |word: &Option<u32>| word.is_some_and(|word| word + 1 < last);
    words.iter().take_while(|word| is_whole(word)).count()
}

fn beginning(text: &str, bytes: usize) -> &str {
    let cut = (0..=bytes).rev().find(|at| text.is_char_boundary(*at));
    &text[..cut.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::super::pre_tokenizer::PreTokenizer;
    use super::super::word::LONGEST_WORD_BYTES;
    use super::*;
    use proptest::prelude::*;
    use tokenizers::ModelWrapper;
    use tokenizers::models::bpe::{BPE, Vocab};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    /// Every byte, and merges that make words of letters, digits and spaces.
    fn engine(pre: &str) -> Engine {
        let mut alphabet: Vec<String> = ByteLevel::alphabet().iter().map(char::to_string).collect();
        alphabet.sort();
        let pairs = [
            "a b",
            "1 2",
            "12 3",
            "Ġ Ġ",
            "ĠĠ ĠĠ",
            "Ġ a",
            "' s",
            "Ċ Ċ",
            "ab c",
            "! !",
            "Ġ Ċ",
            "ĠĊ ĠĊ",
            "r e",
            "' re",
        ];
        let merges: Vec<(String, String)> = pairs
            .iter()
            .map(|pair| pair.split_once(' ').unwrap())
            .map(|(left, right)| (left.to_owned(), right.to_owned()))
            .collect();
        let merged = merges.iter().map(|(left, right)| format!("{left}{right}"));
        let tokens = alphabet.into_iter().chain(merged);
        let vocabulary: Vocab = tokens.zip(0..).collect();
        let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).build();
        let mut engine = Engine::new(ModelWrapper::BPE(bpe.unwrap()));
        let pre = PreTokenizer::named(pre).unwrap();
        engine.with_pre_tokenizer(Some(pre.build().unwrap()));
        engine
    }

    /// One name for each list of patterns.
    const PATTERNS: [&str; 6] = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "falcon"];

    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "a", "b", "abc", "AB", "1", "12", "123", " ", "  ", "    ", "\n", "\r\n", "\t", "'s",
            "'", "r", "re", "!", "!!", "$", "é", "汉字", "ß", "🙂", "\u{a0}", "-", "`", "_", "²",
            "٣",
        ]);
        prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn a_window_that_ends_in_a_run_leaves_it_to_the_next() {
        let texts = [
            "ab \n \n \n \n \n ab",
            "ab\n\n \r\n  \t\n    ab",
            "12345678901234567890 ab",
            "ab    ab        ab    ",
            "ab's's's!!!!!!'s 'sab",
            "a're're ab're",
            "汉字12汉字 ab é²٣!",
        ];
        for (text, pre) in texts
            .iter()
            .flat_map(|text| PATTERNS.map(|pre| (text, pre)))
        {
            let engine = engine(pre);
            let mut whole = Vec::new();
            encode_by(&engine, text, usize::MAX, &mut whole).unwrap();
            for window in 4..text.len() {
                let mut windows = Vec::new();
                encode_by(&engine, text, window, &mut windows).unwrap();
                assert_eq!(whole, windows, "{pre} {text:?} by {window}");
            }
        }
    }

    proptest! {
        #[test]
        fn windows_give_the_ids_of_the_whole_text(text in pieces(), window in 8_usize..40) {
            for pre in PATTERNS {
                let engine = engine(pre);
                let (mut whole, mut windows) = (Vec::new(), Vec::new());
                encode_by(&engine, &text, usize::MAX, &mut whole).unwrap();
                encode_by(&engine, &text, window, &mut windows).unwrap();
                prop_assert_eq!(&whole, &windows, "{} {:?} by {}", pre, text, window);
            }
        }
    }

    #[test]
    fn words_of_the_greatest_length_beside_each_other_are_taken() {
        let engine = engine("gpt-2");
        let two = ["b", "1"]
            .map(|each| each.repeat(LONGEST_WORD_BYTES))
            .concat();
        let mut ids = Vec::new();
        encode(&engine, &two.repeat(2), &mut ids).unwrap();
        assert_eq!(ids.len(), 4 * LONGEST_WORD_BYTES);
    }

    #[test]
    fn a_word_that_is_longer_than_any_is_refused() {
        let engine = engine("gpt-2");
        let long = "b".repeat(MOST_BYTES_AT_ONCE + 1);
        assert_eq!(encode(&engine, &long, &mut Vec::new()), Err(Undivided));
        let divided = "bbbbbbb ".repeat(LONGEST_WORD_BYTES / 2);
        let mut ids = Vec::new();
        encode(&engine, &divided, &mut ids).unwrap();
        assert_eq!(ids.len(), divided.len());
    }
}
