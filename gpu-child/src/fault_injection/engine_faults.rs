//! Faults of the engine thread, in the middle of a step.

use super::escapes::attempt;
use super::wire::WireFault;
use super::{Kind, fault_injector};
use crate::device::Executor;
use crate::device::injected_fault::{DeviceFault, order_nan};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, raise};
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;
use worker_orcd_ipc::Fault;

/// Delay after which the step is in flight, but a step of a small model on a fast device has not ended.
const KILL_AFTER: Duration = Duration::from_micros(100);

/// Result of a fault that the process survived.
pub(super) enum Outcome {
    Done,
    /// The next write performs it.
    OnTheWire(WireFault),
}

/// Injects a fault. Most kinds do not return.
pub(super) fn commit(kind: Kind, device: &mut (dyn Executor + 'static)) -> Result<Outcome, Fault> {
    match kind {
        Kind::Panic => panic!("injected"),
        Kind::Abort => std::process::abort(),
        Kind::Segfault => segfault(),
        Kind::ExitZero => std::process::exit(0),
        Kind::Hang => hang(),
        Kind::OutOfMemory => Err(allocation_failure()),
        Kind::NonFinite => {
            match fault_injector(device) {
                Some(fault_injector) => fault_injector.commit(DeviceFault::NonFinite)?,
                None => order_nan(),
            }
            Ok(Outcome::Done)
        }
        Kind::Stop => {
            raise(Signal::SIGSTOP).expect("a process may stop itself");
            Ok(Outcome::Done)
        }
        Kind::Kill => {
            thread::spawn(|| {
                thread::sleep(KILL_AFTER);
                raise(Signal::SIGKILL)
            });
            Ok(Outcome::Done)
        }
        Kind::FlippedPage => {
            let kv = device.kv_transfer().expect("rules were checked");
            kv.flip_bits();
            std::process::abort()
        }
        Kind::IllegalAddress
        | Kind::Misaligned
        | Kind::Trap
        | Kind::EndlessKernel
        | Kind::DeviceOutOfMemory
        | Kind::DeviceFull => {
            let fault = kind.of_device().expect("a kind of the device's");
            let fault_injector = fault_injector(device).expect("rules were checked");
            fault_injector.commit(fault).map(|()| Outcome::Done)
        }
        Kind::ReadFile | Kind::OpenSocket | Kind::RunProgram => {
            attempt(kind);
            Ok(Outcome::Done)
        }
        Kind::FlippedBit => unreachable!("it strikes in no step"),
        Kind::Stall => Ok(Outcome::OnTheWire(WireFault::Stall)),
        Kind::Flood => Ok(Outcome::OnTheWire(WireFault::Flood)),
        Kind::Garbage => Ok(Outcome::OnTheWire(WireFault::Garbage)),
        Kind::Drip => Ok(Outcome::OnTheWire(WireFault::Drip)),
        Kind::WrongToken => Ok(Outcome::OnTheWire(WireFault::WrongToken)),
    }
}

/// Computes for ever, as a kernel without an end condition would.
fn hang() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn segfault() -> ! {
    let length = NonZeroUsize::MIN;
    // SAFETY: a fresh private mapping aliases nothing.
    let page = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE) };
    let page = page.expect("the kernel has a page to give").cast::<u8>();
    // SAFETY: the page is ours, and belongs to no Rust object; it is deliberately not writable, and the hardware
    // answers with a signal without a handler.
    unsafe { page.as_ptr().write_volatile(1) };
    unreachable!("the page may not be written")
}

/// The allocator's own refusal.
fn allocation_failure() -> Fault {
    let bytes = isize::MAX as usize;
    let message = match Vec::<u8>::new().try_reserve_exact(bytes) {
        Err(error) => format!("{bytes} bytes: {error}"),
        Ok(()) => format!("{bytes} bytes were promised, which no machine has"),
    };
    Fault::OutOfMemory { message }
}
