//! Faults that the device causes on command (`kernels/cuda/faults.cu`), in a child built with fault
//! injection.
//!
//! An injected fault goes into the stream before a step, and the step is launched after it: as with
//! a real fault, the host detects it in one of the next calls. The rest of the device code
//! does not distinguish it from a real one.

use super::CudaExecutor;
use super::context::Context;
use super::headers::layout;
use super::kernels::{Aligned, Geometry, Kernel, Module};
use super::memory::{Arena, DevicePtr, Purpose};
use crate::device::injected_fault::{DeviceFault, FaultInjector};
use worker_orcd_ipc::Fault;

static FATBIN: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/faults.fatbin")));

/// An address above the user half of a 48-bit address space, so that it is no host page
/// either, which some machines map for the device.
const NOWHERE: usize = 0xdead_0000_0000;

/// Each byte of a NaN in F16.
const NOT_A_NUMBER: u8 = 0xff;

/// Size of the last allocations of a device that is being filled.
const CRUMB_BYTES: u64 = 64 << 10;

layout! {
    struct MisdeedArgs in "faults.cu" {
        at: DevicePtr<u8>,
    }
}

/// Kernels that fail, loaded in advance: a full device has no room for a
/// module.
#[derive(Debug)]
pub struct FaultKernels {
    illegal_address: Kernel<MisdeedArgs>,
    misaligned: Kernel<MisdeedArgs>,
    trap: Kernel<MisdeedArgs>,
    endless_kernel: Kernel<MisdeedArgs>,
}

impl FaultKernels {
    fn load(context: &Context) -> Result<Self, Fault> {
        let module = Module::of(context, FATBIN)?;
        // SAFETY: every kernel of faults.cu takes MisdeedArgs.
        let kernel = |name| unsafe { module.kernel(name) };
        Ok(Self {
            illegal_address: kernel("illegal_address")?,
            misaligned: kernel("misaligned")?,
            trap: kernel("trap")?,
            endless_kernel: kernel("endless_kernel")?,
        })
    }
}

impl FaultInjector for CudaExecutor {
    fn prepare(&mut self) -> Result<(), Fault> {
        self.fault_kernels = Some(FaultKernels::load(&self.rank.context)?);
        Ok(())
    }

    fn commit(&mut self, fault: DeviceFault) -> Result<(), Fault> {
        let fault_kernels = self.fault_kernels.as_ref().expect("prepared");
        let launch = |kernel: &Kernel<MisdeedArgs>, at| {
            let (one, arguments) = (Geometry::line(1, 1), MisdeedArgs { at });
            // SAFETY: none is possible: what the kernel does is forbidden, on purpose. It is the
            // device that answers, with an error that ends this process.
            unsafe { kernel.launch(&self.rank.context, one, &arguments) }
        };
        let somewhere = self.rank.scratch.buffers.x.cast();
        self.rank.context.enter()?;
        match fault {
            DeviceFault::IllegalAddress => {
                launch(&fault_kernels.illegal_address, DevicePtr::NULL.add(NOWHERE))
            }
            DeviceFault::Misaligned => launch(&fault_kernels.misaligned, somewhere),
            DeviceFault::Trap => launch(&fault_kernels.trap, somewhere),
            DeviceFault::EndlessKernel => launch(&fault_kernels.endless_kernel, somewhere),
            DeviceFault::NonFinite => {
                // All rows attend to it: no logit of this step will be finite.
                self.rank.kv.arena().fill(&self.rank.context, NOT_A_NUMBER)
            }
            DeviceFault::OutOfMemory => {
                let (_, total) = self.rank.context.memory()?;
                Arena::new(&self.rank.context, Purpose::Scratch, total).map(drop)
            }
            DeviceFault::Full => self.take_everything(),
        }
    }
}

impl CudaExecutor {
    /// Allocates all remaining memory, as another process could, for the rest of this process.
    fn take_everything(&self) -> Result<(), Fault> {
        let (_, mut bytes) = self.rank.context.memory()?;
        while bytes >= CRUMB_BYTES {
            match Arena::new(&self.rank.context, Purpose::Scratch, bytes) {
                Ok(arena) => std::mem::forget(arena),
                Err(Fault::OutOfMemory { .. }) => bytes /= 2,
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}
