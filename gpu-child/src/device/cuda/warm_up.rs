//! Warm-up steps of a standby.
//!
//! NVIDIA's driver loads a kernel onto the device at its first launch, and the launches of a batch are recorded
//! at its second step ([`graph`](super::graph)). A standby that replaces a dead child has no time
//! for either.

use super::CudaExecutor;
use super::scratch::Largest;
use crate::device::{Batch, Executor, NoTap, PageId, SampleWork, SequenceWork};
use worker_orcd_ipc::{Fault, RequestId, Sampling, TokenId};

/// Prompt lengths. The number of rows determines the kernels of matmul and attention, and their tiles.
const PROMPTS: [usize; 8] = [2, 8, 16, 40, 64, 128, 256, 1024];
/// Numbers of sequences that decode together.
const DECODING: [usize; 4] = [1, 2, 8, 32];
/// Steps of each batch: the second is recorded.
const TIMES: usize = 2;

/// Runs the steps that resumed streams are likely to need, then clears the written part of the KV cache.
///
/// # Errors
/// If the device fails.
pub fn warm_up(executor: &mut CudaExecutor, sequence_tokens: usize) -> Result<(), Fault> {
    let Largest {
        tokens: most,
        sequences: most_sequences,
        ..
    } = executor.rank.scratch.largest;
    // Attention has another division of work at the start of a sequence than at its end.
    for tokens in PROMPTS
        .into_iter()
        .filter(|it| *it <= most.min(sequence_tokens))
    {
        for first in [0, sequence_tokens - tokens] {
            step(executor, 1, tokens, first)?;
        }
    }
    let most_sequences = most.min(most_sequences);
    for sequences in DECODING.into_iter().filter(|it| *it <= most_sequences) {
        for first in [0, sequence_tokens - 1] {
            for _ in 0..TIMES {
                step(executor, sequences, 1, first)?;
            }
        }
    }
    executor.rank.kv.clear_page(&executor.rank.context, PAGE)?;
    executor.rank.context.synchronize("warming up")
}

/// All positions lie here.
const PAGE: PageId = PageId(0);

fn step(
    executor: &mut CudaExecutor,
    sequences: usize,
    tokens: usize,
    first: usize,
) -> Result<(), Fault> {
    let geometry = executor.kv_geometry();
    let pages = vec![PAGE; geometry.table_entries(first + tokens)];
    let tokens = vec![TokenId(0); tokens];
    let sampling = Sampling {
        temperature: 1.0,
        ..Sampling::default()
    };
    let work = |index: usize| SequenceWork {
        // An id of no request.
        request: RequestId(u64::MAX - index as u64),
        tokens: &tokens,
        first_position: first as u32,
        pages: &pages,
        sample: Some(SampleWork::new(sampling, &[], &[])),
        drafts: 0,
    };
    let sequences: Vec<_> = (0..sequences).map(work).collect();
    let batch = Batch {
        step: 0,
        sequences: &sequences,
    };
    match executor.step(&batch, &mut NoTap) {
        // A request with the same fault reports it.
        Ok(_) | Err(Fault::NonFiniteLogits { .. }) => Ok(()),
        Err(fault) => Err(fault),
    }
}
