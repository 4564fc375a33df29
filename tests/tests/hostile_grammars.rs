//! Hostile grammars of all families beside streams: each gets a response, at no cost to other clients.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use worker_orcd_tests::bench::siege::{Outcome, send};
use worker_orcd_tests::hostile_grammars::{hostile, siege};
use worker_orcd_tests::process::{self, Thread};
use worker_orcd_tests::{Client, Worker, wait};

const COMPLETIONS: &str = "/v1/completions";

/// Address space of an interpreter, program and stack included (`RLIMIT_AS`).
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;

/// 128 MiB heap of a supervisor while eight grammars of at most 256 KiB each wait.
const SUPERVISOR_BYTES: u64 = 128 << 20;

/// Nice value in `supervisor/engine/src/interpreter/grammars.rs` and `gpu-child/src/grammars.rs`.
const NICENESS_OF_CHECKS: i32 = 10;
const NICENESS_OF_COMPILERS: i32 = 8;

/// Lock of the machine: processes of low priority get little time beside another test.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn free(seed: usize) -> Value {
    json!({"prompt": "A river: ", "max_tokens": 40, "temperature": 0.9, "seed": seed, "ignore_eos": true})
}

fn whole(client: &Client, body: &Value) -> Value {
    let answer = client.post(COMPLETIONS, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0].clone()
}

fn held(fields: Value, tokens: usize) -> Vec<u8> {
    let mut body = fields;
    body["prompt"] = json!("Say it: ");
    body["max_tokens"] = json!(tokens);
    body["seed"] = json!(1);
    body.to_string().into_bytes()
}

/// Served, refused, or deferred, in the format of the OpenAI API.
fn assert_is_answered(told: &Outcome) {
    let Outcome {
        family,
        status,
        text,
        ..
    } = told;
    let answer: Value = serde_json::from_str(text).expect("JSON");
    match status {
        200 => assert!(answer["choices"][0]["text"].is_string(), "{family}: {text}"),
        400 if text.contains("cannot go on under its grammar") => {}
        400 if text.contains("must have at most") => {}
        400 => assert_eq!(
            answer["error"]["code"], "invalid_grammar",
            "{family}: {text}"
        ),
        429 => assert!(text.contains("too many grammars"), "{family}: {text}"),
        _ => panic!("{family}: {status} {text}"),
    }
}

/// Peak address space of any interpreter.
fn watched(worker: &Worker, over: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !over.load(Ordering::Relaxed) {
        for pid in process::interpreters(worker.pid()) {
            peak = peak.max(process::peak_address_space_bytes(pid).unwrap_or(0));
        }
        thread::sleep(Duration::from_millis(5));
    }
    peak
}

#[test]
fn grammars_of_each_family_are_answered_beside_streams_that_keep_their_bytes() {
    let _turn = alone();
    let worker = Worker::shallow().arg("--max-running", 8).start();
    let client = worker.client();
    let alone: Vec<Value> = (0..4).map(|seed| whole(&client, &free(seed))).collect();
    let hostile: Vec<_> = siege(7, 80)
        .into_iter()
        .map(|one| (one.family, held(one.fields, 6)))
        .collect();
    let over = AtomicBool::new(false);
    let peak = thread::scope(|scope| {
        let watch = scope.spawn(|| watched(&worker, &over));
        for (seed, alone) in alone.iter().enumerate() {
            let (client, over) = (client.clone(), &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(whole(&client, &free(seed)), *alone);
                }
            });
        }
        let told = send(&client, 8, &hostile);
        over.store(true, Ordering::Relaxed);
        let told = told.expect("all are answered");
        assert_eq!(told.len(), hostile.len());
        told.iter().for_each(assert_is_answered);
        let of = |status| told.iter().filter(|it| it.status == status).count();
        assert!(of(200) > 0 && of(400) > 0, "nothing was tried: {told:?}");
        watch.join().expect("nobody panics")
    });
    assert!(peak > 0 && peak <= ADDRESS_SPACE_BYTES, "{peak} bytes");
    let own = process::anonymous_rss_bytes(worker.pid()).expect("it lives");
    assert!(own <= SUPERVISOR_BYTES, "{own} bytes");
    assert_eq!(worker.generation(), Some(1), "no child died of a grammar");
    worker.assert_serves();
}

fn thread_named(pid: u32, name: &str) -> Thread {
    let threads = process::threads(pid);
    let found = threads.iter().find(|it| it.name == name);
    found.unwrap_or_else(|| panic!("{threads:?}")).clone()
}

#[test]
fn what_grammars_cost_gives_way_to_streams() {
    let _turn = alone();
    let worker = Worker::shallow().start();
    let client = worker.client();
    let child = worker.child_pid().expect("a child serves");
    // The cost of its masks grows with every token.
    let ambiguous =
        json!({"structured_outputs": {"grammar": "start: s\ns: s s | s s s | s s s s | /[a-z]/"}});
    let body = held(ambiguous, 40);
    let answer = wait::until("the grammar to be tried", || {
        let answer = client
            .try_request("POST", COMPLETIONS, &[], &body)
            .expect("an answer");
        (answer.status != 429).then_some(answer)
    });
    assert!([200, 400].contains(&answer.status), "{}", answer.text());
    let compiles = thread_named(child, "grammar");
    let slow = thread_named(child, "slow-mask");
    assert_eq!(compiles.niceness, NICENESS_OF_COMPILERS);
    assert_eq!(slow.niceness, NICENESS_OF_COMPILERS);
    assert!(
        slow.cpu_time > Duration::ZERO,
        "its slow masks were computed elsewhere"
    );
    for name in ["mask", "compute-1"] {
        assert_eq!(thread_named(child, name).niceness, 0, "{name}");
    }
    let nice = |pid| process::niceness(pid).expect("it lives");
    let checks = || -> Vec<u32> {
        let all = process::interpreters(worker.pid());
        all.into_iter()
            .filter(|pid| nice(*pid) == NICENESS_OF_CHECKS)
            .collect()
    };
    // Interpreters of templates keep their priority; a new one for grammars has the same as the first.
    let before = wait::until("both to give way", || {
        Some(checks()).filter(|it| it.len() == 2)
    });
    process::signal(before[0], Signal::SIGKILL);
    wait::until("another in its place", || {
        let _ = client.try_request(
            "POST",
            COMPLETIONS,
            &[],
            &held(
                json!({
                    "structured_outputs": {"choice": [format!("{:?}", std::time::Instant::now())]},
                }),
                2,
            ),
        );
        let now = checks();
        (now.len() == 2 && !now.contains(&before[0])).then_some(())
    });
}

/// Optional names: compilation time grows with the square of their number, to seconds here.
fn endless() -> Value {
    let names = (0..8000).map(|it| (format!("name{it}"), json!({})));
    let names: serde_json::Map<String, Value> = names.collect();
    json!({"structured_outputs": {"json": {"type": "object", "properties": names}}})
}

#[test]
fn a_grammar_that_cannot_be_checked_is_known_when_its_client_comes_back() {
    let _turn = alone();
    let worker = Worker::shallow().start();
    let client = worker.client();
    let (_, nested) = hostile()
        .into_iter()
        .find(|(name, _)| *name == "a chain")
        .expect("a grammar of this name");
    let cases = [
        (endless(), "ms of processor time"),
        (nested, "nesting too deep"),
    ];
    for (grammar, reason) in cases {
        let body = held(grammar, 2);
        let ask = || {
            client
                .try_request("POST", COMPLETIONS, &[], &body)
                .expect("an answer")
        };
        // 503: on a busy machine the check hardly ran.
        let is_decided = |status: u16| ![429, 503].contains(&status);
        let refusal = wait::until("a refusal", || {
            Some(ask()).filter(|it| is_decided(it.status))
        });
        let text = refusal.text();
        assert_eq!(refusal.status, 400, "{text}");
        assert!(text.contains(reason), "{text}");
        let checks = || worker.log.events("interpreter_ended").len();
        let before = checks();
        assert_eq!(ask().json()["error"], refusal.json()["error"]);
        assert_eq!(checks(), before, "the grammar was checked again");
    }
}
