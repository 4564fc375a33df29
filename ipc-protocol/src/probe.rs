//! Command-line probes of the child's program, which run without a socket and before any child.
//!
//! Each probe prints one line on standard output. The exit code determines its meaning; another exit code means that the
//! probe failed. [`ExitCode::Clean`](crate::ExitCode::Clean) stands for success.
//!
//! * `worker-orcd-gpu --probe N`: usability of CUDA device `N`. `Clean`: name of the device.
//!   [`FaultKind::DeviceUnavailable`](crate::FaultKind::DeviceUnavailable): reason. The probe creates no CUDA context, so it
//!   allocates no memory of the device.
//! * `worker-orcd-gpu --count-devices`: number of CUDA devices. `Clean`: decimal number. `DeviceUnavailable`: reason.
//! * `worker-orcd-gpu --check-model FILE`: support for a model, according to its header. `Clean`: description of the model.
//!   [`FaultKind::ModelLoad`](crate::FaultKind::ModelLoad): reason.
//! * `worker-orcd-gpu --digest FILE`: SHA-256 of a file. `Clean`: 64 hexadecimal digits.
//!   [`FaultKind::Io`](crate::FaultKind::Io): reason.
//! * `worker-orcd-gpu --check-confinement`: sandbox features of the machine. `Clean`: available features. `Io`: missing ones.
//! * `worker-orcd-gpu --version`: [`CHILD_NAME`] and version.

/// Flag that is followed by the ordinal of a CUDA device.
pub const PROBE_FLAG: &str = "--probe";

pub const COUNT_DEVICES_FLAG: &str = "--count-devices";

/// Flag that is followed by a path.
pub const CHECK_MODEL_FLAG: &str = "--check-model";

/// Flag that is followed by a path.
pub const DIGEST_FLAG: &str = "--digest";

pub const CHECK_CONFINEMENT_FLAG: &str = "--check-confinement";

/// First word of the output of `--version`.
pub const CHILD_NAME: &str = "worker-orcd-gpu";

/// Maximum length of the line in bytes. The supervisor truncates longer ones.
pub const PROBE_LINE_BYTES: usize = 1024;
