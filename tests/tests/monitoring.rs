//! Dashboard and alerts: they name only metrics that a running worker has, and Prometheus' own tool accepts all of
//! them.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use worker_orcd_tests::model::repository_root;
use worker_orcd_tests::nvml::PlayedNvml;
use worker_orcd_tests::{Bystander, Script, Worker, process, wait};

/// Prefixes of the worker's metrics.
const PREFIXES: [&str; 3] = ["worker_orcd_", "process_", "vllm:"];

/// Synthetic metric of Prometheus for every target.
const OF_PROMETHEUS: &str = "up{";

fn monitoring() -> PathBuf {
    repository_root().join("docs/operate/monitoring")
}

fn page(name: &str) -> String {
    let path = monitoring().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Worker on the CPU with a standby, after its streams moved to another child once.
fn bereaved() -> Worker {
    let worker = Worker::shallow().flag("--standby").start();
    let body = json!({"prompt": "Tell me of the sea.", "max_tokens": 300, "temperature": 0.7,
                      "seed": 3, "ignore_eos": true});
    wait_for_standby(&worker);
    let bystander = Bystander::new(worker.client(), body);
    let mut stream = bystander.begin();
    stream.more(5);
    worker.kill_child();
    let (_, end) = stream.end();
    assert_eq!(end["recoveries"], 1, "{end}");
    wait_for_standby(&worker);
    worker
}

fn wait_for_standby(worker: &Worker) {
    wait::until("a standby", || {
        let health = worker.client().health();
        (health["standby"]["state"] == "standing_by").then_some(())
    });
}

/// Worker with every figure of NVIDIA's driver, after a kill of its child.
fn on_a_card(played: &mut PlayedNvml) -> Worker {
    played.plays("base 4194304");
    played.plays("action 0");
    let worker = played.seen_by(Worker::scripted(Script::behave())).start();
    let child = worker.child_pid().expect("a child serves");
    played.plays(&format!("process {child} 629145600"));
    wait::until("the driver's count of the child's memory", || {
        let vram = &worker.client().health()["vram"];
        (vram["driver_child_bytes"] == 629_145_600).then_some(())
    });
    played.plays("xid 31");
    process::signal(child, nix::sys::signal::Signal::SIGKILL);
    wait::until("its memory to be back", || {
        let vram = &worker.client().health()["vram"];
        vram["returned_after_ms"].is_f64().then_some(())
    });
    // The next one has memory, too.
    let next = wait::until("the next child", || {
        worker.child_pid().filter(|it| *it != child)
    });
    played.plays(&format!("process {next} 629145600"));
    wait::until("the count of its memory", || {
        let vram = &worker.client().health()["vram"];
        (vram["driver_child_bytes"] == 629_145_600).then_some(())
    });
    worker
}

/// Names with a sample in any of the texts.
fn names_in(texts: &[&str]) -> BTreeSet<String> {
    let lines = texts.iter().flat_map(|text| text.lines());
    let samples = lines.filter(|line| !line.starts_with('#'));
    let name = |line: &str| line.split(['{', ' ']).next().map(str::to_owned);
    samples.filter_map(name).collect()
}

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
    let words = text.split(|it: char| !is_of_name(it));
    let is_metric = |word: &&str| PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    words.filter(is_metric).map(str::to_owned).collect()
}

/// Expressions of the dashboard, with Grafana's variables replaced.
fn expressions(dashboard: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let lists = [&dashboard["panels"], &dashboard["annotations"]["list"]];
    for item in lists.into_iter().filter_map(Value::as_array).flatten() {
        let targets = item["targets"].as_array().into_iter().flatten();
        found.extend(targets.chain([item]).filter_map(|it| it["expr"].as_str()));
    }
    let filled = found.into_iter().map(|it| {
        it.replace("$__rate_interval", "1m")
            .replace("$instance", ".*")
            .replace("$job", ".*")
    });
    filled.collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&page("dashboard.json")).expect("the dashboard is JSON")
}

/// Values of `key: value` in a page.
fn values<'a>(page: &'a str, key: &str) -> Vec<&'a str> {
    let lines = page
        .lines()
        .map(|it| it.trim_start().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix(key)).collect()
}

#[test]
fn every_name_of_the_dashboard_and_the_alerts_is_told_by_a_running_worker() {
    let mut played = PlayedNvml::build();
    let (bereaved, on_a_card) = (bereaved(), on_a_card(&mut played));
    let texts = [&bereaved, &on_a_card].map(|it| it.client().get("/metrics").text());
    let told = names_in(&texts.each_ref().map(String::as_str));

    let alerts = page("alerts.yml");
    let expressions = expressions(&dashboard());
    assert!(expressions.len() > 50, "{expressions:?}");
    for expression in values(&alerts, "expr: ")
        .into_iter()
        .chain(expressions.iter().map(String::as_str))
    {
        let is_a_block = expression == "|";
        let names_one = !named(expression).is_empty() || expression.starts_with(OF_PROMETHEUS);
        assert!(
            is_a_block || names_one,
            "{expression} names nothing of a worker's"
        );
    }
    for page in ["dashboard.json", "alerts.yml", "alerts_test.yml"] {
        let names = named(&self::page(page));
        assert!(names.len() > 15, "{page}: {names:?}");
        for name in names {
            assert!(
                told.contains(&name),
                "{page} names {name}, of which no worker tells"
            );
        }
    }
}

/// `parseStringToSpec` of the extension accepts a name, or a name with labels in braces.
#[test]
fn the_inference_extension_is_told_three_gauges_that_a_worker_has() {
    let worker = Worker::scripted(Script::behave()).start();
    let values = page("inference-extension-values.yaml");
    // From the child's first heartbeat.
    let text = wait::until("the load of the child", || {
        let text = worker.client().get("/metrics").text();
        text.contains("worker_orcd_requests_running ")
            .then_some(text)
    });
    let keys = ["queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"];
    for (key, of_vllm) in keys.into_iter().zip([
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
    ]) {
        let specs = self::values(&values, &format!("{key}: "));
        let [name] = specs[..] else {
            panic!("{key} is there {} times", specs.len())
        };
        for name in [name, of_vllm] {
            assert!(
                text.contains(&format!("# TYPE {name} gauge\n")),
                "{name} in\n{text}"
            );
            assert!(text.contains(&format!("\n{name} ")), "{name} in\n{text}");
        }
    }
    let engines = self::values(&values, "defaultEngine: ");
    let names = self::values(&values, "name: ");
    assert_eq!(engines, ["worker-orcd"]);
    assert!(names.contains(&"worker-orcd"), "{names:?}");
}

#[test]
fn a_stream_that_outlives_its_child_is_one_pause_of_its_own_length() {
    let worker = bereaved();
    let text = worker.client().get("/metrics").text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        value.trim().parse().expect("a number")
    };
    assert_eq!(value("worker_orcd_stream_pause_seconds_count "), 1.0);
    let pause = value("worker_orcd_stream_pause_seconds_sum ");
    let gaps = value("worker_orcd_inter_token_latency_seconds_sum ");
    assert!(0.0 < pause && pause < gaps, "{pause} s of {gaps} s");
    let last = &worker.client().health()["faults"]["last_death"];
    let told = last["stream_pause_ms"].as_f64().expect("a stream waited");
    // A token that the dying child sent counts for the stream, and not for the report.
    let is_within = 0.0 < pause && pause * 1000.0 <= told + 2.0;
    assert!(is_within, "{pause} s, but {last}");
    assert_eq!(
        value("worker_orcd_child_deaths_total{cause=\"signalled\"} "),
        1.0
    );
    assert_eq!(value("worker_orcd_status{status=\"healthy\"} "), 1.0);
    assert!(value("worker_orcd_device_memory_bytes{purpose=\"weights\"} ") > 1e6);
    assert!(value("worker_orcd_standby_memory_bytes ") > 1e6);
}

#[test]
fn every_alert_has_a_test_that_makes_it_fire_and_a_row_of_the_page() {
    let tests = page("alerts_test.yml");
    let fire: BTreeSet<_> = tests
        .split("alertname: ")
        .skip(1)
        .filter(|test| {
            let test = test.split("alertname: ").next().unwrap_or_default();
            test.contains("exp_labels")
        })
        .filter_map(|test| test.split([',', '\n']).next())
        .collect();
    let alerts = page("alerts.yml");
    let alerts: BTreeSet<_> = values(&alerts, "alert: ").into_iter().collect();
    assert!(alerts.len() > 15, "{alerts:?}");
    assert_eq!(fire, alerts);
    let page = page("README.md");
    for alert in alerts {
        assert!(
            page.contains(&format!("| `{alert}` |")),
            "{alert} has no row"
        );
    }
}

/// Output of promtool; prints a notice and returns `None` where it is not installed.
fn promtool(arguments: &[&str], folder: &Path, input: Option<&str>) -> Option<String> {
    use std::io::Write as _;
    let spawned = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: promtool is not installed (Debian: prometheus)");
            return None;
        }
        spawned => spawned.expect("promtool starts"),
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(input.unwrap_or_default().as_bytes())
        .expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    Some(said)
}

#[test]
fn promtool_finds_the_alerts_right_and_each_of_them_fires() {
    let Some(checked) = promtool(&["check", "rules", "alerts.yml"], &monitoring(), None) else {
        return;
    };
    assert!(checked.contains("SUCCESS"), "{checked}");
    let _ = promtool(&["test", "rules", "alerts_test.yml"], &monitoring(), None);
}

/// Wrapped as rules: promtool has no other way to parse an expression.
#[test]
fn promtool_reads_every_expression_of_the_dashboard() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let expressions = expressions(&dashboard());
    let rules: Vec<_> = expressions
        .iter()
        .enumerate()
        .map(|(n, expression)| json!({"record": format!("dashboard:{n}"), "expr": expression}))
        .collect();
    // JSON is YAML.
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(folder.path().join("rules.yml"), rules.to_string()).expect("the directory is ours");
    if let Some(checked) = promtool(&["check", "rules", "rules.yml"], folder.path(), None) {
        let found = format!("{} rules found", expressions.len());
        assert!(checked.contains(&found), "{checked}");
    }
}

#[test]
fn promtool_finds_nothing_wrong_in_the_metrics_of_a_running_worker() {
    let mut played = PlayedNvml::build();
    let worker = on_a_card(&mut played);
    let text = worker.client().get("/metrics").text();
    assert!(
        text.contains("worker_orcd_gpu_xids_total{xid=\"31\"} 1"),
        "{text}"
    );
    // Colons are vLLM's, and are required.
    let is_ours = |line: &&str| !line.contains("vllm:");
    let ours: String = text
        .lines()
        .filter(is_ours)
        .map(|it| format!("{it}\n"))
        .collect();
    if let Some(said) = promtool(&["check", "metrics"], &monitoring(), Some(&ours)) {
        assert_eq!(said, "", "it complains");
    }
}
