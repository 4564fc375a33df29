//! Bodies that cost memory and time, sent to the real supervisor. The kernel's figures show the cost of each; a stream
//! beside it keeps its bytes and its pace.

use std::thread;
use std::time::Duration;
use worker_orcd_tests::client::{Client, Response};
use worker_orcd_tests::facts::CHAT_TEMPLATE;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Bystander, Worker, on_the_beat, process, wait};

const MIB: u64 = 1 << 20;

/// Largest permitted body.
const BODY: usize = 4 << 20;

/// Memory limit of a body, as a multiple of its bytes.
const TIMES: u64 = 8;

/// 8 MiB for buffers of connections, stacks, and growth of the process.
const BESIDE: u64 = 8 * MIB;

/// Limit of an error response, which people read.
const LONGEST_ANSWER: usize = 16 << 10;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
const EXECUTE: &str = "/execute";

/// Worker with a model for tools, so that all of them are read.
fn worker() -> Worker {
    let tools = "{% if false %}{{ tools }}{{ messages[0].tool_calls }}<tool_call>{% endif %}";
    let script = on_the_beat().chat_template(format!("{tools}{CHAT_TEMPLATE}"));
    Worker::scripted(script).start()
}

/// `before`, as many times `each` as fit, `after`.
fn filled(before: &str, each: &str, after: &str) -> String {
    let room = BODY - before.len() - after.len();
    format!("{before}{}{after}", each.repeat(room / each.len()))
}

fn wrong_messages() -> String {
    filled("{\"job_id\":\"a\",\"messages\":[", "0,", "0]}")
}

fn unknown_fields() -> String {
    let mut body = String::from("{\"job_id\":\"a\"");
    for number in 0.. {
        let field = format!(",\"x{number}\":0");
        if body.len() + field.len() >= BODY {
            break;
        }
        body.push_str(&field);
    }
    body + "}"
}

/// Names, paths and bodies: each is refused with 400.
fn hostile() -> Vec<(&'static str, &'static str, String)> {
    let message = "{\"role\":\"user\",\"content\":\"\"},";
    let call = "{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},";
    let deep = BODY / 2 - 16;
    vec![
        ("wrong messages", EXECUTE, wrong_messages()),
        ("wrong messages in a chat", CHAT, wrong_messages()),
        ("unknown fields", EXECUTE, unknown_fields()),
        ("unknown fields in a chat", CHAT, unknown_fields()),
        (
            "one field again and again",
            EXECUTE,
            filled("{\"job_id\":\"a\"", ",\"seed\":1", "}"),
        ),
        (
            "unknown keys of a message",
            CHAT,
            filled("{\"messages\":[{\"role\":\"user\"", ",\"x\":0", "}]}"),
        ),
        (
            "empty messages",
            CHAT,
            filled("{\"messages\":[", message, "0]}"),
        ),
        (
            "wrong parts",
            CHAT,
            filled(
                "{\"messages\":[{\"role\":\"user\",\"content\":[",
                "{},",
                "{}]}]}",
            ),
        ),
        (
            "stop strings",
            EXECUTE,
            filled("{\"job_id\":\"a\",\"stop\":[", "\"\",", "\"\"]}"),
        ),
        (
            "too many token ids",
            COMPLETION,
            filled("{\"prompt\":[", "1,", "1]}"),
        ),
        (
            "a prompt of escapes",
            EXECUTE,
            filled("{\"job_id\":\"a\",\"prompt\":\"", "\\u0041", "\"}"),
        ),
        ("wrong tools", CHAT, filled("{\"tools\":[", "0,", "0]}")),
        (
            "tools",
            CHAT,
            filled("{\"tools\":[", "{\"function\":{\"name\":\"f\"}},", "0]}"),
        ),
        (
            "parameters of a tool",
            CHAT,
            filled(
                "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"a\":0",
                ",\"\\u003c\":0",
                "}}},0]}",
            ),
        ),
        (
            "calls of a message",
            CHAT,
            filled(
                "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[",
                call,
                "0]}]}",
            ),
        ),
        (
            "messages of a call each",
            CHAT,
            filled(
                "{\"messages\":[",
                &format!(
                    "{{\"role\":\"assistant\",\"tool_calls\":[{}]}},",
                    call.trim_end_matches(',')
                ),
                "0]}",
            ),
        ),
        (
            "nesting",
            EXECUTE,
            format!("{{\"messages\":{}{}}}", "[".repeat(deep), "]".repeat(deep)),
        ),
        (
            "nesting in a name that nobody knows",
            CHAT,
            format!("{{\"x\":{}{}}}", "[".repeat(deep), "]".repeat(deep)),
        ),
        ("nesting without end", EXECUTE, "[".repeat(BODY)),
    ]
}

#[test]
fn the_first_mistakes_are_listed_and_the_rest_is_counted() {
    let worker = worker();
    let native = send(&worker.client(), EXECUTE, &wrong_messages()).json();
    // Each wrong message, and the error that there are too many.
    let wrong = wrong_messages().matches('0').count() + 1;
    assert_eq!(native["errors"].as_array().unwrap().len(), 32, "{native}");
    assert_eq!(native["more_errors"], wrong - 32, "{native}");
    assert_eq!(native["errors"][31]["field"], "messages[31]");

    let openai = &send(&worker.client(), CHAT, &wrong_messages()).json()["error"];
    // Here job_id is one more.
    assert_eq!(openai["more_errors"], wrong + 1 - 32, "{openai}");
    assert_eq!(openai["param"], "messages[0]", "{openai}");
    worker.assert_serves();
}

#[test]
fn bodies_whose_end_is_held_back_cost_the_budget_and_lock_nobody_out() {
    const CLIENTS: usize = 40;
    let worker = worker();
    let client = worker.client();
    let head = client.request("POST", EXECUTE, &[], &[b' '; BODY]);
    let (held, grown) = cost(&worker, || {
        let mut held = Vec::new();
        for _ in 0..CLIENTS {
            let mut connection = client.connect().unwrap();
            let socket = connection.socket().try_clone().unwrap();
            socket
                .set_write_timeout(Some(Duration::from_millis(200)))
                .unwrap();
            // A client without memory is not read any further, and then refused.
            let _ = connection.send(&head[..head.len() - 1]);
            held.push(connection);
        }
        worker.assert_serves();
        held
    });
    assert!(grown <= 96 * MIB, "{} MiB", grown / MIB);
    worker.assert_serves();
    drop(held);
    // Their memory is free again: a long request within the limits is served.
    let long = request(&"x".repeat(32_768), 2);
    client.execute(&long).transcript().end();
}

#[test]
fn a_key_that_is_there_twice_is_refused_by_name() {
    let worker = worker();
    let twice = "{\"job_id\":\"a\",\"prompt\":\"safe\",\"prompt\":\"other\"}";
    let answer = send(&worker.client(), EXECUTE, twice).json();
    assert_eq!(answer["errors"][0]["field"], "prompt", "{answer}");
    assert_eq!(answer["errors"][0]["constraint"], "duplicate", "{answer}");
    let inside = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"role\":\"system\"}]}";
    let answer = send(&worker.client(), CHAT, inside);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(answer.json()["error"]["param"], "messages[0].role");
    worker.assert_serves();
}

fn send(client: &Client, path: &str, body: &str) -> Response {
    client.post_bytes(path, body.as_bytes())
}

/// Growth of the supervisor's memory during `act`.
fn cost<T>(worker: &Worker, act: impl FnOnce() -> T) -> (T, u64) {
    let pid = worker.pid();
    process::forget_peak(pid);
    let before = process::rss_bytes(pid).unwrap();
    let result = act();
    let peak = process::peak_rss_bytes(pid).unwrap();
    (result, peak.saturating_sub(before))
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn a_hostile_body_costs_at_most_eight_times_itself_and_its_answer_is_short() {
        /// 48 MiB that a used process keeps. Less than all of the bodies once.
        const KEPT: u64 = 48 * MIB;
        let worker = worker();
        let rss = || process::rss_bytes(worker.pid()).unwrap();
        let before = rss();
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            for (name, path, body) in hostile() {
                let (response, grown) = cost(&worker, || send(&worker.client(), path, &body));
                assert_eq!(response.status, 400, "{name}: {}", response.text());
                assert!(
                    response.body.len() <= LONGEST_ANSWER,
                    "{name}: an answer of {} bytes",
                    response.body.len()
                );
                let allowed = TIMES * body.len() as u64 + BESIDE;
                assert!(grown <= allowed, "{name}: {} MiB", grown / MIB);
                println!("{name}: {} KiB more", grown >> 10);
            }
        });
        wait::until("the memory to be given back", || {
            (rss() <= before + KEPT).then_some(())
        });
        println!("{} KiB kept", rss().saturating_sub(before) >> 10);
    }

    #[test]
    fn many_hostile_bodies_at_once_cost_what_bodies_may_cost_together() {
        const CLIENTS: usize = 64;
        let worker = worker();
        let body = wrong_messages();
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            let (answers, grown) = cost(&worker, || {
                thread::scope(|scope| {
                    let clients: Vec<_> = (0..CLIENTS)
                        .map(|_| scope.spawn(|| send(&worker.client(), EXECUTE, &body)))
                        .collect();
                    clients
                        .into_iter()
                        .map(|client| client.join().unwrap())
                        .collect::<Vec<_>>()
                })
            });
            for answer in &answers {
                match answer.status {
                    400 => assert!(answer.body.len() <= LONGEST_ANSWER),
                    429 => assert!(answer.header("retry-after").is_some()),
                    other => panic!("{other}: {}", answer.text()),
                }
            }
            assert!(answers.iter().any(|answer| answer.status == 400));
            // All of them hold 256 MiB; the common default limit is 32 MiB.
            println!("{} MiB", grown / MIB);
            assert!(grown <= 176 * MIB, "{} MiB", grown / MIB);
        });
    }
}
