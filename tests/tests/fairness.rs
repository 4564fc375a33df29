//! Clients that arrive behind a crowd of long prompts. Waits are measured in prompts of the crowd, not in seconds: how
//! many of them had their first token in the meantime.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use worker_orcd_tests::client::{Client, EventStream};
use worker_orcd_tests::worker::{WorkerBuilder, request, unique};
use worker_orcd_tests::{Script, Worker, wait};

/// Prompt with a beginning of its own, of about 500 tokens: dozens of steps.
fn long(n: usize) -> Value {
    json!({
        "job_id": format!("long-{}", unique()), "max_tokens": 2, "temperature": 0.0,
        "prompt": format!("{n} numbers. ") + &"The history of numbers is a long one. ".repeat(55),
    })
}

fn short() -> Value {
    json!({
        "job_id": format!("short-{}", unique()), "max_tokens": 6, "temperature": 0.0,
        "prompt": "Name three rivers.", "ignore_eos": true,
    })
}

/// Sends prompts one after the other, so that they wait in this order, and counts first tokens.
struct Crowd {
    first_tokens: Arc<AtomicUsize>,
    readers: Vec<JoinHandle<Option<String>>>,
}

impl Crowd {
    fn of(client: &Client, size: usize) -> Self {
        let first_tokens = Arc::new(AtomicUsize::new(0));
        let read = |n| {
            let mut stream = client.execute(&long(n));
            let first_tokens = Arc::clone(&first_tokens);
            thread::spawn(move || {
                let text = text_of(&mut stream, || {
                    first_tokens.fetch_add(1, Ordering::SeqCst);
                });
                text.ok()
            })
        };
        Self {
            readers: (0..size).map(read).collect(),
            first_tokens: Arc::clone(&first_tokens),
        }
    }

    fn first_tokens(&self) -> usize {
        self.first_tokens.load(Ordering::SeqCst)
    }
}

/// Reads to the end. Returns an error if the stream breaks, which it does after the worker's end.
fn text_of(stream: &mut EventStream, on_first_token: impl FnOnce()) -> Result<String, String> {
    let mut on_first_token = Some(on_first_token);
    let mut text = String::new();
    loop {
        match stream.try_next() {
            Err(error) => return Err(error.to_string()),
            Ok(None) => return Ok(text),
            Ok(Some(event)) if event.name == "token" => {
                text += event.json()["t"].as_str().expect("t is text");
                on_first_token.take().into_iter().for_each(|tell| tell());
            }
            Ok(Some(_)) => {}
        }
    }
}

fn wait_for_load(worker: &Worker, requests: u64) {
    wait::until("the child to have them all", || {
        let load = &worker.client().health()["load"];
        let has = load["running"].as_u64()? + load["waiting"].as_u64()?;
        (has == requests).then_some(())
    });
}

fn real_worker() -> WorkerBuilder {
    // A repeated prompt is computed again.
    Worker::shallow().flag("--no-prefix-cache")
}

#[test]
fn a_short_prompt_passes_eight_and_forty_long_ones_of_its_own_client() {
    let worker = real_worker().start();
    let client = worker.client();
    let short_alone = client.execute(&short()).transcript().text();
    let long_alone = client.execute(&long(0)).transcript().text();
    let eight = Crowd::of(&client, 8);
    wait_for_load(&worker, 8);
    assert_short_passes(&client, &eight, &short_alone);

    let forty = Crowd::of(&client, 32);
    assert!(
        eight.first_tokens() + forty.first_tokens() < 8,
        "still a crowd"
    );
    assert_short_passes(&client, &forty, &short_alone);

    // Later prompts did not take the oldest one's share.
    let oldest = eight.readers.into_iter().next().unwrap();
    assert_eq!(oldest.join().unwrap(), Some(long_alone));
    assert!(forty.first_tokens() <= 2);
}

fn assert_short_passes(client: &Client, crowd: &Crowd, alone: &str) {
    let before = crowd.first_tokens();
    let mut passed = None;
    let text = text_of(&mut client.execute(&short()), || {
        passed = Some(crowd.first_tokens() - before);
    });
    assert_eq!(text.as_deref(), Ok(alone), "the same bytes as alone");
    let passed = passed.expect("a token");
    assert!(passed <= 1, "{passed} long prompts were computed first");
}

#[test]
fn two_clients_get_equal_shares_however_many_prompts_one_of_them_sends() {
    let worker = with_keys(real_worker());
    let (many, few) = (
        worker.client().with_key("many"),
        worker.client().with_key("few"),
    );
    let crowd = Crowd::of(&many, 16);
    wait::until("the first prompts to be computed", || {
        let health = few.get("/health").json();
        (health["load"]["running"].as_u64()? > 0).then_some(())
    });
    let before = crowd.first_tokens();
    let late = Crowd::of(&few, 3);
    for reader in late.readers {
        assert!(reader.join().unwrap().is_some());
    }
    let passed = crowd.first_tokens() - before;
    // As many of each in the same time, and two that had begun before.
    assert!(
        passed <= 3 + 2,
        "{passed} prompts of the other client were computed meanwhile"
    );
    assert!(passed >= 1, "which did not stand still");
}

#[test]
fn one_client_cannot_fill_the_queue_for_others() {
    let script = Script::behave().max_running(1).token_interval_ms(20);
    let worker = Worker::scripted(script)
        .arg("--max-running", 1)
        .arg("--max-queue", 16);
    let worker = with_keys(worker);
    let (many, few) = (
        worker.client().with_key("many"),
        worker.client().with_key("few"),
    );
    let mut streams = Vec::new();
    let refusal = loop {
        let answer = many.open("/execute", &request("long", 2000)).unwrap();
        if answer.status != 200 {
            break answer.into_response().unwrap();
        }
        streams.push(answer);
    };
    assert_eq!(
        streams.len(),
        1 + 16 - 2,
        "one runs, and two places of sixteen are kept"
    );
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    assert!(refusal.header("retry-after").is_some());
    assert!(refusal.text().contains("QUEUE_FULL"), "{}", refusal.text());
    assert!(
        refusal.text().contains("kept for others"),
        "{}",
        refusal.text()
    );
    let other = few.open("/execute", &request("short", 1)).unwrap();
    assert_eq!(other.status, 200);
    let refused = few.open("/execute", &request("short", 1)).unwrap();
    assert_eq!(refused.status, 429, "now it has one there itself");
}

fn with_keys(worker: WorkerBuilder) -> Worker {
    let keys = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(keys.path(), "many\nfew\n").expect("the file is ours");
    fs::set_permissions(keys.path(), fs::Permissions::from_mode(0o600)).expect("the file is ours");
    worker.arg("--api-key-file", keys.path().display()).start()
}
