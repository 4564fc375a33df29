//! Routes without a socket, over an engine without a startable child.

use super::*;
use crate::config::device::DeviceChoice;
use crate::config::environment::Environment;
use crate::config::sources;
use axum::http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use worker_orcd_engine::PreviousEngine;
use worker_orcd_engine::child::spawn::Spawner;
use worker_orcd_engine::engine::testing::settings;

fn config(flags: &[&str]) -> Config {
    let command = sources::arguments(clap::Command::new("worker-orcd"));
    let all = ["worker-orcd", "--model", "/dev/null"]
        .into_iter()
        .chain(flags.iter().copied());
    Config::gather(&command.get_matches_from(all), &Environment::default()).unwrap()
}

/// An engine that has given up: generation fails, and everything else must be answered.
pub(super) async fn app(flags: &[&str]) -> Arc<App> {
    let config = config(flags);
    let (spawner, orders) = Spawner::new();
    std::thread::spawn(|| orders.carry_out());
    let engine = worker_orcd_engine::driver::start(settings(), PreviousEngine::default(), &spawner);
    engine.wait_ended().await;
    spawner.end();
    Arc::new(App::new(
        &config,
        engine,
        DeviceChoice::parse("cpu")
            .expect("cpu")
            .named()
            .expect("a device"),
    ))
}

struct Answer {
    status: StatusCode,
    response: axum::http::response::Parts,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    fn header(&self, name: &str) -> &str {
        self.response
            .headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

async fn ask(app: &Arc<App>, request: Request<Body>) -> Answer {
    let response = router(Arc::clone(app)).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    Answer {
        status: parts.status,
        response: parts,
        text,
    }
}

async fn get(app: &Arc<App>, path: &str) -> Answer {
    ask(app, Request::get(path).body(Body::empty()).unwrap()).await
}

async fn post(app: &Arc<App>, path: &str, body: Value) -> Answer {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    ask(app, request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_worker_that_failed_says_so_everywhere_and_why() {
    let app = app(&[]).await;
    let health = get(&app, "/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    let report = health.json();
    assert_eq!(report["status"], "failed");
    assert!(
        report["reason"].as_str().unwrap().contains("/nowhere"),
        "{}",
        report["reason"]
    );
    assert_eq!(
        get(&app, "/livez").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        get(&app, "/readyz").await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );

    let native = post(&app, "/execute", json!({"job_id": "a", "prompt": "b"})).await;
    assert_eq!(native.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(native.json()["code"], "WORKER_UNHEALTHY");
    assert_eq!(native.json()["retriable"], true);
    let restart = post(&app, "/restart", json!({})).await;
    assert_eq!(restart.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(restart.json()["code"], "WORKER_UNHEALTHY");
    let openai = post(&app, "/v1/completions", json!({"prompt": "b"})).await;
    assert_eq!(openai.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(openai.json()["error"]["code"], "worker_unhealthy");
}

#[tokio::test]
async fn health_has_the_contract_s_keys() {
    let app = app(&[]).await;
    let report = get(&app, "/health").await.json();
    let keys = [
        "status",
        "state",
        "since",
        "reason",
        "child",
        "standby",
        "device",
        "vram",
        "model",
        "load",
        "faults",
        "uptime_seconds",
        "version",
    ];
    for key in keys {
        assert!(report.get(key).is_some(), "{key} is missing");
    }
    assert_eq!(report["faults"]["deaths_by_cause"]["spawn_failed"], 1);
    assert_eq!(
        report["vram"],
        Value::Null,
        "no child has reported its memory"
    );
}

#[tokio::test]
async fn every_mistake_is_told_at_once_and_nothing_is_echoed() {
    let app = app(&[]).await;
    let request = json!({
        "prompt": "the secret", "messages": [{"role": "user", "content": "the secret"}],
        "max_tokens": 0, "temperature": "the secret", "stop": ["a", 1], "colour": "the secret",
    });
    let answer = post(&app, "/execute", request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(!answer.text.contains("secret"), "{}", answer.text);
    let report = answer.json();
    let fields: Vec<&str> = report["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        fields,
        [
            "job_id",
            "messages",
            "max_tokens",
            "temperature",
            "stop[1]",
            "colour"
        ]
    );
}

#[tokio::test]
async fn wrong_paths_methods_and_types_have_bodies_in_the_caller_s_dialect() {
    let app = app(&[]).await;
    let missing = get(&app, "/nothing").await;
    assert_eq!(
        (missing.status, &missing.json()["code"]),
        (StatusCode::NOT_FOUND, &json!("NOT_FOUND"))
    );
    assert_eq!(
        get(&app, "/v1/nothing").await.json()["error"]["type"],
        "not_found_error"
    );

    let method = get(&app, "/execute").await;
    assert_eq!(method.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(method.header("allow"), "POST");
    assert_eq!(method.json()["code"], "METHOD_NOT_ALLOWED");

    let form = Request::post("/execute").header(CONTENT_TYPE, "text/plain");
    let form = ask(&app, form.body(Body::from("{}")).unwrap()).await;
    assert_eq!(form.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    let other = || json!({"model": "gpt-5", "prompt": "a"});
    let strict = self::app(&["--strict-model-name"]).await;
    for (app, status) in [
        (&strict, StatusCode::NOT_FOUND),
        (&app, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let answer = post(app, "/v1/completions", other()).await;
        assert_eq!(answer.status, status);
    }
}

#[tokio::test]
async fn cancelling_what_is_not_there_is_no_error() {
    let app = app(&[]).await;
    assert_eq!(
        post(&app, "/cancel", json!({"job_id": "x"})).await.status,
        StatusCode::ACCEPTED
    );
    assert_eq!(
        post(&app, "/cancel", json!({})).await.status,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn with_keys_only_probes_are_open() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "sesame\n").unwrap();
    let app = app(&["--api-key-file", keys.path().to_str().unwrap()]).await;
    for open in ["/health", "/livez", "/readyz"] {
        assert_ne!(
            get(&app, open).await.status,
            StatusCode::UNAUTHORIZED,
            "{open}"
        );
    }
    for path in ["/metrics", "/v1/models", "/execute", "/nothing"] {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    let with_key = Request::get("/v1/models").header("authorization", "Bearer sesame");
    let answer = ask(&app, with_key.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        answer.json()["data"][0]["id"],
        "null",
        "the stem of /dev/null"
    );
}

/// The page has no data, and a browser sends no key in a navigation. The requests of its script need one.
#[tokio::test]
async fn a_browser_gets_the_page_without_a_key_and_a_program_gets_json_with_one() {
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), "sesame\n").unwrap();
    let keys = keys.path().to_str().unwrap();
    let app = app(&["--api-key-file", keys, "--served-model-name", "swordfish"]).await;
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let asked = |path, accept| Request::get(path).header(ACCEPT, accept);
    let page = ask(&app, asked("/", browser).body(Body::empty()).unwrap()).await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(page.header("vary"), "Accept");
    assert!(page.text.starts_with("<!doctype html>"));
    for fact in ["sesame", &app.model_id, env!("CARGO_PKG_VERSION")] {
        assert!(!page.text.contains(fact), "the page tells {fact}");
    }
    let policy = page.header("content-security-policy");
    let wanted = [
        "default-src 'none'",
        "script-src 'sha256-",
        "connect-src 'self'",
    ];
    assert!(wanted.iter().all(|it| policy.contains(it)), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");

    for (path, accept) in [("/", "*/*"), ("/metrics", browser), ("/crashes", browser)] {
        let answer = ask(&app, asked(path, accept).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path} {accept}");
    }
    let with_key = asked("/", "*/*").header("authorization", "Bearer sesame");
    let answer = ask(&app, with_key.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.json()["name"], "worker-orcd");
    assert_eq!(answer.header("vary"), "Accept");
}

#[tokio::test]
async fn a_correlation_id_is_echoed_or_made() {
    let app = app(&[]).await;
    let with = |id: &'static str| {
        Request::builder()
            .method(Method::GET)
            .uri("/livez")
            .header("x-correlation-id", id)
    };
    let echoed = ask(&app, with("abc-1").body(Body::empty()).unwrap()).await;
    assert_eq!(echoed.header("x-correlation-id"), "abc-1");
    let replaced = ask(&app, with("two words").body(Body::empty()).unwrap()).await;
    assert_eq!(
        replaced.header("x-correlation-id").len(),
        36,
        "a UUID instead"
    );
}

#[tokio::test]
async fn metrics_tell_what_is_known_without_a_child_and_nothing_else() {
    let app = app(&[]).await;
    let answer = get(&app, "/metrics").await;
    assert!(answer.header("content-type").starts_with("text/plain"));
    for line in [
        "worker_orcd_up 0",
        "worker_orcd_child_deaths_total{cause=\"spawn_failed\"} 1",
        "worker_orcd_crash_reports_total 1",
    ] {
        assert!(
            answer.text.lines().any(|it| it == line),
            "{line} is not in\n{}",
            answer.text
        );
    }
    assert!(!answer.text.contains("vllm:"), "{}", answer.text);
}

#[tokio::test]
async fn every_death_has_a_report_that_health_names() {
    let app = app(&[]).await;
    let last = get(&app, "/health").await.json()["faults"]["last_death"].clone();
    let id = last["crash_id"].as_str().unwrap();
    app.engine
        .crashes()
        .flush(std::time::Duration::from_secs(10));

    let list = get(&app, "/crashes").await.json();
    assert_eq!(list["crashes"].as_array().unwrap().len(), 1);
    assert_eq!(list["crashes"][0]["id"], id);
    assert_eq!(list["crashes"][0]["label"], "spawn_failed");
    assert_eq!(list["crashes"][0]["device_number"], 0);

    let report = get(&app, &format!("/crashes/{id}")).await.json();
    assert_eq!(report["cause"]["text"], last["cause"]);
    assert_eq!(report["device"], json!({"number": 0, "id": "cpu"}));
    assert_eq!(
        (&last["device"], &last["device_number"]),
        (&json!("cpu"), &json!(0))
    );
    assert_eq!(report["child"]["state"], "spawning");
    assert_eq!(report["child"]["pid"], Value::Null, "no process came about");
    assert_eq!(report["requests"]["count"], 0);

    let missing = get(&app, "/crashes/..%2f..%2fetc%2fpasswd").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.json()["code"], "NOT_FOUND");
}

#[tokio::test]
async fn each_device_says_in_health_whether_it_is_in_use_or_why_not() {
    let app = app(&[]).await;
    let health = get(&app, "/health").await.json();
    let [device] = &health["devices"].as_array().unwrap()[..] else {
        panic!("one device: {health}");
    };
    assert_eq!(
        (&device["number"], &device["id"]),
        (&json!(0), &json!("cpu"))
    );
    assert_eq!(device["serving"], false);
    assert_eq!(device["in_use"], device["standing"] == "in_use");
    assert_eq!(
        device["deaths_in_window"],
        health["faults"]["deaths_in_window"]
    );
    for unknown in ["running", "kv_capacity_tokens", "child", "uuid"] {
        assert!(device[unknown].is_null(), "{unknown}: {device}");
    }
}
