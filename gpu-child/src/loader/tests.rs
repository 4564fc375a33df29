use super::*;
use crate::model::gguf::parse;
use crate::model::tiny_model::{
    N_EMBD, tiny_gemma4_e2b, tiny_gemma4_with_experts, tiny_mixtral, tiny_model,
};
use crate::model::{Architecture, GgufBuilder, Meta};
use std::fs;
use worker_orcd_ipc::{DeviceSelector, KvReaders, Role, Speculation};

fn order(path: &Path, threads: u32) -> LoadOrder {
    LoadOrder {
        model_path: path.to_str().expect("a plain path").to_owned(),
        model_file: ModelFile::AtPath,
        draft_model: None,
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
        threads: Some(threads),
        prefix_cache: true,
        speculation: Speculation::Text,
        trace: None,
        role: Role::Active,
    }
}

fn loaded(bytes: &[u8], threads: u32) -> Loaded {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).expect("written");
    load(&order(&path, threads), None, &|_, _| ()).expect("a model")
}

fn identity_of(bytes: &[u8]) -> ModelIdentity {
    loaded(bytes, 1).identity
}

/// One of every kind.
fn files() -> Vec<GgufBuilder> {
    let files = Architecture::ALL.into_iter().map(tiny_model);
    let more = [
        tiny_mixtral(),
        tiny_gemma4_with_experts(),
        tiny_gemma4_e2b(),
    ];
    files.chain(more).collect()
}

/// Includes tensors of experts: bytes of the file, and the number of tensors of each type.
#[test]
fn facts_count_every_byte_of_the_tensors() {
    for file in files() {
        let bytes = file.build();
        let loaded = loaded(&bytes, 1);
        let header = parse(&bytes).expect("a model");
        let data = header
            .tensors()
            .iter()
            .map(|tensor| header.tensor(tensor.name));
        let data: u64 = data
            .map(|view| view.expect("a tensor").data.len() as u64)
            .sum();
        let facts = loaded.model;
        let tensors = header.tensors().len() as u32;
        assert_eq!(facts.tensor_types, [("F32".to_owned(), tensors, data)]);
        assert_eq!(facts.parameters * 4, data);
        // Groups of rows of the vocabulary are filled up.
        let placed = loaded.executor.memory().weights_bytes;
        assert!(
            placed >= data && placed < data + data / 10,
            "{placed} {data}"
        );
    }
}

#[test]
fn every_tensor_is_part_of_the_identity_whoever_packed_it() {
    for file in files() {
        let whole = file.build();
        let identity = identity_of(&whole);
        assert_eq!(loaded(&whole, 3).identity, identity);
        let header = parse(&whole).expect("a model");
        for tensor in header.tensors() {
            let data = header.tensor(tensor.name).expect("its data").data;
            let start = data.as_ptr().addr() - whole.as_ptr().addr();
            for at in [start, start + data.len() - 4] {
                let mut other = whole.clone();
                // The lowest bit of a float: the smallest possible edit.
                other[at] ^= 1;
                assert_ne!(identity_of(&other), identity, "{} at {at}", tensor.name);
            }
        }
    }
}

#[test]
fn what_changes_the_arithmetic_is_part_of_the_identity_and_a_description_is_not() {
    let model = || tiny_model(Architecture::Llama).meta("llama.rope.freq_base", 10_000.0_f32);
    let identity = identity_of(&model().build());
    let others: [(&str, GgufBuilder); 5] = [
        ("base", model().meta("llama.rope.freq_base", 10_000.001_f32)),
        ("scale", model().meta("llama.rope.scaling.factor", 2.0_f32)),
        (
            "epsilon",
            model().meta("llama.attention.layer_norm_rms_epsilon", 1.000_01e-5_f32),
        ),
        (
            "suppressed tokens",
            model().meta("tokenizer.ggml.suppress_tokens", Meta::I32s(vec![3])),
        ),
        ("context", model().meta("llama.context_length", 128_u32)),
    ];
    for (name, other) in others {
        assert_ne!(identity_of(&other.build()), identity, "{name}");
    }
    let described = model().meta("general.description", "the same in other words");
    assert_eq!(identity_of(&described.build()), identity);
}

/// A reranker in the format of llama.cpp's converter.
fn reranker() -> GgufBuilder {
    let head: Vec<f32> = (0..2 * N_EMBD).map(|n| n as f32).collect();
    tiny_model(Architecture::Qwen3)
        .meta("qwen3.pooling_type", 4_u32)
        .meta("tokenizer.chat_template.rerank", "{query}, {document}")
        .tensor_f32("cls.output.weight", &[N_EMBD, 2], &head)
}

#[test]
fn a_reranker_is_one_with_a_pooling_type_a_head_and_a_prompt_and_its_head_is_part_of_its_identity()
{
    let whole = reranker().build();
    let ranks = loaded(&whole, 1);
    let template = ranks.model.rerank_template.as_deref();
    assert_eq!(template, Some("{query}, {document}"));
    let head: Vec<f32> = ranks.rank_head.expect("a head").values().collect();
    assert_eq!(head.len() as u64, 2 * N_EMBD);
    let header = parse(&whole).expect("a model");
    let data = header.tensor("cls.output.weight").expect("its data").data;
    let start = data.as_ptr().addr() - whole.as_ptr().addr();
    for at in [start, start + data.len() - 4] {
        let mut other = whole.clone();
        other[at] ^= 1;
        assert_ne!(identity_of(&other), ranks.identity, "{at}");
    }
    let no_prompt = |template: &str| {
        let file = reranker().meta("tokenizer.chat_template.rerank", template);
        loaded(&file.build(), 1).model.rerank_template
    };
    assert_eq!(no_prompt("{query}"), None);
    assert_eq!(no_prompt("{document}"), None);
    for other in [
        reranker().meta("qwen3.pooling_type", 3_u32),
        reranker().without_tensor("cls.output.weight"),
    ] {
        let other = loaded(&other.build(), 1);
        assert_eq!(other.model.rerank_template, None);
        assert!(other.rank_head.is_none());
    }
    let wide = reranker().without_tensor("cls.output.weight");
    let wide = wide.tensor_f32("cls.output.weight", &[N_EMBD, 1], &[0.0; N_EMBD as usize]);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    fs::write(&path, wide.build()).expect("written");
    let fault = load(&order(&path, 1), None, &|_, _| ()).err();
    assert!(
        fault
            .expect("one row")
            .to_string()
            .contains("cls.output.weight")
    );
}

#[test]
fn norms_and_biases_are_counted_among_the_weights() {
    let whole = tiny_model(Architecture::Qwen2).build();
    let header = parse(&whole).expect("a model");
    let bytes: usize = header.tensors().iter().map(|tensor| tensor.bytes).sum();
    let loaded = loaded(&whole, 1);
    let counted = loaded.executor.memory().weights_bytes;
    // A vocabulary of 259 rows is packed as 264, and each tensor begins at a cache line.
    let whole = bytes as u64 + 5 * 64 * 4;
    let tensors = loaded.weights.tensors.len() as u64;
    assert!(
        (whole..whole + 64 * tensors).contains(&counted),
        "{counted}"
    );
}

#[test]
fn a_file_that_was_to_be_taken_over_and_is_not_there_is_a_fault_of_its_own() {
    let order = LoadOrder {
        model_file: ModelFile::HandedOver { parts: 1 },
        ..order(Path::new("/nowhere"), 1)
    };
    let fault = load(&order, None, &|_, _| ()).err().expect("no model");
    assert!(matches!(fault, Fault::Io { .. }), "{fault}");
}

#[test]
fn a_later_child_takes_weights_over_and_reads_no_tensor_of_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    let mut bytes = tiny_model(Architecture::Qwen2).build();
    fs::write(&path, &bytes).expect("written");
    let (child, supervisor) = FdSocket::pair();
    let first = load(&order(&path, 1), Some(&child), &|_, _| ()).expect("a model");
    let file = supervisor.take(FdKind::ModelFile).expect("the file");
    let memory = supervisor.take(FdKind::Weights).expect("the weights");

    let header = parse(&bytes).expect("a model");
    let tensor = header.tensors()[0].name;
    let data = header.tensor(tensor).expect("its data").data;
    let (start, len) = (data.as_ptr().addr() - bytes.as_ptr().addr(), data.len());
    bytes[start..start + len].fill(0);
    fs::write(&path, &bytes).expect("edited in place");

    let later = LoadOrder {
        model_file: ModelFile::HandedOver { parts: 1 },
        weights: Some(first.weights.clone()),
        ..order(&path, 2)
    };
    for kept in [true, false] {
        supervisor
            .hand_over(FdKind::ModelFile, &file)
            .expect("a file");
        let weights = kept.then(|| first.weights.clone());
        if kept {
            supervisor
                .hand_over(FdKind::Weights, &memory)
                .expect("weights");
        }
        let order = LoadOrder {
            weights,
            ..later.clone()
        };
        let next = load(&order, Some(&child), &|_, _| ()).expect("a model");
        assert_eq!(
            next.identity == first.identity,
            kept,
            "the file has other weights"
        );
    }
}

#[test]
fn a_later_child_takes_all_files_of_a_model_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = dir.path().join("whole.gguf");
    fs::write(&whole, tiny_model(Architecture::Qwen3).build()).expect("written");
    let whole = load(&order(&whole, 1), None, &|_, _| ()).expect("a model");
    let path = |number| dir.path().join(format!("m-{number:05}-of-00003.gguf"));
    let parts = tiny_model(Architecture::Qwen3).parts(3);
    for (number, part) in (1..).zip(&parts) {
        fs::write(path(number), part.build()).expect("written");
    }
    let (child, supervisor) = FdSocket::pair();
    let first = load(&order(&path(1), 1), Some(&child), &|_, _| ()).expect("a model");
    assert_eq!(first.identity, whole.identity);
    let take = |_| supervisor.take(FdKind::ModelFile).expect("a file");
    let files: Vec<_> = (0..3).map(take).collect();
    (1..=3).for_each(|number| fs::remove_file(path(number)).expect("removed"));
    for file in &files {
        supervisor
            .hand_over(FdKind::ModelFile, file)
            .expect("a file");
    }
    let later = LoadOrder {
        model_file: ModelFile::HandedOver { parts: 3 },
        ..order(&path(1), 1)
    };
    let next = load(&later, Some(&child), &|_, _| ()).expect("a model");
    assert_eq!(next.identity, whole.identity);
}

#[test]
fn a_later_child_takes_the_kv_cache_of_the_one_before_and_leaves_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    fs::write(&path, tiny_model(Architecture::Llama).build()).expect("written");
    let (child, supervisor) = FdSocket::pair();
    let sharing = LoadOrder {
        kv_readers: KvReaders::Successors,
        ..order(&path, 1)
    };
    let first = load(&sharing, Some(&child), &|_, _| ()).expect("a model");
    assert_eq!(first.adopts_from, None);
    let take = |article| supervisor.take(article).expect("it was handed over");
    let [file, memory, kv] = [FdKind::ModelFile, FdKind::Weights, FdKind::KvCache].map(take);
    let bytes = first.executor.memory().kv_capacity_bytes;
    for (bytes, adopts) in [(bytes, true), (bytes / 2, false)] {
        let left = [
            (FdKind::ModelFile, &file),
            (FdKind::Weights, &memory),
            (FdKind::KvCache, &kv),
        ];
        for (article, descriptor) in left {
            supervisor
                .hand_over(article, descriptor)
                .expect("handed out");
        }
        let source = KvSource {
            child: Generation(7),
            bytes,
        };
        let order = LoadOrder {
            model_file: ModelFile::HandedOver { parts: 1 },
            weights: Some(first.weights.clone()),
            adopts_from: Some(source),
            ..sharing.clone()
        };
        let next = load(&order, Some(&child), &|_, _| ()).expect("a model");
        assert_eq!(next.adopts_from, adopts.then_some(source.child));
        take(FdKind::KvCache);
    }
}

#[test]
fn what_a_kv_cache_takes_is_what_was_written_of_it() {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(1 << 30).expect("a long one");
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 1 << 16], 0).expect("written");
    file.sync_all().expect("on the disk");
    let source = KvSource {
        child: Generation(1),
        bytes: 1 << 30,
    };
    let memory = file.into();
    let taken = taken_by(&OtherKv { source, memory });
    assert!((1 << 16..1 << 20).contains(&taken), "{taken}");
}

#[test]
fn weights_that_were_to_be_taken_over_and_are_not_there_are_a_fault_of_their_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model.gguf");
    fs::write(&path, tiny_model(Architecture::Llama).build()).expect("written");
    let order = LoadOrder {
        weights: Some(WeightsManifest::default()),
        ..order(&path, 1)
    };
    let (child, _supervisor) = FdSocket::pair();
    let fault = load(&order, Some(&child), &|_, _| ())
        .err()
        .expect("no model");
    assert!(matches!(fault, Fault::Io { .. }), "{fault}");
}
