//! `GET /health`, `/livez`, `/readyz`: state of the worker, from memory.
//!
//! `null` means unknown, never zero. Each figure that ages has its age in a field ending in `age_ms`. `since` fields
//! are time stamps.

#![expect(
    clippy::disallowed_methods,
    reason = "ages are those at the time of the request"
)]

mod devices;
mod gpu;

use super::App;
use super::access::Caller;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use worker_orcd_engine::crash::Death;
use worker_orcd_engine::engine::sampling::decimal;
use worker_orcd_engine::engine::snapshot::{StandbySnapshot, word_for};
use worker_orcd_engine::{
    ChildSnapshot, DeviceSnapshot, EngineSnapshot, FaultsSnapshot, LoadSnapshot, LoadedModel,
    SamplingDefaults,
};
use worker_orcd_ipc::{Load, MemoryBound, TokenizerKind};
use worker_orcd_text::calendar::rfc3339;

/// Full report for callers that may use this worker; an outline for others.
pub async fn health(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let snapshot = app.engine.snapshot();
    let now = Instant::now();
    let status = snapshot.status(now);
    let code = if status.can_serve() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let clock = Clock {
        now,
        wall: SystemTime::now(),
    };
    let mut report = outline(&snapshot, &clock);
    if caller > Caller::Stranger {
        extend(&mut report, details(&app, &snapshot, &clock));
    }
    (code, axum::Json(report)).into_response()
}

/// Outline without files, processes, requests and clients.
fn outline(snapshot: &EngineSnapshot, clock: &Clock) -> Value {
    json!({
        "status": snapshot.status(clock.now).as_str(),
        "state": snapshot.state,
        "since": clock.stamp(snapshot.state_since),
        "uptime_seconds": clock.age_ms(snapshot.started_at) / 1000,
        "version": env!("CARGO_PKG_VERSION"),
    })
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

fn details(app: &App, snapshot: &EngineSnapshot, clock: &Clock) -> Value {
    let (model, device) = (app.engine.model(), snapshot.device());
    json!({
        "reason": snapshot.reason,
        "child": snapshot.child().map(|child| child_report(child, clock)),
        "standby": device.standby.as_ref().map(|it| standby_report(it, snapshot, device, clock)),
        "device": device_report(app, model.as_deref(), device, clock),
        "vram": memory_report(snapshot, device, clock),
        "devices": devices::report(snapshot, clock),
        "model": model_report(app, model.as_deref(), snapshot),
        "load": load_report(app, &snapshot.load, model.as_deref(), clock),
        "connections": {
            "open": app.places.taken(),
            "limit": app.places.limit(),
            "evicted": app.places.evicted(),
        },
        "faults": faults_report(&snapshot.faults, clock),
        "impaired": snapshot.impaired.iter().map(|(what, it)| json!({
            "what": what,
            "because": it.because,
            "since": clock.stamp(it.since),
        })).collect::<Vec<_>>(),
        "worker_id": app.worker_id.to_string(),
    })
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

fn standby_report(
    standby: &StandbySnapshot,
    snapshot: &EngineSnapshot,
    device: &DeviceSnapshot,
    clock: &Clock,
) -> Value {
    let child = snapshot.standby_on(device);
    json!({
        "state": standby.state,
        "since": clock.stamp(standby.since),
        "reason": standby.reason,
        "adopts_from": standby.adopts_from.map(|child| child.0),
        "child": child.map(|child| child_report(child, clock)),
        "memory_bytes": snapshot.standby_bytes(device),
        "driver_bytes": child.and_then(|child| gpu::of_process(device, child.pid, clock)),
    })
}

fn child_report(child: &ChildSnapshot, clock: &Clock) -> Value {
    json!({
        "pid": child.pid,
        "generation": child.generation,
        "role": child.role.map(word_for),
        "build": child.build,
        "features": child.features,
        "uptime_ms": clock.age_ms(child.spawned_at),
        "ready_after_ms": child.ready_at.map(|at| {
            at.saturating_duration_since(child.spawned_at).as_millis() as u64
        }),
        "heartbeat_age_ms": child.heartbeat_at.map(|at| clock.age_ms(at)),
        "progress_age_ms": child.progress_at.map(|at| clock.age_ms(at)),
        "steps": child.steps,
        "step_elapsed_ms": child.step_elapsed.map(|elapsed| elapsed.as_millis() as u64),
        "load_bytes_done": child.load_progress.map(|(done, _)| done),
        "load_bytes_total": child.load_progress.map(|(_, total)| total),
    })
}

fn device_report(
    app: &App,
    model: Option<&LoadedModel>,
    snapshot: &DeviceSnapshot,
    clock: &Clock,
) -> Value {
    let device = model.map(|model| &model.device);
    let identity = snapshot.gpu.identity.as_ref();
    let mut report = json!({
        "id": snapshot.id,
        "chosen_because": app.devices.reason,
        "name": device
            .map(|device| &device.name)
            .or_else(|| identity.and_then(|it| it.name.as_ref())),
        "uuid": device
            .and_then(|device| device.uuid.as_ref())
            .or_else(|| identity.and_then(|it| it.uuid.as_ref())),
        "driver": device
            .and_then(|device| device.driver.as_ref())
            .or_else(|| identity.and_then(|it| it.driver.as_ref())),
        "compute_capability": device
            .and_then(|device| device.compute_capability)
            .map(|(major, minor)| format!("{major}.{minor}")),
        "features": device.map(|device| &device.features),
        "threads": device.and_then(|device| device.threads),
    });
    extend(&mut report, gpu::device(&snapshot.gpu, clock));
    report
}

/// Adds the fields of `more`.
fn extend(report: &mut Value, more: Value) {
    if let (Value::Object(report), Value::Object(more)) = (report, more) {
        report.extend(more);
    }
}

fn memory_report(snapshot: &EngineSnapshot, device: &DeviceSnapshot, clock: &Clock) -> Value {
    let Some((memory, taken_at)) = device.memory else {
        return gpu::memory_alone(snapshot, device, clock);
    };
    let mut report = json!({
        "total_bytes": memory.total_bytes,
        "free_bytes": memory.free_bytes,
        "bound": memory.bound.map(MemoryBound::as_str),
        "weights_bytes": memory.weights_bytes,
        "kv_used_bytes": memory.kv_used_bytes,
        "kv_capacity_bytes": memory.kv_capacity_bytes,
        "scratch_bytes": memory.scratch_bytes,
        "graphs_bytes": memory.graphs_bytes,
        "context_bytes": snapshot.context_bytes(device, &memory, clock.now),
        "custody_bytes": device.custody.map(|custody| custody.bytes),
        "custody_since": device.custody.map(|custody| clock.stamp(custody.since)),
        "custody_verified_age_ms": device.custody.map(|it| clock.age_ms(it.verified_at)),
        "resident": memory.resident,
        "weights_checked": memory.weights_checked,
        "age_ms": clock.age_ms(taken_at),
    });
    extend(&mut report, gpu::memory(snapshot, device, clock));
    report
}

fn model_report(app: &App, model: Option<&LoadedModel>, snapshot: &EngineSnapshot) -> Value {
    let mut report = json!({
        "id": app.model_id,
        "ref": app.model_ref,
        "loaded": model.is_some(),
    });
    let Some(model) = model else {
        return report;
    };
    let facts = &model.facts;
    let of_model = json!({
        "name": facts.name,
        "identity": model.identity.to_string(),
        "kept_open": snapshot.model_kept_open,
        "architecture": facts.architecture,
        "quant_kind": facts.quant_kind,
        "tensor_types": facts.tensor_types.iter().map(|(name, tensors, bytes)| {
            json!({"type": name, "tensors": tensors, "bytes": bytes})
        }).collect::<Vec<_>>(),
        "parameters": facts.parameters,
        "file_bytes": facts.file_bytes,
        "tokenizer_kind": match model.tokenizer_kind {
            TokenizerKind::ByteLevelBpe => "byte_level_bpe",
            TokenizerKind::SentencePiece => "sentence_piece",
        },
        "chat_template": model.has_chat_template(),
        "sampling_defaults": sampling_report(&model.sampling),
        "vocab_size": facts.vocab_size,
        "context_length": facts.context_length,
        "max_sequence_tokens": model.max_sequence_tokens,
        "max_running": model.max_running,
    });
    extend(&mut report, of_model);
    report
}

/// Defaults under the names of the request fields.
fn sampling_report(defaults: &SamplingDefaults) -> Value {
    let values = &defaults.values;
    json!({
        "temperature": decimal(values.temperature),
        "top_k": values.top_k,
        "top_p": decimal(values.top_p),
        "min_p": decimal(values.min_p),
        "repetition_penalty": decimal(values.repetition_penalty),
        "frequency_penalty": decimal(values.frequency_penalty),
        "presence_penalty": decimal(values.presence_penalty),
        "from_file": defaults.from_file,
    })
}

fn load_report(
    app: &App,
    load: &LoadSnapshot,
    model: Option<&LoadedModel>,
    clock: &Clock,
) -> Value {
    let gauges = load.children.map(|(gauges, _)| gauges);
    let capacity = model.map(|model| model.kv_capacity_tokens);
    let utilisation = match (gauges, capacity) {
        (Some(gauges), Some(capacity)) if capacity > 0 => {
            Some(gauges.kv_used_tokens as f64 / capacity as f64)
        }
        _ => None,
    };
    let mut report = json!({
        "live": app.engine.live_requests(),
        "capacity": load.capacity,
        "unassigned": load.unassigned,
        "running": gauges.map(|gauges| gauges.running),
        "waiting": gauges.map(|gauges| gauges.waiting as usize + load.unassigned),
        "kv_used_tokens": gauges.map(|gauges| gauges.kv_used_tokens),
        "kv_capacity_tokens": capacity,
        "kv_utilisation": utilisation,
    });
    extend(&mut report, counters_report(gauges));
    let rates = json!({
        "step_budget_ms": gauges.and_then(|gauges| gauges.step_budget_us).map(|us| f64::from(us) / 1e3),
        "tokens_total": load.tokens_total,
        "tokens_per_second": load.tokens_per_second,
        "age_ms": load.children.map(|(_, taken_at)| clock.age_ms(taken_at)),
    });
    extend(&mut report, rates);
    report
}

/// Sums over the children that live.
fn counters_report(load: Option<Load>) -> Value {
    let counters = load.map(|load| load.counters);
    let named = counters.unwrap_or_default().named();
    // `tokens_total` has the tokens that arrived.
    let shown = named.filter(|(name, _)| *name != "generated_tokens");
    let report = shown.map(|(name, value)| (name.to_owned(), json!(counters.map(|_| value))));
    Value::Object(report.collect())
}

fn faults_report(faults: &FaultsSnapshot, clock: &Clock) -> Value {
    json!({
        "deaths_by_cause": faults.deaths_by_cause,
        "deaths_in_window": faults.deaths_in_window,
        "window_seconds": faults.window.as_secs(),
        "degraded_above": faults.burst,
        "deaths_in_a_row": faults.deaths_in_a_row,
        "deaths_allowed": faults.deaths_allowed,
        "restarts": faults.restarts,
        "recoveries": faults.recoveries,
        "overdue_children": faults.overdue_children,
        "stale_events": faults.stale_events,
        "on_probation": faults.on_probation,
        "probations": faults.probations,
        "quarantined_total": faults.quarantined_total,
        "quarantined": faults.quarantined.iter().map(|entry| json!({
            "fingerprint": entry.fingerprint.to_string(),
            "until": clock.stamp_ahead(entry.until),
            "expires_in_ms": entry.until.saturating_duration_since(clock.now).as_millis() as u64,
        })).collect::<Vec<_>>(),
        "crash_reports": faults.crash_reports,
        "last_death": faults.last.as_deref().and_then(|death| death_report(death, clock)),
    })
}

fn death_report(death: &Death, clock: &Clock) -> Option<Value> {
    let burial = death.burial.as_ref()?;
    let in_ms = |time: Duration| time.as_millis() as u64;
    Some(json!({
        "label": burial.cause.label(),
        "cause": burial.cause.to_string(),
        "device": death.device.selector.to_string(),
        "device_number": death.device.number.0,
        "generation": death.generation.0,
        "at": clock.stamp(burial.pause.began),
        "age_ms": clock.age_ms(burial.pause.began),
        "pause_ms": burial.pause(&death.successor).map(in_ms),
        "stream_pause_ms": burial.stream_pause(&death.successor).map(in_ms),
        "crash_id": burial.report_id(death),
    }))
}
