//! An order to load becomes an executor: the file is opened, or taken over from an earlier child,
//! checked, and handed to the device.
//!
//! Weights that an earlier child has placed stay where they are: this one takes their memory over, and
//! of the file only its header is read.
//!
//! The model's identity is taken of what will be computed with, where it lies, and not of the file: a
//! file that is edited while it is read has no one content.

use crate::custody::Custody;
use crate::device::{Executor, KeptWeights, LoadOptions, OpenDevice, Source};
use crate::model::{
    GgufFile, Header, ModelConfig, ModelError, ModelWeights, model_facts, rank_head,
    sampling_advice, tokenizer_facts,
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
    WeightsManifest, model_stem,
};

/// # Errors
/// [`Fault::DeviceUnavailable`], [`Fault::ModelLoad`] or [`Fault::InsufficientMemory`]: a new
/// child would fail in the same way. [`Fault::Io`] when something that was to be taken over is not
/// there, and [`Fault::Device`] when weights that were kept have changed.
pub fn load(
    order: &LoadOrder,
    custody: Option<&Custody>,
    progress: Progress<'_>,
) -> Result<Loaded, Fault> {
    // A device takes longer to open than a header to read: neither waits for the other.
    thread::scope(|scope| {
        let device = thread::Builder::new()
            .name("open-device".to_owned())
            .spawn_scoped(scope, || OpenDevice::open(order))
            .map_err(|error| Fault::Io {
                message: format!("a thread cannot be started: {error}"),
            })?;
        let opened = || device.join().unwrap_or_else(|panic| resume_unwind(panic));
        load_on(opened, order, custody, progress)
    })
}

/// Loads on a device that is open when it is asked for.
fn load_on(
    device: impl FnOnce() -> Result<OpenDevice, Fault>,
    order: &LoadOrder,
    custody: Option<&Custody>,
    progress: Progress<'_>,
) -> Result<Loaded, Fault> {
    let path = Path::new(&order.model_path);
    let file = model_file(order, custody, path)?;
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
    // In the order in which the supervisor hands them out.
    let kept = kept_weights(order, custody)?;
    let other = other_kv(order, custody)?;
    let mailbox = mailbox(order, custody)?;
    let options = LoadOptions {
        kv_cache_bytes: order.kv_cache_bytes,
        // Every running sequence has its token beside a whole chunk of prompts.
        max_batch_tokens: order
            .prefill_chunk_tokens
            .max(1)
            .saturating_add(order.max_running),
        max_sequence_tokens: sequence_tokens,
        role: order.role,
        kv_readers: order.kv_readers,
        lent: match order.device {
            DeviceSelector::Cpu => other.as_ref().map_or(0, taken_by),
            DeviceSelector::Cuda(_) => other.as_ref().map_or(0, |other| other.source.bytes),
        },
        model: model.name.clone(),
    };
    let source = Source {
        config: &config,
        weights: &weights,
        file: Some(&file),
        kept,
    };
    let device = device()?;
    let mut progress = |done, total| progress(done, total);
    let mut placed = device.load(source, order, options, &mut progress)?;
    if let Some(custody) = custody {
        if order.model_file == ModelFile::AtPath {
            for file in file.files() {
                hand_over(custody, FdKind::ModelFile, file);
            }
        }
        if let Some(memory) = &placed.memory {
            hand_over(custody, FdKind::Weights, memory);
        }
    }
    let adopts_from = share_kv(&mut *placed.executor, other, custody);
    Ok(Loaded {
        executor: placed.executor,
        model,
        identity: identity(&config, &placed.manifest, head.as_ref()),
        weights: placed.manifest,
        tokenizer,
        sampling,
        rank_head: head,
        max_sequence_tokens: sequence_tokens,
        adopts_from,
        mailbox,
    })
}

/// The supervisor notices what it was not given, says so, and has the next child begin with the file.
fn hand_over(custody: &Custody, article: FdKind, descriptor: &impl AsFd) {
    if let Err(error) = custody.hand_over(article, descriptor) {
        eprintln!("worker-orcd-gpu: {article:?} cannot be handed over: {error}");
    }
}

/// The KV cache of another child.
struct OtherKv {
    source: KvSource,
    memory: OwnedFd,
}

fn other_kv(order: &LoadOrder, custody: Option<&Custody>) -> Result<Option<OtherKv>, Fault> {
    let Some(source) = order.adopts_from else {
        return Ok(None);
    };
    let memory = take(custody, FdKind::KvCache)?;
    Ok(Some(OtherKv { source, memory }))
}

fn mailbox(order: &LoadOrder, custody: Option<&Custody>) -> Result<Option<Custody>, Fault> {
    match order.has_second_fd_socket {
        true => take(custody, FdKind::SecondSocket).map(|socket| Some(Custody::of(socket))),
        false => Ok(None),
    }
}

/// Bytes of the machine's memory that it takes: pages that were never written take none.
fn taken_by(other: &OtherKv) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    let file = rustix::fs::fstat(&other.memory);
    file.map_or(0, |file| file.st_blocks.cast_unsigned() * BLOCK_BYTES)
}

/// Hands the KV cache over, and takes the other child's. Gives that child, if its pages can be adopted.
/// Without them their tokens are computed again.
fn share_kv(
    executor: &mut dyn Executor,
    other: Option<OtherKv>,
    custody: Option<&Custody>,
) -> Option<Generation> {
    let (kv, custody) = (executor.kv_custody()?, custody?);
    match kv.share() {
        Ok(memory) => hand_over(custody, FdKind::KvCache, &memory),
        Err(fault) => eprintln!("worker-orcd-gpu: the KV cache cannot be handed over: {fault}"),
    }
    let OtherKv { source, memory } = other?;
    let attached = kv.attach(source.child, memory, source.bytes);
    let attached = attached.inspect_err(|fault| eprintln!("worker-orcd-gpu: {fault}"));
    attached.ok().map(|()| source.child)
}

fn kept_weights(
    order: &LoadOrder,
    custody: Option<&Custody>,
) -> Result<Option<KeptWeights>, Fault> {
    let Some(manifest) = order.weights.clone() else {
        return Ok(None);
    };
    let memory = take(custody, FdKind::Weights)?;
    Ok(Some(KeptWeights { memory, manifest }))
}

fn model_file(
    order: &LoadOrder,
    custody: Option<&Custody>,
    path: &Path,
) -> Result<GgufFile, Fault> {
    let file = match order.model_file {
        ModelFile::AtPath => GgufFile::open(path),
        ModelFile::HandedOver { parts } => {
            let take = |_| take(custody, FdKind::ModelFile).map(File::from);
            let files: Result<_, _> = (0..parts).map(take).collect();
            GgufFile::map(files?, path)
        }
    };
    file.map_err(|error| fault(error.into()))
}

fn take(custody: Option<&Custody>, article: FdKind) -> Result<OwnedFd, Fault> {
    let none = || std::io::Error::other("there is no socket for descriptors");
    let taken = custody.ok_or_else(none).and_then(|it| it.take(article));
    taken.map_err(|error| Fault::Io {
        message: format!("{article:?} of an earlier child: {error}"),
    })
}

/// `Debug` writes every field of the configuration, and every float in as many digits as tell it
/// from its neighbours.
fn identity(
    config: &ModelConfig,
    weights: &WeightsManifest,
    head: Option<&RankHead>,
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
    ModelIdentity(hasher.finish_128().to_le_bytes())
}

/// The description of a file, if [`load`] could take it: everything is checked but the tensors'
/// bytes and the memory that they need.
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

/// The length of sequences that was ordered, but no more than the model was trained for.
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
