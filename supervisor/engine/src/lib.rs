//! The engine: it operates the child processes that compute answers, and replaces those that die.
//!
//! ```text
//! server ─→ engine ── Control ─→ driver ── commands ─→ child (another process, over a Unix socket)
//!   ▲         ▲                  │ │ ▲ └───← events ─────┘
//!   │         └──── snapshots ───┘ │ └─ nvml (GPU), lifecycle (decisions)
//!   └── journal (requests) ←───────┴──→ crash (reports of deaths)
//! ```
//!
//! * [`engine`]: the server's handle: admission, the loaded model, snapshots, settings.
//! * [`driver`]: the one task that owns children, lifecycle and journal. [`child`]: one child process. [`nvml`]: GPU
//!   monitor. [`crash`]: reports of deaths.
//! * [`handoff`]: handoff state for the engine of another supervisor.
//! * [`interpreter`]: untrusted chat templates and grammars, in processes of this program.
//!
//! Deliberately absent: HTTP and the formats of its answers, metrics, the command line and files of settings, signals,
//! CUDA, parsing of model files, `unsafe`.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod child;
pub mod crash;
pub mod driver;
pub mod engine;
pub mod handoff;
pub mod interpreter;
pub mod nvml;

pub use engine::{
    ChildSnapshot, DeviceSnapshot, Ended, Engine, EngineSettings, EngineSnapshot, FaultsSnapshot,
    GpuSnapshot, LoadSnapshot, LoadedModel, PreviousEngine, SamplingDefaults, Status,
};
