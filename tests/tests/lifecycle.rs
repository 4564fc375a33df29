//! Lifecycle of a worker: start, drain, kill, and that nothing is left behind.

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;
use serde_json::json;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::{describe, request};
use worker_orcd_tests::{Act, Moment, Script, Worker, process, wait};

#[test]
fn a_worker_that_is_ready_says_so_everywhere() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    for path in ["/health", "/livez", "/readyz"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    let health = client.health();
    for key in [
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
    ] {
        assert!(health.get(key).is_some(), "{key} in {health}");
    }
    assert_eq!(health["status"], "healthy");
    assert_eq!(health["state"], "serving");
    assert_eq!(health["child"]["generation"], 1);
    for name in [
        "startup",
        "model_load_start",
        "model_load_complete",
        "ready",
    ] {
        worker.log.wait_for(name);
    }
}

#[test]
fn a_worker_is_not_ready_while_it_loads() {
    let script = Script::once(Moment::Loading, Act::StuckLoad);
    let worker = Worker::scripted(script).listening();
    wait::until("loading", || {
        (worker.client().health()["state"] == "loading").then_some(())
    });
    assert_eq!(worker.client().get("/livez").status, 200);
    assert_eq!(worker.client().get("/readyz").status, 503);
}

#[test]
fn sigterm_lets_a_running_stream_finish_and_exits_0() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
        let child = worker.child_pid().unwrap();
        let mut stream = worker.client().execute(&request("finishes", 60));
        stream.wait_for("token");
        worker.signal(signal);
        let end = stream.last().expect("a terminal event");
        assert_eq!(end.name, "end", "{signal}: {}", end.data);
        assert_eq!(end.json()["tokens_out"], 60);
        let status = worker.wait_exit();
        assert_eq!(status.code(), Some(0), "{signal}: {}", describe(status));
        assert!(!process::is_alive(child), "the child is gone");
    }
}

#[test]
fn new_work_is_refused_while_draining() {
    let mut worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let mut stream = worker.client().execute(&request("finishes", 100));
    stream.wait_for("token");
    let response = worker.client().post("/shutdown", &json!({}));
    assert_eq!(response.status, 202, "{}", response.text());
    let refusal = worker.client().post("/execute", &request("too late", 3));
    assert_eq!(refusal.status, 503, "{}", refusal.text());
    assert!(
        refusal.text().contains("WORKER_UNHEALTHY"),
        "{}",
        refusal.text()
    );
    assert_eq!(worker.client().get("/readyz").status, 503);
    assert_eq!(stream.last().unwrap().name, "end");
    assert_eq!(worker.wait_exit().code(), Some(0));
}

#[test]
fn what_the_drain_does_not_wait_for_gets_a_terminal_error() {
    let mut worker = Worker::scripted(Script::behave().token_interval_ms(100)).start();
    let mut stream = worker.client().execute(&request("takes minutes", 2000));
    stream.wait_for("token");
    worker.signal(Signal::SIGTERM);
    let last = stream.last().expect("a terminal event");
    assert_eq!(last.name, "error", "{}", last.data);
    assert_eq!(last.json()["retriable"], true, "{}", last.data);
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(84), "{}", describe(status));
}

#[test]
fn a_second_signal_ends_at_once() {
    let script = Script::behave().token_interval_ms(100);
    let mut worker = Worker::scripted(script)
        .arg("--drain-timeout", "1h")
        .start();
    let child = worker.child_pid().unwrap();
    let mut stream = worker.client().execute(&request("takes minutes", 2000));
    stream.wait_for("token");
    worker.signal(Signal::SIGTERM);
    wait::until("draining", || {
        (worker.client().health()["status"] == "draining").then_some(())
    });
    worker.signal(Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(85), "{}", describe(status));
    assert!(!process::is_alive(child), "the child is gone");
}

#[test]
fn sigterm_while_loading_ends_the_worker() {
    let script = Script::once(Moment::Loading, Act::StuckLoad);
    let mut worker = Worker::scripted(script).listening();
    wait::until("loading", || {
        (worker.client().health()["state"] == "loading").then_some(())
    });
    worker.signal(Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(
        status.code(),
        Some(0),
        "{}: {}",
        describe(status),
        worker.log.text()
    );
}

#[test]
fn a_child_killed_in_mid_stream_ends_it_with_one_retriable_error() {
    let script = Script::behave().token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--on-fault", "fail").start();
    let child = worker.child_pid().unwrap();
    let mut stream = worker.client().execute(&request("in flight", 2000));
    stream.wait_for("token");
    process::signal(child, Signal::SIGKILL);
    let rest: Vec<_> = stream.collect();
    let terminals = rest.iter().filter(|event| event.name != "token").count();
    assert_eq!(terminals, 1, "exactly one terminal event");
    let last = rest.last().unwrap();
    assert_eq!(last.name, "error");
    assert_eq!(last.json()["retriable"], true);
    worker.assert_serves();
    assert_eq!(worker.generation(), Some(2));
    assert_eq!(process::state(child), None, "no zombie is left");
}

#[test]
fn a_child_killed_in_mid_stream_is_not_noticed_where_streams_are_resumed() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let mut stream = worker.client().execute(&request("in flight", 80));
    let first = stream.wait_for("token").json();
    process::signal(worker.child_pid().unwrap(), Signal::SIGKILL);
    let rest = stream.transcript();
    assert_eq!(rest.last().json()["recoveries"], 1, "{:?}", rest.last());
    let text = first["t"].as_str().unwrap().to_owned() + &rest.text();
    assert_eq!(text, scripted_text("in flight", 80));
}

/// A request that arrives without a child waits for the next one.
#[test]
fn requests_wait_while_a_child_is_replaced() {
    let worker = Worker::scripted(Script::behave()).start();
    for _ in 0..3 {
        let child = worker.child_pid().unwrap();
        process::signal(child, Signal::SIGKILL);
        let transcript = worker.client().execute(&request("abc", 5)).transcript();
        // The dying child may have accepted it.
        let recoveries = transcript.end()["recoveries"].as_u64().unwrap();
        assert!(recoveries <= 1, "{recoveries}");
        assert_eq!(transcript.text(), scripted_text("abc", 5));
        wait::until("the next child", || {
            let pid = worker.child_pid()?;
            (pid != child).then_some(())
        });
    }
    worker.assert_serves();
}

#[test]
fn a_child_does_not_outlive_its_parent() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let child = worker.child_pid().unwrap();
    let mut stream = worker.client().execute(&request("in flight", 2000));
    stream.wait_for("token");
    worker.signal(Signal::SIGKILL);
    wait::until("the child to go", || {
        (!process::is_alive(child)).then_some(())
    });
}

#[test]
fn the_real_child_does_not_outlive_its_parent() {
    let worker = Worker::shallow().start();
    let child = worker.child_pid().unwrap();
    let mut stream = worker.client().execute(&request("Once upon a time", 500));
    stream.wait_for("token");
    worker.signal(Signal::SIGKILL);
    wait::until("the child to go", || {
        (!process::is_alive(child)).then_some(())
    });
}

#[test]
fn the_real_child_drains_and_leaves_nothing() {
    let mut worker = Worker::shallow().start();
    let child = worker.child_pid().unwrap();
    let mut body = request("Once upon a time", 16);
    body["temperature"] = json!(0.0);
    let mut stream = worker.client().execute(&body);
    stream.wait_for("token");
    worker.signal(Signal::SIGTERM);
    assert_eq!(stream.last().unwrap().name, "end");
    assert_eq!(worker.wait_exit().code(), Some(0), "{}", worker.log.text());
    assert!(!process::is_alive(child));
}

#[test]
fn no_prompt_and_no_completion_is_ever_logged() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let secret = "the-secret-of-the-prompt";
    worker
        .client()
        .execute(&request(secret, 100))
        .transcript()
        .end();
    let mut wrong = request(secret, 100);
    wrong["max_tokens"] = json!(0);
    assert_eq!(worker.client().post("/execute", &wrong).status, 400);
    let mut stream = worker.client().execute(&request(secret, 100));
    stream.wait_for("token");
    process::signal(worker.child_pid().unwrap(), Signal::SIGKILL);
    assert_eq!(stream.last().unwrap().name, "end");
    worker.assert_serves();
    // Both requests, and the one that proves service.
    for name in ["execute_start", "execute_end"] {
        worker.log.wait_for_many(name, 3);
    }
    let log = worker.log_until_now();
    for piece in [secret, "secret-of", "of-the-prompt"] {
        assert!(!log.contains(piece), "{piece:?} is in the log");
    }
}

/// Descriptors and zombies over many deaths.
#[test]
fn deaths_leak_no_descriptors_and_no_zombies() {
    let worker = Worker::scripted(Script::behave()).start();
    worker.assert_serves();
    let before = process::open_files(worker.pid());
    for _ in 0..20 {
        worker.replace_child();
    }
    worker.assert_serves();
    // Connections close shortly after their clients have read the end.
    wait::until("as many open files as before", || {
        (process::open_files(worker.pid()) <= before + 4).then_some(())
    });
    worker.wait_one_child();
}

/// The kernel blocks a process of several threads when it enlarges this table.
#[test]
fn supervisor_and_child_have_room_for_their_descriptors_from_the_beginning() {
    let worker = Worker::shallow().start();
    let child = worker.child_pid().expect("a child serves");
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    for (pid, most) in [(worker.pid(), 2048), (child, 1024)] {
        let size = process::descriptor_slots(pid);
        assert!(size >= limit.min(most), "process {pid} has room for {size}");
    }
}
