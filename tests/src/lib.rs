//! What is tested through the real binaries: the harness that starts them, talks to them and
//! clears up after them.
//!
//! ```text
//! tests/*.rs ─ Worker ─ worker-orcd (this package's copy) ─ worker-orcd-gpu
//!    │           │                                        └ or scripted-child: misbehaves to order
//!    │           └ client: HTTP/1.1 over a plain TcpStream  └ or null-child: computes nothing
//!    └ events, log lines, /proc
//! ```
//!
//! The client is written out by hand so that a test can do what a library forbids: send half a
//! request, read one byte a second, vanish. Deliberately absent: any knowledge of the
//! supervisor's inside. What a test asserts is what a client, an operator or the kernel sees.

pub mod aftermath;
pub mod bench;
pub mod beside;
pub mod client;
pub mod control_group;
pub mod facts;
pub mod faults;
pub mod full_disk;
pub mod gguf_patch;
pub mod hostile_gguf;
pub mod hostile_templates;
pub mod hub;
pub mod log;
pub mod model;
pub mod model_copy;
pub mod nvml;
pub mod process;
pub mod script;
pub mod tracer;
pub mod wait;
pub mod worker;

pub use beside::{Bystander, a_beat_a_step, on_the_beat};
pub use client::{Client, EventStream, Response, SseEvent};
pub use control_group::ControlGroup;
pub use full_disk::FullDisk;
pub use hub::{FakeHub, Held};
pub use model_copy::ModelCopy;
pub use script::{Act, Moment, Script};
pub use tracer::Unreapable;
pub use worker::{Worker, WorkerBuilder};

/// Lines that a command-line tool of this package writes to stdout.
pub type Result<T> = anyhow::Result<T>;
