//! Load of a draft model beside the served one, before it: the served model's KV cache takes the memory that is left.
//!
//! The draft model must have the tokens of the served one, because its drafts are token ids. Its file is opened at its path in
//! every child. A later child serves without a draft model that it cannot load, or that leaves too little memory to the served
//! one, since streams continue without drafts as well; in the first child that is a fault.

use super::fault;
use crate::device::{
    Beside, Executor, LoadOptions, OpenDevice, Placed, RetainedWeights, Source, sequence_kv_bytes,
};
use crate::model::{GgufFile, ModelConfig, ModelWeights, model_facts, rank_head, tokenizer_facts};
use crate::serve::{LoadedDraft, Progress};
use std::path::Path;
use worker_orcd_ipc::{
    DeviceSelector, Fault, KvReaders, LoadOrder, ModelFacts, ModelFile, Role, TokenId, TokenKind,
    TokenizerFacts, model_stem,
};

/// Maximum prompt tokens in a step of the draft model.
const CHUNK: u32 = 512;

/// The model that is served.
pub(super) struct Served<'a> {
    pub config: &'a ModelConfig,
    pub model: &'a ModelFacts,
    pub tokenizer: &'a TokenizerFacts,
    pub options: &'a LoadOptions,
    pub retained: Option<&'a RetainedWeights>,
    pub is_reranker: bool,
}

/// A loaded draft model, and the memory that it takes from the served one.
pub(super) struct Draft {
    loaded: LoadedDraft,
    beside: Beside,
    /// Bytes of its tensors in the file.
    file_bytes: u64,
}

/// Loads the ordered draft model, if there is one; or the reason for which a later child serves without it.
///
/// # Errors
/// If the first child cannot load it, or the device fails.
pub(super) fn load(
    order: &LoadOrder,
    served: &Served<'_>,
    progress: Progress<'_>,
) -> Result<Option<Result<Draft, String>>, Fault> {
    let Some(path) = &order.draft_model else {
        return Ok(None);
    };
    match load_from(Path::new(path), order, served, progress) {
        Err(fault) if is_dispensable(order) && lets_go_on(&fault) => Ok(Some(Err(left_out(fault)))),
        loaded => loaded.map(|draft| Some(Ok(draft))),
    }
}

/// Loads the served model beside the draft model. A later child without memory for both gives the draft model up.
///
/// # Errors
/// If the served model cannot be loaded.
pub(super) fn load_beside(
    draft: Option<Result<Draft, String>>,
    device: OpenDevice,
    source: Source<'_>,
    (order, options): (&LoadOrder, LoadOptions),
    progress: Progress<'_>,
) -> Result<(Placed, Option<Result<LoadedDraft, String>>), Fault> {
    let mut draft = match draft {
        Some(Ok(draft)) => draft,
        none => {
            let placed = device.load(source, order, options, &mut |done, total| {
                progress(done, total);
            })?;
            return Ok((placed, none.map(|it| it.map(|draft| draft.loaded))));
        }
    };
    let again = match is_dispensable(order) {
        true => Some(source.try_clone().map_err(|error| Fault::Io {
            message: format!("a descriptor of retained weights: {error}"),
        })?),
        false => None,
    };
    let done_before = draft.file_bytes;
    let mut progress = |done, total| progress(done_before + done, done_before + total);
    let both = draft.beside(options.clone());
    let fault = match device.load(source, order, both, &mut progress) {
        Ok(placed) => return Ok((placed, Some(Ok(draft.loaded)))),
        Err(fault) => draft.named_beside(fault),
    };
    let Some(again) = again.filter(|_| is_shortage(&fault)) else {
        return Err(fault);
    };
    draft.loaded.executor.release()?;
    drop(draft);
    let placed = OpenDevice::open(order)?.load(again, order, options, &mut progress)?;
    Ok((placed, Some(Err(left_out(fault)))))
}

/// A later child serves without a draft model, if need be.
fn is_dispensable(order: &LoadOrder) -> bool {
    order.model_file != ModelFile::AtPath
}

/// The device can go on.
fn lets_go_on(fault: &Fault) -> bool {
    is_shortage(fault) || matches!(fault, Fault::ModelLoad { .. })
}

fn is_shortage(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::InsufficientMemory { .. } | Fault::OutOfMemory { .. }
    )
}

/// Reason for which a child serves without a draft model.
fn left_out(fault: Fault) -> String {
    let reason = match fault {
        Fault::ModelLoad { message } => message,
        other => other.to_string(),
    };
    eprintln!("worker-orcd-gpu: serves without a draft model: {reason}");
    reason
}

impl Draft {
    /// Options of the served model beside this one.
    fn beside(&self, options: LoadOptions) -> LoadOptions {
        LoadOptions {
            model: format!("{} beside {}", options.model, self.described()),
            beside: self.beside,
            ..options
        }
    }

    /// A fault of the served model's load, in which allocations do not name this one.
    fn named_beside(&self, fault: Fault) -> Fault {
        match fault {
            Fault::OutOfMemory { message } => Fault::OutOfMemory {
                message: format!("{message}, beside {}", self.described()),
            },
            other => other,
        }
    }

    fn described(&self) -> String {
        let Beside {
            taken, promised, ..
        } = self.beside;
        let (name, bytes) = (&self.loaded.name, taken + promised);
        format!("the draft model {name} of {bytes} bytes")
    }
}

fn load_from(
    path: &Path,
    order: &LoadOrder,
    served: &Served<'_>,
    progress: Progress<'_>,
) -> Result<Draft, Fault> {
    let named = |error: Fault| {
        let name = |message| format!("the draft model {}: {message}", path.display());
        match error {
            Fault::ModelLoad { message } => Fault::ModelLoad {
                message: name(message),
            },
            Fault::OutOfMemory { message } => Fault::OutOfMemory {
                message: name(message),
            },
            other => other,
        }
    };
    let file = GgufFile::open(path).map_err(|error| named(fault(error.into())))?;
    let header = file.header().map_err(|error| named(fault(error.into())))?;
    let own = |error| named(fault(error));
    let context = ModelConfig::from_gguf(&header, None).map_err(own)?;
    let sequence_tokens = served
        .options
        .max_sequence_tokens
        .min(context.context_length as u32);
    let config = ModelConfig::from_gguf(&header, Some(sequence_tokens)).map_err(own)?;
    let weights = ModelWeights::from_gguf(&header, &config).map_err(own)?;
    let tokenizer = tokenizer_facts(&header).map_err(own)?;
    let model = model_facts(&header, &config, &model_stem(path)).map_err(own)?;
    let is_reranker = rank_head(&header, &config).map_err(own)?.is_some();
    let refusal = refusal_of_kind(served.model, served.is_reranker, "the served model")
        .or_else(|| refusal_of_kind(&model, is_reranker, "it"))
        .or_else(|| difference(served.tokenizer, &tokenizer));
    if let Some(message) = refusal {
        return Err(named(Fault::ModelLoad { message }));
    }
    let device = OpenDevice::open(order)?;
    let mut options = LoadOptions {
        kv_cache_bytes: None,
        max_batch_tokens: order
            .prefill_chunk_tokens
            .clamp(1, CHUNK)
            .saturating_add(order.max_running),
        max_sequence_tokens: sequence_tokens,
        role: role(order),
        kv_readers: KvReaders::None,
        lent: served.options.lent,
        beside: Beside::default(),
        model: format!("the draft model {}", model.name),
    };
    options.kv_cache_bytes = kv_bytes(order, served, (&config, &model), &device, &options)?;
    let source = Source {
        config: &config,
        weights: &weights,
        file: Some(&file),
        retained: None,
    };
    let total = served.model.file_bytes.saturating_add(model.file_bytes);
    let mut progress = |done, _| progress(done, total);
    let executor = device
        .load_unshared(source, order, options, &mut progress)
        .map_err(named)?;
    let kv = executor.kv_geometry();
    let kv_bytes = u64::from(kv.pages) * kv.page_bytes;
    Ok(Draft {
        beside: beside(order, &*executor, kv_bytes),
        file_bytes: model.file_bytes,
        loaded: LoadedDraft {
            executor,
            name: model.name,
            vocab_size: model.vocab_size,
            max_sequence_tokens: sequence_tokens,
        },
    })
}

/// Role of the child at its load. A standby allocates at once if its memory fits beside that of the serving child.
fn role(order: &LoadOrder) -> Role {
    match order.kv_readers {
        KvReaders::Successors => Role::Active,
        KvReaders::Siblings | KvReaders::None => order.role,
    }
}

/// Memory of the loaded draft model. On the CPU, pages and activations take memory when they are written.
fn beside(order: &LoadOrder, executor: &dyn Executor, kv_bytes: u64) -> Beside {
    let memory = executor.memory();
    let working = kv_bytes + memory.scratch_bytes + memory.graphs_bytes;
    let gives_way = is_dispensable(order) && order.adopts_from.is_some();
    let has_all = role(order) == Role::Active && order.device != DeviceSelector::Cpu;
    match has_all {
        true => Beside {
            taken: memory.weights_bytes + working,
            promised: 0,
            gives_way,
        },
        false => Beside {
            taken: memory.weights_bytes,
            promised: working,
            gives_way,
        },
    }
}

/// Size of the KV cache of the draft model, which holds as many tokens as that of the served model: in proportion to an ordered
/// size, or on a card its part of the memory that both models leave. `None`: the default of the CPU.
fn kv_bytes(
    order: &LoadOrder,
    served: &Served<'_>,
    (config, model): (&ModelConfig, &ModelFacts),
    device: &OpenDevice,
    options: &LoadOptions,
) -> Result<Option<u64>, Fault> {
    let sequence_tokens = options.max_sequence_tokens;
    let of_served = LoadOptions {
        max_sequence_tokens: sequence_tokens,
        ..served.options.clone()
    };
    let of_served = sequence_kv_bytes(served.config, &of_served);
    let own = sequence_kv_bytes(config, options);
    let part = |bytes: u64, of: u64| (u128::from(bytes) * u128::from(own) / u128::from(of)) as u64;
    if let Some(bytes) = order.kv_cache_bytes {
        let of_served = of_served.max(1);
        // The windows of a short sequence take as much as those of a long one.
        let longest = u128::from(sequence_tokens) * u128::from(bytes) / u128::from(of_served);
        let longest = LoadOptions {
            max_sequence_tokens: longest.clamp(1, sequence_tokens.into()) as u32,
            ..options.clone()
        };
        let least = sequence_kv_bytes(config, &longest);
        return Ok(Some(part(bytes, of_served).max(least)));
    }
    let Some((free, total)) = device.card_memory()? else {
        return Ok(None);
    };
    let in_place = served.retained.map_or(0, |kept| kept.manifest.bytes);
    let free = match order.role {
        Role::Active => free + in_place + served.options.lent,
        Role::Standby => total,
    };
    let share = total / 1000 * u64::from(order.memory_permille.min(1000));
    let weights = served.model.file_bytes.saturating_add(model.file_bytes);
    let caches = match order.kv_readers {
        KvReaders::Successors => 2,
        KvReaders::Siblings | KvReaders::None => 1,
    };
    let left = share.min(free).saturating_sub(weights) / caches;
    let useful = own.saturating_mul(u64::from(order.max_running));
    Ok(Some(part(left, of_served + own).min(useful)))
}

/// Reason for which a model generates no text.
fn refusal_of_kind(model: &ModelFacts, is_reranker: bool, which: &str) -> Option<String> {
    const NO_POOLING: u32 = 0;
    let is_pooled = model.pooling_type.is_some_and(|it| it != NO_POOLING);
    let kind = match (is_reranker, is_pooled) {
        (true, _) => "a reranker",
        (false, true) => "an embedding model",
        (false, false) => return None,
    };
    Some(format!("{which} is {kind}, which generates no text"))
}

/// Difference between two tokenizers, if their token ids have other meanings.
fn difference(served: &TokenizerFacts, own: &TokenizerFacts) -> Option<String> {
    if own.kind != served.kind {
        return Some(format!(
            "its tokenizer is {:?}, and that of the served model is {:?}",
            own.kind, served.kind
        ));
    }
    let mut pairs = served.tokens.iter().zip(&own.tokens);
    if let Some(id) = pairs.position(|(one, other)| one != other) {
        let [one, other] = [&own.tokens[id], &served.tokens[id]];
        return Some(format!(
            "its token {id} is {one:?}, and that of the served model is {other:?}"
        ));
    }
    let (longer, shorter) = match own.tokens.len() > served.tokens.len() {
        true => (own, served),
        false => (served, own),
    };
    // Vocabularies are filled up to a multiple of some number.
    let mut surplus = longer.kinds.iter().enumerate().skip(shorter.tokens.len());
    if let Some((id, _)) = surplus.find(|(_, kind)| **kind != TokenKind::Unused) {
        return Some(format!(
            "it has {} tokens, and the served model has {}; token {id} is {:?}",
            own.tokens.len(),
            served.tokens.len(),
            longer.tokens[id]
        ));
    }
    let specials = [
        ("bos", own.bos, served.bos),
        ("eos", own.eos, served.eos),
        ("unknown", own.unknown, served.unknown),
    ];
    let mut different = specials.into_iter().filter(|(_, one, other)| one != other);
    let (name, one, other) = different.next()?;
    let id = |token: Option<TokenId>| token.map_or("none".to_owned(), |it| it.to_string());
    Some(format!(
        "its {name} token is {}, and that of the served model is {}",
        id(one),
        id(other)
    ))
}

#[cfg(test)]
mod tests;
