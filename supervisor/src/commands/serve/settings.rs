//! Conversion of the worker's settings to the engine's.

use crate::config::device::{DecidedDevices, default_prefill_chunk};
use crate::config::{Config, DEFAULT_MEMORY_PERMILLE};
use worker_orcd_engine::EngineSettings;
use worker_orcd_ipc::{KvReaders, LoadOrder, ModelFile, Role, TraceOrder};
use worker_orcd_lifecycle::{Deadlines, RestartPolicy};

pub(super) fn engine_settings(config: &Config, devices: &DecidedDevices) -> EngineSettings {
    let load = &config.load;
    EngineSettings {
        child_binary: config.child_binary.clone(),
        load: LoadOrder {
            model_path: config.model.to_string_lossy().into_owned(),
            model_file: ModelFile::AtPath,
            draft_model: config
                .draft_model
                .as_ref()
                .map(|path| path.to_string_lossy().into_owned()),
            weights: None,
            kv_readers: kv_readers(config, devices),
            adopts_from: None,
            has_second_fd_socket: devices.selectors.len() > 1,
            device: devices.first(),
            kv_cache_bytes: load.kv_cache_bytes,
            memory_permille: load.memory_permille.unwrap_or(DEFAULT_MEMORY_PERMILLE),
            max_running: load.max_running,
            max_sequence_tokens: load.max_context_tokens,
            prefill_chunk_tokens: load
                .prefill_chunk_tokens
                .unwrap_or_else(|| default_prefill_chunk(&devices.selectors)),
            step_budget_us: load.step_budget_us,
            threads: load.threads,
            prefix_cache: load.prefix_cache,
            speculation: load.speculation,
            trace: load.trace.as_ref().map(|trace| TraceOrder {
                path: trace.path.to_string_lossy().into_owned(),
                first_values: trace.first_values,
            }),
            role: Role::Active,
        },
        devices: devices.selectors.clone(),
        deadlines: Deadlines {
            heartbeat: config.life.heartbeat_timeout,
            step: config.life.step_timeout,
            load: config.life.load_timeout,
            ..Deadlines::default()
        },
        restart: RestartPolicy {
            max_deaths: config.life.max_restarts,
            max_delay: config.life.max_restart_delay,
            ..RestartPolicy::default()
        },
        on_fault: config.limits.on_fault,
        max_queue: config.life.max_queue,
        quarantine_for: config.life.quarantine_for,
        template_timeout: config.life.template_timeout,
        model_sampling: config.model_sampling,
        parsers: config.parsers,
        accept_fault_injection: config.accept_fault_injection,
        child_confinement: config.child_confinement,
        standby: config.life.standby,
        crashes: config.crashes.clone(),
    }
}

/// Readers of KV pages. Pages are found by content hash, so there is nothing to copy without a prefix cache.
fn kv_readers(config: &Config, devices: &DecidedDevices) -> KvReaders {
    match (config.load.prefix_cache, config.life.standby) {
        (false, _) => KvReaders::None,
        (true, true) => KvReaders::Successors,
        (true, false) if devices.selectors.len() > 1 => KvReaders::Siblings,
        (true, false) => KvReaders::None,
    }
}
