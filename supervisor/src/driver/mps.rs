//! NVIDIA's Multi-Process Service: processes that use a card through it share a context, and a fault of one
//! ends all of them. A standby there would die with the child in whose place it is to come.
//!
//! <https://docs.nvidia.com/deploy/mps/index.html>: a process becomes a client of the service when its control
//! daemon listens in `CUDA_MPS_PIPE_DIRECTORY`.

use crate::driver::news::News;
use crate::engine::EngineSettings;
use std::path::{Path, PathBuf};
use std::time::Instant;
use worker_orcd_ipc::DeviceSelector;
use worker_orcd_lifecycle::Settings;

const DEFAULT_DIRECTORY: &str = "/tmp/nvidia-mps";
const SHARED: &str = "the card is shared by NVIDIA's Multi-Process Service, where a fault of one process ends \
                      all";

/// The lifecycle's settings, without a standby where the device is shared in this way.
pub(super) fn rules(settings: &EngineSettings, now: Instant, news: &mut News) -> Settings {
    let mut rules = settings.rules();
    let given = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let directory = given.map_or_else(|| DEFAULT_DIRECTORY.into(), PathBuf::from);
    let is_card = matches!(settings.load.device, DeviceSelector::Cuda(_));
    if rules.standby && is_card && serves_in(&directory) {
        rules.standby = false;
        news.impaired(now, "standby", SHARED);
    }
    rules
}

fn serves_in(directory: &Path) -> bool {
    directory.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_known_by_its_pipe() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!serves_in(dir.path()));
        std::fs::File::create(dir.path().join("control")).unwrap();
        assert!(serves_in(dir.path()));
    }
}
