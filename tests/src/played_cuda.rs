//! Emulated card: NVIDIA's driver of `tests/played-cuda`, which the loader finds before a real one. The released child
//! loads it as it would load the real one, and its kernels are interpreted.

use crate::worker::WorkerBuilder;
use std::fs;
use tempfile::TempDir;

/// Directory of the library, removed on drop.
#[derive(Debug)]
pub struct PlayedCuda {
    directory: TempDir,
}

impl PlayedCuda {
    /// Emulated card; `None` if this build has no kernels because there is no compiler.
    ///
    /// # Panics
    /// The library was not built with the tests.
    #[must_use]
    pub fn of_this_build() -> Option<Self> {
        if worker_orcd_gpu::device::cuda::kernels_are_at_hand().is_err() {
            eprintln!("left out: this build has no kernels");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tests = std::env::current_exe().expect("a path");
        // Cargo puts the linked libraries of a test program beside it.
        let library = tests.with_file_name("libplayed_cuda.so");
        // Copied, because a confined child may read this folder and no other.
        fs::copy(&library, directory.path().join("libcuda.so"))
            .unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        Some(Self { directory })
    }

    /// Makes the worker compute on the emulated card.
    #[must_use]
    pub fn seen_by(&self, worker: WorkerBuilder) -> WorkerBuilder {
        worker
            .env(
                "LD_LIBRARY_PATH",
                &self.directory.path().display().to_string(),
            )
            .arg("--device", "cuda:0")
            // The chunk that a load computes is interpreted.
            .arg("--load-timeout", "600s")
    }
}
