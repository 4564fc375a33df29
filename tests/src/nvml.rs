//! Fake of NVIDIA's management library: a scripted shared library of the same name, which the loader finds before the
//! real one. The worker loads it in the same way.

use crate::worker::{WorkerBuilder, unique};
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/played_nvml.c");

/// GPUs and their script; one GPU by default. Removed on drop.
#[derive(Debug)]
pub struct PlayedNvml {
    directory: TempDir,
    lines: Vec<String>,
}

impl PlayedNvml {
    /// Compiles the library; its script is empty.
    #[must_use]
    pub fn build() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
            .arg("-o")
            .arg(directory.path().join("libnvidia-ml.so.1"))
            .arg(SOURCE)
            .output()
            .expect("a C compiler");
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaints}");
        let mut played = Self {
            directory,
            lines: Vec::new(),
        };
        played.replace(|_| {});
        played
    }

    /// Makes the fake GPU `cuda:0` of the worker.
    #[must_use]
    pub fn seen_by(&self, worker: WorkerBuilder) -> WorkerBuilder {
        self.loadable_by(worker).arg("--device", "cuda:0")
    }

    /// Makes both fake GPUs devices of the worker.
    #[must_use]
    pub fn seen_twice_by(&mut self, worker: WorkerBuilder) -> WorkerBuilder {
        self.plays("gpus 2");
        self.loadable_by(worker)
            .env("CUDA_VISIBLE_DEVICES", "0,1")
            .arg("--device", "cuda:0,cuda:1")
    }

    /// Makes the library available to a worker without a device of it.
    #[must_use]
    pub fn loadable_by(&self, worker: WorkerBuilder) -> WorkerBuilder {
        let variables = self.environment();
        variables
            .iter()
            .fold(worker, |worker, (name, value)| worker.env(name, value))
    }

    /// Variables with which a program loads it.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        [
            ("LD_LIBRARY_PATH", path("")),
            ("PLAYED_NVML", path("script")),
            ("CUDA_VISIBLE_DEVICES", "0".to_owned()),
        ]
    }

    /// Appends a line to the script; `played_nvml.c` lists the commands.
    pub fn plays(&mut self, line: &str) {
        self.replace(|lines| lines.push(line.to_owned()));
    }

    /// Removes all lines that begin with `beginning`.
    pub fn forgets(&mut self, beginning: &str) {
        self.replace(|lines| lines.retain(|line| !line.starts_with(beginning)));
    }

    fn replace(&mut self, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.lines);
        let draft = self.directory.path().join(format!("draft-{}", unique()));
        let text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&draft, text).expect("the directory is ours");
        fs::rename(&draft, self.directory.path().join("script")).expect("the directory is ours");
    }
}
