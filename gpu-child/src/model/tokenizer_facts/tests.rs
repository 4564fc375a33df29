use super::*;
use crate::model::Architecture;
use crate::model::gguf::parse;
use crate::model::gguf_builder::{GgufBuilder, Meta};
use crate::model::tiny_model::{EOS, tiny_model};

fn facts(file: &GgufBuilder) -> Result<TokenizerFacts, ModelError> {
    tokenizer_facts(&parse(&file.build()).unwrap())
}

fn refusal(file: GgufBuilder) -> String {
    facts(&file)
        .expect_err("the tokenizer is refused")
        .to_string()
}

fn bpe() -> GgufBuilder {
    tiny_model(Architecture::Llama)
}

fn vocabulary(texts: &[&str]) -> Meta {
    Meta::Strings(texts.iter().map(|&text| text.to_owned()).collect())
}

fn sentence_piece() -> GgufBuilder {
    GgufBuilder::new()
        .meta("tokenizer.ggml.model", "llama")
        .meta(
            "tokenizer.ggml.tokens",
            vocabulary(&["<unk>", "<s>", "</s>", "a"]),
        )
        .meta("tokenizer.ggml.token_type", Meta::I32s(vec![2, 3, 3, 1]))
        .meta(
            "tokenizer.ggml.scores",
            Meta::F32s(vec![0.0, 0.0, 0.0, -1.0]),
        )
}

#[test]
fn byte_level_facts_are_read() {
    let facts = facts(&bpe()).unwrap();
    assert_eq!(
        (facts.kind, facts.pre.as_str()),
        (TokenizerKind::ByteLevelBpe, "smollm")
    );
    assert_eq!(facts.tokens.len(), 259);
    assert_eq!(facts.tokens[usize::from(b'a')], "a");
    assert_eq!(facts.tokens[usize::from(b' ')], "Ġ");
    assert_eq!(facts.tokens[usize::from(b'\n')], "Ċ");
    assert_eq!((facts.eos, facts.bos), (Some(TokenId(EOS)), None));
    assert_eq!(facts.end_of_generation, [TokenId(EOS)]);
    assert!(!facts.add_bos && !facts.add_space_prefix && facts.scores.is_empty());
    assert!(facts.chat_template.unwrap().contains("im_start"));
}

#[test]
fn sentence_piece_has_llama_cpp_defaults() {
    let facts = facts(&sentence_piece()).unwrap();
    assert_eq!(facts.kind, TokenizerKind::SentencePiece);
    assert_eq!(
        (facts.unknown, facts.bos, facts.eos),
        (Some(TokenId(0)), Some(TokenId(1)), Some(TokenId(2)))
    );
    assert!(facts.add_bos && facts.add_space_prefix && !facts.add_eos);
    assert_eq!(facts.scores, [0.0, 0.0, 0.0, -1.0]);
    assert!(facts.merges.is_empty());
}

#[test]
fn gemma_4_has_merges_of_characters_and_begins_with_bos_whatever_the_file_says() {
    let file = GgufBuilder::new()
        .meta("tokenizer.ggml.model", "gemma4")
        .meta(
            "tokenizer.ggml.tokens",
            vocabulary(&["<bos>", "a", "b", "ab", "<turn|>"]),
        )
        .meta("tokenizer.ggml.token_type", Meta::I32s(vec![3, 1, 1, 1, 3]))
        .meta("tokenizer.ggml.merges", vocabulary(&["a b"]))
        .meta("tokenizer.ggml.bos_token_id", 0_u32)
        .meta("tokenizer.ggml.add_bos_token", false)
        .meta("tokenizer.ggml.add_space_prefix", true);
    let facts = facts(&file).unwrap();
    assert_eq!((facts.kind, &*facts.pre), (TokenizerKind::CharacterBpe, ""));
    assert_eq!(facts.merges, ["a b"]);
    assert!(facts.add_bos && !facts.add_space_prefix && facts.scores.is_empty());
    assert_eq!(
        (facts.bos, facts.eos, facts.unknown),
        (Some(TokenId(0)), None, None)
    );
    assert_eq!(facts.end_of_generation, [TokenId(4)]);
    let message = refusal(file.without_meta("tokenizer.ggml.merges"));
    assert!(
        message.contains("tokenizer.ggml.merges is missing"),
        "{message}"
    );
}

#[test]
fn ends_of_generation_come_from_keys_and_texts() {
    let file = bpe()
        .meta(
            "tokenizer.ggml.tokens",
            vocabulary(&["a", "<|end|>", "<|endoftext|>", "x", "y", "<reponame>"]),
        )
        .meta("tokenizer.ggml.token_type", Meta::I32s(vec![1; 6]))
        .meta("tokenizer.ggml.eos_token_id", 3_u32)
        .meta("tokenizer.ggml.eot_token_id", 4_u32);
    let facts = facts(&file).unwrap();
    assert_eq!(facts.end_of_generation, [1, 2, 3, 4, 5].map(TokenId));
    assert_eq!(facts.kinds[0], TokenKind::Normal);
    assert_eq!(facts.kinds[1], TokenKind::Control);
}

#[test]
fn harmony_does_not_end_at_the_end_of_a_part() {
    let file = bpe()
        .meta(
            "tokenizer.ggml.tokens",
            vocabulary(&["<|end|>", "<|return|>", "<|call|>"]),
        )
        .meta("tokenizer.ggml.token_type", Meta::I32s(vec![3; 3]))
        .without_meta("tokenizer.ggml.eos_token_id");
    assert_eq!(
        facts(&file).unwrap().end_of_generation,
        [TokenId(1), TokenId(2)]
    );
}

#[test]
fn llama_3_begins_with_bos_unless_the_file_says_no() {
    let llama3 = bpe().meta("tokenizer.ggml.pre", "llama-bpe");
    assert!(facts(&llama3).unwrap().add_bos);
    assert!(
        !facts(&llama3.meta("tokenizer.ggml.add_bos_token", false))
            .unwrap()
            .add_bos
    );
}

#[test]
fn what_is_wrong_is_named() {
    assert!(refusal(bpe().meta("tokenizer.ggml.model", "bert")).contains("tokenizer of type bert"));
    assert!(
        refusal(bpe().without_meta("tokenizer.ggml.merges"))
            .contains("tokenizer.ggml.merges is missing")
    );
    assert!(
        refusal(bpe().meta("tokenizer.ggml.eos_token_id", 259_u32))
            .contains("token 259 is outside")
    );
    assert!(
        refusal(bpe().meta("tokenizer.ggml.token_type", Meta::I32s(vec![1])))
            .contains("1 entries for 259")
    );
    assert!(
        refusal(bpe().meta("tokenizer.ggml.token_type", Meta::I32s(vec![9; 259])))
            .contains("outside 1 to 6")
    );
    assert!(
        refusal(sentence_piece().without_meta("tokenizer.ggml.scores"))
            .contains("scores is missing")
    );
    assert!(refusal(bpe().meta("tokenizer.ggml.merges", 1_u32)).contains("an array expected"));
}

#[test]
fn what_would_not_fit_a_frame_is_refused_by_its_key() {
    let template = |bytes: usize| bpe().meta("tokenizer.chat_template", "x".repeat(bytes).as_str());
    assert!(facts(&template(MAX_TEMPLATE_BYTES)).is_ok());
    let message = refusal(template(MAX_TEMPLATE_BYTES + 1));
    assert!(message.contains("tokenizer.chat_template"), "{message}");
    let kind = "k".repeat(1 << 20);
    let message = refusal(bpe().meta("tokenizer.ggml.model", kind.as_str()));
    assert!(message.len() < 200, "{}", message.len());
    let long = "t".repeat((64 << 10) + 1);
    let message = refusal(bpe().meta("tokenizer.ggml.tokens", vocabulary(&[&long])));
    assert!(message.contains("a string of 65537 bytes"), "{message}");
}

#[test]
fn the_largest_vocabulary_that_is_taken_fits_a_frame() {
    // Tokens without text are the smallest, so the largest number of them fits.
    let of = |tokens: usize| {
        sentence_piece()
            .meta("tokenizer.ggml.tokens", vocabulary(&vec![""; tokens]))
            .meta("tokenizer.ggml.token_type", Meta::I32s(vec![1; tokens]))
            .meta("tokenizer.ggml.scores", Meta::F32s(vec![-1.0; tokens]))
            .meta(
                "tokenizer.chat_template",
                "x".repeat(MAX_TEMPLATE_BYTES).as_str(),
            )
    };
    let most = MAX_VOCABULARY_BYTES / 16;
    let facts = facts(&of(most)).expect("it is taken");
    let bytes = worker_orcd_ipc::encode(&facts).expect("it fits");
    assert!(bytes.len() < MAX_FRAME_BYTES - (1 << 16), "{}", bytes.len());
    assert!(refusal(of(most + 1)).contains("a vocabulary of"));
}
