//! Children that violate the protocol: another version, malformed frames, impossible messages, and floods.

use worker_orcd_ipc::PROTOCOL_VERSION;
use worker_orcd_tests::aftermath::{ends_the_stream, is_replaced, last_cause};
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Act, Moment, Script, Worker, process};

// === Another protocol, or none ===

#[test]
fn another_protocol_version_ends_the_worker_and_is_named() {
    let script = Script::always(Moment::BeforeHello, Act::OtherVersion);
    let theirs = format!("version {}", PROTOCOL_VERSION + 1);
    Worker::scripted(script).ends_with(80, &[&theirs]);
}

#[test]
fn a_program_that_is_no_child_ends_the_worker() {
    let script = Script::always(Moment::BeforeHello, Act::Garbage);
    Worker::scripted(script).ends_with(80, &["does not speak this protocol"]);
}

#[test]
fn a_forbidden_feature_ends_the_worker_and_is_named() {
    let script = Script::always(Moment::BeforeHello, Act::ForbiddenFeature);
    Worker::scripted(script).ends_with(80, &["fault-injection"]);
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
    Worker::with_child_program("/no/such/child").ends_with(81, &["/no/such/child"]);
}

#[test]
fn a_file_that_may_not_be_executed_ends_the_worker_and_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    Worker::with_child_program(path).ends_with(81, &[path]);
}

// === Impossible messages ===

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
fn a_tokenizer_that_is_no_message() {
    is_replaced(
        Script::once(Moment::Loading, Act::NonsenseTokenizer),
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

/// A message of another generation is a violation.
#[test]
fn a_word_of_another_generation() {
    ends_the_stream(
        Script::once(Moment::MidStream(5), Act::WrongGeneration),
        "protocol_violation",
    );
}

/// A flood of individually valid messages: the child is replaced, and memory stays bounded.
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
