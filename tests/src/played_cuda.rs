//! A card that is played: NVIDIA's driver as `tests/played-cuda` has it, found by the loader before a real
//! one. The child that ships loads it as it would load the real one, and its kernels are interpreted.

use crate::worker::WorkerBuilder;
use std::fs;
use tempfile::TempDir;

/// Dropping it takes the library away.
#[derive(Debug)]
pub struct PlayedCuda {
    directory: TempDir,
}

impl PlayedCuda {
    /// `None` where the kernels were left out of this build, because no compiler could be had for them.
    ///
    /// # Panics
    /// When the library was not built with the tests.
    #[must_use]
    pub fn of_this_build() -> Option<Self> {
        if worker_orcd_gpu::device::cuda::kernels_are_at_hand().is_err() {
            eprintln!("left out: this build has no kernels");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let tests = std::env::current_exe().expect("a path");
        // Cargo puts what a test program is linked with beside it.
        let library = tests.with_file_name("libplayed_cuda.so");
        // Copied, because a confined child may read this folder and no other.
        fs::copy(&library, directory.path().join("libcuda.so"))
            .unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        Some(Self { directory })
    }

    /// The worker that is started from this computes on the played card.
    #[must_use]
    pub fn seen_by(&self, worker: WorkerBuilder) -> WorkerBuilder {
        worker
            .env(
                "LD_LIBRARY_PATH",
                &self.directory.path().display().to_string(),
            )
            .arg("--device", "cuda:0")
    }
}
