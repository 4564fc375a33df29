//! A device that counts upwards, with injectable faults.

use super::VOCAB;
use crate::device::{
    Batch, Checkpoint, Executor, KvGeometry, KvGroups, ProgressProbe, SampleWork, SequenceWork,
    TO_BE_DRAWN, Tap,
};
use crate::serve::Loaded;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use worker_orcd_ipc::{
    DeviceError, DeviceFacts, Drawn, Fault, MemoryReport, ModelFacts, ModelIdentity, RequestId,
    SamplingAdvice, TokenId, TokenizerFacts, TokenizerKind, WeightsManifest,
};

/// Counts upwards from the last token; `99` is a fault, `98` a wrong token, `97` a very long step.
pub struct Counter {
    step_takes: Duration,
    /// A step may begin before the last one's tokens were collected.
    is_ahead: bool,
    /// Samples of the step in flight.
    open: Vec<(RequestId, TokenId)>,
    /// Samples of the preceding step, and those not collected yet.
    drawn: Vec<Drawn>,
    unsent: VecDeque<Unsent>,
    /// Number of steps that began while another one was in flight.
    begun_ahead: Arc<AtomicU32>,
    inspections: u32,
    spoilt: Spoilt,
    /// Account of its witness.
    stands: Option<&'static str>,
    /// The KV cache is allocated at the promotion.
    is_promoted: bool,
}

/// A step with tokens that are not collected yet.
struct Unsent {
    drawn: Vec<Drawn>,
    /// Selected rows.
    rows: Vec<(RequestId, Row)>,
}

type Row = [f32; VOCAB as usize];

/// Logits with this token likelier than the others, which are equal.
fn row_of(token: TokenId) -> Row {
    let mut row = [0.0; VOCAB as usize];
    if let Some(logit) = row.get_mut(token.index()) {
        *logit = 1.0;
    }
    row
}

/// A token with a hidden state that is not a number.
pub const BROKEN: u32 = 96;

/// Bytes of the KV cache after a promotion.
pub const PROMOTED_KV_BYTES: u64 = 77;

/// Result of its integrity checks.
#[derive(Clone, Copy, PartialEq)]
pub enum Spoilt {
    Never,
    /// Changed weights, found in the third one.
    Found,
    /// The device hangs in the third one.
    Wedged,
}

impl Executor for Counter {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            id: "test".into(),
            name: "counter".into(),
            uuid: None,
            driver: None,
            compute_capability: None,
            features: vec![],
            threads: None,
        }
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport {
            weights_bytes: 123,
            kv_capacity_bytes: u64::from(self.is_promoted) * PROMOTED_KV_BYTES,
            ..MemoryReport::default()
        }
    }

    fn kv_geometry(&self) -> KvGeometry {
        KvGeometry {
            page_tokens: 4,
            pages: 64,
            page_bytes: 10,
            groups: KvGroups::ONE,
        }
    }

    fn max_batch_tokens(&self) -> u32 {
        32
    }

    fn begin(&mut self, batch: &Batch<'_>, tap: &mut dyn Tap) -> Result<(), Fault> {
        assert!(
            self.open.is_empty(),
            "the draws of the step before are to come"
        );
        let most = 1 + usize::from(self.is_ahead);
        assert!(
            self.unsent.len() < most,
            "more steps than it computes at a time"
        );
        let is_ahead = u32::from(!self.unsent.is_empty());
        self.begun_ahead.fetch_add(is_ahead, Ordering::Relaxed);
        let drawn = |request| {
            let found = self.drawn.iter().find(|row| row.request == request);
            found.unwrap().token
        };
        let tokens: Vec<Vec<TokenId>> = batch
            .sequences
            .iter()
            .map(|work| match work.tokens {
                [TO_BE_DRAWN] => vec![drawn(work.request)],
                known => known.to_vec(),
            })
            .collect();
        let works = batch.sequences.iter().zip(&tokens);
        let sequences: Vec<_> = works
            .map(|(&work, tokens)| SequenceWork { tokens, ..work })
            .collect();
        let known = Batch {
            sequences: &sequences,
            ..*batch
        };
        self.open = self.count(&known, tap)?;
        Ok(())
    }

    fn draw(&mut self, draws: &[Option<SampleWork<'_>>], tap: &mut dyn Tap) -> Result<(), Fault> {
        assert_eq!(draws.len(), self.open.len());
        let wanted = self.open.iter();
        let wanted = wanted.filter(|(request, _)| tap.wants(*request, &Checkpoint::Logits));
        let wanted = wanted.map(|(request, token)| (*request, row_of(*token)));
        let mut rows: Vec<_> = wanted.collect();
        if !self.is_ahead {
            show(rows.drain(..), tap);
        }
        let open = std::mem::take(&mut self.open).into_iter().zip(draws);
        let drawn = open
            .filter_map(|((request, token), sample)| Some(sample.as_ref()?.drawn(request, token)));
        self.drawn = drawn.collect();
        let drawn = self.drawn.clone();
        self.unsent.push_back(Unsent { drawn, rows });
        Ok(())
    }

    fn finish(&mut self, tap: &mut dyn Tap) -> Result<Vec<Drawn>, Fault> {
        let Unsent { drawn, rows } = self.unsent.pop_front().unwrap();
        show(rows.into_iter(), tap);
        Ok(drawn)
    }

    fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    fn promote(&mut self) -> Result<(), Fault> {
        self.is_promoted = true;
        Ok(())
    }

    fn inspect(&mut self) -> Result<(), Fault> {
        self.inspections += 1;
        match self.spoilt {
            Spoilt::Found if self.inspections == 3 => Err(Fault::Device {
                error: DeviceError::WeightsChanged,
                message: "x".into(),
            }),
            Spoilt::Wedged if self.inspections == 3 => {
                std::thread::sleep(Duration::from_secs(3600));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn progress_probe(&mut self) -> Option<Box<dyn ProgressProbe>> {
        self.stands.map(|stands| Box::new(Stands(stands)) as _)
    }
}

fn show(rows: impl Iterator<Item = (RequestId, Row)>, tap: &mut dyn Tap) {
    for (request, row) in rows {
        tap.see(request, &Checkpoint::Logits, 0, &row);
    }
}

struct Stands(&'static str);

impl ProgressProbe for Stands {
    fn account(&mut self) -> String {
        self.0.to_owned()
    }
}

/// A device with a fault of its weights.
pub fn loaded_and(spoilt: Spoilt) -> Loaded {
    loaded_with(Counter {
        spoilt,
        ..Counter::new(Duration::from_millis(20))
    })
}

impl Counter {
    fn count(
        &self,
        batch: &Batch<'_>,
        tap: &mut dyn Tap,
    ) -> Result<Vec<(RequestId, TokenId)>, Fault> {
        std::thread::sleep(self.step_takes);
        for work in batch.sequences {
            if tap.wants(work.request, &Checkpoint::PromptLogits) {
                for (position, token) in (work.first_position..).zip(work.tokens) {
                    let mut row = [0.0; VOCAB as usize];
                    row[0] = match token.0 {
                        BROKEN => f32::NAN,
                        token => token as f32,
                    };
                    tap.see(work.request, &Checkpoint::PromptLogits, position, &row);
                }
            }
            if tap.wants(work.request, &Checkpoint::Hidden) {
                for (position, token) in (work.first_position..).zip(work.tokens) {
                    let of_token = match token.0 {
                        BROKEN => f32::NAN,
                        token => token as f32,
                    };
                    let row = [of_token, position as f32];
                    tap.see(work.request, &Checkpoint::Hidden, position, &row);
                }
            }
        }
        let draw = |tokens: &[TokenId]| match tokens.last() {
            Some(TokenId(99)) => Err(Fault::Device {
                error: DeviceError::Cuda("CUDA_ERROR_TEST".into()),
                message: "x".into(),
            }),
            Some(TokenId(98)) => Ok(TokenId(VOCAB)),
            Some(TokenId(97)) => {
                std::thread::sleep(Duration::from_secs(3600));
                Ok(TokenId(0))
            }
            last => Ok(TokenId(last.map_or(0, |token| token.0 + 1) % 90)),
        };
        let rows = batch.sequences.iter().flat_map(|work| {
            let rows = work.samples().count();
            let ends = work.tokens.len() + 1 - rows..=work.tokens.len();
            ends.map(|end| Ok((work.request, draw(&work.tokens[..end])?)))
        });
        rows.collect()
    }

    pub fn new(step_takes: Duration) -> Self {
        Self {
            step_takes,
            is_ahead: false,
            open: vec![],
            drawn: vec![],
            unsent: VecDeque::new(),
            begun_ahead: Arc::default(),
            inspections: 0,
            spoilt: Spoilt::Never,
            stands: None,
            is_promoted: false,
        }
    }

    pub fn ahead(self, is_ahead: bool) -> Self {
        Self { is_ahead, ..self }
    }

    /// Counts its steps that begin while another one is in flight.
    pub fn counting(self, begun_ahead: &Arc<AtomicU32>) -> Self {
        Self {
            begun_ahead: Arc::clone(begun_ahead),
            ..self
        }
    }

    pub fn standing(self, stands: Option<&'static str>) -> Self {
        Self { stands, ..self }
    }
}

pub fn loaded(step_takes: Duration) -> Loaded {
    loaded_with(Counter::new(step_takes))
}

pub fn loaded_with(executor: Counter) -> Loaded {
    Loaded {
        executor: Box::new(executor),
        model: ModelFacts {
            name: "test".into(),
            architecture: "llama".into(),
            quant_kind: "F32".into(),
            tensor_types: vec![],
            parameters: 0,
            file_bytes: 0,
            n_layers: 1,
            n_embd: 1,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 1,
            vocab_size: VOCAB,
            context_length: 128,
            pooling_type: None,
            rerank_template: None,
        },
        identity: ModelIdentity([7; 16]),
        weights: WeightsManifest::default(),
        tokenizer: TokenizerFacts {
            kind: TokenizerKind::ByteLevelBpe,
            pre: "default".into(),
            tokens: vec![],
            kinds: vec![],
            scores: vec![],
            merges: vec![],
            bos: None,
            eos: None,
            end_of_generation: vec![TokenId(50)],
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            chat_template: None,
        },
        sampling: SamplingAdvice::default(),
        max_sequence_tokens: 128,
        suppressed: Vec::new(),
        rank_head: None,
        draft: None,
        adopts_from: None,
        late_fd_socket: None,
    }
}
