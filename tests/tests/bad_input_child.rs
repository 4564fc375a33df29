//! What a child can do wrong. Each test lets the first child do it, reads what the worker makes
//! of it, and sees that the next request is served by the second.

use serde_json::Value;
use worker_orcd_ipc::PROTOCOL_VERSION;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::{describe, request};
use worker_orcd_tests::{Act, Moment, Script, Unreapable, Worker, process, wait};

/// The lifecycle's label for the cause of the last death.
fn last_cause(worker: &Worker) -> Option<String> {
    let health = worker.client().health();
    health["faults"]["last_death"]["label"]
        .as_str()
        .map(str::to_owned)
}

/// Goes wrong with no request in flight; the next child serves.
fn is_replaced(script: Script, cause: &str) {
    is_replaced_in(Worker::scripted(script).listening(), cause);
}

fn is_replaced_in(mut worker: Worker, cause: &str) {
    let seen = wait::until("the first child's death", || last_cause(&worker));
    assert_eq!(seen, cause, "{}", worker.log.text());
    worker.wait_ready();
    assert!(worker.generation() >= Some(2));
    worker.assert_serves();
}

/// Goes wrong in the middle of a stream: with `--on-fault fail` the stream ends with one
/// retriable error, and the next child serves.
fn ends_the_stream(script: Script, cause: &str) {
    let script = script.token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--on-fault", "fail").start();
    let first = worker.child_pid();
    let transcript = worker
        .client()
        .execute(&request("in flight", 200))
        .transcript();
    transcript.assert_well_formed();
    assert_eq!(transcript.last().name, "error", "{:?}", transcript.last());
    let error = transcript.last().json();
    assert_eq!(error["retriable"], true, "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{error}"
    );
    worker.assert_serves();
    assert_eq!(
        last_cause(&worker).as_deref(),
        Some(cause),
        "{}",
        worker.log.text()
    );
    assert_ne!(worker.child_pid(), first);
    assert_eq!(
        process::model_children(worker.pid()).len(),
        1,
        "nothing of the first child is left"
    );
}

/// As above, but with `--on-fault resume`: the stream is the one of a run without the fault.
fn is_not_noticed(script: Script, cause: &str) {
    let worker = Worker::scripted(script.token_interval_ms(20)).start();
    let transcript = worker
        .client()
        .execute(&request("in flight", 40))
        .transcript();
    let end = transcript.end();
    assert_eq!(transcript.text(), scripted_text("in flight", 40));
    assert_eq!(end["tokens_out"], 40);
    assert_eq!(end["recoveries"], 1, "{end}");
    assert_eq!(
        last_cause(&worker).as_deref(),
        Some(cause),
        "{}",
        worker.log.text()
    );
}

/// The worker gives up, says why, and leaves the number of the cause behind.
fn ends_the_worker(script: Script, code: i32, words: &[&str]) {
    let mut worker = Worker::scripted(script).spawn();
    let status = worker.wait_exit();
    let log = worker.log.text();
    assert_eq!(status.code(), Some(code), "{}: {log}", describe(status));
    for word in words {
        assert!(log.contains(word), "{word:?} is said: {log}");
    }
}

// === Another protocol, or none ===

#[test]
fn another_protocol_version_ends_the_worker_and_is_named() {
    let script = Script::always(Moment::BeforeHello, Act::OtherVersion);
    let theirs = format!("version {}", PROTOCOL_VERSION + 1);
    ends_the_worker(script, 80, &[&theirs]);
}

#[test]
fn a_program_that_is_no_child_ends_the_worker() {
    let script = Script::always(Moment::BeforeHello, Act::Garbage);
    ends_the_worker(script, 80, &["does not speak this protocol"]);
}

#[test]
fn a_forbidden_feature_ends_the_worker_and_is_named() {
    let script = Script::always(Moment::BeforeHello, Act::ForbiddenFeature);
    ends_the_worker(script, 80, &["fault-injection"]);
}

#[test]
fn a_child_that_gives_anothers_pid_is_replaced() {
    is_replaced(
        Script::once(Moment::BeforeHello, Act::WrongPid),
        "handshake_refused",
    );
}

#[test]
fn a_binary_that_is_not_there_ends_the_worker_and_is_named() {
    let mut worker = Worker::with_child_program("/no/such/child").spawn();
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(81), "{}", worker.log.text());
    assert!(worker.log.text().contains("/no/such/child"));
}

#[test]
fn a_file_that_may_not_be_executed_ends_the_worker_and_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut worker = Worker::with_child_program(file.path()).spawn();
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(81), "{}", worker.log.text());
    let path = file.path().display().to_string();
    assert!(worker.log.text().contains(&path), "{}", worker.log.text());
}

// === Words that no child says ===

#[test]
fn garbage_while_serving() {
    is_replaced(
        Script::once(Moment::Serving, Act::Garbage),
        "protocol_violation",
    );
}

#[test]
fn garbage_while_loading() {
    is_replaced(
        Script::once(Moment::Loading, Act::Garbage),
        "protocol_violation",
    );
}

#[test]
fn garbage_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::Garbage),
        "protocol_violation",
    );
}

#[test]
fn a_truncated_frame_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::TruncatedFrame),
        "exited_silently",
    );
}

#[test]
fn an_oversized_frame_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::OversizedFrame),
        "protocol_violation",
    );
}

#[test]
fn trailing_bytes_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::TrailingBytes),
        "protocol_violation",
    );
}

#[test]
fn a_message_that_does_not_exist() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::UnknownMessage),
        "protocol_violation",
    );
}

#[test]
fn a_second_hello() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::SecondHello),
        "protocol_violation",
    );
}

#[test]
fn a_token_for_a_request_that_nobody_made() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::UnknownRequest),
        "protocol_violation",
    );
}

#[test]
fn a_token_outside_the_vocabulary() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::TokenOutOfRange),
        "protocol_violation",
    );
}

#[test]
fn a_token_index_that_skips_one() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::WrongIndex),
        "protocol_violation",
    );
}

#[test]
fn an_end_for_a_request_that_nobody_made() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::UnknownFinish),
        "protocol_violation",
    );
}

/// A word of another generation says that the child does not know who it is.
#[test]
fn a_word_of_another_generation() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::WrongGeneration),
        "protocol_violation",
    );
}

// === Too much, too slow, nothing at all ===

/// A flood of messages that are honest one by one: its source is replaced, and memory is no worse
/// for it.
#[test]
fn a_flood_of_heartbeats_drowns_nobody() {
    let script = Script::once(Moment::MidStream(5), Act::Flood).token_interval_ms(20);
    let worker = Worker::scripted(script).start();
    let before = process::anonymous_rss_bytes(worker.pid()).unwrap();
    let transcript = worker
        .client()
        .execute(&request("beside a flood", 100))
        .transcript();
    assert_eq!(transcript.text(), scripted_text("beside a flood", 100));
    let after = process::anonymous_rss_bytes(worker.pid()).unwrap();
    assert!(
        after < before + (64 << 20),
        "{before} bytes before the flood, {after} after it"
    );
    assert_eq!(last_cause(&worker).as_deref(), Some("protocol_violation"));
    worker.assert_serves();
}

#[test]
fn a_frame_that_drips_in() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::SlowDrip),
        "heartbeat_lost",
    );
}

#[test]
fn a_stall_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::Stall),
        "heartbeat_lost",
    );
}

#[test]
fn a_stall_while_serving_nobody() {
    is_replaced(Script::once(Moment::Serving, Act::Stall), "heartbeat_lost");
}

#[test]
fn a_stall_while_loading() {
    is_replaced(Script::once(Moment::Loading, Act::Stall), "heartbeat_lost");
}

#[test]
fn a_child_that_never_says_hello() {
    is_replaced(
        Script::once(Moment::BeforeHello, Act::Stall),
        "handshake_deadline",
    );
}

#[test]
fn a_step_that_never_ends() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::StuckStep),
        "step_deadline",
    );
}

#[test]
fn a_load_that_never_advances() {
    let script = Script::once(Moment::Loading, Act::StuckLoad);
    let worker = Worker::scripted(script)
        .arg("--load-timeout", "3s")
        .listening();
    is_replaced_in(worker, "load_stalled");
}

#[test]
fn a_child_that_stops_itself() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::Stop),
        "heartbeat_lost",
    );
}

#[test]
fn a_child_that_closes_its_socket_and_stays() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::CloseSocket),
        "socket_closed",
    );
}

/// More commands than the socket's buffer holds, to a child that reads none of them.
#[test]
fn a_child_that_never_reads_its_socket() {
    let script = Script::once(Moment::MidStream(1), Act::NeverRead).token_interval_ms(50);
    let worker = Worker::scripted(script).arg("--max-queue", 64).start();
    let client = worker.client();
    let prompt = "x".repeat(32_000);
    let mut first = client.execute(&request(&prompt, 2000));
    first.wait_for("token");
    let unread: Vec<_> = (0..40)
        .map(|_| {
            let mut connection = client.connect().unwrap();
            let body = request(&prompt, 2000).to_string();
            connection
                .send(&client.request("POST", "/execute", &[], body.as_bytes()))
                .unwrap();
            connection
        })
        .collect();
    let cause = wait::until("the child's death", || last_cause(&worker));
    assert_eq!(cause, "link_stalled", "{}", worker.log.text());
    drop(unread);
    worker.assert_serves();
}

// === Ends, in every state ===

#[test]
fn exit_codes_and_signals_before_the_hello() {
    for (act, cause) in [
        (Act::Exit(0), "exited_silently"),
        (Act::Exit(72), "panic"),
        (Act::Exit(3), "exited_unknown"),
        (Act::Signal(11), "signalled"),
    ] {
        is_replaced(Script::once(Moment::BeforeHello, act), cause);
    }
}

#[test]
fn exit_codes_and_signals_while_handshaking() {
    for (act, cause) in [
        (Act::Exit(0), "exited_silently"),
        (Act::Signal(9), "signalled"),
    ] {
        is_replaced(Script::once(Moment::Handshaking, act), cause);
    }
}

#[test]
fn exit_codes_and_signals_while_loading() {
    for (act, cause) in [
        (Act::Exit(0), "exited_silently"),
        (Act::Exit(71), "out_of_memory"),
        (Act::Exit(73), "io"),
        (Act::Signal(6), "signalled"),
    ] {
        is_replaced(Script::once(Moment::Loading, act), cause);
    }
}

#[test]
fn exit_codes_and_signals_while_serving() {
    for (act, cause) in [
        (Act::Exit(0), "exited_silently"),
        (Act::Exit(68), "device"),
        (Act::Exit(255), "exited_unknown"),
        (Act::Signal(9), "signalled"),
        (Act::FaultDevice, "device"),
    ] {
        is_replaced(Script::once(Moment::Serving, act), cause);
    }
}

#[test]
fn every_exit_code_in_mid_stream() {
    for (code, cause) in [
        (0, "exited_silently"),
        (65, "model_load"),
        (66, "insufficient_memory"),
        (67, "device_unavailable"),
        (68, "device"),
        (69, "non_finite_logits"),
        (70, "protocol"),
        (71, "out_of_memory"),
        (72, "panic"),
        (73, "io"),
        (74, "exited_silently"),
        (1, "exited_unknown"),
        (101, "exited_unknown"),
    ] {
        ends_the_stream(Script::once(Moment::MidStream(5), Act::Exit(code)), cause);
    }
}

/// It does not understand how it was started, and the next one would not either.
#[test]
fn the_code_of_a_usage_error_in_mid_stream_ends_the_worker() {
    let script = Script::once(Moment::MidStream(5), Act::Exit(2)).token_interval_ms(20);
    let mut worker = Worker::scripted(script).start();
    let stream = worker.client().execute(&request("in flight", 200));
    stream.transcript().error("WORKER_UNHEALTHY");
    assert_eq!(worker.wait_exit().code(), Some(80), "{}", worker.log.text());
}

#[test]
fn every_code_of_a_child_has_its_test() {
    let of_tests = [0, 2, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74];
    let known = (0..256).filter(|code| worker_orcd_ipc::ExitCode::from_code(*code).is_some());
    assert_eq!(known.collect::<Vec<_>>(), of_tests);
}

#[test]
fn every_deadly_signal_in_mid_stream() {
    for signal in [4, 6, 7, 8, 9, 11, 15] {
        ends_the_stream(
            Script::once(Moment::MidStream(5), Act::Signal(signal)),
            "signalled",
        );
    }
}

#[test]
fn streams_that_may_go_on_go_on_behind_every_kind_of_death() {
    for (act, cause) in [
        (Act::Exit(72), "panic"),
        (Act::Signal(11), "signalled"),
        (Act::FaultDevice, "device"),
        (Act::Garbage, "protocol_violation"),
        (Act::WrongIndex, "protocol_violation"),
        (Act::StuckStep, "step_deadline"),
        (Act::Stall, "heartbeat_lost"),
    ] {
        is_not_noticed(Script::once(Moment::MidStream(5), act), cause);
    }
}

#[test]
fn last_words_in_mid_stream() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::FaultDevice),
        "device",
    );
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::FaultNonFinite),
        "non_finite_logits",
    );
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_worker() {
    let script = Script::always(Moment::Loading, Act::FaultModelLoad);
    ends_the_worker(script, 65, &["the model cannot be loaded: scripted"]);
}

#[test]
fn too_little_memory_ends_the_worker_and_names_four_things() {
    let script = Script::always(Moment::Loading, Act::FaultInsufficientMemory);
    let words = [
        "150000000000",
        "140000000000",
        "scripted device",
        "scripted model",
    ];
    ends_the_worker(script, 66, &words);
}

#[test]
fn a_child_that_always_dies_ends_the_worker() {
    ends_the_worker(
        Script::always(Moment::Serving, Act::Exit(72)),
        82,
        &["children died"],
    );
}

// === Children that do not want to go ===

#[test]
fn a_grandchild_that_holds_the_pipes_holds_nobody_up() {
    let script = Script {
        fork: true,
        ..Script::once(Moment::MidStream(5), Act::Signal(9))
    };
    ends_the_stream(script, "signalled");
}

/// Asked to go, told to go, made to go.
#[test]
fn a_child_that_ignores_sigterm_is_killed() {
    let script = Script {
        ignore_sigterm: true,
        ignore_shutdown: true,
        faulty_generations: u32::MAX,
        ..Script::behave()
    };
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    let blocked = process::blocked_signals(child);
    assert_ne!(blocked & 1 << (15 - 1), 0, "SIGTERM of {blocked:#x}");
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(status.code(), Some(0), "{}", worker.log.text());
    let kills = worker.log.events("child_kill");
    let signals: Vec<_> = kills.iter().map(|kill| &kill["signal"]).collect();
    assert_eq!(signals, ["Term", "Kill"], "{kills:?}");
    assert!(!process::is_alive(child));
}

#[test]
fn a_worker_ends_though_its_child_ignores_everything() {
    let script = Script {
        ignore_sigterm: true,
        ignore_shutdown: true,
        faulty_generations: u32::MAX,
        fork: true,
        ..Script::behave()
    };
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    let status = worker.wait_exit();
    assert_eq!(
        status.code(),
        Some(0),
        "{}: {}",
        describe(status),
        worker.log.text()
    );
    assert!(!process::is_alive(child));
}

/// Nothing can be done about it but to say so and to make room: its memory is not known to be
/// free. The stream ends, the worker ends with a code of its own, and another one serves.
#[test]
fn a_child_that_cannot_be_reaped_ends_the_worker() {
    let script = Script::behave().token_interval_ms(20);
    let mut worker = Worker::scripted(script).start();
    let child = worker.child_pid().unwrap();
    let stream = worker.client().execute(&request("in flight", 1000));
    wait::until("the request to run", || {
        worker.log.events("execute_start").pop()
    });

    let held = Unreapable::hold(child);
    process::signal(child, nix::sys::signal::Signal::SIGKILL);
    wait::until("the death to be noticed", || {
        (worker.client().health()["status"] != "healthy").then_some(())
    });
    wait::until("the child to be dead, and not waited for", || {
        (process::state(child) == Some('Z')).then_some(())
    });

    let error = stream.transcript().error("WORKER_UNHEALTHY");
    assert!(error.to_string().contains("reboot"), "{error}");
    let status = worker.wait_exit();
    assert_eq!(
        status.code(),
        Some(83),
        "{}: {}",
        describe(status),
        worker.log.text()
    );
    drop(held);
    let reports = worker.crash_reports();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(
        reports[0]["timeline"]["reaped_ms"].is_null(),
        "{}",
        reports[0]
    );
    assert_eq!(reports[0]["requests"]["count"], 1, "{}", reports[0]);

    Worker::scripted(Script::behave()).start().assert_serves();
}

/// Deaths are told where operators look: in the log, with generation and cause.
#[test]
fn a_death_is_logged_with_its_cause() {
    let worker = Worker::scripted(Script::once(Moment::Serving, Act::Exit(68))).listening();
    wait::until("a child_death line", || {
        let deaths: Vec<Value> = worker.log.events("child_death");
        deaths.first().map(|death| {
            let text = death.to_string();
            assert!(text.contains("generation"), "{text}");
            assert!(text.contains("68"), "{text}");
        })
    });
}
