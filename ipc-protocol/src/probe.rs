//! Questions to the program that children are made of, without a socket and before any child. Each
//! answer is one line on its standard output, and a number that says what the line is.
//!
//! `worker-orcd-gpu --probe N`: can it compute on this CUDA device?
//! [`ExitCode::Clean`](crate::ExitCode::Clean): the device, in words.
//! [`FaultKind::DeviceUnavailable`](crate::FaultKind::DeviceUnavailable): why not. It makes no context,
//! so it takes no memory of the device.
//!
//! `worker-orcd-gpu --count-devices`: how many CUDA devices are there? `Clean`: the number, in digits.
//! `DeviceUnavailable`: why nobody can say.
//!
//! `worker-orcd-gpu --check-model FILE`: could it serve this file, as far as its header says?
//! `Clean`: the model, in words. [`FaultKind::ModelLoad`](crate::FaultKind::ModelLoad): why not.
//!
//! `worker-orcd-gpu --digest FILE`: what is in it? `Clean`: the SHA-256 of its bytes, in hexadecimal digits.
//! [`FaultKind::Io`](crate::FaultKind::Io): why it cannot be read.
//!
//! `worker-orcd-gpu --check-confinement`: can this machine confine it? `Clean`: with what. `Io`: what is
//! missing.
//!
//! `worker-orcd-gpu --version`: its name and its version.
//!
//! Anything else is no answer.

/// Followed by the device's ordinal.
pub const PROBE_FLAG: &str = "--probe";

pub const COUNT_DEVICES_FLAG: &str = "--count-devices";

/// Followed by a path.
pub const CHECK_MODEL_FLAG: &str = "--check-model";

/// Followed by a path.
pub const DIGEST_FLAG: &str = "--digest";

pub const CHECK_CONFINEMENT_FLAG: &str = "--check-confinement";

/// Beginning of the answer to `--version`.
pub const CHILD_NAME: &str = "worker-orcd-gpu";

/// Longer lines are cut off by the reader.
pub const PROBE_LINE_BYTES: usize = 1024;
