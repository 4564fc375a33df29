use super::super::load as load_model;
use super::difference;
use crate::fd_socket::FdSocket;
use crate::model::tiny_model::tiny_model;
use crate::model::{Architecture, GgufBuilder, Meta};
use std::fs;
use std::path::Path;
use worker_orcd_ipc::{
    DeviceSelector, Fault, FdKind, KvReaders, LoadOrder, ModelFile, Role, Speculation, TokenKind,
    TokenizerFacts, TokenizerKind,
};

fn order(path: &Path, draft: &Path) -> LoadOrder {
    let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
    LoadOrder {
        model_path: text(path),
        model_file: ModelFile::AtPath,
        draft_model: Some(text(draft)),
        weights: None,
        kv_readers: KvReaders::None,
        adopts_from: None,
        has_second_fd_socket: false,
        device: DeviceSelector::Cpu,
        kv_cache_bytes: Some(1 << 20),
        memory_permille: 900,
        max_running: 2,
        max_sequence_tokens: None,
        prefill_chunk_tokens: 8,
        step_budget_us: None,
        threads: Some(1),
        prefix_cache: true,
        speculation: Speculation::Auto,
        trace: None,
        role: Role::Active,
    }
}

fn loaded(served: &GgufBuilder, draft: &GgufBuilder) -> Result<crate::serve::Loaded, Fault> {
    loaded_in(1 << 20, served, draft)
}

/// With a KV cache of so many bytes.
fn loaded_in(
    kv_bytes: u64,
    served: &GgufBuilder,
    draft: &GgufBuilder,
) -> Result<crate::serve::Loaded, Fault> {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, of_draft] = ["model.gguf", "draft.gguf"].map(|name| dir.path().join(name));
    fs::write(&path, served.build()).expect("written");
    fs::write(&of_draft, draft.build()).expect("written");
    let order = LoadOrder {
        kv_cache_bytes: Some(kv_bytes),
        ..order(&path, &of_draft)
    };
    load_model(&order, None, &|_, _| ())
}

fn llama() -> GgufBuilder {
    tiny_model(Architecture::Llama)
}

/// The refusal of a draft model for the tiny Llama.
fn refused(draft: &GgufBuilder) -> String {
    match loaded(&llama(), draft) {
        Err(Fault::ModelLoad { message }) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it is loaded"),
    }
}

#[test]
fn the_kv_cache_of_a_draft_model_holds_as_many_tokens() {
    for architecture in [
        Architecture::Llama,
        Architecture::Gemma3,
        Architecture::Qwen35,
    ] {
        let loaded = loaded(&llama(), &tiny_model(architecture)).expect("both models");
        let draft = loaded.draft.expect("a draft model").expect("it is loaded");
        let sequences = [&loaded.executor, &draft.executor].map(|it| {
            let kv = it.kv_geometry();
            let tokens = draft.max_sequence_tokens as usize;
            f64::from(kv.pages) / kv.sequence_pages(tokens) as f64
        });
        assert!(
            sequences[1] > 0.9 * sequences[0] && sequences[1] < 1.1 * sequences[0],
            "{sequences:?} of {architecture:?}"
        );
        assert!(draft.executor.memory().weights_bytes > 0);
        assert_eq!(draft.vocab_size, loaded.model.vocab_size);
        assert!(draft.max_sequence_tokens <= loaded.max_sequence_tokens);
    }
}

#[test]
fn a_tokenizer_of_other_tokens_is_refused_with_the_first_that_differs() {
    let texts: Vec<String> = (0..259).map(|it| format!("token {it}")).collect();
    let with_tokens = |texts: &[String]| {
        let kinds = vec![1; texts.len()];
        llama()
            .without_meta("tokenizer.ggml.tokens")
            .meta("tokenizer.ggml.tokens", Meta::Strings(texts.to_vec()))
            .without_meta("tokenizer.ggml.token_type")
            .meta("tokenizer.ggml.token_type", Meta::I32s(kinds))
    };
    let message = refused(&with_tokens(&texts));
    assert!(
        message.contains("draft.gguf") && message.contains("token 0"),
        "{message}"
    );
    let message = refused(&llama().meta("tokenizer.ggml.bos_token_id", 5_u32));
    assert!(message.contains("bos token is 5"), "{message}");
    assert!(message.contains("served model is none"), "{message}");
}

#[test]
fn a_vocabulary_may_end_with_unused_tokens() {
    let facts = |tokens: &[&str], unused: usize| {
        let used = tokens.len() - unused;
        let kinds = (0..tokens.len()).map(|at| match at < used {
            true => TokenKind::Normal,
            false => TokenKind::Unused,
        });
        TokenizerFacts {
            kind: TokenizerKind::ByteLevelBpe,
            pre: String::new(),
            tokens: tokens.iter().map(|it| (*it).to_owned()).collect(),
            kinds: kinds.collect(),
            scores: Vec::new(),
            merges: Vec::new(),
            bos: None,
            eos: None,
            end_of_generation: Vec::new(),
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            chat_template: None,
        }
    };
    let short = facts(&["a", "b"], 0);
    let padded = facts(&["a", "b", "[PAD2]"], 1);
    let longer = facts(&["a", "b", "c"], 0);
    for (served, own, is_refused) in [
        (&short, &padded, false),
        (&padded, &short, false),
        (&short, &longer, true),
        (&longer, &short, true),
    ] {
        let refusal = difference(served, own);
        assert_eq!(refusal.is_some(), is_refused, "{refusal:?}");
    }
    let refusal = difference(&short, &longer).unwrap();
    assert!(
        refusal.contains("it has 3 tokens") && refusal.contains("\"c\""),
        "{refusal}"
    );
}

#[test]
fn a_model_that_generates_no_text_has_no_draft_model_and_is_none() {
    let embeds = || llama().meta("llama.pooling_type", 1_u32);
    let message = refused(&embeds());
    assert!(message.contains("it is an embedding model"), "{message}");
    let Err(Fault::ModelLoad { message }) = loaded(&embeds(), &llama()) else {
        panic!("it is loaded")
    };
    assert!(
        message.contains("the served model is an embedding model"),
        "{message}"
    );
}

#[test]
fn a_missing_file_is_refused_by_the_first_child() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    fs::write(&path, llama().build()).expect("written");
    let missing = dir.path().join("none.gguf");
    let refused = load_model(&order(&path, &missing), None, &|_, _| ());
    let Err(Fault::ModelLoad { message }) = refused else {
        panic!("it is loaded")
    };
    assert!(message.contains("none.gguf"), "{message}");
}

/// Each of both KV caches takes more than half of the memory.
#[test]
fn a_first_child_without_memory_for_both_names_both_and_a_later_one_gives_the_draft_model_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, draft] = ["model.gguf", "draft.gguf"].map(|name| dir.path().join(name));
    fs::write(&path, llama().build()).expect("written");
    let named = llama().meta("general.name", "the small one");
    fs::write(&draft, named.build()).expect("written");
    let (child, supervisor) = FdSocket::pair();
    let first = load_model(&order(&path, &draft), Some(&child), &|_, _| ()).expect("both");
    let take = |article| supervisor.take(article).expect("it was handed over");
    let [file, memory] = [FdKind::ModelFile, FdKind::Weights].map(take);
    let free = first.executor.memory().free_bytes.expect("a number");
    let large = LoadOrder {
        kv_cache_bytes: Some(free / 10 * 7),
        ..order(&path, &draft)
    };
    let refused = load_model(&large, None, &|_, _| ()).err();
    let message = refused.expect("too little memory").to_string();
    let bytes: String = message
        .split_once("beside the draft model the small one of ")
        .unwrap_or_else(|| panic!("{message}"))
        .1
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    assert!(bytes.parse::<u64>().expect("bytes") >= free / 10 * 6);

    for kept in [true, false] {
        supervisor
            .hand_over(FdKind::ModelFile, &file)
            .expect("handed out");
        if kept {
            supervisor
                .hand_over(FdKind::Weights, &memory)
                .expect("handed out");
        }
        let later = LoadOrder {
            model_file: ModelFile::HandedOver { parts: 1 },
            weights: kept.then(|| first.weights.clone()),
            ..large.clone()
        };
        let next = load_model(&later, Some(&child), &|_, _| ()).expect("the served model");
        assert_eq!(next.identity, first.identity);
        let reason = next.draft.expect("an order").err().expect("no draft model");
        assert!(reason.contains("beside the draft model"), "{reason}");
    }
    // The served model alone does not fit either.
    supervisor
        .hand_over(FdKind::ModelFile, &file)
        .expect("handed out");
    let alone = LoadOrder {
        model_file: ModelFile::HandedOver { parts: 1 },
        kv_cache_bytes: Some(2 * free),
        ..order(&path, &draft)
    };
    let refused = load_model(&alone, Some(&child), &|_, _| ()).err();
    let message = refused.expect("too little memory").to_string();
    assert!(!message.contains("draft model"), "{message}");
}

#[test]
fn a_draft_model_that_does_not_fit_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let [path, draft] = ["model.gguf", "draft.gguf"].map(|name| dir.path().join(name));
    fs::write(&path, llama().build()).expect("written");
    fs::write(&draft, llama().build()).expect("written");
    let too_large = LoadOrder {
        kv_cache_bytes: Some(1 << 50),
        ..order(&path, &draft)
    };
    let refused = load_model(&too_large, None, &|_, _| ()).err();
    let message = refused.expect("too little memory").to_string();
    assert!(message.contains("for the draft model "), "{message}");
}

/// Of a cache for a part of the longest sequence, windows take a larger part.
#[test]
fn the_smallest_cache_of_a_draft_model_with_windows_holds_a_sequence() {
    for architecture in [Architecture::Gemma3, Architecture::Qwen35] {
        let served = llama().meta("llama.context_length", 4096_u32);
        let key = format!("{}.context_length", architecture.name());
        let draft = tiny_model(architecture).meta(&key, 4096_u32);
        let loaded = loaded_in(1 << 18, &served, &draft).expect("both models");
        let draft = loaded.draft.expect("a draft model").expect("it is loaded");
        let tokens = loaded.executor.kv_geometry();
        let tokens = tokens.tokens_in(tokens.pages).min(4096) as usize;
        let kv = draft.executor.kv_geometry();
        assert!(tokens < 4096, "{tokens}");
        assert!(
            kv.pages as usize >= kv.sequence_pages(tokens),
            "{kv:?} for {tokens} tokens of {architecture:?}"
        );
    }
}
