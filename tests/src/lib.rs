//! Harness of the tests of the real binaries: it starts them, communicates with them, and cleans up.
//!
//! ```text
//! tests/*.rs ─ Worker ─ worker-orcd (this package's copy) ─ worker-orcd-gpu
//!    │           │                                        └ or scripted-child: fails by script
//!    │           └ harness: starts it, reads its log,       └ or null-child: computes nothing
//!    │             speaks HTTP with it
//!    └ events, log lines, /proc
//! ```
//!
//! `tests/harness` has the part that xtask shares. Deliberately absent: any knowledge of the supervisor's internals.
//! Tests assert observations of a client, an operator or the kernel.

pub mod aftermath;
pub mod bench;
pub mod beside;
pub mod browser;
pub mod chat;
pub mod clients;
pub mod control_group;
pub mod descriptor_store;
pub mod disturbed;
pub mod facts;
pub mod families;
pub mod faults;
pub mod full_disk;
pub mod gguf_patch;
pub mod hostile_gguf;
pub mod hostile_grammars;
pub mod hostile_templates;
pub mod hub;
pub mod mappings;
pub mod model;
pub mod model_copy;
pub mod nvml;
pub mod oracle;
pub mod package_index;
mod played;
pub mod played_cuda;
pub mod process;
pub mod script;
pub mod snippets;
pub mod stage;
pub mod streamed_answer;
pub mod systemd;
pub mod tools_model;
pub mod tracer;
pub mod twins;
pub mod worker;

pub use beside::{Bystander, a_beat_a_step, on_the_beat};
pub use control_group::ControlGroup;
pub use full_disk::FullDisk;
pub use hub::{FakeHub, Held};
pub use model_copy::ModelCopy;
pub use script::{Act, Moment, Script};
pub use tracer::Unreapable;
pub use worker::{Worker, WorkerBuilder};
pub use worker_orcd_harness::{Client, EventStream, Response, SseEvent, client, log, wait};

/// Lines that a command-line tool of this package writes to stdout.
pub type Result<T> = anyhow::Result<T>;
