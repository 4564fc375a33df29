//! SmolLM2-135M (Q4_1) against the greedy tokens of llama.cpp.
//!
//! `greedy.json` holds the 40 prompts of `tests/oracle/greedy.py`, each continued by
//! llama.cpp for 64 tokens, with the margin of its best logit over the second at each step. The
//! history is llama.cpp's at every step, so one early difference is one difference. The reference is
//! llama.cpp with the same weights written as F32 (`tests/oracle/dequantized.py`): with the
//! quantized file it rounds activations to eight bits, and this device does not.

use std::path::Path;
use std::time::Instant;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, Device};
use worker_orcd_gpu::device::{
    Batch, Beside, Executor, LoadOptions, NoTap, PageId, SampleWork, SequenceWork, Source,
};
use worker_orcd_gpu::model::{GgufFile, ModelConfig, ModelWeights};
use worker_orcd_ipc::{KvReaders, RequestId, Sampling, TokenId};

#[derive(serde::Deserialize)]
struct Run {
    tokens: Vec<u32>,
    start: usize,
    margins: Vec<f32>,
}

const PAGES: usize = 8;

/// Equal to the margin in `tests/oracle/greedy.py`.
const CLEAR_MARGIN: f32 = 0.3;

#[test]
#[ignore = "needs an NVIDIA GPU, and the model's path in WORKER_ORCD_MODEL"]
fn smollm2_says_what_llama_cpp_says() {
    let runs: Vec<Run> = serde_json::from_str(include_str!("greedy.json")).expect("a golden file");
    let path = std::env::var("WORKER_ORCD_MODEL").expect("WORKER_ORCD_MODEL");
    let file = GgufFile::open(Path::new(&path)).expect("a model");
    let header = file.header().expect("a header");
    let config = ModelConfig::from_gguf(&header, Some(256)).expect("a configuration");
    let weights = ModelWeights::from_gguf(&header, &config).expect("weights");
    let options = CudaOptions {
        memory_permille: 900,
        max_sequences: 40,
        load: LoadOptions {
            kv_cache_bytes: None,
            max_batch_tokens: 256,
            max_sequence_tokens: 256,
            role: worker_orcd_ipc::Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: Beside::default(),
            model: path,
        },
    };
    let start = Instant::now();
    let mut executor = CudaExecutor::load(
        Device::open(0).expect("a device"),
        Source {
            config: &config,
            weights: &weights,
            file: Some(&file),
            retained: None,
        },
        &options,
        &mut |_, _| (),
    )
    .expect("a device with room");
    println!("loaded in {:?}, {:?}", start.elapsed(), executor.memory());

    // A few at a time, so that most steps are one launch; then all at once.
    let small = choices(&mut executor, &runs, 4);
    let large = choices(&mut executor, &runs, 40);
    assert_eq!(small, large, "the batch changes a token");
    let (mut differ, mut clear) = (Vec::new(), 0);
    for (run, chosen) in runs.iter().zip(&small) {
        for ((step, margin), id) in run.margins.iter().enumerate().zip(chosen) {
            if *id != run.tokens[run.start + step] {
                differ.push(*margin);
                clear += usize::from(*margin > CLEAR_MARGIN);
            }
        }
    }
    differ.sort_by(f32::total_cmp);
    let steps: usize = small.iter().map(Vec::len).sum();
    println!(
        "{} of {steps} tokens differ, at margins {differ:?}",
        differ.len()
    );
    assert_eq!(clear, 0, "a clear choice is another");
}

/// The token drawn after every prefix from `start` on.
fn choices(executor: &mut CudaExecutor, runs: &[Run], at_once: usize) -> Vec<Vec<u32>> {
    let tables: Vec<Vec<PageId>> = (0..at_once * PAGES)
        .map(|page| PageId(page as u32))
        .collect::<Vec<_>>()
        .chunks(PAGES)
        .map(<[PageId]>::to_vec)
        .collect();
    let mut all = Vec::new();
    for some in runs.chunks(at_once) {
        let histories: Vec<Vec<TokenId>> = some
            .iter()
            .map(|run| run.tokens.iter().copied().map(TokenId).collect())
            .collect();
        let mut chosen = vec![Vec::new(); some.len()];
        // Prompts one by one, then all sequences one token at a time.
        for (i, run) in some.iter().enumerate() {
            let work = work(&histories[i][..run.start], 0, &tables[i]);
            chosen[i].push(step(executor, &[work])[0]);
        }
        for at in 0..some[0].margins.len() - 1 {
            let shares: Vec<_> = (0..some.len())
                .map(|i| {
                    let from = some[i].start + at;
                    work(&histories[i][from..=from], from, &tables[i])
                })
                .collect();
            for (chosen, id) in chosen.iter_mut().zip(step(executor, &shares)) {
                chosen.push(id);
            }
        }
        all.extend(chosen);
    }
    all
}

fn work<'a>(tokens: &'a [TokenId], first: usize, pages: &'a [PageId]) -> SequenceWork<'a> {
    let sampling = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    SequenceWork {
        request: RequestId(0),
        tokens,
        first_position: first as u32,
        pages,
        sample: Some(SampleWork::new(sampling, &[], &[])),
        drafts: 0,
    }
}

fn step(executor: &mut CudaExecutor, sequences: &[SequenceWork<'_>]) -> Vec<u32> {
    let batch = Batch { step: 1, sequences };
    let drawn = executor.step(&batch, &mut NoTap).expect("a step");
    assert_eq!(drawn.len(), sequences.len(), "everybody draws");
    drawn.into_iter().map(|row| row.token.0).collect()
}
