//! Steps that a standby takes before it has anything to do.
//!
//! NVIDIA's driver brings a kernel to the device when it is launched for the first time, and a batch's launches
//! are recorded when it comes again ([`graph`](super::graph)). A child in whose place a standby comes leaves
//! no time for that.

use super::CudaExecutor;
use crate::device::{Batch, Executor, NoTap, PageId, SampleWork, SequenceWork};
use worker_orcd_ipc::{Fault, RequestId, Sampling, TokenId};

/// Tokens of prompts. Which kernels multiply and attend, and in which tiles, depends on the number of rows.
const PROMPTS: [usize; 8] = [2, 8, 16, 40, 64, 128, 256, 1024];
/// Sequences that decode together.
const DECODING: [usize; 4] = [1, 2, 8, 32];
/// Steps of each batch: the second is recorded.
const TIMES: usize = 2;

/// Runs what streams that go on are likely to need. What it leaves in the KV cache is cleared.
///
/// # Errors
/// When the device fails.
pub fn warm_up(executor: &mut CudaExecutor, sequence_tokens: usize) -> Result<(), Fault> {
    let most = executor.scratch.sizes.tokens;
    // At the beginning of a sequence and at its end, attention is shared out in another way.
    for tokens in PROMPTS
        .into_iter()
        .filter(|it| *it <= most.min(sequence_tokens))
    {
        for first in [0, sequence_tokens - tokens] {
            step(executor, 1, tokens, first)?;
        }
    }
    for sequences in DECODING.into_iter().filter(|it| *it <= most) {
        for first in [0, sequence_tokens - 1] {
            for _ in 0..TIMES {
                step(executor, sequences, 1, first)?;
            }
        }
    }
    executor.kv.clear_page(&executor.context, PAGE)?;
    executor.context.synchronize("warming up")
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
        // Nobody's.
        request: RequestId(u64::MAX - index as u64),
        tokens: &tokens,
        first_position: first as u32,
        pages: &pages,
        sample: Some(SampleWork::new(sampling, &[], &[])),
    };
    let sequences: Vec<_> = (0..sequences).map(work).collect();
    let batch = Batch {
        step: 0,
        sequences: &sequences,
    };
    match executor.step(&batch, &mut NoTap) {
        // A request that meets it will be told.
        Ok(_) | Err(Fault::NonFiniteLogits { .. }) => Ok(()),
        Err(fault) => Err(fault),
    }
}
