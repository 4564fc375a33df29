//! Real child around an executor that computes nothing: its text is the alphabet, repeated. Measurements with it cover
//! everything but the model.

use std::time::Duration;
use worker_orcd_gpu::device::{Batch, Executor, KvGeometry, KvGroups, SampleWork, Tap};
use worker_orcd_gpu::fd_socket::FdSocket;
use worker_orcd_gpu::serve::{Loaded, Progress};
use worker_orcd_ipc::{
    DeviceFacts, Drawn, Fault, LoadOrder, MemoryReport, RequestId, SamplingAdvice, TokenId,
    WeightsManifest,
};
use worker_orcd_tests::facts;

/// Variable with the duration of a step in microseconds; none by default.
const STEP_VARIABLE: &str = "NULL_CHILD_STEP_MICROS";

/// Printable bytes, so that every token is one event.
const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";

const MAX_SEQUENCE_TOKENS: u32 = 4096;
const PAGE_TOKENS: u32 = 16;

fn main() {
    worker_orcd_gpu::entry::run(load)
}

fn load(order: &LoadOrder, _: Option<&FdSocket>, _: Progress<'_>) -> Result<Loaded, Fault> {
    let step_micros = std::env::var(STEP_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok());
    let executor = NullExecutor {
        geometry: KvGeometry {
            page_tokens: PAGE_TOKENS,
            pages: MAX_SEQUENCE_TOKENS / PAGE_TOKENS * (order.max_running + 1),
            page_bytes: u64::from(PAGE_TOKENS),
            groups: KvGroups::ONE,
        },
        max_batch_tokens: order.prefill_chunk_tokens + order.max_running,
        step_takes: Duration::from_micros(step_micros.unwrap_or(0)),
        drawing: Vec::new(),
        drawn: Vec::new(),
    };
    Ok(Loaded {
        executor: Box::new(executor),
        model: facts::model(),
        identity: facts::IDENTITY,
        weights: WeightsManifest::default(),
        tokenizer: facts::tokenizer(),
        sampling: SamplingAdvice::default(),
        max_sequence_tokens: MAX_SEQUENCE_TOKENS,
        suppressed: Vec::new(),
        rank_head: None,
        draft: None,
        adopts_from: None,
        late_fd_socket: None,
    })
}

struct NullExecutor {
    geometry: KvGeometry,
    max_batch_tokens: u32,
    step_takes: Duration,
    /// Requests of the launched step.
    drawing: Vec<RequestId>,
    drawn: Vec<Drawn>,
}

impl Executor for NullExecutor {
    fn facts(&self) -> DeviceFacts {
        facts::device()
    }

    fn memory(&self) -> MemoryReport {
        facts::memory()
    }

    fn kv_geometry(&self) -> KvGeometry {
        self.geometry
    }

    fn max_batch_tokens(&self) -> u32 {
        self.max_batch_tokens
    }

    fn begin(&mut self, batch: &Batch<'_>, _: &mut dyn Tap) -> Result<(), Fault> {
        if !self.step_takes.is_zero() {
            std::thread::sleep(self.step_takes);
        }
        let drawing = batch.sequences.iter().filter(|work| work.sample.is_some());
        self.drawing = drawing.map(|work| work.request).collect();
        Ok(())
    }

    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], _: &mut dyn Tap) -> Result<(), Fault> {
        let rows = self.drawing.iter().zip(draws);
        let drawn = rows.filter_map(|(request, sample)| {
            let sample = sample.as_ref()?;
            Some(sample.drawn(*request, next_token(sample)))
        });
        self.drawn = drawn.collect();
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        Ok(std::mem::take(&mut self.drawn))
    }
}

/// Next letter, so that a missing or repeated token is visible.
fn next_token(sample: &SampleWork<'_>) -> TokenId {
    let letter = LETTERS[sample.generated.len() % LETTERS.len()];
    TokenId(letter.into())
}
