//! SIGUSR2: the worker's program is replaced in the same process, unnoticed by clients.

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBuf;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;
use worker_orcd_tests::client::{Client, READ_TIMEOUT, Transcript};
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::{binary, request};
use worker_orcd_tests::{Script, Worker, wait};

const STREAMS: usize = 6;

fn execute(number: usize) -> Value {
    json!({
        "job_id": format!("job {number}/ä"),
        "prompt": format!("Once upon a time, number {number} went"),
        "max_tokens": 120,
        "ignore_eos": true,
        "temperature": 0.8,
        "seed": number,
    })
}

fn chat(stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": 100,
        "ignore_eos": true,
        "seed": 5,
        "stream": stream,
    })
}

fn wait_for_load(client: &Client, requests: u64) {
    wait::until("the requests to be with the child", || {
        let load = &client.health()["load"];
        let has = load["running"].as_u64()? + load["waiting"].as_u64()?;
        (has == requests).then_some(())
    });
}

fn content(answer: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(answer).expect("JSON");
    let content = &answer["choices"][0]["message"]["content"];
    content.as_str().expect("text").to_owned()
}

#[test]
fn streams_and_answers_go_on_byte_for_byte_on_their_own_connections() {
    let worker = Worker::real().start();
    let client = worker.client();
    let expected: Vec<Transcript> = (0..STREAMS)
        .map(|number| client.execute(&execute(number)).transcript())
        .collect();
    let expected_answer = content(&client.post("/v1/chat/completions", &chat(false)).body);
    let (pid, child) = (worker.pid(), worker.child_pid());

    let mut idle = TcpStream::connect(client.address).expect("a connection");
    let request = client.request("GET", "/livez", &[], &[]);
    // Half of a request is in transit.
    let (half, rest) = request.split_at(request.len() / 2);
    idle.write_all(half).expect("sent");

    let mut streams: Vec<_> = (0..STREAMS)
        .map(|number| client.execute(&execute(number)))
        .collect();
    for stream in &mut streams {
        stream.wait_for("started");
    }
    let asking = {
        let client: Client = client.clone();
        thread::spawn(move || client.post("/v1/chat/completions", &chat(false)))
    };
    wait_for_load(&client, STREAMS as u64 + 1);
    worker.upgrade();
    worker.upgrade();

    // Each supervisor waits a while for the rest of a head.
    idle.write_all(rest).expect("sent");
    let mut line = [0; 15];
    idle.read_exact(&mut line).expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 200 OK");
    assert_eq!(worker.pid(), pid);
    assert_eq!(worker.child_pid(), child, "it lives on");
    for (stream, expected) in streams.into_iter().zip(&expected) {
        let told = stream.transcript();
        assert_eq!(told.text(), expected.text());
        assert_eq!(told.last().json()["tokens_out"], 120);
        let numbers = told.events.iter().filter(|event| event.name == "token");
        let numbers: Vec<_> = numbers.map(|event| event.json()["i"].clone()).collect();
        let tokens = expected.events.len() - 2;
        assert!(numbers.into_iter().eq((0..tokens).map(Value::from)));
    }
    let answer = asking.join().expect("an answer");
    assert_eq!(answer.status, 200);
    assert_eq!(content(&answer.body), expected_answer);
}

#[test]
fn a_client_that_reads_nothing_meanwhile_finds_every_byte() {
    let script = Script::behave().token_interval_ms(3);
    let worker = Worker::scripted(script).start();
    let client = worker.client();
    let stream = client.execute(&request("a stream ", 1500));
    wait_for_load(&client, 1);
    thread::sleep(Duration::from_millis(300));
    worker.upgrade();
    worker.upgrade();
    let told = stream.transcript();
    told.assert_well_formed();
    assert_eq!(told.text(), scripted_text("a stream ", 1500));
}

#[test]
fn what_cannot_take_over_is_refused_and_nothing_has_happened() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = directory.path().join("settings.toml");
    fs::write(&settings, "max-queue = 7\n").expect("written");
    let path = settings.display().to_string();
    let script = Script::behave().token_interval_ms(20);
    let mut worker = Worker::scripted(script).arg("--config", path).start();
    let client = worker.client();
    let generation = worker.generation();
    let mut stream = client.execute(&request("job", 60));
    stream.wait_for("token");

    fs::write(&settings, "max-queue = 7\nmax-qeue = 8\n").expect("written");
    worker.signal(Signal::SIGUSR2);
    let refused = worker.log.wait_for("upgrade_refused");
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(reason.contains("max-qeue"), "{reason}");
    assert_eq!(worker.generation(), generation, "the same child");
    assert_eq!(stream.last().expect("an end").name, "end");

    // A worker that is ending is not upgraded.
    fs::write(&settings, "max-queue = 8\n").expect("written");
    let mut last = client.execute(&request("last", 100));
    last.wait_for("token");
    worker.signal(Signal::SIGTERM);
    worker.log.wait_for("shutdown");
    worker.signal(Signal::SIGUSR2);
    let refused = worker.log.wait_for_many("upgrade_refused", 2);
    assert_eq!(refused[1]["reason"], "the worker is ending");
    assert_eq!(last.last().expect("an end").name, "end");
    assert_eq!(worker.wait_exit().code(), Some(0));
}

#[test]
fn the_rest_of_an_answer_is_for_nobody_but_who_lost_it() {
    let worker = Worker::scripted(Script::behave()).start();
    let client = worker.client();
    // Its client is connected, or has received everything.
    let running = client.execute(&request("running", 2000));
    for job in ["running", "unknown"] {
        let answer = client.get(&format!("/execute/{job}"));
        assert_eq!(answer.status, 404, "{}", answer.text());
    }
    for (path, name) in [
        ("/execute/a?from=-1", "from"),
        ("/execute/a?form=1", "from"),
    ] {
        let answer = client.get(path);
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains(name), "{}", answer.text());
    }
    running.disconnect();
}

#[test]
fn the_command_has_a_worker_go_on_as_the_program_that_replaced_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let (program, next) = (
        directory.path().join("worker-orcd"),
        directory.path().join("next"),
    );
    fs::copy(binary("tested-worker-orcd"), &program).expect("copied");
    let script = Script::behave().token_interval_ms(20);
    let worker = Worker::scripted(script).program_at(&program).start();
    let upgrade = |pid: u32| {
        let mut command = Command::new(&program);
        let output = command.args(["upgrade", &pid.to_string()]).output();
        let output = output.expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (_, said) = upgrade(std::process::id());
    assert!(said.contains("no worker-orcd"), "{said}");
    let (_, said) = upgrade(worker.pid());
    assert!(said.contains("as it is already"), "{said}");

    let mut stream = worker.client().execute(&request("job", 100));
    stream.wait_for("token");
    fs::copy(&program, &next).expect("copied");
    fs::rename(&next, &program).expect("replaced");
    let (is_done, said) = upgrade(worker.pid());
    assert!(is_done && said.contains("goes on as"), "{said}");
    let numbers = stream.by_ref().take_while(|event| event.name == "token");
    let numbers: Vec<_> = numbers.map(|event| event.json()["i"].clone()).collect();
    assert!(numbers.into_iter().eq((1..100).map(Value::from)));
}

#[test]
fn where_the_new_program_cannot_be_executed_the_old_one_goes_on_and_may_be_replaced_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("worker-orcd");
    fs::copy(binary("tested-worker-orcd"), &program).expect("copied");
    let script = Script::behave().token_interval_ms(20);
    let worker = Worker::scripted(script).program_at(&program).start();
    let mut stream = worker.client().execute(&request("job", 100));
    stream.wait_for("token");

    // It announces the takeover, and is gone when it should serve.
    let place = |text: &[u8]| {
        let next = directory.path().join("next");
        fs::write(&next, text).expect("written");
        fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).expect("ours");
        fs::rename(&next, &program).expect("replaced");
    };
    let answers = format!(
        "#!/bin/sh\nrm \"$0\"\nexec {} \"$@\"\n",
        binary("tested-worker-orcd").display()
    );
    place(answers.as_bytes());
    worker.upgrade();
    worker.log.wait_for("upgrade_failed");
    place(&fs::read(binary("tested-worker-orcd")).expect("it is there"));
    worker.upgrade();
    let numbers = stream.by_ref().take_while(|event| event.name == "token");
    let numbers: Vec<_> = numbers.map(|event| event.json()["i"].clone()).collect();
    assert!(numbers.into_iter().eq((1..100).map(Value::from)));
}

/// Request with an unread response and a minimal receive buffer.
fn ask_and_read_nothing(client: &Client, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).expect("a connection");
    setsockopt(&stream, RcvBuf, &(32 << 10)).expect("the kernel takes it");
    let patience = Some(READ_TIMEOUT);
    stream.set_read_timeout(patience).expect("as above");
    let body = body.to_string();
    let request = client.request(
        "POST",
        "/v1/completions",
        &[("Connection", "close")],
        body.as_bytes(),
    );
    stream.write_all(&request).expect("sent");
    stream
}

/// Values of each `"text":` of a stream, up to the end of the connection.
fn texts(mut stream: TcpStream) -> Vec<String> {
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the whole answer");
    assert!(answer.contains("data: [DONE]"), "it has an end");
    let chunks = answer.split("\"text\":").skip(1);
    chunks
        .map(|chunk| chunk.chars().take(3).collect())
        .collect()
}

#[test]
fn what_a_slow_client_has_not_read_is_not_copied_in_an_upgrade_and_not_lost() {
    const STREAMS: u64 = 4;
    const TOKENS: usize = 4000;
    // Part of each event, so that a response exceeds the kernel's buffers of a connection.
    let name = "n".repeat(2500);
    let worker = Worker::null().arg("--served-model-name", &name).start();
    let client = worker.client();
    let body = json!({"prompt": "p", "max_tokens": TOKENS, "stream": true});
    let expected = texts(ask_and_read_nothing(&client, &body));
    // And one without text, which is the end.
    assert_eq!(expected.len(), TOKENS + 1);
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| ask_and_read_nothing(&client, &body))
        .collect();
    // Everything is computed, and waits in the buffers.
    thread::sleep(Duration::from_millis(500));
    wait_for_load(&client, 0);
    worker.upgrade();
    worker.upgrade();
    // The kernel has four of eleven megabytes, and the connection the events that it took together.
    for left in worker.log.wait_for_many("connections_left", 2) {
        assert_eq!(left["count"], STREAMS, "{left}");
        let unsent = left["unsent_bytes"].as_u64().expect("a number");
        assert!(unsent < STREAMS * (4 << 20), "{left}");
    }
    // All at once, because the worker waits half a minute for each of them.
    let readers: Vec<_> = streams
        .into_iter()
        .map(|stream| thread::spawn(move || texts(stream)))
        .collect();
    for reader in readers {
        assert!(
            reader.join().expect("it is read") == expected,
            "the same pieces"
        );
    }
}
