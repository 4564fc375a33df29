//! Exit of this process: one exit code per cause, and a final event if there is time for it.

use std::any::Any;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use worker_orcd_ipc::{ExitCode, Fault, FaultKind};

/// The function that ends the process. Tests replace it, so it may return; its caller must then stop by itself.
pub type ExitHook = Arc<dyn Fn(ExitCode) + Send + Sync>;

#[must_use]
pub fn end_process() -> ExitHook {
    Arc::new(|code| end_now(code))
}

/// Exits without exit handlers: NVIDIA's driver installs one, and after a device error it may never return. All output
/// of this process is unbuffered.
pub fn end_now(code: ExitCode) -> ! {
    // SAFETY: ends the process; nothing runs after it.
    unsafe { nix::libc::_exit(code.code()) }
}

/// Makes a panic in any thread end the process: a partial child is worse than none. `last_words` may report to the
/// supervisor first.
pub fn end_process_on_panic(last_words: impl Fn(Fault) + Send + Sync + 'static) {
    std::panic::set_hook(Box::new(move |info| {
        let fault = describe(info);
        eprintln!("worker-orcd-gpu: {fault}");
        last_words(fault);
        end_now(ExitCode::Fault(FaultKind::Panic));
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> Fault {
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    Fault::Panic {
        message: message(info.payload()).to_owned(),
        location,
    }
}

fn message(payload: &dyn Any) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
