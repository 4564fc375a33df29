//! Rows of each section of a view. A figure that the worker does not report is unknown, never zero.

use super::asked::Answers;
use super::figures::{bytes, percentiles, share, shown, time, time_of_ms, words};
use super::view::Section;
use serde_json::Value;

/// Number of listed crashes.
const CRASHES: usize = 8;

/// Whether it is the outline, which callers without a key get.
fn is_outline(health: &Value) -> bool {
    health.get("worker_id").is_none()
}

pub(super) fn columns(answers: &Answers) -> [Vec<Section>; 2] {
    let health = &answers.health;
    if is_outline(health) {
        return [vec![outline(health)], Vec::new()];
    }
    [
        vec![worker(health), load(health, &answers.metrics)],
        vec![memory(health), deaths(&health["faults"])],
    ]
}

fn outline(health: &Value) -> Section {
    let why = "needs a key (--api-key-file), or a request at --admin-socket";
    let rows = [("version", version(health)), ("more", why.to_owned())];
    Section::new("worker", rows)
}

fn worker(health: &Value) -> Section {
    let (model, device) = (&health["model"], &health["device"]);
    let device = match several(health) {
        Some(devices) => in_use(devices),
        None => with_more(&device["id"], &device["name"]),
    };
    let mut rows = vec![("model", with_more(&model["id"], &model["quant_kind"]))];
    if let Some(draft_model) = model["draft_model"].as_str() {
        rows.push(("draft model", draft_model.to_owned()));
    }
    rows.extend([
        ("device", device),
        ("version", version(health)),
        ("child", child(&health["child"])),
        ("standby", standby(&health["standby"])),
    ]);
    Section::new("worker", rows)
}

fn version(health: &Value) -> String {
    let age = shown(&health["uptime_seconds"], time);
    format!("{}, up for {age}", words(&health["version"]))
}

fn with_more(name: &Value, more: &Value) -> String {
    match more.as_str() {
        Some(more) => format!("{} ({more})", words(name)),
        None => words(name),
    }
}

fn child(child: &Value) -> String {
    if child.is_null() {
        return "none".to_owned();
    }
    let age = shown(&child["uptime_ms"], time_of_ms);
    let [generation, pid] = ["generation", "pid"].map(|name| words(&child[name]));
    let [done, total] = ["done", "total"].map(|name| &child[format!("load_bytes_{name}")]);
    let load = match done.is_null() {
        true => String::new(),
        false => format!(", loaded {} of {}", shown(done, bytes), shown(total, bytes)),
    };
    format!("generation {generation} for {age}{load}, pid {pid}")
}

fn standby(standby: &Value) -> String {
    let state = words(&standby["state"]);
    match standby["reason"].as_str() {
        _ if standby.is_null() => "none asked for".to_owned(),
        Some(reason) => format!("{state}: {reason}"),
        None => state,
    }
}

fn load(health: &Value, metrics: &str) -> Section {
    let (load, connections) = (&health["load"], &health["connections"]);
    let waits = |name: &str| percentiles(metrics, &format!("worker_orcd_{name}_seconds"));
    let [used, capacity] = ["used", "capacity"].map(|it| words(&load[format!("kv_{it}_tokens")]));
    let used_share = shown(&load["kv_utilisation"], share);
    let rows = [
        ("running", words(&load["running"])),
        ("waiting", words(&load["waiting"])),
        ("live", of(words(&load["live"]), words(&load["capacity"]))),
        ("tokens/s", tokens(load)),
        ("first token", waits("time_to_first_token")),
        ("next token", waits("inter_token_latency")),
        ("KV tokens", format!("{used_share}: {used} of {capacity}")),
        (
            "connections",
            of(words(&connections["open"]), words(&connections["limit"])),
        ),
    ];
    Section::new("load", rows)
}

/// The rate, and the share of drafts that were accepted, if there were any.
fn tokens(load: &Value) -> String {
    let rate = shown(&load["tokens_per_second"], |rate| format!("{rate:.1}"));
    let [accepted, verified] =
        ["accepted_draft_tokens", "draft_tokens"].map(|name| load[name].as_f64());
    match (accepted, verified) {
        (Some(part), Some(whole)) if whole > 0.0 => {
            format!("{rate}, {} of drafts accepted", share(part / whole))
        }
        _ => rate,
    }
}

fn of(part: String, whole: String) -> String {
    format!("{part} of {whole}")
}

fn memory(health: &Value) -> Section {
    let memory = &health["vram"];
    let of_purpose = |name: &str| shown(&memory[format!("{name}_bytes")], bytes);
    let mut rows = vec![
        ("weights", of_purpose("weights")),
        (
            "KV cache",
            of(of_purpose("kv_used"), of_purpose("kv_capacity")),
        ),
        ("scratch", of_purpose("scratch")),
        ("graphs", of_purpose("graphs")),
    ];
    if memory["draft_bytes"]
        .as_u64()
        .is_some_and(|bytes| bytes > 0)
    {
        rows.push(("draft model", of_purpose("draft")));
    }
    rows.extend([
        ("context", of_purpose("context")),
        ("kept", of_purpose("custody")),
        ("free", of(of_purpose("free"), of_purpose("total"))),
    ]);
    let title = match several(health) {
        Some(_) => "memory of the first that serves",
        None => "memory of the device",
    };
    Section::new(title, rows)
}

fn deaths(faults: &Value) -> Section {
    let by_cause = faults["deaths_by_cause"].as_object();
    let deaths = by_cause.map_or(words(&Value::Null), |by_cause| {
        let causes = by_cause
            .iter()
            .map(|(cause, count)| format!("{cause} {count}"));
        let total: u64 = by_cause.values().filter_map(Value::as_u64).sum();
        match total {
            0 => total.to_string(),
            _ => format!("{total} ({})", causes.collect::<Vec<_>>().join(", ")),
        }
    });
    let last = match &faults["last_death"] {
        Value::Null => "none".to_owned(),
        last => {
            let [at, cause] = ["at", "cause"].map(|name| words(&last[name]));
            let age = shown(&last["age_ms"], time_of_ms);
            format!("{age} ago ({at}): {cause}")
        }
    };
    let [recent, row, allowed] =
        ["in_window", "in_a_row", "allowed"].map(|it| words(&faults[format!("deaths_{it}")]));
    let window = shown(&faults["window_seconds"], time);
    let rows = [
        ("deaths", deaths),
        ("lately", format!("{recent} in {window}")),
        (
            "in a row",
            format!("{row} without a token, {allowed} allowed"),
        ),
        ("the last", last),
        ("restarts", words(&faults["restarts"])),
        ("recoveries", words(&faults["recoveries"])),
    ];
    Section::new("deaths of children", rows)
}

pub(super) fn lists(answers: &Answers) -> Vec<Section> {
    let impaired = answers.health["impaired"].as_array().into_iter().flatten();
    let impaired = impaired.map(|it| {
        let [what, because, since] = ["what", "because", "since"].map(|name| words(&it[name]));
        (what, format!("since {since}: {because}"))
    });
    let crashes = match &answers.crashes {
        Ok(crashes) if crashes.is_empty() => vec![("none".to_owned(), String::new())],
        Ok(crashes) => {
            let is_one_of_several = several(&answers.health).is_some();
            let newest = crashes.iter().take(CRASHES);
            newest.map(|it| crash(it, is_one_of_several)).collect()
        }
        Err(why) => vec![(why.clone(), String::new())],
    };
    let devices = several(&answers.health).into_iter().flatten().map(device);
    let sections = [
        Section::new("devices", devices),
        Section::new("impaired", impaired),
        Section::new("crash reports, the newest first", crashes),
    ];
    sections
        .into_iter()
        .filter(|it| !it.rows.is_empty())
        .collect()
}

/// Devices with one row each. `None` for a single device, which the other rows describe.
fn several(health: &Value) -> Option<&Vec<Value>> {
    health["devices"].as_array().filter(|it| it.len() > 1)
}

fn in_use(devices: &[Value]) -> String {
    let in_use = devices.iter().filter(|it| it["in_use"] == true);
    format!("{} of {} in use", in_use.count(), devices.len())
}

fn device(device: &Value) -> (String, String) {
    let [number, id] = ["number", "id"].map(|name| words(&device[name]));
    (format!("{number} {id}"), doing(device))
}

fn doing(device: &Value) -> String {
    let [standing, since, reason] =
        ["standing", "out_since", "reason"].map(|it| words(&device[it]));
    if device["in_use"] != true {
        let readmit = match device["may_readmit"] == true {
            true => format!("; POST /devices/{}/readmit uses it again", device["number"]),
            false => String::new(),
        };
        return format!("{standing} since {since}: {reason}{readmit}");
    }
    let [state, running, waiting] = ["state", "running", "waiting"].map(|it| words(&device[it]));
    let [used, capacity] = ["used", "capacity"].map(|it| &device[format!("kv_{it}_tokens")]);
    let kv = used.as_f64().zip(capacity.as_f64().filter(|it| *it > 0.0));
    let kv = kv.map_or(words(&Value::Null), |(used, capacity)| {
        share(used / capacity)
    });
    let rate = shown(&device["tokens_per_second"], |rate| format!("{rate:.1}"));
    format!("{state}: {running} running, {waiting} waiting, {rate} tokens/s, KV {kv}")
}

/// Row of a crash. It names the device if there are several.
fn crash(crash: &Value, is_one_of_several: bool) -> (String, String) {
    let [at, cause, generation, requests] =
        ["at", "cause", "generation", "requests"].map(|name| words(&crash[name]));
    let ready = shown(&crash["ready_ms"], time_of_ms);
    let device = match (crash["device"].as_str(), &crash["device_number"]) {
        (Some(id), number) if is_one_of_several => format!(" on {number} {id}"),
        _ => String::new(),
    };
    let what = format!(
        "generation {generation}{device}, with {requests} requests: {cause}; the next after {ready}"
    );
    (at, what)
}
