//! Helpers of the protocol's tests: one fixed sample of each message kind, strategies for random messages, and paths.

// Each test program compiles this module and uses a part of it.
#![allow(dead_code)]

pub mod samples;
pub mod strategies;

use std::path::{Path, PathBuf};
use worker_orcd_ipc::{Command, Envelope, encode};

/// Environment variable that makes tests write their golden files: `REGENERATE=1 cargo test -p worker-orcd-ipc`.
pub const REGENERATE: &str = "REGENERATE";

pub fn regenerating() -> bool {
    std::env::var_os(REGENERATE).is_some()
}

/// Message of either direction.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Down(Command),
    Up(Envelope),
}

impl Message {
    pub fn payload(&self) -> Vec<u8> {
        match self {
            Self::Down(command) => encode(command),
            Self::Up(envelope) => encode(envelope),
        }
        .expect("a sample fits a frame")
    }
}

pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

pub fn corpus_dir(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target)
}
