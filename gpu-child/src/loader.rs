//! Executes an order to load: opens the file, or takes it over from an earlier child, checks it, and loads it onto the
//! device.
//!
//! Retained weights of an earlier child stay in place: this child takes over their memory, and reads only the header of
//! the file.
//!
//! The model's identity is computed from the loaded data, not from the file: a file that is edited while it is read has
//! no single content.

use crate::fd_socket::FdSocket;
mod draft;

use crate::device::{Beside, Executor, LoadOptions, OpenDevice, RetainedWeights, Source};
use crate::model::{
    GgufFile, Header, ModelConfig, ModelError, ModelWeights, model_facts, rank_head,
    sampling_advice, suppressed_tokens, tokenizer_facts,
};
use crate::pooling::RankHead;
use crate::serve::{Loaded, Progress};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;
use twox_hash::xxhash3_128::Hasher;
use worker_orcd_ipc::{
    DeviceSelector, Fault, FdKind, Generation, KvSource, LoadOrder, ModelFile, ModelIdentity,
    TokenId, WeightsManifest, model_stem,
};

/// Loads the model.
///
/// # Errors
/// [`Fault::DeviceUnavailable`], [`Fault::ModelLoad`] or [`Fault::InsufficientMemory`]: a new child would fail in the
/// same way. [`Fault::Io`] if an expected descriptor is missing, and [`Fault::Device`] if retained weights have
/// changed.
pub fn load(
    order: &LoadOrder,
    fd_socket: Option<&FdSocket>,
    progress: Progress<'_>,
) -> Result<Loaded, Fault> {
    // Opening the device and reading the header run in parallel: the device takes longer.
    thread::scope(|scope| {
        let device = thread::Builder::new()
            .name("open-device".to_owned())
            .spawn_scoped(scope, || OpenDevice::open(order))
            .map_err(|error| Fault::Io {
                message: format!("a thread cannot be started: {error}"),
            })?;
        let opened = || device.join().unwrap_or_else(|panic| resume_unwind(panic));
        load_on(opened, order, fd_socket, progress)
    })
}

/// Loads on a device that is open when it is needed.
fn load_on(
    device: impl FnOnce() -> Result<OpenDevice, Fault>,
    order: &LoadOrder,
    fd_socket: Option<&FdSocket>,
    progress: Progress<'_>,
) -> Result<Loaded, Fault> {
    let path = Path::new(&order.model_path);
    let file = model_file(order, fd_socket, path)?;
    let header = file.header().map_err(|error| fault(error.into()))?;
    let sequence_tokens = sequence_tokens(order, &header).map_err(fault)?;
    let config = ModelConfig::from_gguf(&header, Some(sequence_tokens)).map_err(fault)?;
    let weights = ModelWeights::from_gguf(&header, &config).map_err(fault)?;
    let tokenizer = tokenizer_facts(&header).map_err(fault)?;
    let stem = model_stem(path);
    let model = model_facts(&header, &config, &stem).map_err(fault)?;
    let head = rank_head(&header, &config).map_err(fault)?;
    let head = head.map(|tensor| RankHead::of(&tensor));
    let sampling = sampling_advice(&header, model.vocab_size);
    let suppressed = suppressed_tokens(&header, model.vocab_size).map_err(fault)?;
    // In the order in which the supervisor sends them.
    let kept = kept_weights(order, fd_socket)?;
    let other = other_kv(order, fd_socket)?;
    let late_fd_socket = late_fd_socket(order, fd_socket)?;
    let options = load_options(order, sequence_tokens, other.as_ref(), &model.name);
    let served = draft::Served {
        config: &config,
        model: &model,
        tokenizer: &tokenizer,
        options: &options,
        retained: kept.as_ref(),
        is_reranker: head.is_some(),
    };
    let draft = draft::load(order, &served, progress)?;
    let source = Source {
        config: &config,
        weights: &weights,
        file: Some(&file),
        retained: kept,
    };
    let (mut placed, draft) =
        draft::load_beside(draft, device()?, source, (order, options), progress)?;
    if let Some(fd_socket) = fd_socket {
        if order.model_file == ModelFile::AtPath {
            for file in file.files() {
                hand_over(fd_socket, FdKind::ModelFile, file);
            }
        }
        if let Some(memory) = &placed.memory {
            hand_over(fd_socket, FdKind::Weights, memory);
        }
    }
    let adopts_from = share_kv(&mut *placed.executor, other, fd_socket);
    Ok(Loaded {
        executor: placed.executor,
        model,
        identity: identity(&config, &placed.manifest, head.as_ref(), &suppressed),
        weights: placed.manifest,
        tokenizer,
        sampling,
        suppressed,
        rank_head: head,
        max_sequence_tokens: sequence_tokens,
        draft,
        adopts_from,
        late_fd_socket,
    })
}

/// Options of a load without a draft model.
fn load_options(
    order: &LoadOrder,
    sequence_tokens: u32,
    other: Option<&OtherKv>,
    model: &str,
) -> LoadOptions {
    LoadOptions {
        kv_cache_bytes: order.kv_cache_bytes,
        // Every running sequence has its token besides a whole prefill chunk.
        max_batch_tokens: order
            .prefill_chunk_tokens
            .max(1)
            .saturating_add(order.max_running),
        max_sequence_tokens: sequence_tokens,
        role: order.role,
        kv_readers: order.kv_readers,
        lent: match order.device {
            DeviceSelector::Cpu => other.map_or(0, taken_by),
            DeviceSelector::Cuda(_) => other.map_or(0, |other| other.source.bytes),
        },
        beside: Beside::default(),
        model: model.to_owned(),
    }
}

/// Sends a descriptor to the supervisor. On failure the supervisor reports the gap, and the next child begins with the
/// file.
fn hand_over(fd_socket: &FdSocket, article: FdKind, descriptor: &impl AsFd) {
    if let Err(error) = fd_socket.hand_over(article, descriptor) {
        eprintln!("worker-orcd-gpu: {article:?} cannot be handed over: {error}");
    }
}

/// The KV cache of another child.
struct OtherKv {
    source: KvSource,
    memory: OwnedFd,
}

fn other_kv(order: &LoadOrder, fd_socket: Option<&FdSocket>) -> Result<Option<OtherKv>, Fault> {
    let Some(source) = order.adopts_from else {
        return Ok(None);
    };
    let memory = take(fd_socket, FdKind::KvCache)?;
    Ok(Some(OtherKv { source, memory }))
}

fn late_fd_socket(
    order: &LoadOrder,
    fd_socket: Option<&FdSocket>,
) -> Result<Option<FdSocket>, Fault> {
    match order.has_second_fd_socket {
        true => take(fd_socket, FdKind::SecondSocket).map(|socket| Some(FdSocket::of(socket))),
        false => Ok(None),
    }
}

/// Bytes of host memory in use by it: unwritten pages take none.
fn taken_by(other: &OtherKv) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let file = rustix::fs::fstat(&other.memory);
    file.map_or(0, |file| file.st_blocks.cast_unsigned() * BLOCK_BYTES)
}

/// Exports the KV cache, and attaches the other child's. Returns that child if its pages can be adopted. Otherwise
/// their tokens are recomputed.
fn share_kv(
    executor: &mut dyn Executor,
    other: Option<OtherKv>,
    fd_socket: Option<&FdSocket>,
) -> Option<Generation> {
    let (kv, fd_socket) = (executor.kv_transfer()?, fd_socket?);
    match kv.share() {
        Ok(memory) => hand_over(fd_socket, FdKind::KvCache, &memory),
        Err(fault) => eprintln!("worker-orcd-gpu: the KV cache cannot be handed over: {fault}"),
    }
    let OtherKv { source, memory } = other?;
    let attached = kv.attach(source.child, memory, source.bytes);
    let attached = attached.inspect_err(|fault| eprintln!("worker-orcd-gpu: {fault}"));
    attached.ok().map(|()| source.child)
}

fn kept_weights(
    order: &LoadOrder,
    fd_socket: Option<&FdSocket>,
) -> Result<Option<RetainedWeights>, Fault> {
    let Some(manifest) = order.weights.clone() else {
        return Ok(None);
    };
    let memory = take(fd_socket, FdKind::Weights)?;
    Ok(Some(RetainedWeights { memory, manifest }))
}

fn model_file(
    order: &LoadOrder,
    fd_socket: Option<&FdSocket>,
    path: &Path,
) -> Result<GgufFile, Fault> {
    let file = match order.model_file {
        ModelFile::AtPath => GgufFile::open(path),
        ModelFile::HandedOver { parts } => {
            let take = |_| take(fd_socket, FdKind::ModelFile).map(File::from);
            let files: Result<_, _> = (0..parts).map(take).collect();
            GgufFile::map(files?, path)
        }
    };
    file.map_err(|error| fault(error.into()))
}

fn take(fd_socket: Option<&FdSocket>, article: FdKind) -> Result<OwnedFd, Fault> {
    let none = || std::io::Error::other("there is no socket for descriptors");
    let taken = fd_socket.ok_or_else(none).and_then(|it| it.take(article));
    taken.map_err(|error| Fault::Io {
        message: format!("{article:?} of an earlier child: {error}"),
    })
}

/// Hash of the model. `Debug` writes every field of the configuration, and every float with enough digits to
/// distinguish it from its neighbours.
fn identity(
    config: &ModelConfig,
    weights: &WeightsManifest,
    head: Option<&RankHead>,
    suppressed: &[TokenId],
) -> ModelIdentity {
    let mut hasher = Hasher::new();
    hasher.write(format!("{config:?}").as_bytes());
    for tensor in &weights.tensors {
        hasher.write(&tensor.offset.to_le_bytes());
        hasher.write(&tensor.checksum.to_le_bytes());
    }
    for value in head.into_iter().flat_map(RankHead::values) {
        hasher.write(&value.to_le_bytes());
    }
    for token in suppressed {
        hasher.write(&token.0.to_le_bytes());
    }
    ModelIdentity(hasher.finish_128().to_le_bytes())
}

/// Description of a loadable file: everything is checked except the tensors' bytes and the required memory.
///
/// # Errors
/// [`Fault::ModelLoad`].
pub fn check(path: &Path) -> Result<String, Fault> {
    let file = GgufFile::open(path).map_err(|error| fault(error.into()))?;
    let header = file.header().map_err(|error| fault(error.into()))?;
    let config = ModelConfig::from_gguf(&header, None).map_err(fault)?;
    ModelWeights::from_gguf(&header, &config).map_err(fault)?;
    tokenizer_facts(&header).map_err(fault)?;
    let stem = model_stem(path);
    let facts = model_facts(&header, &config, &stem).map_err(fault)?;
    Ok(format!(
        "{}: {} of {} parameters, {}, context of {} tokens",
        facts.name.replace('\n', " "),
        facts.architecture,
        facts.parameters,
        facts.quant_kind,
        facts.context_length
    ))
}

/// The ordered sequence length, limited to the model's context length.
fn sequence_tokens(order: &LoadOrder, header: &Header<'_>) -> Result<u32, ModelError> {
    let context_length = ModelConfig::from_gguf(header, None)?.context_length as u32;
    Ok(order
        .max_sequence_tokens
        .unwrap_or(context_length)
        .clamp(1, context_length))
}

fn fault(error: ModelError) -> Fault {
    Fault::ModelLoad {
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
