//! The one question that is asked before any child: can the program that children are made of
//! compute on this CUDA device?
//!
//! `worker-orcd-gpu --probe N` answers without a socket: one line on its standard output, and a
//! number that says what the line is. [`ExitCode::Clean`](crate::ExitCode::Clean): the device, in
//! words. [`ExitCode::DeviceUnavailable`](crate::ExitCode::DeviceUnavailable): why not. Anything
//! else is no answer. It makes no context, so it takes no memory of the device.

/// Followed by the device's ordinal.
pub const PROBE_FLAG: &str = "--probe";

/// Longer lines are cut off by whoever reads them.
pub const PROBE_LINE_BYTES: usize = 1024;
