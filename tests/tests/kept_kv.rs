//! Keys and values outlive the child that computed them: the next one copies the pages of the streams that it
//! continues, and then their memory is freed.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use worker_orcd_tests::mappings::kv_caches_of;
use worker_orcd_tests::{Bystander, Client, Worker, WorkerBuilder, wait};

/// Positions after which the CPU device seals a page again.
const EVERY: u64 = 2;

fn with_standby() -> WorkerBuilder {
    Worker::shallow().flag("--standby")
}

/// Request with a prompt of so many words, and more tokens, and a limit of `max_tokens`.
fn body(words: usize, max_tokens: u32) -> Value {
    let prompt = "Tell me of the sea and of the ships. ".repeat(words / 9 + 1);
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.7, "seed": 3, "ignore_eos": true,
    })
}

/// Standby that can adopt pages from the serving child.
fn standby(worker: &Worker) -> u32 {
    wait::until("a child to stand by", || {
        let health = worker.client().health();
        let standby = &health["standby"];
        let is_behind = standby["adopts_from"] == health["child"]["generation"];
        (standby["state"] == "standing_by" && is_behind)
            .then(|| standby["child"]["pid"].as_u64().expect("a process") as u32)
    })
}

/// Tokens that children have adopted, from unchanged pages.
fn adopted(client: &Client) -> u64 {
    let [changed, tokens] = client
        .try_metrics([
            "worker_orcd_kv_changed_pages_total",
            "worker_orcd_kv_adopted_tokens_total",
        ])
        .expect("the metrics");
    assert_eq!(changed, 0);
    tokens
}

/// The stream is as long as one may be, so that it does not end before the last death. Its first two hundred tokens are read.
#[test]
fn a_stream_goes_on_with_the_pages_of_every_child_that_died_under_it() {
    let worker = with_standby().start();
    let client = worker.client();
    let alone = Bystander::new(client.clone(), body(200, 250)).alone();
    standby(&worker);
    let mut stream = Bystander::new(client.clone(), body(200, 2048)).begin();
    let mut sum = 0;
    for _ in 0..3 {
        stream.more(10);
        let successor = standby(&worker);
        worker.kill_child();
        wait::until("it to serve", || {
            (worker.child_pid() == Some(successor)).then_some(())
        });
        stream.more(5);
        let tokens = wait::until("a word of what was adopted", || {
            adopted(&client).checked_sub(sum).filter(|more| *more > 0)
        });
        assert!(tokens >= 200 && tokens.is_multiple_of(EVERY), "{tokens}");
        sum += tokens;
    }
    stream.more(150);
    let text = stream.text();
    assert!(alone.starts_with(text), "{text:?} of {alone:?}");
    assert_eq!(adopted(&client), sum);
    let recoveries = client.try_metrics(["worker_orcd_recoveries_total"]);
    assert_eq!(recoveries.expect("the metrics"), [3]);
}

/// Holds whether or not the streams reach the next child at once.
#[test]
fn streams_that_begin_alike_share_the_pages_that_are_adopted() {
    let worker = with_standby().start();
    let client = worker.client();
    let bystander = Bystander::new(client.clone(), body(200, 120));
    let alone = bystander.alone();
    standby(&worker);
    let mut streams: Vec<_> = (0..6).map(|_| bystander.begin()).collect();
    streams.iter_mut().for_each(|stream| stream.more(10));
    worker.kill_child();
    streams.iter_mut().for_each(|stream| stream.more(5));
    let tokens = wait::until("a word of what was adopted", || {
        Some(adopted(&client)).filter(|tokens| *tokens > 0)
    });
    assert!((200..450).contains(&tokens), "{tokens}");
    for stream in streams {
        assert_eq!(stream.end().0, alone);
    }
}

/// Allocation at the death would delay the copies.
#[test]
fn a_standby_takes_memory_for_what_the_other_computes() {
    let worker = with_standby().start();
    standby(&worker);
    let client = worker.client();
    let taken = || client.health()["standby"]["memory_bytes"].as_u64();
    let before = taken().expect("it is told");
    let text = Bystander::new(client.clone(), body(200, 120)).alone();
    assert!(!text.is_empty());
    wait::until("memory to be taken", || taken().filter(|now| *now > before));
}

#[test]
fn nobody_has_the_memory_of_a_dead_child_once_its_streams_have_gone_on() {
    let worker = with_standby().start();
    let bystander = Bystander::new(worker.client(), body(100, 120));
    let supervisor = worker.pid();
    let mut dead = BTreeSet::new();
    for _ in 0..3 {
        let next = standby(&worker);
        let child = worker.child_pid().expect("a child");
        let (own, of_next) = (kv_caches_of(child), kv_caches_of(next));
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(
            of_next.len(),
            2,
            "its own, and that of the child that serves"
        );
        assert_eq!(kv_caches_of(supervisor), of_next);
        assert!(dead.is_disjoint(&of_next));
        let mut stream = bystander.begin();
        stream.more(5);
        dead.extend(own);
        worker.kill_child();
        assert_eq!(stream.end().1["recoveries"], 1);
    }
    standby(&worker);
    let held = kv_caches_of(supervisor);
    assert!(dead.is_disjoint(&held), "{held:?}");
}

#[test]
fn without_a_child_that_stands_by_nothing_is_shared_and_nothing_is_adopted() {
    for builder in [Worker::shallow(), with_standby().flag("--no-prefix-cache")] {
        let worker = builder.start();
        let client = worker.client();
        assert_eq!(kv_caches_of(worker.pid()).len(), 0);
        let bystander = Bystander::new(client.clone(), body(100, 120));
        let mut stream = bystander.begin();
        stream.more(10);
        worker.kill_child();
        let (text, _) = stream.end();
        assert_eq!(text, bystander.alone());
        assert_eq!(adopted(&client), 0);
    }
}
