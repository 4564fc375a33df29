//! Children that stop sending, progressing or reading: each is killed at its deadline.

use worker_orcd_tests::aftermath::{ends_the_stream, is_replaced, is_replaced_in, last_cause};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Act, Moment, Script, Worker, wait};

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

/// More commands than the socket's buffer holds, for a child that reads none of them.
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
