//! Deaths: the worker's crash reports compared with the injected faults.
//!
//! Both the report and the log line of a fault contain the child's generation, which joins them without a clock. On a
//! GPU the report also has the driver's data: Xids, the recovered memory, and the time of the recovery.

use super::pauses::quantile;
use super::worker::{Injection, Worker};
use anyhow::Result;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use worker_orcd_tests::faults::expected;

/// 16 MiB: the driver's own usage varies by a few MiB; the supervisor allows the same.
const TOLERANCE_BYTES: u64 = 16 << 20;
/// The supervisor waits 5 s for the memory of a dead child.
const PATIENCE: Duration = Duration::from_secs(8);

/// Cause of a child that violated the protocol.
const PROTOCOL_VIOLATION: &str = "protocol_violation";

/// Part of a crash report.
#[derive(Debug, Clone, Default, PartialEq)]
struct Death {
    generation: u64,
    label: String,
    words: String,
    died_in: String,
    /// Flight record of an unfinished step, after a semicolon.
    stands: String,
    /// Time from the detection to the first token of the next child.
    silence: Option<Duration>,
    /// `None` on a device that is no GPU.
    gpu: Option<Gpu>,
}

/// Lead of the driver's report over the child's own report or its detection.
type Sooner = Duration;

#[derive(Debug, Clone, Default, PartialEq)]
struct Gpu {
    xids: Vec<(u64, Sooner)>,
    baseline: Option<u64>,
    residual: Option<u64>,
    freed_after: Option<Duration>,
    action: Option<String>,
}

/// Deaths and injected faults of a run.
#[derive(Debug, Default)]
pub struct Deaths {
    deaths: Vec<Death>,
    injected: BTreeMap<u64, Vec<String>>,
    /// `device.nvml` of `/health`, on a GPU.
    nvml: Option<String>,
}

impl Deaths {
    /// Reads every report, after the driver has had its time to report the memory.
    ///
    /// # Errors
    /// The worker does not answer.
    pub fn read(worker: &Worker, injected: &[Injection]) -> Result<Self> {
        let began = Instant::now();
        loop {
            let deaths = reports(worker)?;
            let unsettled = deaths.iter().any(|death| {
                let unmeasured = |gpu: &Gpu| gpu.baseline.is_some() && gpu.residual.is_none();
                death.gpu.as_ref().is_some_and(unmeasured)
            });
            if !unsettled || began.elapsed() > PATIENCE {
                let device = worker.health()?["device"].clone();
                return Ok(Self::of(deaths, injected, &device));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn of(deaths: Vec<Death>, injected: &[Injection], device: &Value) -> Self {
        let mut of_generation = BTreeMap::<u64, Vec<String>>::new();
        for injection in injected {
            let kinds = of_generation.entry(injection.generation).or_default();
            kinds.push(injection.kind.clone());
        }
        let nvml = &device["nvml"];
        let on_a_gpu = deaths.iter().any(|death| death.gpu.is_some());
        let told = || {
            let reason = nvml["reason"].as_str().map(|reason| format!(": {reason}"));
            let state = nvml["state"].as_str().unwrap_or("unknown");
            format!("{state}{}", reason.unwrap_or_default())
        };
        Self {
            deaths,
            injected: of_generation,
            nvml: on_a_gpu.then(told),
        }
    }

    /// Violations in the reports. `disturbed`: a signal from outside or a neighbour on the card may be the cause of a
    /// child's death instead of the injected fault; but no signal makes a child violate the protocol.
    pub fn violations(&self, disturbed: bool) -> Vec<String> {
        let mut violations = Vec::new();
        for death in &self.deaths {
            let generation = death.generation;
            let kinds = self
                .injected
                .get(&generation)
                .map_or(&[][..], Vec::as_slice);
            let fits = |kind: &String| {
                expected(kind).is_some_and(|row| row.fits(&death.label, &death.words))
            };
            let is_excused = disturbed && death.label != PROTOCOL_VIOLATION;
            if !is_excused && !kinds.iter().any(fits) {
                violations.push(format!(
                    "child {generation} had faults {kinds:?} and died of {}: {}{}",
                    death.label, death.words, death.stands
                ));
            }
            let Some(gpu) = death.gpu.as_ref().filter(|gpu| gpu.baseline.is_some()) else {
                continue;
            };
            if gpu.freed_after.is_none() || gpu.residual > Some(TOLERANCE_BYTES) {
                violations.push(format!(
                    "child {generation} ({}): its device memory did not come back: {:?} bytes are \
                     left",
                    death.label, gpu.residual
                ));
            }
        }
        let unmeasured =
            |death: &Death| death.gpu.as_ref().is_some_and(|gpu| gpu.baseline.is_none());
        if self.nvml.as_deref() == Some("watching") && self.deaths.iter().any(unmeasured) {
            violations.push("NVML watched, and a death was not measured".to_owned());
        }
        violations
    }

    /// Table; empty if nothing died.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        if self.deaths.is_empty() {
            return out;
        }
        out.push_str(
            "| fault | deaths | noticed as | Xid | so many ms sooner, p50 / max | memory back after ms, \
             p50 / max | left MiB, max | tokens again after ms, p50 / max |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        let mut by_fault = BTreeMap::<String, Vec<&Death>>::new();
        for death in &self.deaths {
            by_fault.entry(self.fault(death)).or_default().push(death);
        }
        for (fault, deaths) in &by_fault {
            let _ = writeln!(out, "{}", row(fault, deaths));
        }
        let mut died_in = BTreeMap::<&str, u64>::new();
        for death in &self.deaths {
            *died_in.entry(&death.died_in).or_default() += 1;
        }
        let places: Vec<_> = died_in
            .iter()
            .map(|(place, deaths)| format!("{place} {deaths}"))
            .collect();
        let _ = writeln!(out, "\nThey died in: {}.\n", places.join(", "));
        if let Some(nvml) = &self.nvml {
            let of_gpu = || self.deaths.iter().filter_map(|death| death.gpu.as_ref());
            let baselines: BTreeSet<_> = of_gpu()
                .filter_map(|gpu| gpu.baseline)
                .map(|bytes| format!("{:.1} MiB", mib(bytes)))
                .collect();
            let actions: BTreeSet<_> = of_gpu().filter_map(|gpu| gpu.action.as_deref()).collect();
            let measured = of_gpu().filter(|gpu| gpu.freed_after.is_some()).count();
            let list = |words: Vec<String>| match words.is_empty() {
                true => "unknown".to_owned(),
                false => words.join(", "),
            };
            let _ = writeln!(
                out,
                "NVML: {nvml}. Before the first child, of no process: {}. Seen to be back after \
                 {measured} of {} deaths. Recovery action after them: {}.\n",
                list(baselines.into_iter().collect()),
                self.deaths.len(),
                list(actions.into_iter().map(str::to_owned).collect()),
            );
        }
        out
    }

    /// Kind of the announced fault.
    fn fault(&self, death: &Death) -> String {
        let Some(kinds) = self.injected.get(&death.generation) else {
            return "a signal from outside".to_owned();
        };
        kinds.join(", ")
    }
}

fn row(fault: &str, deaths: &[&Death]) -> String {
    let noticed: BTreeSet<_> = deaths.iter().map(|death| noticed_as(death)).collect();
    let of_gpu = || deaths.iter().filter_map(|death| death.gpu.as_ref());
    let xids: BTreeSet<_> = of_gpu()
        .flat_map(|gpu| &gpu.xids)
        .map(|(xid, _)| xid)
        .collect();
    let xids: Vec<_> = xids.into_iter().map(u64::to_string).collect();
    let first = |gpu: &Gpu| gpu.xids.iter().map(|(_, sooner)| *sooner).max();
    let left = of_gpu().filter_map(|gpu| gpu.residual).max();
    let noticed: Vec<_> = noticed.into_iter().collect();
    format!(
        "| {fault} | {} | {} | {} | {} | {} | {} | {} |",
        deaths.len(),
        noticed.join(", "),
        xids.join(", "),
        spread(of_gpu().filter_map(first).collect()),
        spread(of_gpu().filter_map(|gpu| gpu.freed_after).collect()),
        left.map_or_else(String::new, |bytes| format!("{:.1}", mib(bytes))),
        spread(deaths.iter().filter_map(|death| death.silence).collect()),
    )
}

/// Cause, and the driver's error name, if any.
fn noticed_as(death: &Death) -> String {
    let of_driver = |word: &&str| word.starts_with("CUDA_ERROR_");
    let mut words = death
        .words
        .split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    match words.find(of_driver) {
        Some(name) => format!("{} ({name})", death.label),
        None => death.label.clone(),
    }
}

fn spread(mut times: Vec<Duration>) -> String {
    if times.is_empty() {
        return String::new();
    }
    times.sort_unstable();
    let ms = |share| quantile(&times, share).as_secs_f64() * 1e3;
    format!("{:.1} / {:.1}", ms(0.5), ms(1.0))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn reports(worker: &Worker) -> Result<Vec<Death>> {
    let ask = |path: &str| -> Result<Value> { Ok(worker.client.try_get(path)?.try_json()?) };
    let list = ask("/crashes")?;
    let ids = list["crashes"].as_array().into_iter().flatten();
    let mut deaths = ids
        .filter_map(|crash| crash["id"].as_str())
        .map(|id| ask(&format!("/crashes/{id}")).map(|report| death(&report)))
        .collect::<Result<Vec<_>>>()?;
    deaths.sort_by_key(|death| death.generation);
    Ok(deaths)
}

fn death(report: &Value) -> Death {
    let words = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let time = |value: &Value| Some(Duration::from_secs_f64(value.as_f64()?.max(0.0) / 1e3));
    let gpu = &report["gpu"];
    Death {
        generation: report["child"]["generation"].as_u64().unwrap_or(0),
        label: words(&report["cause"]["label"]),
        words: words(&report["cause"]["text"]),
        died_in: died_in(report),
        stands: report["flight_recorder"]["stands"]["text"]
            .as_str()
            .map_or_else(String::new, |text| format!("; {text}")),
        silence: time(&report["timeline"]["first_token_ms"]),
        gpu: gpu.is_object().then(|| Gpu {
            xids: gpu["xids"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|xid| Some((xid["xid"].as_u64()?, sooner(&xid["ms"]))))
                .collect(),
            baseline: gpu["baseline_bytes"].as_u64(),
            residual: gpu["residual_bytes"].as_u64(),
            freed_after: time(&gpu["freed_after_ms"]),
            action: gpu["recovery_action"].as_str().map(str::to_owned),
        }),
    }
}

/// Lead of an Xid. Xids after the detection have none.
fn sooner(ms: &Value) -> Sooner {
    Duration::from_secs_f64((-ms.as_f64().unwrap_or(0.0)).max(0.0) / 1e3)
}

/// State, or the phase of the unfinished step.
fn died_in(report: &Value) -> String {
    let state = report["child"]["state"].as_str().unwrap_or("unknown");
    if state != "serving" {
        return state.to_owned();
    }
    let steps = report["flight_recorder"]["last_steps"].as_array();
    match steps.and_then(|steps| steps.last()) {
        Some(step) if step["ended"] == false => {
            step["phases"][0].as_str().unwrap_or("a step").to_owned()
        }
        _ => "between steps".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIB: u64 = 1 << 20;

    fn report(generation: u64, label: &str, text: &str, residual: Option<u64>) -> Value {
        json!({
            "child": {"generation": generation, "state": "serving"},
            "cause": {"label": label, "text": text},
            "timeline": {"first_token_ms": 512.5},
            "gpu": {
                "xids": [{"xid": 31, "ms": -1.5}], "baseline_bytes": 4 * MIB, "residual_bytes": residual,
                "freed_after_ms": residual.map(|_| 18.25), "recovery_action": "none",
            },
            "flight_recorder": {"last_steps": [
                {"ended": true, "phases": ["prefill"]}, {"ended": false, "phases": ["decode"]},
            ]},
        })
    }

    fn deaths(reports: &[Value], injected: &[(&str, u64)]) -> Deaths {
        let injected: Vec<_> = injected
            .iter()
            .map(|(kind, generation)| Injection {
                kind: (*kind).to_owned(),
                generation: *generation,
                at: Instant::now(),
            })
            .collect();
        let device = json!({"nvml": {"state": "watching", "reason": null}});
        Deaths::of(reports.iter().map(death).collect(), &injected, &device)
    }

    #[test]
    fn a_death_must_be_called_by_its_name() {
        let text = "device error CUDA_ERROR_ILLEGAL_ADDRESS: a step";
        let right = report(1, "device", text, Some(0));
        let wrong = report(2, "device", text, Some(0));
        let told = deaths(
            &[right, wrong],
            &[("illegal-address", 1), ("misaligned", 2)],
        );
        let violations = told.violations(false);
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(violations[0].contains("child 2"), "{violations:?}");
        assert_eq!(told.violations(true), Vec::<String>::new());
        let table = told.markdown();
        assert!(
            table.contains(
                "| illegal-address | 1 | device (CUDA_ERROR_ILLEGAL_ADDRESS) | 31 | 1.5 / 1.5 \
                 | 18.2 / 18.2 | 0.0 | 512.5 / 512.5 |"
            ),
            "{table}"
        );
        assert!(table.contains("They died in: decode 2."), "{table}");
        assert!(table.contains("4.0 MiB"), "{table}");
    }

    #[test]
    fn a_signal_excuses_no_violation_of_the_protocol() {
        let killed = report(1, PROTOCOL_VIOLATION, "a token of request 3", Some(0));
        let flooded = report(2, PROTOCOL_VIOLATION, "a flood", Some(0));
        let violations = deaths(&[killed, flooded], &[("flood", 2)]).violations(true);
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert!(violations[0].contains("child 1"), "{violations:?}");
    }

    #[test]
    fn memory_that_stays_away_is_a_violation() {
        let of = |residual| {
            let report = report(1, "panic", "panic at x: y", residual);
            deaths(&[report], &[("panic", 1)]).violations(false)
        };
        assert_eq!(of(Some(TOLERANCE_BYTES)), Vec::<String>::new());
        assert_eq!(of(Some(TOLERANCE_BYTES + 1)).len(), 1);
        assert_eq!(of(None).len(), 1, "unknown is not back");
    }

    #[test]
    fn a_death_that_a_watching_nvml_did_not_measure_is_told() {
        let mut report = report(1, "panic", "panic at x: y", None);
        report["gpu"]["baseline_bytes"] = json!(null);
        let told = deaths(&[report.clone()], &[("panic", 1)]);
        assert_eq!(told.violations(false).len(), 1);
        report["gpu"] = json!(null);
        let told = deaths(&[report], &[("panic", 1)]);
        assert_eq!(told.violations(false), Vec::<String>::new());
        assert!(!told.markdown().contains("NVML"));
    }
}
