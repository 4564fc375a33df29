//! `GET /health`, `/livez`, `/readyz`: state of the worker, from memory.
//!
//! `null` means unknown, never zero. Each figure that ages has its age in a field ending in `age_ms`. `since` fields
//! are time stamps.
//!
//! A part of the report is a struct whose fields have their type and their value in one line (`parts!`).

#![expect(
    clippy::disallowed_methods,
    reason = "ages are those at the time of the request"
)]

mod devices;
mod gpu;
mod part;

use super::App;
use super::access::Caller;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use devices::Device;
use gpu::{DriverMemory, Gpu};
use part::parts;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use strum::VariantArray as _;
use worker_orcd_engine::crash::{Death, Reaping};
use worker_orcd_engine::engine::sampling::decimal;
use worker_orcd_engine::engine::snapshot::{Impairment, StandbySnapshot, word_for};
use worker_orcd_engine::{
    ChildSnapshot, DeviceSnapshot, EngineSnapshot, FaultsSnapshot, LoadSnapshot, LoadedModel,
    SamplingDefaults, Status,
};
use worker_orcd_ipc::{Load, MemoryBound, MemoryReport, TokenizerKind};
use worker_orcd_requests::Quarantined;
use worker_orcd_text::calendar::rfc3339;

/// Full report for callers that may use this worker; an outline for others.
pub async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let snapshot = app.engine.snapshot();
    let now = Instant::now();
    let code = if snapshot.status(now).can_serve() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let clock = Clock {
        now,
        wall: SystemTime::now(),
    };
    let is_trusted = caller > Caller::Stranger;
    let report = Health::of(&app, &snapshot, is_trusted, &clock);
    (code, axum::Json(report)).into_response()
}

parts! {
    /// Outline without files, processes, requests and clients, and details for callers that may use this worker.
    Health(app: &App, snapshot: &EngineSnapshot, is_trusted: bool, clock: &Clock) {
        #[schemars(extend("enum" = statuses()))]
        status: &'static str = snapshot.status(clock.now).as_str(),
        state: &'static str = snapshot.state,
        since: String = clock.stamp(snapshot.state_since),
        uptime_seconds: u64 = clock.age_ms(snapshot.started_at) / 1000,
        version: &'static str = env!("CARGO_PKG_VERSION"),
        #[serde(flatten)]
        details: Option<Details> = is_trusted.then(|| Details::of(app, snapshot, clock)),
    }

    Details(app: &App, snapshot: &EngineSnapshot, clock: &Clock)
    let model = app.engine.model();
    {
        reason: String = snapshot.reason.clone(),
        child: Option<Child> = snapshot.child().map(|child| Child::of(child, clock)),
        standby: Option<Standby> = Standby::on(snapshot, snapshot.device(), clock),
        device: MainDevice = MainDevice::of(app, model.as_deref(), snapshot.device(), clock),
        vram: Option<Vram> = Vram::on(snapshot, snapshot.device(), clock),
        devices: Vec<Device> = snapshot
            .devices
            .iter()
            .map(|device| Device::of(snapshot, device, clock))
            .collect(),
        model: ModelReport = ModelReport::of(app, model.as_deref(), snapshot),
        load: LoadReport = LoadReport::of(app, &snapshot.load, model.as_deref(), clock),
        connections: Connections = Connections::of(app),
        faults: Faults = Faults::of(&snapshot.faults, clock),
        impaired: Vec<Impaired> = snapshot
            .impaired
            .iter()
            .map(|(what, it)| Impaired::of(what, it, clock))
            .collect(),
        worker_id: String = app.worker_id.to_string(),
    }

    Connections(app: &App) {
        open: usize = app.slots.taken(),
        limit: usize = app.slots.limit(),
        evicted: u64 = app.slots.evicted(),
    }

    Impaired(what: &'static str, it: &Impairment, clock: &Clock) {
        what: &'static str = what,
        because: String = it.because.clone(),
        since: String = clock.stamp(it.since),
    }

    Standby(standby: &StandbySnapshot, snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) {
        state: &'static str = standby.state,
        since: String = clock.stamp(standby.since),
        reason: Option<String> = standby.reason.clone(),
        adopts_from: Option<u32> = standby.adopts_from.map(|child| child.0),
        child: Option<Child> = snapshot.standby_on(device).map(|child| Child::of(child, clock)),
        memory_bytes: Option<u64> = snapshot.standby_bytes(device),
        driver_bytes: Option<u64> = snapshot
            .standby_on(device)
            .and_then(|child| gpu::of_process(device, child.pid, clock)),
    }

    Child(child: &ChildSnapshot, clock: &Clock) {
        pid: u32 = child.pid,
        generation: u32 = child.generation,
        role: Option<&'static str> = child.role.map(word_for),
        build: Option<String> = child.build.clone(),
        features: Vec<String> = child.features.clone(),
        uptime_ms: u64 = clock.age_ms(child.spawned_at),
        ready_after_ms: Option<u64> = child
            .ready_at
            .map(|at| in_ms(at.saturating_duration_since(child.spawned_at))),
        heartbeat_age_ms: Option<u64> = child.heartbeat_at.map(|at| clock.age_ms(at)),
        progress_age_ms: Option<u64> = child.progress_at.map(|at| clock.age_ms(at)),
        steps: Option<u64> = child.steps,
        step_elapsed_ms: Option<u64> = child.step_elapsed.map(in_ms),
        load_bytes_done: Option<u64> = child.load_progress.map(|(done, _)| done),
        load_bytes_total: Option<u64> = child.load_progress.map(|(_, total)| total),
        draft_model: Option<String> = child.draft_model.clone(),
    }

    MainDevice(app: &App, model: Option<&LoadedModel>, snapshot: &DeviceSnapshot, clock: &Clock)
    let device = model.map(|model| &model.device);
    let identity = snapshot.gpu.identity.as_ref();
    {
        id: String = snapshot.id.clone(),
        chosen_because: String = app.devices.reason.clone(),
        name: Option<String> = device
            .map(|device| device.name.clone())
            .or_else(|| identity.and_then(|it| it.name.clone())),
        uuid: Option<String> = device
            .and_then(|device| device.uuid.clone())
            .or_else(|| identity.and_then(|it| it.uuid.clone())),
        driver: Option<String> = device
            .and_then(|device| device.driver.clone())
            .or_else(|| identity.and_then(|it| it.driver.clone())),
        compute_capability: Option<String> = device
            .and_then(|device| device.compute_capability)
            .map(|(major, minor)| format!("{major}.{minor}")),
        features: Option<Vec<String>> = device.map(|device| device.features.clone()),
        threads: Option<u32> = device.and_then(|device| device.threads),
        #[serde(flatten)]
        gpu: Gpu = Gpu::of(&snapshot.gpu, clock),
    }

    Vram(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock)
    let memory = device.memory.as_ref().map(|(memory, _)| memory);
    {
        total_bytes: Option<u64> = memory.and_then(|it| it.total_bytes),
        free_bytes: Option<u64> = memory.and_then(|it| it.free_bytes),
        #[serde(flatten)]
        usage: Option<VramUsage> = memory.map(|it| VramUsage::of(it, snapshot, device, clock)),
        resident: Option<bool> = memory.and_then(|it| it.resident),
        #[serde(flatten)]
        checks: Option<VramChecks> = device
            .memory
            .as_ref()
            .map(|(memory, taken_at)| VramChecks::of(memory, *taken_at, clock)),
        #[serde(flatten)]
        driver: DriverMemory = DriverMemory::of(snapshot, device, clock),
    }

    /// Report of a child.
    VramUsage(memory: &MemoryReport, snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) {
        bound: Option<&'static str> = memory.bound.map(MemoryBound::as_str),
        weights_bytes: u64 = memory.weights_bytes,
        kv_used_bytes: u64 = memory.kv_used_bytes,
        kv_capacity_bytes: u64 = memory.kv_capacity_bytes,
        scratch_bytes: u64 = memory.scratch_bytes,
        graphs_bytes: u64 = memory.graphs_bytes,
        draft_bytes: u64 = memory.draft_bytes,
        context_bytes: Option<u64> = snapshot.context_bytes(device, memory, clock.now),
        custody_bytes: Option<u64> = device.retained.map(|it| it.bytes),
        custody_since: Option<String> = device.retained.map(|it| clock.stamp(it.since)),
        custody_verified_age_ms: Option<u64> = device.retained.map(|it| clock.age_ms(it.verified_at)),
    }

    VramChecks(memory: &MemoryReport, taken_at: Instant, clock: &Clock) {
        weights_checked: u64 = memory.weights_checked,
        age_ms: u64 = clock.age_ms(taken_at),
    }

    ModelReport(app: &App, model: Option<&LoadedModel>, snapshot: &EngineSnapshot) {
        id: String = app.model_id.clone(),
        r#ref: String = app.model_ref.clone(),
        loaded: bool = model.is_some(),
        #[serde(flatten)]
        facts: Option<ModelFacts> = model.map(|model| ModelFacts::of(model, snapshot)),
    }

    ModelFacts(model: &LoadedModel, snapshot: &EngineSnapshot)
    let facts = &model.facts;
    {
        name: String = facts.name.clone(),
        identity: String = model.identity.to_string(),
        kept_open: bool = snapshot.model_kept_open,
        architecture: String = facts.architecture.clone(),
        quant_kind: String = facts.quant_kind.clone(),
        tensor_types: Vec<TensorType> = facts.tensor_types.iter().map(TensorType::of).collect(),
        parameters: u64 = facts.parameters,
        file_bytes: u64 = facts.file_bytes,
        tokenizer_kind: &'static str = match model.tokenizer_kind {
            TokenizerKind::ByteLevelBpe => "byte_level_bpe",
            TokenizerKind::SentencePiece => "sentence_piece",
            TokenizerKind::CharacterBpe => "character_bpe",
        },
        chat_template: bool = model.has_chat_template(),
        sampling_defaults: SamplingReport = SamplingReport::of(&model.sampling),
        vocab_size: u32 = facts.vocab_size,
        context_length: u32 = facts.context_length,
        max_sequence_tokens: u32 = model.max_sequence_tokens,
        max_running: u32 = model.max_running,
        draft_model: Option<String> = snapshot.draft_model().map(str::to_owned),
    }

    TensorType(of: &(String, u32, u64)) {
        r#type: String = of.0.clone(),
        tensors: u32 = of.1,
        bytes: u64 = of.2,
    }

    /// Defaults under the names of the request fields.
    SamplingReport(defaults: &SamplingDefaults)
    let values = &defaults.values;
    {
        temperature: f64 = decimal(values.temperature),
        top_k: u32 = values.top_k,
        top_p: f64 = decimal(values.top_p),
        min_p: f64 = decimal(values.min_p),
        repetition_penalty: f64 = decimal(values.repetition_penalty),
        frequency_penalty: f64 = decimal(values.frequency_penalty),
        presence_penalty: f64 = decimal(values.presence_penalty),
        from_file: Vec<&'static str> = defaults.from_file.clone(),
    }

    LoadReport(app: &App, load: &LoadSnapshot, model: Option<&LoadedModel>, clock: &Clock)
    let gauges = load.children.map(|(gauges, _)| gauges);
    let capacity = model.map(|model| model.kv_capacity_tokens);
    let used = gauges.map(|gauges| gauges.kv_used_tokens);
    {
        live: usize = app.engine.live_requests(),
        capacity: usize = load.capacity,
        unassigned: usize = load.unassigned,
        running: Option<u32> = gauges.map(|gauges| gauges.running),
        waiting: Option<usize> = gauges.map(|gauges| gauges.waiting as usize + load.unassigned),
        kv_used_tokens: Option<u64> = used,
        kv_capacity_tokens: Option<u64> = capacity,
        kv_utilisation: Option<f64> = used
            .zip(capacity.filter(|capacity| *capacity > 0))
            .map(|(used, capacity)| used as f64 / capacity as f64),
        #[serde(flatten)]
        #[schemars(schema_with = "counters_schema")]
        counters: Map<String, Value> = counters(gauges),
        step_budget_ms: Option<f64> = gauges
            .and_then(|gauges| gauges.step_budget_us)
            .map(|us| f64::from(us) / 1e3),
        tokens_total: u64 = load.tokens_total,
        tokens_per_second: f64 = load.tokens_per_second,
        age_ms: Option<u64> = load.children.map(|(_, taken_at)| clock.age_ms(taken_at)),
    }

    Faults(faults: &FaultsSnapshot, clock: &Clock) {
        deaths_by_cause: BTreeMap<&'static str, u64> = faults.deaths_by_cause.clone(),
        deaths_in_window: u32 = faults.deaths_in_window,
        window_seconds: u64 = faults.window.as_secs(),
        degraded_above: u32 = faults.burst,
        deaths_in_a_row: u32 = faults.deaths_in_a_row,
        deaths_allowed: u32 = faults.deaths_allowed,
        restarts: u64 = faults.restarts,
        recoveries: u64 = faults.recoveries,
        overdue_children: u64 = faults.overdue_children,
        stale_events: u64 = faults.stale_events,
        on_probation: usize = faults.on_probation,
        probations: u64 = faults.probations,
        quarantined_total: u64 = faults.quarantined_total,
        quarantined: Vec<QuarantinedRequest> = faults
            .quarantined
            .iter()
            .map(|entry| QuarantinedRequest::of(entry, clock))
            .collect(),
        crash_reports: u64 = faults.crash_reports,
        last_death: Option<LastDeath> = faults.last.as_deref().and_then(|death| {
            let reaping = death.reaping.as_ref()?;
            Some(LastDeath::of(death, reaping, clock))
        }),
    }

    QuarantinedRequest(entry: &Quarantined, clock: &Clock) {
        fingerprint: String = entry.fingerprint.to_string(),
        until: String = clock.stamp_ahead(entry.until),
        expires_in_ms: u64 = in_ms(entry.until.saturating_duration_since(clock.now)),
    }

    LastDeath(death: &Death, reaping: &Reaping, clock: &Clock) {
        label: &'static str = reaping.cause.label(),
        cause: String = reaping.cause.to_string(),
        device: String = death.device.selector.to_string(),
        device_number: u8 = death.device.number.0,
        generation: u32 = death.generation.0,
        at: String = clock.stamp(reaping.pause.began),
        age_ms: u64 = clock.age_ms(reaping.pause.began),
        pause_ms: Option<u64> = reaping.pause(&death.successor).map(in_ms),
        stream_pause_ms: Option<u64> = reaping.stream_pause(&death.successor).map(in_ms),
        crash_id: String = reaping.report_id(death),
    }
}

fn statuses() -> Vec<&'static str> {
    Status::VARIANTS.iter().map(|it| it.as_str()).collect()
}

/// 200 unless the worker has given up.
pub async fn livez(State(app): State<Arc<App>>) -> Response {
    probe(!app.engine.snapshot().failed, "ok", "failed")
}

/// 200 if new requests are admitted and will be answered, if necessary after a pause, as in an upgrade. 503 if all
/// devices are unsteady: requests are admitted, but another worker would answer without pauses.
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    let (snapshot, now) = (app.engine.snapshot(), Instant::now());
    let is_ready = snapshot.is_ready(now) && app.engine.model().is_some();
    probe(
        is_ready || app.goes_on.load(Ordering::Acquire),
        "ready",
        snapshot.status(now).as_str(),
    )
}

fn probe(good: bool, yes: &'static str, no: &'static str) -> Response {
    if good {
        (StatusCode::OK, yes).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, no).into_response()
    }
}

/// Converts times to ages and time stamps.
struct Clock {
    now: Instant,
    wall: SystemTime,
}

impl Clock {
    fn age_ms(&self, moment: Instant) -> u64 {
        self.now.saturating_duration_since(moment).as_millis() as u64
    }

    fn stamp(&self, moment: Instant) -> String {
        rfc3339(self.wall - self.now.saturating_duration_since(moment))
    }

    /// Time stamp of a future time.
    fn stamp_ahead(&self, moment: Instant) -> String {
        rfc3339(self.wall + moment.saturating_duration_since(self.now))
    }
}

impl Standby {
    fn on(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) -> Option<Self> {
        let standby = device.standby.as_ref()?;
        Some(Self::of(standby, snapshot, device, clock))
    }
}

fn in_ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Vram {
    /// `None` without a report of a child and without data of NVIDIA's driver.
    fn on(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) -> Option<Self> {
        let is_known = device.memory.is_some() || device.gpu.taken.is_some();
        is_known.then(|| Self::of(snapshot, device, clock))
    }
}

/// Sums over the children that live.
fn counters(load: Option<Load>) -> Map<String, Value> {
    let counters = load.map(|load| load.counters);
    let named = counters.unwrap_or_default().named();
    // `tokens_total` has the tokens that arrived.
    let shown = named.filter(|(name, _)| *name != "generated_tokens");
    let report = shown.map(|(name, value)| (name.to_owned(), json!(counters.map(|_| value))));
    report.collect()
}

fn counters_schema(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<String> = counters(None).into_iter().map(|(name, _)| name).collect();
    let count = json!({"type": ["integer", "null"], "minimum": 0});
    let properties: Map<String, Value> = names
        .iter()
        .cloned()
        .map(|name| (name, count.clone()))
        .collect();
    json_schema!({"type": "object", "properties": properties, "required": names})
}
