//! Settings and a load order for tests.

use crate::crash::CrashSettings;
use crate::engine::EngineSettings;
use std::path::PathBuf;
use std::time::Duration;
use worker_orcd_ipc::{DeviceSelector, KvReaders, LoadOrder, ModelFile, Role, Speculation};
use worker_orcd_lifecycle::{Deadlines, RestartPolicy};
use worker_orcd_requests::OnFault;
use worker_orcd_text::tools::Choices;

/// Settings of a worker without a child program.
pub fn settings() -> EngineSettings {
    EngineSettings {
        child_binary: PathBuf::from("/nowhere/worker-orcd-gpu"),
        load: load_order(),
        devices: vec![DeviceSelector::Cpu],
        deadlines: Deadlines::default(),
        restart: RestartPolicy::default(),
        on_fault: OnFault::Fail,
        max_queue: 1,
        quarantine_for: Duration::from_secs(600),
        template_timeout: Duration::from_secs(3),
        model_sampling: true,
        parsers: Choices::default(),
        accept_fault_injection: false,
        child_confinement: true,
        standby: false,
        crashes: CrashSettings {
            directory: None,
            max_reports: 3,
        },
    }
}

pub(crate) fn load_order() -> LoadOrder {
    LoadOrder {
        model_path: "/dev/null".to_owned(),
        model_file: ModelFile::AtPath,
        draft_model: None,
        weights: None,
        kv_readers: KvReaders::None,
        adopts_from: None,
        has_second_fd_socket: false,
        device: DeviceSelector::Cpu,
        kv_cache_bytes: None,
        memory_permille: 900,
        max_running: 1,
        max_sequence_tokens: None,
        prefill_chunk_tokens: 1,
        step_budget_us: None,
        threads: None,
        prefix_cache: true,
        speculation: Speculation::Text,
        trace: None,
        role: Role::Active,
    }
}
