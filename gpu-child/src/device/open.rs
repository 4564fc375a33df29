//! First step of a load, which needs no model: opens the ordered device.

use super::cpu::{self, CpuExecutor};
use super::cuda::{self, CudaExecutor, CudaOptions};
use super::{Executor, LoadOptions, Source};
use std::os::fd::OwnedFd;
use worker_orcd_ipc::{DeviceSelector, Fault, LoadOrder, WeightsManifest};
use worker_orcd_kernels::cpu::Isa;

/// An open device: threads on the CPU; a context and kernels on a card.
#[derive(Debug)]
pub(crate) enum OpenDevice {
    Cpu(cpu::Device),
    Cuda(cuda::Device),
}

/// A loaded model.
pub(crate) struct Placed {
    pub executor: Box<dyn Executor>,
    pub manifest: WeightsManifest,
    /// Memory of the weights, if this process has allocated it.
    pub memory: Option<OwnedFd>,
}

impl OpenDevice {
    /// Opens the ordered device.
    ///
    /// # Errors
    /// [`Fault::DeviceUnavailable`] or [`Fault::Io`] if the device is not available.
    pub(crate) fn open(order: &LoadOrder) -> Result<Self, Fault> {
        Ok(match order.device {
            DeviceSelector::Cpu => Self::Cpu(cpu::Device::open(order.threads, Isa::detect())?),
            DeviceSelector::Cuda(ordinal) => Self::Cuda(cuda::Device::open(ordinal)?),
        })
    }

    /// Free and total bytes of a card; `None` for the CPU.
    ///
    /// # Errors
    /// If NVIDIA's driver returns an error.
    pub(crate) fn card_memory(&self) -> Result<Option<(u64, u64)>, Fault> {
        match self {
            Self::Cpu(_) => Ok(None),
            Self::Cuda(device) => device.memory().map(Some),
        }
    }

    /// Loads a model whose weights no later process takes over.
    ///
    /// # Errors
    /// Those of [`Self::load`].
    pub(crate) fn load_unshared(
        self,
        source: Source<'_>,
        order: &LoadOrder,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Executor>, Fault> {
        let placed = self.load(source, order, options, progress)?;
        Ok(placed.executor)
    }

    /// Loads the model.
    ///
    /// # Errors
    /// Those of [`CpuExecutor::load`] and [`CudaExecutor::load`].
    pub(crate) fn load(
        self,
        source: Source<'_>,
        order: &LoadOrder,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Placed, Fault> {
        // Retained memory is shared already, and NVIDIA's driver does not export imported memory.
        let is_new = source.retained.is_none();
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
