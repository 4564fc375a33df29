//! Texts of megabytes: they cost their senders time, and no other client.

use serde_json::{Value, json};
use std::io::Write as _;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use std::time::Instant;
use worker_orcd_tests::worker::{WorkerBuilder, unique};
use worker_orcd_tests::{Bystander, Client, Script, Worker, on_the_beat, process, wait};

const ANY_LENGTH: &str = "4000000000";

/// Messages of so many characters each.
fn messages(count: usize, chars: usize) -> String {
    let message = json!({"role": "user", "content": "x".repeat(chars)});
    json!({"messages": vec![message; count], "max_tokens": 1}).to_string()
}

/// Worker with one runtime thread, which one request can block for all.
fn scripted() -> WorkerBuilder {
    Worker::scripted(on_the_beat()).env("TOKIO_WORKER_THREADS", "1")
}

/// Prompt of as many one-character tokens as might fit the context.
fn letters() -> String {
    json!({"prompt": "a b ".repeat(225_000), "max_tokens": 1}).to_string()
}

#[test]
fn a_short_prompt_is_not_tokenized_behind_long_ones() {
    const LONG: usize = 6;
    /// Limit of the average slowdown: long texts compute on the same cores.
    const TIMES_ALONE: u32 = 8;
    let worker = scripted().arg("--max-prompt-chars", ANY_LENGTH).start();
    let (client, body) = (worker.client(), letters());
    let short = json!({"prompt": "five kilobytes ".repeat(340), "max_tokens": 1});
    // Average, until `is_over`.
    let short_takes = |is_over: &dyn Fn(u32) -> bool| {
        let (began, mut passed) = (Instant::now(), 0);
        while !is_over(passed) {
            assert_eq!(client.post("/v1/completions", &short).status, 200);
            passed += 1;
        }
        began.elapsed() / passed.max(1)
    };
    let passes = || {
        let alone = short_takes(&|passed| passed == 100);
        let answered = AtomicUsize::new(0);
        let beside = thread::scope(|scope| {
            for _ in 0..LONG {
                scope.spawn(|| {
                    let answer = client.post_bytes("/v1/completions", body.as_bytes());
                    assert_eq!(answer.status, 400);
                    answered.fetch_add(1, Ordering::SeqCst);
                });
            }
            // The first of them is done, so the others are in progress.
            wait::until("a long one", || {
                (answered.load(Ordering::SeqCst) > 0).then_some(())
            });
            short_takes(&|_| answered.load(Ordering::SeqCst) == LONG)
        });
        println!("{alone:?} alone, {beside:?} beside long ones");
        beside <= alone * TIMES_ALONE
    };
    // Other load of the machine may delay all clients for a while.
    assert!((0..5).any(|_| passes()), "it waited each time");
}

#[test]
fn the_limit_of_characters_holds_for_every_text_of_every_api() {
    let worker = Worker::scripted(Script::behave())
        .arg("--max-prompt-chars", 100)
        .start();
    let client = worker.client();
    let chat = |chars: usize| json!([{"role": "user", "content": "é".repeat(chars)}]);
    let prompt = |chars: usize| json!("é".repeat(chars));
    for (path, field, of_length) in [
        ("/execute", "prompt", &prompt as &dyn Fn(usize) -> Value),
        ("/execute", "messages", &chat),
        ("/v1/completions", "prompt", &prompt),
        ("/v1/chat/completions", "messages", &chat),
    ] {
        for (chars, status) in [(100, 200), (101, 400)] {
            let mut body = json!({field: of_length(chars), "max_tokens": 1});
            if path == "/execute" {
                body["job_id"] = json!(format!("j-{}", unique()));
            }
            let answer = client.post(path, &body);
            let told = answer.text();
            assert_eq!(answer.status, status, "{path} {field} {chars}: {told}");
            assert!(status == 200 || told.contains("100"), "{told}");
        }
    }
}

#[test]
fn a_prompt_that_fits_no_context_is_refused_before_it_is_tokenized() {
    let worker = Worker::scripted(Script::behave())
        .arg("--max-prompt-chars", ANY_LENGTH)
        .start();
    let client = worker.client();
    // The vocabulary's longest token has seven bytes, the context 131,072 tokens.
    let surely = json!({"prompt": " ".repeat(7 * 131_072), "max_tokens": 1});
    let answer = client.post("/v1/completions", &surely);
    assert_eq!(answer.status, 400);
    assert!(
        answer.text().contains("131072 or more tokens"),
        "{}",
        answer.text()
    );
    let perhaps = json!({"prompt": " x".repeat(7 * 131_070 / 2), "max_tokens": 1});
    let answer = client.post("/v1/completions", &perhaps);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("917490 tokens"), "{}", answer.text());

    let one_word = json!({"prompt": " ".repeat(7 * 131_070), "max_tokens": 1});
    let answer = client.post("/v1/completions", &one_word);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("917490 tokens"), "{}", answer.text());
}

/// Texts of any words, of any length.
#[test]
fn prompts_that_are_tokenized_cost_eight_times_themselves_at_most() {
    const BODY: usize = 4 << 20;
    /// A prompt as long as a body may fit the context.
    const LONGEST_TOKEN: usize = 64;
    /// 16 MiB for stacks, word splitting, memory that the allocator returns later, and growth of the process.
    const BESIDE: u64 = 16 << 20;
    /// 5 min, for a build without optimization, beside other tests.
    const PATIENCE: Duration = Duration::from_secs(300);
    let long_word = "a".repeat(131 << 10) + " ";
    let whole = "a".repeat(BODY);
    let letters = "ab".repeat(100_000) + "!";
    let sentence = "the cat sat on the mat. ";
    let texts = [
        ("a b ", 400),
        ("1", 400),
        (" ", 400),
        (sentence, 400),
        (&letters, 400),
        // These fit.
        (&long_word, 200),
        (&whole, 200),
    ];
    for (text, status) in texts {
        let shown: String = text.chars().take(24).collect();
        let body = |prompt: &str| json!({"prompt": prompt, "max_tokens": 1}).to_string();
        let prompt: String = text.chars().cycle().take(BODY - body("").len()).collect();
        let body = body(&prompt);
        // A worker each: memory left by one text must not serve the next.
        let worker = Worker::scripted(Script::behave().merging_runs_up_to(LONGEST_TOKEN))
            .arg("--max-prompt-chars", ANY_LENGTH)
            .start();
        let before = process::rss_bytes(worker.pid()).unwrap();
        let client = Client {
            patience: PATIENCE,
            ..worker.client()
        };
        let answer = client.post_bytes("/v1/completions", body.as_bytes());
        assert_eq!(answer.status, status, "{shown:?}: {}", answer.text());
        assert!(status == 200 || answer.text().contains("tokens"));
        let grown = process::peak_rss_bytes(worker.pid()).unwrap() - before;
        println!("{shown:?}: {} MiB", grown >> 20);
        let allowed = 8 * body.len() as u64 + BESIDE;
        assert!(grown <= allowed, "{shown:?}: {} MiB", grown >> 20);
    }
}

/// A huge page would be resident as a whole for one written byte; `hg`: see proc_pid_smaps(5).
#[test]
fn the_supervisor_asks_for_no_huge_pages() {
    let worker = Worker::scripted(Script::behave()).start();
    let maps = std::fs::read_to_string(format!("/proc/{}/smaps", worker.pid())).unwrap();
    let mut flags = maps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"));
    assert!(flags.clone().any(|flags| flags.contains(" rd")), "{maps}");
    assert!(flags.all(|flags| !flags.contains(" hg")), "{maps}");
}

#[test]
fn memory_comes_back_after_a_burst_of_large_bodies() {
    const BODY: usize = 4 << 20;
    const CLIENTS: usize = 100;
    const SLACK: u64 = 48 << 20;
    // Without a common limit.
    let worker = Worker::scripted(Script::behave())
        .arg("--max-bodies-size", "1GiB")
        .start();
    let client = worker.client();
    let rss = || process::anonymous_rss_bytes(worker.pid()).unwrap();
    assert_eq!(client.get("/livez").status, 200);
    let before = rss();
    let whole = client.request("POST", "/execute", &[], &vec![b'x'; BODY]);
    let (all_but_the_end, _) = whole.split_at(whole.len() - 1);
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        let connection = client.connect().unwrap();
        // A refused connection may not accept everything.
        let _ = connection.socket().write_all(all_but_the_end);
        held.push(connection);
    }
    let during = rss();
    for connection in held {
        let _ = connection.socket().shutdown(Shutdown::Both);
    }
    let after = wait::within(Duration::from_secs(120), "the memory to come back", || {
        let now = rss();
        (now < before + SLACK).then_some(now)
    });
    println!("anonymous memory: {before} before, {during} during, {after} after");
    assert!(during > before + SLACK, "{during} bytes are no burst");
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    /// Long texts have a low priority. Beside processes that keep all cores busy, the four take minutes.
    const PATIENCE: Duration = Duration::from_secs(1800);

    fn four_clients_send(worker: &Worker, body: &str) {
        let send = || {
            let client = Client {
                patience: PATIENCE,
                ..worker.client()
            };
            let answer = client.post_bytes("/v1/chat/completions", body.as_bytes());
            assert!(answer.status >= 400, "{}", answer.status);
            assert!(answer.body.len() < 10_000, "{} bytes", answer.body.len());
        };
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(send);
                }
            });
        });
    }

    #[test]
    fn messages_without_a_word_hold_up_nobody() {
        let worker = scripted().start();
        let body = messages(140_000, 0);
        assert!(body.len() > 4_000_000 && body.len() < 4 << 20);
        four_clients_send(&worker, &body);
    }

    /// Sends as many texts as permitted, of the longest length that is not refused at once.
    #[test]
    fn messages_that_are_rendered_and_tokenized_hold_up_nobody() {
        let worker = scripted().arg("--template-timeout", "60s").start();
        let body = messages(16_000, 45);
        four_clients_send(&worker, &body);
    }

    #[test]
    fn a_prompt_that_is_tokenized_holds_up_nobody_while_it_is() {
        let worker = scripted().arg("--max-prompt-chars", ANY_LENGTH).start();
        let (client, body) = (worker.client(), letters());
        // So often that one that blocks all streams is not the hundredth gap.
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            for _ in 0..5 {
                let answer = client.post_bytes("/v1/completions", body.as_bytes());
                assert_eq!(answer.status, 400, "{}", answer.text());
            }
        });
    }
}
