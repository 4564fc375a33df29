//! Bursts of deaths with default settings: the worker continues while its children deliver tokens, and reports that it
//! is unstable. `chaos.rs` has the same with faults of every kind.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread;
use worker_orcd_lifecycle::RestartPolicy;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Act, Bystander, Moment, Script, Worker, WorkerBuilder, process, wait};

/// `SupervisorExit::CrashLoop`.
const CRASH_LOOP: i32 = 82;

const STREAMS: usize = 16;

const KILLS: u64 = 12;

fn body() -> Value {
    json!({"prompt": "Tell me of the sea.", "max_tokens": 60, "temperature": 0.7, "seed": 3, "ignore_eos": true})
}

/// Kills each child as soon as one of its tokens was read.
fn kill_each_child_that_delivers(worker: &Worker, bystander: &Bystander) {
    for _ in 0..KILLS {
        worker.replace_child();
        let read = bystander.tokens();
        wait::until("a token of the next child", || {
            (bystander.tokens() > read).then_some(())
        });
    }
}

/// `calm` are the streams of a worker without deaths.
fn outlives_twelve_kills(builder: WorkerBuilder, calm: &[String]) {
    let worker = builder.start();
    let client = worker.client();
    let bystander = Bystander::new(client.clone(), body()).among(STREAMS);
    let disturbed: Vec<_> = thread::scope(|scope| {
        let streams = bystander.begin_all().into_iter();
        let readers: Vec<_> = streams.map(|it| scope.spawn(|| it.end())).collect();
        kill_each_child_that_delivers(&worker, &bystander);
        let readers = readers.into_iter();
        readers
            .map(|it| it.join().expect("a whole stream"))
            .collect()
    });
    let texts: Vec<_> = disturbed.iter().map(|(text, _)| text).collect();
    assert_eq!(texts, calm.iter().collect::<Vec<_>>());
    let recoveries = disturbed
        .iter()
        .filter_map(|(_, end)| end["recoveries"].as_u64());
    assert_eq!(recoveries.max(), Some(KILLS));

    let health = client.health();
    let (faults, reason) = (&health["faults"], health["reason"].as_str());
    assert_eq!(faults["deaths_by_cause"]["signalled"], KILLS, "{faults}");
    assert_eq!(faults["deaths_in_a_row"], 0, "{faults}");
    assert_eq!(health["status"], "degraded", "{health}");
    let told = "within 60 s), the last because: the child was killed by signal 9";
    assert!(reason.is_some_and(|it| it.contains(told)), "{reason:?}");
    assert_eq!(client.get("/readyz").status, 503);
    worker.assert_serves();
}

#[test]
fn twelve_kills_as_soon_as_tokens_flow_again_cost_no_stream_a_byte() {
    let calm: Vec<_> = {
        let worker = Worker::shallow().start();
        let streams = Bystander::new(worker.client(), body()).among(STREAMS);
        let streams = streams.begin_all().into_iter();
        streams.map(|it| it.end().0).collect()
    };
    outlives_twelve_kills(Worker::shallow(), &calm);
    outlives_twelve_kills(Worker::shallow().flag("--standby"), &calm);
}

/// Only requests prove that these children deliver: without them the worker ends at the sixth death.
#[test]
fn children_that_die_of_their_own_after_some_tokens_end_no_worker() {
    const TOKENS: usize = 90;
    let script = Script::always(Moment::MidStream(48), Act::FaultDevice);
    let worker = Worker::scripted(script.token_interval_ms(1)).start();
    let client = worker.client();
    let bystander = Bystander::new(client.clone(), request("a prompt", TOKENS as u32));
    let streams = bystander.among(STREAMS).begin_all();
    for (place, stream) in streams.into_iter().enumerate() {
        let prompt = match place {
            0 => "a prompt".to_owned(),
            place => format!("{place} a prompt"),
        };
        assert_eq!(stream.end().0, scripted_text(&prompt, TOKENS));
    }
    let health = client.health();
    let faults = &health["faults"];
    assert!(
        faults["deaths_by_cause"]["device"].as_u64() >= Some(20),
        "{faults}"
    );
    assert_eq!(faults["quarantined_total"], 0, "{faults}");
    assert_eq!(health["status"], "degraded", "{health}");
}

#[test]
fn children_that_sigstop_has_stopped_do_not_count_against_the_worker() {
    let worker = Worker::scripted(Script::always(Moment::Serving, Act::Stop))
        .arg("--max-restarts", 1)
        .arg("--heartbeat-timeout", "300ms")
        .start();
    let faults = wait::until("five of them to be replaced", || {
        let faults = worker.client().health()["faults"].clone();
        (faults["deaths_by_cause"]["heartbeat_lost"].as_u64() >= Some(5)).then_some(faults)
    });
    assert_eq!(faults["deaths_in_a_row"], 0, "{faults}");
}

#[test]
fn an_idle_child_that_served_for_long_does_not_count_and_one_that_did_not_does() {
    let mut worker = Worker::scripted(Script::behave())
        .arg("--max-restarts", 0)
        .start();
    let steady = RestartPolicy::default().steady.as_millis();
    wait::until("a child to have served for long", || {
        let uptime = worker.client().health()["child"]["uptime_ms"].as_u64()?;
        (u128::from(uptime) > steady + 2_000).then_some(())
    });
    let abort = |worker: &Worker| {
        let child = worker.child_pid().expect("a child serves");
        process::signal(child, Signal::SIGABRT);
        child
    };
    let first = abort(&worker);
    wait::until("the next child to serve", || {
        let health = worker.client().health();
        let is_next = health["child"]["pid"] != first && health["state"] == "serving";
        is_next.then_some(())
    });
    abort(&worker);
    assert_eq!(worker.wait_exit().code(), Some(CRASH_LOOP));
}
