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
mod reader;
pub mod sources;
mod tls;

use crate::logging::{LogFormat, parse_level};
use clap::ArgMatches;
use device::DeviceChoice;
use environment::Environment;
pub use http::HttpConfig;
use reader::{Reader, one_of, path, positive, within};
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
    /// File of the draft model.
    pub draft_model: Option<PathBuf>,
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

const POOLINGS: &[(&str, Pooling)] = &[
    ("last", Pooling::Last),
    ("mean", Pooling::Mean),
    ("cls", Pooling::Cls),
];

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
        let mut config = read(&mut Reader::new(&settings, &mut errors));
        if !errors.is_empty() {
            return Err(ConfigErrors(errors));
        }
        let directory = config.crashes.directory.take();
        config.crashes.directory =
            directory.or_else(|| store::default_directory(&|name| environment.get(name)));
        Ok(config)
    }

    /// Log format, which also counts if other settings are wrong: they are reported in it.
    #[must_use]
    pub fn log_format(flags: &ArgMatches, environment: &Environment) -> LogFormat {
        let mut others = Vec::new();
        let settings = Settings::gather(flags, environment, &mut others);
        read_log_format(&mut Reader::new(&settings, &mut others))
    }
}

/// Every option is read whatever the others are, so that all mistakes are noted. The value counts without any.
fn read(reader: &mut Reader<'_>) -> Config {
    let model_ref = reader.optional("model", |text| Ok(text.to_owned()));
    let model_ref = model_ref.unwrap_or_default();
    let model = model::read(reader);
    let draft_model = model::read_draft(reader);
    let device = read_device(reader);
    refuse_what_would_be_ignored(reader, device.as_ref());
    let child_binary = read_child_binary(reader);
    let worker_id = reader.optional("worker-id", |text| {
        Uuid::try_parse(text).map_err(|_| format!("{text:?} is no UUID"))
    });
    let config = Config {
        must_be_got: model == Some(Whereabouts::Elsewhere),
        model: match model {
            Some(Whereabouts::Here(path)) => path,
            Some(Whereabouts::Elsewhere) | None => model_ref.as_str().into(),
        },
        model_ref,
        draft_model,
        device: device.unwrap_or(DeviceChoice::Auto),
        child_binary: child_binary.unwrap_or_default(),
        worker_id: worker_id.unwrap_or_else(Uuid::new_v4),
        worker_is_unnamed: worker_id.is_none(),
        callback_url: reader.optional("callback-url", Url::parse),
        advertise_url: reader.optional("advertise-url", callback::advertised),
        log_format: read_log_format(reader),
        log_level: read_log_level(reader),
        accept_fault_injection: reader.switch("accept-fault-injection"),
        child_confinement: reader
            .needed("child-confinement", one_of(&[("on", true), ("off", false)])),
        parse_special: reader.switch("parse-special"),
        strict_model_name: reader.switch("strict-model-name"),
        model_sampling: !reader.switch("no-model-sampling"),
        pooling: reader.optional("pooling", one_of(POOLINGS)),
        parsers: parsers::read(reader),
        served_model_names: reader
            .optional("served-model-name", names)
            .unwrap_or_default(),
        http: http::read(reader),
        limits: read_limits(reader),
        load: read_load(reader),
        life: read_life(reader),
        crashes: read_crashes(reader),
    };
    refuse_an_address_of_no_use(reader, &config);
    refuse_drafts_beside_a_trace(reader, &config.load);
    refuse_a_draft_model_of_no_use(reader, &config.load);
    config
}

/// Refuses a registration with an address that no client can connect to.
fn refuse_an_address_of_no_use(reader: &mut Reader<'_>, config: &Config) {
    let is_reachable = callback::is_reachable(&config.http.hosts);
    if config.callback_url.is_some() && config.advertise_url.is_none() && !is_reachable {
        let (one, other) = (reader.origin("callback-url"), reader.origin("host"));
        let why = "no client can connect to such an address";
        reader.error(format!("{one} with {other} needs --advertise-url: {why}"));
    }
}

/// Refuses drafts beside a trace: it has one row of logits for each token.
fn refuse_drafts_beside_a_trace(reader: &mut Reader<'_>, load: &LoadConfig) {
    if load.trace.is_none() || load.speculation == Speculation::Off {
        return;
    }
    let trace = reader.origin("trace-logits");
    let what = match reader.has("speculation") {
        true => format!("set {} to off", reader.origin("speculation")),
        false => format!("leave out {}", reader.origin("draft-model")),
    };
    reader.error(format!(
        "{trace} records one row for each token, and steps with drafts compute more; {what}"
    ));
}

/// Refuses a draft model without `--speculation auto`.
fn refuse_a_draft_model_of_no_use(reader: &mut Reader<'_>, load: &LoadConfig) {
    if reader.has("draft-model") && load.speculation != Speculation::Auto {
        let [model, source] = ["draft-model", "speculation"].map(|it| reader.origin(it));
        reader.error(format!(
            "{model} has no use with this {source}; set it to auto"
        ));
    }
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

fn read_limits(reader: &mut Reader<'_>) -> RequestLimits {
    let max_prompt_chars = reader.optional("max-prompt-chars", within(1..=u32::MAX));
    let on_faults = &[("resume", OnFault::Resume), ("fail", OnFault::Fail)];
    RequestLimits {
        max_tokens_in: reader.optional("max-tokens-in", within(1..=u32::MAX)),
        max_tokens_out: reader.optional("max-tokens-out", within(1..=u32::MAX)),
        max_prompt_chars: max_prompt_chars.map(|chars| chars as usize),
        reasoning_budget: reader.optional("reasoning-budget", within(0..=u32::MAX)),
        inference_timeout: reader.optional("inference-timeout", positive),
        on_fault: reader
            .optional("on-fault", one_of(on_faults))
            .unwrap_or(OnFault::Resume),
    }
}

fn read_load(reader: &mut Reader<'_>) -> LoadConfig {
    let sources = &[
        ("off", Speculation::Off),
        ("text", Speculation::Text),
        ("auto", Speculation::Auto),
    ];
    let speculation = reader.optional("speculation", one_of(sources));
    let by_default = match reader.has("draft-model") {
        true => Speculation::Auto,
        false => Speculation::Off,
    };
    LoadConfig {
        kv_cache_bytes: reader.optional("kv-cache-size", units::bytes),
        memory_permille: reader.optional("gpu-memory-utilization", units::permille),
        max_running: reader.needed("max-running", within(1..=4096)),
        max_context_tokens: reader.optional("max-context", within(1..=u32::MAX)),
        prefill_chunk_tokens: reader.optional("prefill-chunk", within(1..=65_536)),
        step_budget_us: reader.optional("step-budget", step_budget),
        threads: reader.optional("threads", within(1..=1024)),
        prefix_cache: !reader.switch("no-prefix-cache"),
        speculation: speculation.unwrap_or(by_default),
        trace: read_trace(reader),
    }
}

fn read_trace(reader: &mut Reader<'_>) -> Option<TraceConfig> {
    let path = reader.optional("trace-logits", writable);
    let first_values = reader.needed("trace-values", within(1..=1_000_000));
    path.map(|path| TraceConfig { path, first_values })
}

/// Parses a step budget in microseconds. Limits: the launch time of a step, and the longest acceptable time per token.
fn step_budget(text: &str) -> Result<u32, String> {
    let within = Duration::from_micros(100)..=Duration::from_secs(1);
    let budget = Some(units::duration(text)?).filter(|time| within.contains(time));
    let budget = budget.ok_or_else(|| format!("{text:?} is no time from 0.1ms to 1s"))?;
    Ok(budget.as_micros() as u32)
}

fn read_life(reader: &mut Reader<'_>) -> LifeConfig {
    LifeConfig {
        max_queue: reader.needed("max-queue", within(0..=1_000_000)) as usize,
        drain_timeout: reader.needed("drain-timeout", units::duration),
        heartbeat_timeout: reader.needed("heartbeat-timeout", positive),
        step_timeout: reader.needed("step-timeout", positive),
        load_timeout: reader.needed("load-timeout", positive),
        max_restarts: reader.needed("max-restarts", within(0..=1_000)),
        quarantine_for: reader.needed("quarantine-for", units::duration),
        max_restart_delay: reader.needed("max-restart-delay", units::duration),
        standby: reader.switch("standby"),
        template_timeout: reader.needed("template-timeout", positive),
    }
}

fn read_log_level(reader: &mut Reader<'_>) -> String {
    reader.needed("log-level", |text| {
        parse_level(text).map(|_| text.to_owned())
    })
}

fn read_log_format(reader: &mut Reader<'_>) -> LogFormat {
    let formats = &[
        ("json", LogFormat::Json),
        ("text", LogFormat::Text),
        ("auto", LogFormat::Auto),
    ];
    let format = reader.optional("log-format", one_of(formats));
    format.unwrap_or(LogFormat::Auto)
}

/// Settings of crash reports. The directory's default needs the environment and is set later.
fn read_crashes(reader: &mut Reader<'_>) -> CrashSettings {
    CrashSettings {
        directory: reader.optional("crash-dir", path),
        max_reports: reader.needed("max-crash-reports", within(1..=10_000)) as usize,
    }
}

fn read_device(reader: &mut Reader<'_>) -> Option<DeviceChoice> {
    let ordinal = reader.optional("gpu-device", within(0..=1023));
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
    if let Some(path) = reader.optional("child-binary", path) {
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

/// Names with commas, one at least.
fn names(text: &str) -> Result<Vec<String>, String> {
    match http::list(text) {
        names if names.is_empty() => Err("no name".to_owned()),
        names => Ok(names),
    }
}

#[cfg(test)]
mod tests;
