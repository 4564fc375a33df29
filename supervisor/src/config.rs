//! Settings: flag, then `WORKER_ORCD_*` environment, then TOML file, then default. They are validated after merging,
//! and all mistakes are reported together.
//!
//! * [`options`]: table of names, defaults and help. [`sources`]: merges texts, among them the [`environment`].
//!   [`reader`]: converts them to values. This file validates the values.
//! * [`again`]: settings that a running worker reloads. [`examined`]: settings for `doctor`.
//!
//! Deliberately absent: actions on settings. Files that a setting names are opened here, so a wrong path is reported
//! like any other mistake.

pub mod again;
pub mod callback;
pub mod device;
pub mod environment;
pub mod examined;
mod http;
pub mod keys;
mod model;
pub mod options;
mod parsers;
mod pooling;
mod reader;
pub mod sources;
mod tls;

use crate::logging::{LogFormat, parse_level};
use clap::ArgMatches;
use device::DeviceChoice;
use environment::Environment;
pub use http::HttpConfig;
use reader::Reader;
use sources::Settings;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;
use worker_orcd_api::limits::RequestLimits;
use worker_orcd_cli::model_name::Whereabouts;
use worker_orcd_cli::outgoing::Url;
use worker_orcd_cli::units;
use worker_orcd_engine::crash::{CrashSettings, store};
use worker_orcd_ipc::{DeviceSelector, Pooling, Speculation};
use worker_orcd_requests::OnFault;
use worker_orcd_text::tools::Choices;

/// All settings, complete and consistent.
#[derive(Debug, Clone)]
pub struct Config {
    /// Model as written in the settings, for messages and for clients that name their model.
    pub model_ref: String,
    /// Path of its file, or its name if it [must be downloaded](Self::must_be_got) first.
    pub model: PathBuf,
    /// The model is missing on this machine.
    pub must_be_got: bool,
    pub device: DeviceChoice,
    pub child_binary: PathBuf,
    pub accept_fault_injection: bool,
    /// Sandbox child processes.
    pub child_confinement: bool,
    /// Parse control tokens also in text of clients.
    pub parse_special: bool,
    /// Refuse requests that name another model.
    pub strict_model_name: bool,
    /// Take omitted sampling fields from the model file.
    pub model_sampling: bool,
    /// Pooling of embeddings; overrides the model file.
    pub pooling: Option<Pooling>,
    /// Parsers of answers. Unset ones follow the model's chat template.
    pub parsers: Choices,
    pub worker_id: Uuid,
    /// The worker's id was generated: an inherited id replaces it.
    pub worker_is_unnamed: bool,
    pub callback_url: Option<Url>,
    /// Overrides the listening address in the registration.
    pub advertise_url: Option<String>,
    pub log_format: LogFormat,
    /// Text for [`parse_level`].
    pub log_level: String,
    /// Names of the model in the API. Empty: the file's name.
    pub served_model_names: Vec<String>,
    pub http: HttpConfig,
    pub limits: RequestLimits,
    pub load: LoadConfig,
    pub life: LifeConfig,
    pub crashes: CrashSettings,
}

/// Settings of the model's load, sent to the child.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    pub kv_cache_bytes: Option<u64>,
    /// Thousandths of a CUDA device's memory, if set.
    pub memory_permille: Option<u16>,
    pub max_running: u32,
    pub max_context_tokens: Option<u32>,
    /// Prompt tokens of one step, if set.
    pub prefill_chunk_tokens: Option<u32>,
    /// Microseconds. `None`: the child derives it from the duration of decode steps.
    pub step_budget_us: Option<u32>,
    pub threads: Option<u32>,
    pub prefix_cache: bool,
    pub speculation: Speculation,
    pub trace: Option<TraceConfig>,
}

impl LoadConfig {
    /// Option that has no effect on these devices.
    #[must_use]
    pub fn without_use_on(&self, devices: &[DeviceSelector]) -> Option<&'static str> {
        let cpus = devices.iter().filter(|it| **it == DeviceSelector::Cpu);
        match cpus.count() {
            0 => self.threads.and(Some("--threads")),
            all if all == devices.len() => {
                self.memory_permille.and(Some("--gpu-memory-utilization"))
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
pub struct TraceConfig {
    pub path: PathBuf,
    pub first_values: u32,
}

/// Default share of the card's memory, in thousandths, as in vLLM. The rest is for NVIDIA's driver, a standby's context
/// and other processes.
pub const DEFAULT_MEMORY_PERMILLE: u16 = 900;

/// Settings of the children's lifecycle.
#[derive(Debug, Clone)]
pub struct LifeConfig {
    pub max_queue: usize,
    pub drain_timeout: Duration,
    pub heartbeat_timeout: Duration,
    pub step_timeout: Duration,
    pub load_timeout: Duration,
    pub max_restarts: u32,
    pub quarantine_for: Duration,
    pub max_restart_delay: Duration,
    pub standby: bool,
    /// Time limit for the compilation of a chat template, and for each rendering.
    pub template_timeout: Duration,
}

/// All mistakes in the settings.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{}", .0.join("\n"))]
pub struct ConfigErrors(pub Vec<String>);

impl Config {
    /// # Errors
    /// All mistakes together.
    pub fn gather(flags: &ArgMatches, environment: &Environment) -> Result<Self, ConfigErrors> {
        let mut errors = Vec::new();
        let settings = Settings::gather(flags, environment, &mut errors);
        match read(&mut Reader::new(&settings, &mut errors)) {
            Some(mut config) if errors.is_empty() => {
                let directory = config.crashes.directory.take();
                config.crashes.directory =
                    directory.or_else(|| store::default_directory(&|name| environment.get(name)));
                Ok(config)
            }
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Log format, which also counts if other settings are wrong: they are reported in it.
    #[must_use]
    pub fn log_format(flags: &ArgMatches, environment: &Environment) -> LogFormat {
        let mut others = Vec::new();
        let settings = Settings::gather(flags, environment, &mut others);
        Reader::new(&settings, &mut others)
            .optional("log-format", parse_log_format)
            .unwrap_or(LogFormat::Auto)
    }
}

/// `None` only after an error was noted. Every option is read before any `?`, so that all mistakes are noted.
fn read(reader: &mut Reader<'_>) -> Option<Config> {
    let model_ref = reader.optional("model", |text| Ok(text.to_owned()));
    let model = model::read(reader);
    let device = read_device(reader);
    refuse_what_would_be_ignored(reader, device.as_ref());
    let child_binary = read_child_binary(reader);
    let worker_id = reader.optional("worker-id", |text| {
        Uuid::try_parse(text).map_err(|_| format!("{text:?} is no UUID"))
    });
    let callback_url = reader.optional("callback-url", Url::parse);
    let advertise_url = reader.optional("advertise-url", callback::advertised);
    let log_format = reader.optional("log-format", parse_log_format);
    let log_level = read_log_level(reader);
    let accept_fault_injection = reader.switch("accept-fault-injection");
    let child_confinement = reader.optional("child-confinement", |text| match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    });
    let parse_special = reader.switch("parse-special");
    let strict_model_name = reader.switch("strict-model-name");
    let model_sampling = !reader.switch("no-model-sampling");
    let pooling = reader.optional("pooling", pooling::parse);
    let parsers = parsers::read(reader);
    let served_model_names = reader.optional("served-model-name", |text| match http::list(text) {
        names if names.is_empty() => Err("no name".to_owned()),
        names => Ok(names),
    });
    let http = http::read(reader);
    let is_reachable = http
        .as_ref()
        .is_none_or(|it| callback::is_reachable(&it.hosts));
    if callback_url.is_some() && advertise_url.is_none() && !is_reachable {
        let (one, other) = (reader.origin("callback-url"), reader.origin("host"));
        let why = "no client can connect to such an address";
        reader.error(format!("{one} with {other} needs --advertise-url: {why}"));
    }
    let limits = read_limits(reader);
    let load = read_load(reader);
    let life = read_life(reader);
    let crashes = read_crashes(reader);
    let model_ref = model_ref?;
    Some(Config {
        must_be_got: model == Some(Whereabouts::Elsewhere),
        model: match model? {
            Whereabouts::Here(path) => path,
            Whereabouts::Elsewhere => model_ref.as_str().into(),
        },
        model_ref,
        device: device?,
        child_binary: child_binary?,
        accept_fault_injection,
        child_confinement: child_confinement?,
        parse_special,
        strict_model_name,
        model_sampling,
        pooling,
        parsers,
        worker_id: worker_id.unwrap_or_else(Uuid::new_v4),
        worker_is_unnamed: worker_id.is_none(),
        callback_url,
        advertise_url,
        log_format: log_format?,
        log_level: log_level?,
        served_model_names: served_model_names.unwrap_or_default(),
        http: http?,
        limits: limits?,
        load: load?,
        life: life?,
        crashes: crashes?,
    })
}

/// Refuses options without effect: of the other kind of device, or overridden by another option; also a trace of
/// several devices. With `auto`, options of both kinds are accepted, and the log reports the unused one
/// ([`LoadConfig::without_use_on`]).
fn refuse_what_would_be_ignored(reader: &mut Reader<'_>, device: Option<&DeviceChoice>) {
    let useless = match device {
        Some(device) if device.is_cpu_alone() => Some("gpu-memory-utilization"),
        Some(DeviceChoice::Named(devices)) if !devices.contains(&DeviceSelector::Cpu) => {
            Some("threads")
        }
        Some(DeviceChoice::All) => Some("threads"),
        Some(DeviceChoice::Auto | DeviceChoice::Named(_)) | None => None,
    };
    if let (Some(device), Some(name)) = (device, useless.filter(|name| reader.has(name))) {
        let origin = reader.origin(name).to_owned();
        reader.error(format!(
            "{origin} is for the other kind of device; {device} has no use for it"
        ));
    }
    if reader.has("kv-cache-size") && reader.has("gpu-memory-utilization") {
        let [one, other] = ["gpu-memory-utilization", "kv-cache-size"].map(|it| reader.origin(it));
        reader.error(format!("{other} leaves nothing for {one} to decide"));
    }
    if reader.has("trace-logits") && device.is_some_and(DeviceChoice::may_be_several) {
        let [trace, device] = ["trace-logits", "device"].map(|it| reader.origin(it));
        reader.error(format!("{trace} needs one device; {device} may be more"));
    }
}

fn read_limits(reader: &mut Reader<'_>) -> Option<RequestLimits> {
    let max_tokens_in = reader.integer("max-tokens-in", 1..=u32::MAX);
    let max_tokens_out = reader.integer("max-tokens-out", 1..=u32::MAX);
    let max_prompt_chars = reader.integer("max-prompt-chars", 1..=u32::MAX);
    let reasoning_budget = reader.integer("reasoning-budget", 0..=u32::MAX);
    let inference_timeout = reader.positive_duration("inference-timeout");
    let on_fault = reader.optional("on-fault", |text| match text {
        "resume" => Ok(OnFault::Resume),
        "fail" => Ok(OnFault::Fail),
        _ => Err(format!("{text:?} is neither resume nor fail")),
    });
    Some(RequestLimits {
        max_tokens_in,
        max_tokens_out,
        max_prompt_chars: max_prompt_chars.map(|chars| chars as usize),
        reasoning_budget,
        inference_timeout,
        on_fault: on_fault?,
    })
}

fn read_load(reader: &mut Reader<'_>) -> Option<LoadConfig> {
    let kv_cache_bytes = reader.bytes("kv-cache-size");
    let memory_permille = reader.optional("gpu-memory-utilization", units::permille);
    let max_running = reader.integer("max-running", 1..=4096);
    let max_context_tokens = reader.integer("max-context", 1..=u32::MAX);
    let prefill_chunk_tokens = reader.integer("prefill-chunk", 1..=65_536);
    let step_budget_us = reader.optional("step-budget", step_budget);
    let threads = reader.integer("threads", 1..=1024);
    let prefix_cache = !reader.switch("no-prefix-cache");
    let speculation = reader.optional("speculation", |text| match text {
        "off" => Ok(Speculation::Off),
        "text" => Ok(Speculation::Text),
        _ => Err(format!("{text:?} is neither off nor text")),
    });
    let trace_path = reader.optional("trace-logits", writable);
    let first_values = reader.integer("trace-values", 1..=1_000_000);
    Some(LoadConfig {
        kv_cache_bytes,
        memory_permille,
        max_running: max_running?,
        max_context_tokens,
        prefill_chunk_tokens,
        step_budget_us,
        threads,
        prefix_cache,
        speculation: speculation?,
        trace: match (trace_path, first_values?) {
            (Some(path), first_values) => Some(TraceConfig { path, first_values }),
            (None, _) => None,
        },
    })
}

/// Parses a step budget in microseconds. Limits: the launch time of a step, and the longest acceptable time per token.
fn step_budget(text: &str) -> Result<u32, String> {
    let within = Duration::from_micros(100)..=Duration::from_secs(1);
    let budget = Some(units::duration(text)?).filter(|time| within.contains(time));
    let budget = budget.ok_or_else(|| format!("{text:?} is no time from 0.1ms to 1s"))?;
    Ok(budget.as_micros() as u32)
}

fn read_life(reader: &mut Reader<'_>) -> Option<LifeConfig> {
    let max_queue = reader.integer("max-queue", 0..=1_000_000);
    let drain_timeout = reader.duration("drain-timeout");
    let heartbeat_timeout = reader.positive_duration("heartbeat-timeout");
    let step_timeout = reader.positive_duration("step-timeout");
    let load_timeout = reader.positive_duration("load-timeout");
    let max_restarts = reader.integer("max-restarts", 0..=1_000);
    let quarantine_for = reader.duration("quarantine-for");
    let max_restart_delay = reader.duration("max-restart-delay");
    let standby = reader.switch("standby");
    let template_timeout = reader.positive_duration("template-timeout");
    Some(LifeConfig {
        max_queue: max_queue? as usize,
        drain_timeout: drain_timeout?,
        heartbeat_timeout: heartbeat_timeout?,
        step_timeout: step_timeout?,
        load_timeout: load_timeout?,
        max_restarts: max_restarts?,
        quarantine_for: quarantine_for?,
        max_restart_delay: max_restart_delay?,
        standby,
        template_timeout: template_timeout?,
    })
}

fn read_log_level(reader: &mut Reader<'_>) -> Option<String> {
    reader.optional("log-level", |text| {
        parse_level(text).map(|_| text.to_owned())
    })
}

/// Settings of crash reports. The directory's default needs the environment and is set later.
fn read_crashes(reader: &mut Reader<'_>) -> Option<CrashSettings> {
    let directory = reader.path("crash-dir");
    let max_reports = reader.integer("max-crash-reports", 1..=10_000);
    Some(CrashSettings {
        directory,
        max_reports: max_reports? as usize,
    })
}

fn read_device(reader: &mut Reader<'_>) -> Option<DeviceChoice> {
    let ordinal = reader.integer("gpu-device", 0..=1023);
    let device = reader.optional("device", DeviceChoice::parse);
    match (reader.has("gpu-device"), device) {
        (false, device) => device,
        (true, None | Some(DeviceChoice::Auto)) => ordinal.map(DeviceChoice::cuda),
        (true, Some(device)) if Some(&device) == ordinal.map(DeviceChoice::cuda).as_ref() => {
            Some(device)
        }
        (true, Some(device)) => {
            let (one, other) = (reader.origin("gpu-device"), reader.origin("device"));
            reader.error(format!("{one} contradicts {other} ({device})"));
            None
        }
    }
}

fn read_child_binary(reader: &mut Reader<'_>) -> Option<PathBuf> {
    if let Some(path) = reader.path("child-binary") {
        return Some(path);
    }
    match std::env::current_exe() {
        Ok(own) => Some(own.with_file_name("worker-orcd-gpu")),
        Err(error) => {
            reader.error(format!(
                "--child-binary is needed: no path to this program: {error}"
            ));
            None
        }
    }
}

/// Opens the file now: a wrong path is then a usage error instead of a failure of each child.
fn writable(path: &str) -> Result<PathBuf, String> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    match opened {
        Ok(_) => Ok(PathBuf::from(path)),
        Err(error) => Err(format!("{path} cannot be written: {error}")),
    }
}

fn parse_log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "json" => Ok(LogFormat::Json),
        "text" => Ok(LogFormat::Text),
        "auto" => Ok(LogFormat::Auto),
        _ => Err(format!("{text:?} is neither json, text nor auto")),
    }
}

#[cfg(test)]
mod tests;
