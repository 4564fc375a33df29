//! Chat templates that kill, fill or block only the process that interprets them.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker_orcd_gpu::model::{Architecture, tiny_model::tiny_model};
use worker_orcd_tests::client::{Client, Response};
use worker_orcd_tests::hostile_templates::{
    Bomb, arsenal, deadly_to_compile, deadly_to_render, endless,
};
use worker_orcd_tests::{Bystander, Worker, WorkerBuilder, on_the_beat, process, wait};

/// Limit that the process sets itself.
const ADDRESS_SPACE_BYTES: u64 = 512 << 20;

/// 200 MiB: a supervisor of a tiny model needs tens of megabytes, whatever is rendered beside it.
const SUPERVISOR_BYTES: u64 = 200 << 20;

fn model_with(template: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let file = tiny_model(Architecture::Llama).meta("tokenizer.chat_template", template);
    fs::write(&path, file.build()).unwrap();
    (dir, path)
}

fn chat(client: &Client, content: &str) -> Response {
    let body = json!({
        "messages": [{"role": "user", "content": content}], "temperature": 0.0, "max_tokens": 8,
    });
    client.post("/v1/chat/completions", &body)
}

fn answer_of(client: &Client) -> Value {
    let answer = chat(client, "hello");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["message"]["content"].clone()
}

fn scripted(bombs: &[Bomb]) -> WorkerBuilder {
    Worker::scripted(on_the_beat().chat_template(arsenal(bombs)))
}

fn busy_interpreter(worker: &Worker) -> Option<u32> {
    let pids = process::interpreters(worker.pid());
    pids.into_iter()
        .find(|pid| process::cpu_time(*pid) > Duration::from_millis(300))
}

fn assert_costly(refusal: &Response, ms: u64) {
    let text = refusal.text();
    assert_eq!(refusal.status, 400, "{text}");
    let limit = format!("longer than {ms} ms of processor time");
    assert!(text.contains(&limit), "{text}");
}

#[test]
fn a_template_that_kills_its_compiler_ends_chat_and_nothing_else() {
    for bomb in deadly_to_compile() {
        let (_dir, path) = model_with(&bomb.template);
        let worker = Worker::with_model(&path).start();
        let client = worker.client();
        let refusal = chat(&client, "hello");
        assert_eq!(refusal.status, 400, "{}: {}", bomb.name, refusal.text());
        for words in ["template cannot be compiled", "signal"] {
            assert!(
                refusal.text().contains(words),
                "{}: {}",
                bomb.name,
                refusal.text()
            );
        }
        assert_eq!(client.health()["model"]["chat_template"], false);
        worker.log.wait_for("chat_template_refused");
        worker.assert_serves();
    }
}

#[test]
fn an_interpreter_has_no_more_address_space_than_it_took() {
    let (_dir, path) = model_with(&arsenal(&deadly_to_render()));
    let worker = Worker::with_model(&path).start();
    let over = AtomicBool::new(false);
    let peak = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !over.load(Ordering::Relaxed) {
                for pid in process::interpreters(worker.pid()) {
                    peak = peak.max(process::peak_address_space_bytes(pid).unwrap_or(0));
                }
            }
            peak
        });
        for name in ["doubling", "replace"] {
            assert_eq!(chat(&worker.client(), name).status, 400);
        }
        over.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert!(peak > 0 && peak <= ADDRESS_SPACE_BYTES, "{peak} bytes");
}

#[test]
fn a_short_conversation_waits_for_no_long_one() {
    let (_dir, path) = model_with(&arsenal(&[endless()]));
    let worker = Worker::with_model(&path)
        .arg("--template-timeout", "10s")
        .start();
    let client = worker.client();
    let answered = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let messages = json!([
                    {"role": "user", "content": "x".repeat(100_000)},
                    {"role": "user", "content": "endless"},
                ]);
                let body = json!({"messages": messages});
                assert_costly(&client.post("/v1/chat/completions", &body), 10_000);
                answered.store(true, Ordering::SeqCst);
            });
        }
        wait::until("an interpreter at work", || busy_interpreter(&worker));
        let answer = chat(&client, "hello");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answered.load(Ordering::SeqCst), "it waited for a long one");
    });
}

#[test]
fn a_worker_that_is_told_to_stop_does_not_wait_for_a_template() {
    let (_dir, path) = model_with(&arsenal(&[endless()]));
    let mut worker = Worker::with_model(&path)
        .arg("--template-timeout", "10min")
        .start();
    let client = worker.client();
    let bomb = thread::spawn(move || {
        // The worker ends during this request.
        let body = json!({"messages": [{"role": "user", "content": "endless"}]});
        let _ = client.try_request(
            "POST",
            "/v1/chat/completions",
            &[],
            body.to_string().as_bytes(),
        );
    });
    let interpreter = wait::until("an interpreter at work", || busy_interpreter(&worker));
    worker.signal(nix::sys::signal::Signal::SIGTERM);
    let began = Instant::now();
    assert!(worker.wait_exit().success());
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
    wait::until("the interpreter's end", || {
        (!process::is_alive(interpreter)).then_some(())
    });
    bomb.join().unwrap();
}

#[test]
fn an_interpreter_that_is_killed_while_idle_costs_nobody_anything() {
    let (_dir, path) = model_with(&arsenal(&[]));
    let worker = Worker::with_model(&path).start();
    for _ in 0..3 {
        for pid in process::interpreters(worker.pid()) {
            process::signal(pid, nix::sys::signal::Signal::SIGKILL);
        }
        for _ in 0..4 {
            let answer = chat(&worker.client(), "hello");
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

/// A signal from outside is not blamed on the request.
#[test]
fn interpreters_that_are_stopped_cost_no_request_its_answer() {
    let worker = Worker::scripted(on_the_beat().chat_template(arsenal(&[]))).start();
    let client = worker.client();
    let bystander = Bystander::of_a_script(client.clone());
    let alone = bystander.alone();
    let begun = bystander.begin();
    for _ in 0..3 {
        // First, so that no interpreter is just starting.
        answer_of(&client);
        for pid in process::interpreters(worker.pid()) {
            process::signal(pid, nix::sys::signal::Signal::SIGSTOP);
        }
        for _ in 0..4 {
            answer_of(&client);
        }
    }
    assert_eq!(begun.end().0, alone);
}

/// Each is answered, or deferred with 503.
#[test]
fn interpreters_that_are_killed_all_the_time_refuse_no_request_as_wrong() {
    let worker = Worker::scripted(on_the_beat().chat_template(arsenal(&[]))).start();
    let client = worker.client();
    let bystander = Bystander::of_a_script(client.clone());
    let alone = bystander.alone();
    let begun = bystander.begin();
    answer_of(&client);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for pid in process::interpreters(worker.pid()) {
                    process::signal(pid, nix::sys::signal::Signal::SIGKILL);
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut again = 0;
        for number in 0..60 {
            let answer = match number % 2 {
                0 => chat(&client, "hello"),
                _ => {
                    let regex = json!({"regex": format!("[a-z]{{2}}{number}")});
                    let body = json!({"prompt": "a", "max_tokens": 2, "structured_outputs": regex});
                    client.post("/v1/completions", &body)
                }
            };
            let text = answer.text();
            assert!(
                matches!(answer.status, 200 | 429 | 503),
                "{}: {text}",
                answer.status
            );
            if answer.status == 503 {
                let has_time = answer.headers.iter().any(|(name, _)| name == "retry-after");
                assert!(has_time, "{text}");
                again += 1;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(again > 0, "no kill met a request");
    });
    assert_eq!(begun.end().0, alone);
    wait::until("an answer afterwards", || {
        (chat(&client, "hello").status == 200).then_some(())
    });
}

#[test]
fn interpreters_end_with_a_supervisor_that_is_killed() {
    let (_dir, path) = model_with(&arsenal(&[]));
    let mut worker = Worker::with_model(&path).start();
    let pids = wait::until("two interpreters", || {
        let pids = process::interpreters(worker.pid());
        (pids.len() == 2).then_some(pids)
    });
    worker.signal(nix::sys::signal::Signal::SIGKILL);
    let _ = worker.wait_exit();
    wait::until("their end", || {
        pids.iter()
            .all(|pid| !process::is_alive(*pid))
            .then_some(())
    });
}

/// The kernel's OOM killer selects replaceable processes.
#[test]
fn where_memory_is_short_the_supervisor_goes_last() {
    let (_dir, path) = model_with(&arsenal(&[]));
    let worker = Worker::with_model(&path).start();
    let score = |pid| process::oom_score_adj(pid).expect("it lives");
    let (own, child) = (score(worker.pid()), score(worker.child_pid().unwrap()));
    assert!(
        child > own,
        "{child} for the child, {own} for the supervisor"
    );
    // Each process sets it itself when it starts.
    wait::until("two interpreters that go as soon as the child", || {
        let interpreters = process::interpreters(worker.pid());
        let goes_first = |pid: &u32| process::oom_score_adj(*pid) >= Some(child);
        let all_go_first = interpreters.iter().all(goes_first);
        (interpreters.len() == 2 && all_go_first).then_some(())
    });
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn a_template_that_kills_its_interpreter_costs_the_request_that_asked() {
        let worker = scripted(&deadly_to_render()).start();
        let client = worker.client();
        let alone = answer_of(&client);
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            for bomb in deadly_to_render() {
                let refusal = chat(&client, bomb.name);
                assert_eq!(refusal.status, 400, "{}: {}", bomb.name, refusal.text());
                assert!(
                    refusal.text().contains("template failed on these messages")
                        || refusal.text().contains("template makes more than"),
                    "{}: {}",
                    bomb.name,
                    refusal.text()
                );
                assert_eq!(answer_of(&client), alone, "behind {}", bomb.name);
            }
        });
        // Most of them are deadly.
        worker.log.wait_for_many("interpreter_ended", 4);
        let peak = process::peak_rss_bytes(worker.pid()).unwrap();
        assert!(peak < SUPERVISOR_BYTES, "{peak} bytes");
        assert_eq!(worker.generation(), Some(1), "no child died of a template");
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped_at_its_deadline() {
        let worker = scripted(&[endless()])
            .arg("--template-timeout", "2s")
            .start();
        let client = worker.client();
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            let bombs: Vec<_> = (0..3)
                .map(|_| {
                    let client = client.clone();
                    thread::spawn(move || chat(&client, "endless"))
                })
                .collect();
            for bomb in bombs {
                assert_costly(&bomb.join().unwrap(), 2000);
            }
        });
        answer_of(&client);
    }
}
