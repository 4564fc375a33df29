//! Ends of children by every code and signal and in every state: the cause is reported, and streams end or go on by
//! their fault policy.

use worker_orcd_tests::aftermath::{ends_the_stream, is_not_noticed, is_replaced};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Act, Moment, Script, Worker};

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

/// The child rejects its arguments, and the next one would too.
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
    Worker::scripted(script).ends_with(65, &["the model cannot be loaded: scripted"]);
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
    Worker::scripted(script).ends_with(66, &words);
}

#[test]
fn a_child_that_always_dies_ends_the_worker() {
    let script = Script::always(Moment::Serving, Act::Exit(72));
    Worker::scripted(script).ends_with(82, &["children in a row died"]);
}

/// Deaths are in the log, with generation and cause.
#[test]
fn a_death_is_logged_with_its_cause() {
    let worker = Worker::scripted(Script::once(Moment::Serving, Act::Exit(68))).listening();
    let death = worker.log.wait_for("child_death").to_string();
    assert!(death.contains("generation"), "{death}");
    assert!(death.contains("68"), "{death}");
}
