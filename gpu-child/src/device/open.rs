//! The first step of a load, which needs no model: a device that was ordered is made ready.

use super::cpu::{self, CpuExecutor};
use super::cuda::{self, CudaExecutor, CudaOptions};
use super::{Executor, LoadOptions, Source};
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{DeviceSelector, Fault, LoadOrder, WeightsManifest};
use worker_orcd_kernels::cpu::Isa;

/// A device that is ready to take a model: threads on the CPU; a context and kernels on a card.
#[derive(Debug)]
pub(crate) enum OpenDevice {
    Cpu(cpu::Device),
    Cuda(cuda::Device),
}

/// A model in place.
pub(crate) struct Placed {
    pub executor: Box<dyn Executor>,
    pub manifest: WeightsManifest,
    /// The memory of the weights, where this process has made it.
    pub memory: Option<OwnedFd>,
}

impl OpenDevice {
    /// # Errors
    /// [`Fault::DeviceUnavailable`] or [`Fault::Io`] when the device cannot be had.
    pub(crate) fn open(order: &LoadOrder) -> Result<Self, Fault> {
        Ok(match order.device {
            DeviceSelector::Cpu => Self::Cpu(cpu::Device::open(order.threads, Isa::detect())?),
            DeviceSelector::Cuda(ordinal) => Self::Cuda(cuda::Device::open(ordinal)?),
        })
    }

    /// Gets the model in place.
    ///
    /// # Errors
    /// As for [`CpuExecutor::load`] and [`CudaExecutor::load`].
    pub(crate) fn load(
        self,
        source: Source<'_>,
        order: &LoadOrder,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Placed, Fault> {
        // Memory that was taken over is shared already, and NVIDIA's driver shares no memory of others.
        let is_new = source.kept.is_none();
        Ok(match self {
            Self::Cpu(device) => {
                let executor = CpuExecutor::load(device, source, &options, progress)?;
                Placed {
                    manifest: executor.manifest().clone(),
                    memory: is_new.then(|| executor.share_weights()).transpose()?,
                    executor: Box::new(executor),
                }
            }
            Self::Cuda(device) => {
                let options = CudaOptions {
                    memory_permille: order.memory_permille,
                    max_sequences: order.max_running,
                    load: options,
                };
                let executor = CudaExecutor::load(device, source, &options, progress)?;
                Placed {
                    manifest: executor.manifest().clone(),
                    memory: is_new.then(|| executor.share_weights()).transpose()?,
                    executor: Box::new(executor),
                }
            }
        })
    }
}
