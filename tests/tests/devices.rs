//! Worker with several devices: a death, drain, burst or condemnation affects one device only, and its streams go on on
//! another, byte for byte.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use worker_orcd_tests::beside::Begun;
use worker_orcd_tests::client::{Client, Response};
use worker_orcd_tests::nvml::PlayedNvml;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Act, Bystander, Moment, Script, Worker, WorkerBuilder, process, wait};

/// `SupervisorExit::CrashLoop`.
const CRASH_LOOP: i32 = 82;

/// Streams: enough that each device has some.
const STREAMS: usize = 4;

/// Prompt that scripted children repeat.
const CARD_PROMPT: &str = "to the end of a card ";

fn two() -> WorkerBuilder {
    Worker::shallow()
        .arg("--device", "cpu,cpu")
        .arg("--threads", 1)
        .arg("--max-context", 1024)
        .arg("--kv-cache-size", "96MiB")
}

fn body() -> Value {
    json!({"prompt": "Tell me of the sea.", "max_tokens": 220, "temperature": 0.7, "seed": 3,
           "ignore_eos": true})
}

fn device(client: &Client, number: usize) -> Value {
    client.health()["devices"][number].clone()
}

/// Child that serves on that device.
fn child_of(client: &Client, number: usize) -> Option<u32> {
    let device = device(client, number);
    let serves = device["state"] == "serving";
    let pid = device["child"]["pid"].as_u64().filter(|_| serves)?;
    Some(pid as u32)
}

fn children(client: &Client) -> [u32; 2] {
    [0, 1].map(|number| {
        wait::until("a child to serve on each device", || {
            child_of(client, number)
        })
    })
}

fn order(client: &Client, number: usize, order: &str) -> Response {
    client.post(&format!("/devices/{number}/{order}"), &json!({}))
}

fn accept(client: &Client, number: usize, wish: &str) {
    let answer = order(client, number, wish);
    assert_eq!(answer.status, 202, "{}", answer.text());
}

fn wait_standing(client: &Client, number: usize, standing: &str) -> Value {
    wait::until(standing, || {
        let device = device(client, number);
        (device["standing"] == standing).then_some(device)
    })
}

/// Waits until the worker reports fewer devices than configured.
fn degraded(client: &Client) -> Value {
    wait::until("the worker to call itself degraded", || {
        let health = client.get("/health");
        let told = (health.status, health.json());
        (told.0 == 200 && told.1["status"] == "degraded").then_some(told.1)
    })
}

/// Readmits the device, and waits until its child serves.
fn readmit(client: &Client, number: usize) {
    wait::until("the device to be empty", || {
        (device(client, number)["may_readmit"] == true).then_some(())
    });
    accept(client, number, "readmit");
    wait_standing(client, number, "in_use");
    wait::until("a child to serve there", || child_of(client, number));
}

/// Streams of each device, once all of them run.
fn running(client: &Client) -> [usize; 2] {
    wait::until("all streams to run", || {
        let of = |number| device(client, number)["running"].as_u64();
        let running = [of(0)? as usize, of(1)? as usize];
        (running.iter().sum::<usize>() == STREAMS).then_some(running)
    })
}

/// Begins streams until some of them are on each device. A child that is overdue on a busy machine gets none.
fn begin_on_both(client: &Client, bystander: &Bystander) -> Vec<Begun> {
    wait::until("streams on both devices", || {
        let streams = bystander.begin_all();
        let on_both = running(client).iter().all(|it| *it > 0);
        on_both.then_some(streams)
    })
}

/// Texts of the streams without a disturbance, the same for each worker.
static TEXTS: OnceLock<Vec<String>> = OnceLock::new();

/// Running streams, some of them on each device.
struct Crowd {
    texts: &'static [String],
    streams: Vec<Begun>,
}

impl Crowd {
    fn begin(client: &Client) -> Self {
        let bystander = Bystander::new(client.clone(), body()).among(STREAMS);
        let texts = TEXTS.get_or_init(|| {
            let undisturbed = bystander.begin_all().into_iter();
            undisturbed.map(|it| it.end().0).collect()
        });
        let streams = begin_on_both(client, &bystander);
        Self { texts, streams }
    }

    fn more(&mut self, tokens: usize) {
        self.streams.iter_mut().for_each(|it| it.more(tokens));
    }

    /// Reads to the end and checks the texts. Returns the number of recoveries.
    fn end(self) -> u64 {
        let mut recoveries = 0;
        for (stream, expected) in self.streams.into_iter().zip(self.texts) {
            let (text, end) = stream.end();
            assert_eq!(text, *expected);
            recoveries += end["recoveries"].as_u64().expect("a number");
        }
        recoveries
    }
}

#[test]
fn streams_of_a_child_that_dies_go_on_with_the_other_which_notices_nothing() {
    let worker = two().start();
    let client = worker.client();
    let [first, second] = children(&client);
    let mut crowd = Crowd::begin(&client);
    crowd.more(40);
    process::signal(second, Signal::SIGKILL);
    assert!(crowd.end() > 0, "it had streams");
    let adopted = client.health()["load"]["adopted_tokens"].as_u64();
    assert!(adopted > Some(0), "the other has its pages: {adopted:?}");
    assert_eq!(children(&client)[0], first);
    assert_ne!(children(&client)[1], second);
    let health = client.health();
    assert_eq!(health["status"], "healthy");
    assert_eq!(health["devices"][0]["deaths_in_window"], 0);
    assert_eq!(health["devices"][1]["deaths_in_window"], 1);
    assert_eq!(worker.crash_reports().len(), 1);
}

/// Reads streams of scripted children to their ends. Returns the number of recoveries.
fn end_as_scripted(streams: Vec<Begun>, tokens: usize) -> u64 {
    let mut recoveries = 0;
    for (place, stream) in streams.into_iter().enumerate() {
        let (text, end) = stream.end();
        let prompt = match place {
            0 => CARD_PROMPT.to_owned(),
            place => format!("{place} {CARD_PROMPT}"),
        };
        assert_eq!(text, scripted_text(&prompt, tokens));
        recoveries += end["recoveries"].as_u64().expect("a number");
    }
    recoveries
}

/// Runs streams while one scripted child performs `act` once. Returns how often streams moved to the other, healthy
/// device.
fn streams_beside(act: Act) -> (Worker, u64) {
    let script = Script::once(Moment::MidStream(40), act).token_interval_ms(10);
    let worker = Worker::scripted(script)
        .arg("--device", "cpu,cpu")
        .arg("--heartbeat-timeout", "30s")
        .start();
    let client = worker.client();
    children(&client);
    let bystander = Bystander::new(client.clone(), request(CARD_PROMPT, 200));
    let streams = bystander.among(STREAMS).begin_all();
    let recoveries = end_as_scripted(streams, 200);
    assert_eq!(worker.crash_reports().len(), 0, "nobody died by then");
    (worker, recoveries)
}

#[test]
fn streams_of_a_child_that_falls_silent_go_on_elsewhere_before_it_is_given_up() {
    let (worker, recoveries) = streams_beside(Act::Stall);
    assert!(recoveries > 0, "it had streams");
    let overdue = &worker.client().health()["faults"]["overdue_children"];
    assert!(overdue.as_u64() > Some(0), "{overdue}");
}

#[test]
fn a_child_whose_step_ends_late_loses_its_streams_and_takes_new_ones() {
    let (worker, recoveries) = streams_beside(Act::LateStep);
    assert!(recoveries > 0, "it had streams");
    let client = worker.client();
    let before = children(&client);
    let bystander = Bystander::new(client.clone(), request(CARD_PROMPT, 100)).among(STREAMS);
    let streams = begin_on_both(&client, &bystander);
    assert_eq!(end_as_scripted(streams, 100), 0);
    assert_eq!(children(&client), before, "neither has died");
}

/// A recovery is permitted only where the log names an overdue child: a busy machine may keep one silent.
fn end_without_a_death(crowd: Crowd, worker: &Worker) {
    let interrupted = crowd.end();
    let overdue = worker.log.events("child_overdue");
    let left: u64 = overdue.iter().filter_map(|it| it["streams"].as_u64()).sum();
    assert!(
        interrupted <= left,
        "{interrupted} interruptions, {left} streams of overdue children"
    );
}

#[test]
fn a_device_is_drained_under_its_streams_and_used_again() {
    let worker = two().start();
    let client = worker.client();
    let [first, second] = children(&client);
    let mut crowd = Crowd::begin(&client);
    crowd.more(5);
    accept(&client, 1, "drain");
    let drained = wait_standing(&client, 1, "drained");
    assert_eq!(drained["in_use"], false);
    assert!(drained["child"].is_null(), "{drained}");
    let reason = drained["reason"].as_str().expect("a reason");
    assert!(reason.contains("operator"), "{reason}");
    assert!(!process::is_alive(second));
    let health = degraded(&client);
    let reason = health["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("device 1: the operator has drained it"),
        "{reason}"
    );
    assert_eq!(client.get("/readyz").status, 200);
    wait::until("all of them on the other device", || {
        (device(&client, 0)["running"] == STREAMS).then_some(())
    });

    let refused = order(&client, 0, "drain");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("no other"), "{}", refused.text());
    let refused = order(&client, 1, "drain");
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("not in use"), "{}", refused.text());
    for (number, wish) in [(2, "drain"), (2, "readmit"), (300, "drain")] {
        assert_eq!(order(&client, number, wish).status, 404);
    }
    crowd.more(5);
    readmit(&client, 1);
    assert_eq!(order(&client, 1, "readmit").status, 503, "it is in use");
    end_without_a_death(crowd, &worker);
    assert_eq!(children(&client)[0], first);
    assert_eq!(worker.crash_reports().len(), 0);
    end_without_a_death(Crowd::begin(&client), &worker);
}

/// The drain may be over by then, or in progress.
#[test]
fn a_device_that_is_drained_at_an_upgrade_is_drained_behind_it() {
    let worker = two().start();
    let client = worker.client();
    let [first, second] = children(&client);
    let mut crowd = Crowd::begin(&client);
    crowd.more(5);
    accept(&client, 1, "drain");
    worker.upgrade();
    let drained = wait_standing(&client, 1, "drained");
    let reason = drained["reason"].as_str().expect("a reason");
    assert!(reason.contains("operator"), "{reason}");
    wait::until("its child to be gone", || {
        (!process::is_alive(second)).then_some(())
    });
    crowd.end();
    readmit(&client, 1);
    assert_eq!(children(&client)[0], first);
    assert_eq!(worker.crash_reports().len(), 0, "nobody died");
}

/// Kills each child of the device before it can deliver a token, by a signal that counts as its own fault, until no
/// more are started. A child that does not serve has no request, so none is suspected.
fn wear_out(client: &Client, number: usize) -> Value {
    let mut last = None;
    wait::until("the device to be worn out", || {
        let device = device(client, number);
        if device["standing"] == "failed" {
            return Some(device);
        }
        let child = device["child"]["pid"].as_u64().map(|pid| pid as u32);
        let child = child.filter(|it| Some(*it) != last)?;
        let signal = match device["state"] == "serving" {
            true => Signal::SIGKILL,
            false => Signal::SIGABRT,
        };
        process::signal(child, signal);
        last = Some(child);
        None
    })
}

#[test]
fn a_device_that_wears_out_goes_alone_and_the_last_one_takes_the_worker_along() {
    let mut worker = two().arg("--max-restarts", 2).start();
    let client = worker.client();
    let [first, _] = children(&client);
    let mut crowd = Crowd::begin(&client);
    crowd.more(5);
    let failed = wear_out(&client, 1);
    let reason = failed["reason"].as_str().expect("a reason");
    assert!(reason.contains("killed by signal 6"), "{reason}");
    let health = degraded(&client);
    assert!(health["reason"].as_str().expect("words").contains(reason));
    assert_eq!(client.get("/readyz").status, 200);
    assert_eq!(child_of(&client, 0), Some(first));
    assert!(crowd.end() > 0, "it had streams");
    assert_eq!(client.health()["faults"]["quarantined_total"], 0);

    worker.upgrade();
    let after = degraded(&client);
    assert_eq!(after["reason"], health["reason"]);
    assert_eq!(device(&client, 1)["reason"], failed["reason"]);
    assert_eq!(child_of(&client, 0), Some(first), "it lives on");

    readmit(&client, 1);
    let deaths = || client.health()["faults"]["crash_reports"].clone();
    let before = deaths();
    Crowd::begin(&client).end();
    assert_eq!(deaths(), before);

    wear_out(&client, 1);
    // The worker may be gone before the query.
    while let Some(child) = last_child(&client) {
        process::signal(child, Signal::SIGABRT);
        wait::until("it to be gone", || {
            (!process::is_alive(child)).then_some(())
        });
    }
    assert_eq!(worker.wait_exit().code(), Some(CRASH_LOOP));
}

/// Next child of the first device; `None` if the worker ends.
fn last_child(client: &Client) -> Option<u32> {
    wait::until("a child or the end", || {
        let Ok(health) = client.try_get("/health").and_then(|it| it.try_json()) else {
            return Some(None);
        };
        let pid = health["devices"][0]["child"]["pid"].as_u64();
        let pid = pid
            .map(|pid| pid as u32)
            .filter(|pid| process::is_alive(*pid));
        pid.map(Some)
    })
}

#[test]
fn children_and_the_supervisor_are_replaced_by_order_on_both_devices() {
    let worker = two().start();
    let client = worker.client();
    let before = children(&client);
    let mut crowd = Crowd::begin(&client);
    crowd.more(5);
    assert_eq!(client.post("/restart", &json!({})).status, 202);
    let replaced = wait::until("other children to serve", || {
        let children = [child_of(&client, 0)?, child_of(&client, 1)?];
        let are_others = children.iter().all(|it| !before.contains(it));
        are_others.then_some(children)
    });
    crowd.more(5);
    for _ in 0..2 {
        worker.upgrade();
        assert_eq!(children(&client), replaced, "they live on");
    }
    crowd.end();
    assert_eq!(worker.crash_reports().len(), 0, "nobody died");
    assert_eq!(client.health()["status"], "healthy");
}

/// Cached tokens of the prompt.
fn cached(answer: &Value) -> u64 {
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().expect("a number")
}

#[test]
fn the_second_turn_of_a_conversation_goes_where_the_first_is_cached() {
    let worker = two().start();
    let client = worker.client();
    let other_load = Bystander::new(client.clone(), body()).among(2);
    let mut said = Vec::new();
    for talk in 0..4 {
        let streams = other_load.begin_all();
        let first = format!(
            "Talk number {talk}. {}",
            "Whales sing in the deep sea. ".repeat(40)
        );
        let mut turns = vec![json!({"role": "user", "content": first})];
        let ask = |turns: &[Value]| {
            let answer = client.post(
                "/v1/chat/completions",
                &json!({"messages": turns, "max_tokens": 8, "seed": 1}),
            );
            assert_eq!(answer.status, 200, "{}", answer.text());
            answer.json()
        };
        let answer = ask(&turns);
        turns.push(answer["choices"][0]["message"].clone());
        turns.push(json!({"role": "user", "content": "And then?"}));
        let second = ask(&turns);
        let (cached, prompt) = (cached(&second), &answer["usage"]["prompt_tokens"]);
        assert!(cached * 2 > prompt.as_u64().expect("a number"), "{second}");
        said.push(streams.into_iter().map(|it| it.end().0).collect::<Vec<_>>());
    }
    assert!(said.windows(2).all(|two| two[0] == two[1]));
}

#[test]
fn a_card_that_is_not_there_is_left_out_and_the_cpu_serves() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        eprintln!("skipped: this machine has a card");
        return;
    }
    let worker = Worker::shallow()
        .arg("--device", "cuda:0,cpu")
        .arg("--kv-cache-size", "96MiB")
        .start();
    let client = worker.client();
    let missing = wait_standing(&client, 0, "failed");
    let reason = missing["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("cuda:0") || reason.contains("CUDA"),
        "{reason}"
    );
    let health = degraded(&client);
    assert!(health["reason"].as_str().expect("words").contains(reason));
    assert_eq!(health["devices"][1]["standing"], "in_use");
    assert_eq!(client.get("/readyz").status, 200);
    worker.assert_serves();
}

#[test]
fn a_card_that_its_driver_condemns_is_left_out_and_the_other_serves() {
    for (xid, need) in [(79, "reboot"), (95, "reset")] {
        let mut played = PlayedNvml::build();
        let script = Script::behave().token_interval_ms(10);
        let worker = played.seen_twice_by(Worker::scripted(script)).start();
        let client = worker.client();
        for number in [0, 1] {
            wait::until("NVML to be watched", || {
                let nvml = device(&client, number)["gpu"]["nvml"]["state"].clone();
                (nvml == "watching").then_some(())
            });
        }
        let [first, second] = children(&client);
        let bystander = Bystander::new(client.clone(), request(CARD_PROMPT, 400));
        let bystander = bystander.among(STREAMS);
        let streams = bystander.begin_all();
        wait::until("streams on the second card", || {
            (device(&client, 1)["running"].as_u64() > Some(0)).then_some(())
        });
        played.plays(&format!("xid {xid} 1"));
        let condemned = wait_standing(&client, 1, "condemned");
        let reason = condemned["reason"].as_str().expect("a reason");
        assert!(reason.contains(need), "{reason}");
        assert!(reason.contains(&format!("Xid {xid}")), "{reason}");
        assert_eq!(condemned["gpu"]["last_xid"]["xid"], xid);
        let health = degraded(&client);
        assert!(health["reason"].as_str().expect("words").contains(reason));
        assert!(
            health["devices"][0]["gpu"]["last_xid"].is_null(),
            "{health}"
        );
        assert_eq!(child_of(&client, 0), Some(first));
        wait::until("its child to end", || {
            (!process::is_alive(second)).then_some(())
        });
        assert!(end_as_scripted(streams, 400) > 0, "it had streams");
        worker.assert_serves();
        readmit(&client, 1);
    }
}
