//! NVIDIA's Multi-Process Service (MPS): its client processes share a context on a card, and a fault of one ends all of
//! them. A standby would therefore die with its predecessor.
//!
//! <https://docs.nvidia.com/deploy/mps/index.html>: a process becomes a client of the service when its control daemon
//! listens in `CUDA_MPS_PIPE_DIRECTORY`.

use crate::driver::snapshot_builder::SnapshotBuilder;
use crate::engine::EngineSettings;
use std::path::{Path, PathBuf};
use std::time::Instant;
use worker_orcd_ipc::{DeviceSelector, KvReaders, LoadOrder};
use worker_orcd_lifecycle::Settings;

const DEFAULT_DIRECTORY: &str = "/tmp/nvidia-mps";
const SHARED: &str = "the card is shared by NVIDIA's Multi-Process Service, where a fault of one process ends \
                      all";

/// Lifecycle settings, limited to one child at a time if MPS shares a device. No room for a standby's KV cache is then
/// reserved.
pub(super) fn rules(
    settings: &mut EngineSettings,
    now: Instant,
    snapshots: &mut SnapshotBuilder,
) -> Settings {
    let given = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let directory = given.map_or_else(|| DEFAULT_DIRECTORY.into(), PathBuf::from);
    let rules = settings.rules();
    let mut devices = settings.devices.iter();
    if !devices.any(|device| is_shared(*device, &directory)) {
        return rules;
    }
    if rules.standby {
        snapshots.impaired(now, "standby", SHARED);
    }
    one_at_a_time(rules, &mut settings.load)
}

fn one_at_a_time(rules: Settings, load: &mut LoadOrder) -> Settings {
    if load.kv_readers == KvReaders::Successors {
        load.kv_readers = others(load.has_second_fd_socket);
    }
    Settings {
        standby: false,
        overlap: false,
        ..rules
    }
}

/// KV cache readers without successors.
fn others(has_siblings: bool) -> KvReaders {
    match has_siblings {
        true => KvReaders::Siblings,
        false => KvReaders::None,
    }
}

fn is_shared(device: DeviceSelector, directory: &Path) -> bool {
    matches!(device, DeviceSelector::Cuda(_)) && directory.join("control").exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::testing::load_order;

    #[test]
    fn without_a_standby_no_room_is_left_for_its_kv_cache() {
        let mut load = LoadOrder {
            kv_readers: KvReaders::Successors,
            ..load_order()
        };
        let rules = Settings {
            standby: true,
            overlap: true,
            ..Settings::default()
        };
        let rules = one_at_a_time(rules, &mut load);
        assert!(!rules.standby && !rules.overlap);
        assert_eq!(load.kv_readers, KvReaders::None);
    }

    #[test]
    fn a_card_is_shared_where_the_daemon_has_its_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let card = DeviceSelector::Cuda(0);
        assert!(!is_shared(card, dir.path()));
        std::fs::File::create(dir.path().join("control")).unwrap();
        assert!(is_shared(card, dir.path()));
        assert!(!is_shared(DeviceSelector::Cpu, dir.path()));
    }
}
