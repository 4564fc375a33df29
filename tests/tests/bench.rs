//! `worker-orcd bench`: figures that agree with each other and with the server's counts, and reports of failures. No
//! assertion depends on a duration.

use serde_json::{Map, Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use tempfile::NamedTempFile;
use worker_orcd_tests::worker::binary;
use worker_orcd_tests::{Act, Moment, Script, Worker, wait};

fn bench(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("tested-worker-orcd"));
    command.args(["bench", "--url", &format!("http://{address}")]);
    command.args(arguments).env_remove("OPENAI_API_KEY");
    command
}

/// Figures, and whether the command succeeded.
fn figures(mut command: Command) -> (Map<String, Value>, bool) {
    read(&command.arg("--json").output().unwrap())
}

fn read(output: &Output) -> (Map<String, Value>, bool) {
    let figures = serde_json::from_slice(&output.stdout);
    (
        figures.unwrap_or_else(|_| panic!("{output:?}")),
        output.status.success(),
    )
}

fn number(figures: &Map<String, Value>, name: &str) -> f64 {
    figures[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name}: {figures:?}"))
}

fn assert_close(found: f64, expected: f64) {
    let tolerance = 1e-6 * expected.abs().max(1.0);
    assert!((found - expected).abs() < tolerance, "{found}, {expected}");
}

const EVENT_STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// Another server of the OpenAI API, which sends fixed responses and closes.
struct OtherServer {
    address: SocketAddr,
    /// Bodies of the requests.
    asked: Arc<Mutex<Vec<Value>>>,
    /// Peak of concurrent requests.
    most: Arc<AtomicUsize>,
}

impl OtherServer {
    /// Responds when `together` requests are there, each by its number.
    fn new(together: usize, answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (most, running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (barrier, answer) = (Arc::new(Barrier::new(together)), Arc::new(answer));
        let server = Self {
            address,
            asked: asked.clone(),
            most: most.clone(),
        };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (asked, most, running) = (asked.clone(), most.clone(), running.clone());
                let (barrier, answer) = (barrier.clone(), answer.clone());
                thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let body = read_request(&stream);
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let number = {
                        let mut asked = asked.lock().unwrap();
                        asked.push(body);
                        asked.len() - 1
                    };
                    barrier.wait();
                    running.fetch_sub(1, Ordering::SeqCst);
                    stream.write_all(answer(number).as_bytes()).unwrap();
                });
            }
        });
        server
    }
}

fn read_request(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn chunk(text: &str) -> String {
    format!(
        "data: {}\n\n",
        json!({"choices": [{"index": 0, "text": text}], "usage": null})
    )
}

fn usage(tokens_in: u64, tokens_out: u64) -> String {
    let usage = json!({"prompt_tokens": tokens_in, "completion_tokens": tokens_out});
    format!("data: {}\n\n", json!({"choices": [], "usage": usage}))
}

const DONE: &str = "data: [DONE]\n\n";

/// Seven tokens in two chunks.
fn whole() -> String {
    [
        EVENT_STREAM,
        ": still here\n\n",
        &chunk("a"),
        &chunk("b"),
        &usage(5, 7),
        DONE,
    ]
    .concat()
}

#[test]
fn figures_agree_with_each_other_and_with_what_the_worker_counted() {
    // The first child dies in the middle, which clients must not notice.
    let dies = Script::once(Moment::MidStream(20), Act::Signal(9)).token_interval_ms(1);
    let worker = Worker::scripted(dies).start();
    let address = worker.client().address;
    let flags = [
        "--num-prompts",
        "12",
        "--input-len",
        "6",
        "--output-len",
        "9",
    ];
    let (found, all_went_well) = figures(bench(
        address,
        &[
            &flags[..],
            &["--request-rate", "100", "--goodput", "e2el:1e9"],
        ]
        .concat(),
    ));
    assert!(all_went_well, "{found:?}");
    let is = |name: &str, expected: f64| assert_close(number(&found, name), expected);
    is("num_prompts", 12.0);
    is("completed", 12.0);
    is("failed", 0.0);
    assert_eq!(found["errors"], json!({}));
    is("total_output_tokens", 12.0 * 9.0);
    let tokens_in = number(&found, "total_input_tokens");
    // The worker publishes its counts a little later.
    wait::until("the worker to have counted the same", || {
        let metrics = worker.client().get("/metrics").text();
        let counted = |name: &str| -> Option<f64> {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line?.trim().parse().ok()
        };
        let prompts = counted("worker_orcd_prompt_tokens_total ") == Some(tokens_in);
        let answers = counted("worker_orcd_generated_tokens_total ") == Some(12.0 * 9.0);
        (prompts && answers).then_some(())
    });

    let seconds = number(&found, "duration");
    is("request_throughput", 12.0 / seconds);
    is("request_goodput", 12.0 / seconds);
    is("output_throughput", 12.0 * 9.0 / seconds);
    is("total_token_throughput", (tokens_in + 12.0 * 9.0) / seconds);
    // Answers of one length: nine tokens, each a chunk, and a chunk with the finish reason.
    let behind_first = number(&found, "mean_e2el_ms") - number(&found, "mean_ttft_ms");
    assert_close(8.0 * number(&found, "mean_tpot_ms"), behind_first);
    assert_close(9.0 * number(&found, "mean_itl_ms"), behind_first);
    for name in ["ttft", "tpot", "itl", "e2el"] {
        let [median, p99] =
            ["median", "p99"].map(|which| number(&found, &format!("{which}_{name}_ms")));
        assert!(0.0 <= median && median <= p99, "{name}: {found:?}");
    }
}

#[test]
fn tokens_are_those_that_the_server_counted() {
    let server = OtherServer::new(1, |_| whole());
    let (found, all_went_well) = figures(bench(server.address, &["--num-prompts", "3"]));
    assert!(all_went_well);
    assert_eq!(
        (&found["total_input_tokens"], &found["total_output_tokens"]),
        (&json!(15), &json!(21))
    );

    let silent = OtherServer::new(1, |_| {
        [EVENT_STREAM, &chunk("a"), &chunk("b"), DONE].concat()
    });
    let (found, all_went_well) = figures(bench(silent.address, &["--num-prompts", "3"]));
    assert!(!all_went_well);
    assert_eq!(found["errors"], json!({"no_usage": 3}));
    assert_eq!(found["total_output_tokens"], 0);
}

#[test]
fn what_is_sent_is_what_was_asked_for_and_the_seeds() {
    let prompts = |seed: &str| {
        let server = OtherServer::new(1, |_| whole());
        let flags = [
            "--num-prompts",
            "3",
            "--input-len",
            "4",
            "--output-len",
            "5",
            "--ignore-eos",
            "--model",
            "m",
        ];
        let (_, all_went_well) = figures(bench(
            server.address,
            &[&flags[..], &["--max-concurrency", "1", "--seed", seed]].concat(),
        ));
        assert!(all_went_well);
        let asked = std::mem::take(&mut *server.asked.lock().unwrap());
        let prompt_of = |mut body: Value| {
            let prompt = body.as_object_mut().unwrap().remove("prompt");
            let expected = json!({
                "model": "m", "max_tokens": 5, "ignore_eos": true, "stream": true,
                "stream_options": {"include_usage": true},
            });
            assert_eq!(body, expected);
            let prompt = prompt.unwrap().as_str().unwrap().to_owned();
            assert_eq!(prompt.split(' ').count(), 4);
            prompt
        };
        // Requests that are sent one after the other may arrive in any order.
        let mut prompts: Vec<String> = asked.into_iter().map(prompt_of).collect();
        prompts.sort();
        prompts
    };
    let of_one = prompts("1");
    assert_eq!(of_one.len(), 3);
    assert_eq!(of_one, prompts("1"));
    assert_ne!(of_one, prompts("2"));
}

#[test]
fn as_many_run_at_a_time_as_may() {
    let limited = OtherServer::new(2, |_| whole());
    let flags = ["--num-prompts", "6", "--max-concurrency", "2"];
    assert!(figures(bench(limited.address, &flags)).1);
    assert_eq!(limited.most.load(Ordering::SeqCst), 2);
    // It responds only when all requests are there.
    let unlimited = OtherServer::new(6, |_| whole());
    assert!(figures(bench(unlimited.address, &flags[..2])).1);
}

#[test]
fn a_server_that_refuses_is_counted_by_its_codes() {
    let mut keys = NamedTempFile::new().unwrap();
    writeln!(keys, "right").unwrap();
    let path = keys.path().to_str().unwrap();
    let worker = Worker::scripted(Script::behave())
        .arg("--api-key-file", path)
        .start();
    let address = worker.client().address;
    let few = ["--num-prompts", "4"];
    let output = bench(address, &[&few[..], &["--json"]].concat())
        .output()
        .unwrap();
    let (found, all_went_well) = read(&output);
    assert!(!all_went_well);
    assert_eq!(found["errors"], json!({"invalid_api_key": 4}));
    assert_eq!(
        (&found["completed"], &found["failed"]),
        (&json!(0), &json!(4))
    );
    assert!(found["mean_ttft_ms"].is_null() && found["p99_e2el_ms"].is_null());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("401") && said.contains("4 of 4 requests failed"),
        "{said}"
    );

    let with_key = [&few[..], &["--api-key-file", path, "--output-len", "3"]].concat();
    assert!(figures(bench(address, &with_key)).1);

    // Without an error of the API's format.
    let busy =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy";
    let other = OtherServer::new(1, move |_| busy.to_owned());
    assert_eq!(
        figures(bench(other.address, &few)).0["errors"],
        json!({"503": 4})
    );
    // In the stream, with a number for a code, like vLLM.
    let error = format!(
        "data: {}\n\n",
        json!({"error": {"message": "no more", "code": 500}})
    );
    let other = OtherServer::new(1, move |_| [EVENT_STREAM, &chunk("a"), &error].concat());
    assert_eq!(
        figures(bench(other.address, &few)).0["errors"],
        json!({"500": 4})
    );
}

#[test]
fn a_server_that_dies_in_the_middle_costs_the_answers_that_it_owed() {
    // Every other answer is cut: the connection ends in the middle of a length, or before [DONE].
    let server = OtherServer::new(1, |number| match number % 4 {
        1 => EVENT_STREAM.replace("Connection", "Content-Length: 9999\r\nConnection") + &chunk("a"),
        3 => [EVENT_STREAM, &chunk("a"), &usage(5, 7)].concat(),
        _ => whole(),
    });
    let (found, all_went_well) = figures(bench(server.address, &["--num-prompts", "8"]));
    assert!(!all_went_well);
    assert_eq!(found["errors"], json!({"broken_off": 2, "incomplete": 2}));
    assert_eq!(
        (&found["completed"], &found["failed"]),
        (&json!(4), &json!(4))
    );
    assert_eq!(found["total_output_tokens"], 4 * 7);

    let worker = Worker::scripted(Script::behave().token_interval_ms(50)).start();
    let client = worker.client();
    let flags = [
        "--num-prompts",
        "5",
        "--max-concurrency",
        "2",
        "--output-len",
        "2000",
        "--json",
    ];
    let process = bench(client.address, &flags)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait::until("two streams", || {
        (client.health()["load"]["running"] == 2).then_some(())
    });
    drop(worker);
    let (found, all_went_well) = read(&process.wait_with_output().unwrap());
    assert!(!all_went_well);
    assert_eq!(
        (&found["completed"], &found["failed"]),
        (&json!(0), &json!(5))
    );
    // A connection that the kernel accepted before the end breaks off as well.
    let broken_off = found["errors"]["broken_off"].as_u64();
    assert!(broken_off >= Some(2), "{found:?}");
    let nobody = figures(bench(client.address, &["--num-prompts", "3"])).0;
    assert_eq!(nobody["errors"], json!({"connection_failed": 3}));
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for() {
    // The second request, for which it waits, never comes.
    let server = OtherServer::new(2, |_| whole());
    let flags = ["--num-prompts", "1", "--timeout", "0.2"];
    assert_eq!(
        figures(bench(server.address, &flags)).0["errors"],
        json!({"timed_out": 1})
    );
}

#[test]
fn a_person_reads_a_table_and_a_wrong_setting_is_named() {
    let server = OtherServer::new(1, |_| whole());
    let output = bench(
        server.address,
        &["--num-prompts", "3", "--goodput", "ttft:1e9", "tpot:1e9"],
    )
    .output()
    .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let table = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {table}")).trim()
    };
    assert_eq!(value("completed"), "3");
    assert_eq!(value("output tokens "), "21");
    assert_eq!(value("good requests/s"), value("requests/s"));
    for name in ["TTFT", "TPOT", "ITL", "E2EL"] {
        assert_eq!(value(name).split_whitespace().count(), 3, "{table}");
    }
    for (flag, wrong) in [
        ("--request-rate", "0"),
        ("--num-prompts", "0"),
        ("--goodput", "itl:3"),
        ("--timeout", "never"),
    ] {
        let output = bench(server.address, &[flag, wrong]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(flag), "{said}");
    }
}
