//! An order to load that nobody obeys.

use worker_orcd_ipc::{DeviceSelector, KvReaders, LoadOrder, ModelFile, Role};

pub(crate) fn load_order() -> LoadOrder {
    LoadOrder {
        model_path: "/dev/null".to_owned(),
        model_file: ModelFile::AtPath,
        weights: None,
        kv_readers: KvReaders::Nobody,
        adopts_from: None,
        has_mailbox: false,
        device: DeviceSelector::Cpu,
        kv_cache_bytes: None,
        memory_permille: 900,
        max_running: 1,
        max_sequence_tokens: None,
        prefill_chunk_tokens: 1,
        step_budget_us: None,
        threads: None,
        prefix_cache: true,
        trace: None,
        role: Role::Active,
    }
}
