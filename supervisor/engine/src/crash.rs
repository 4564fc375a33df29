//! Crash reports: the facts of each death.
//!
//! * [`death`]: one death, completed as facts arrive. [`log`]: recent deaths by generation.
//! * [`report`]: JSON of a death. [`recording`]: flight recorder entries in it. [`gpu`]: GPU evidence in it. [`store`]:
//!   storage of reports (a thread, a directory, `GET /crashes`).
//!
//! A dismissed child has no report. Deliberately absent: prompts and completions in any form, and clocks (time is an
//! argument).

pub(crate) mod death;
pub(crate) mod gpu;
pub(crate) mod log;
pub(crate) mod recording;
pub(crate) mod report;
pub mod store;

pub use death::{Death, Reaping};
pub(crate) use log::CrashLog;
pub use report::Summary;
pub use store::{CrashSettings, CrashStore};
