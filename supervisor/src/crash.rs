//! Crash reports: what is known about each death, for whoever asks in the morning.
//!
//! * [`death`] one death, filled in as it becomes known; [`log`] the deaths of lately, each under the
//!   generation of its child.
//! * [`report`] what is written of a death, [`recording`] what of the flight recorder, [`gpu`] what of the
//!   GPU; [`store`] where reports are kept (a thread, a directory, `GET /crashes`).
//!
//! A child that was dismissed leaves no report. Deliberately absent: prompts and completions, in
//! any form; reading the clock (moments are arguments).

pub(crate) mod death;
pub(crate) mod gpu;
pub(crate) mod log;
pub(crate) mod recording;
pub(crate) mod report;
pub(crate) mod store;

pub(crate) use death::Death;
pub(crate) use log::CrashLog;
pub(crate) use store::{CrashSettings, CrashStore};
