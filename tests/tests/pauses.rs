//! Comments of a paused stream, and the pause in `/health` afterwards.

use serde_json::json;
use worker_orcd_tests::script::{Act, Moment, Script};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Worker, wait};

#[test]
fn a_short_pause_has_a_comment_as_well() {
    let script = Script::once(Moment::MidStream(5), Act::Signal(11)).token_interval_ms(20);
    let worker = Worker::scripted(script).start();
    let mut stream = worker.client().execute(&request("in flight", 40));
    let end = stream.wait_for("end").json();
    assert_eq!(end["recoveries"], 1, "{end}");
    assert!(stream.comments >= 1, "nothing was said");
}

#[test]
fn without_a_pause_nothing_is_said() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(5)).start();
    // A busy machine may cause a pause of its own, but not every time.
    wait::until("a stream without a comment", || {
        let mut stream = worker.client().execute(&request("in flight", 40));
        stream.wait_for("end");
        (stream.comments == 0).then_some(())
    });
}

#[test]
fn a_child_that_stands_still_is_told_of_before_it_is_given_up_and_counted_from_its_last_token() {
    const DEADLINE_MS: u64 = 4_000;
    let script = Script::once(Moment::MidStream(5), Act::Stop).token_interval_ms(20);
    let worker = Worker::scripted(script)
        .arg("--heartbeat-timeout", format!("{DEADLINE_MS}ms"))
        .start();
    let client = worker.client();
    let mut stream = client.execute(&request("in flight", 40));
    stream.wait_for("token");
    assert_eq!(stream.wait_for_comment(), "recovering");
    let faults = client.health()["faults"].clone();
    assert_eq!(
        faults["deaths_by_cause"],
        json!({}),
        "long before its time is over"
    );
    let end = stream.wait_for("end").json();
    assert_eq!(end["recoveries"], 1, "{end}");
    let pause = wait::until("the pause in /health", || {
        let last = client.health()["faults"]["last_death"].clone();
        last["stream_pause_ms"].as_u64()
    });
    // The child's last heartbeat is a little before or after its last token.
    assert!(
        pause + 200 >= DEADLINE_MS,
        "{pause} ms from the last token on"
    );
}
