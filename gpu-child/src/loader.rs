//! An order to load becomes an executor: the file is opened, checked, and handed to the device.

use crate::device::Executor;
use crate::device::cpu::{CpuExecutor, CpuOptions};
use crate::device::cuda::{CudaExecutor, CudaOptions, KvOrder};
use crate::model::{
    GgufFile, Header, ModelConfig, ModelError, ModelWeights, model_facts, tokenizer_facts,
};
use crate::serve::{Loaded, Progress};
use std::path::Path;
use worker_orcd_ipc::{DeviceSelector, Fault, LoadOrder};

/// # Errors
/// [`Fault::DeviceUnavailable`], [`Fault::ModelLoad`] or [`Fault::InsufficientMemory`]: a new
/// child would fail in the same way.
pub fn load(order: &LoadOrder, progress: Progress<'_>) -> Result<Loaded, Fault> {
    let path = Path::new(&order.model_path);
    let file = GgufFile::open(path).map_err(|error| fault(error.into()))?;
    let header = file.header().map_err(|error| fault(error.into()))?;
    let sequence_tokens = sequence_tokens(order, &header).map_err(fault)?;
    let config = ModelConfig::from_gguf(&header, Some(sequence_tokens)).map_err(fault)?;
    let weights = ModelWeights::from_gguf(&header, &config).map_err(fault)?;
    let tokenizer = tokenizer_facts(&header).map_err(fault)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let model = model_facts(&header, &config, &stem).map_err(fault)?;
    let shape = Shape {
        // Every running sequence has its token beside a whole chunk of prompts.
        max_batch_tokens: order
            .prefill_chunk_tokens
            .max(1)
            .saturating_add(order.max_running),
        max_sequence_tokens: sequence_tokens,
        model: model.name.clone(),
    };
    let mut progress = |done, total| progress(done, total);
    let executor: Box<dyn Executor> = match order.device {
        DeviceSelector::Cpu => {
            let options = shape.cpu(order);
            Box::new(CpuExecutor::load(
                &config,
                &weights,
                &options,
                &mut progress,
            )?)
        }
        DeviceSelector::Cuda(ordinal) => {
            let options = shape.cuda(order, ordinal);
            Box::new(CudaExecutor::load(
                &config,
                &weights,
                Some(file.bytes()),
                &options,
                &mut progress,
            )?)
        }
    };
    Ok(Loaded {
        executor,
        model,
        tokenizer,
        max_sequence_tokens: sequence_tokens,
    })
}

/// What every device is told.
struct Shape {
    max_batch_tokens: u32,
    max_sequence_tokens: u32,
    model: String,
}

impl Shape {
    fn cpu(self, order: &LoadOrder) -> CpuOptions {
        CpuOptions {
            threads: order.threads,
            kv_cache_bytes: order.kv_cache_bytes,
            max_batch_tokens: self.max_batch_tokens,
            max_sequence_tokens: self.max_sequence_tokens,
            model: self.model,
        }
    }

    fn cuda(self, order: &LoadOrder, ordinal: u32) -> CudaOptions {
        CudaOptions {
            ordinal,
            kv_cache: match order.kv_cache_bytes {
                Some(bytes) => KvOrder::Bytes(bytes),
                None => KvOrder::Share {
                    permille: order.memory_permille,
                    sequences: order.max_running,
                },
            },
            max_batch_tokens: self.max_batch_tokens,
            max_sequence_tokens: self.max_sequence_tokens,
            model: self.model,
        }
    }
}

/// What was ordered, but no more than the model was trained for.
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
