//! Failing upgrades, one after the other on one worker: each is refused or rolled back, named in the log and in the
//! output of `worker-orcd upgrade`, and no stream beside them differs.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_tests::client::{Client, READ_TIMEOUT};
use worker_orcd_tests::stage::{Stage, real};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, wait};

/// Variable with the number of failing upgrades; without it each kind fails once. No setting has this name.
const UPGRADES_VARIABLE: &str = "FAILING_UPGRADES";

const STREAMS: usize = 4;

/// 8 s. A program that hangs after its rehearsal has two seconds, and a busy machine runs many tests. A wait for a slow
/// client took 14 seconds and more.
const PROBE_WITHIN: Duration = Duration::from_secs(8);

/// 4 s for a response while a child or the program is replaced. The rehearsal of the test takes longer, and a wait for
/// a slow client took 14 seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

fn stage() -> Stage {
    Stage::below(env!("CARGO_TARGET_TMPDIR"))
}

fn body(job: &str) -> Value {
    json!({
        "job_id": job,
        "prompt": "Once upon a time there was a worker that was upgraded",
        "max_tokens": 120, "ignore_eos": true, "metrics": false,
    })
}

/// Name of a failure, its cause, and the expected output.
type Failure = (&'static str, fn(&Stage), &'static str);

const FAILURES: &[Failure] = &[
    (
        "a taken port",
        |it| {
            let port = it.taken.local_addr().expect("it listens").port();
            it.place_with(&format!("--port {port}"));
        },
        "cannot be listened on",
    ),
    (
        "an address of another machine",
        |it| it.place_with("--host 192.0.2.1 --insecure"),
        "192.0.2.1",
    ),
    (
        "an admin socket of another worker",
        |it| it.place_with(&format!("--admin-socket {}", it.path("admin").display())),
        "--admin-socket",
    ),
    (
        "another model that is none",
        |it| it.place_with("--model /etc/passwd"),
        "--model /etc/passwd",
    ),
    (
        "a context that is too short for what runs",
        |it| it.place_with("--max-context 64"),
        "--max-context 64",
    ),
    (
        "a setting that there is not",
        |it| it.place_with("--no-such-setting"),
        "--no-such-setting",
    ),
    (
        "a trace in no directory",
        |it| it.place_with("--trace-logits /nonexistent/trace"),
        "/nonexistent/trace",
    ),
    (
        "no directory for sockets",
        |it| {
            it.place_real();
            it.lead_sockets_to(Path::new("/nonexistent/sockets"));
        },
        "socket",
    ),
    (
        "a directory in which none can be made",
        |it| {
            it.place_real();
            it.lead_sockets_to(Path::new("/proc/self"));
        },
        "socket",
    ),
    (
        "a program that is cut off",
        |it| {
            let mut start = vec![0; 100_000];
            let file = fs::File::open(real());
            file.and_then(|mut file| file.read_exact(&mut start))
                .expect("it is longer");
            it.place(&start);
        },
        "worker-orcd",
    ),
    ("no program", |it| it.place(b""), "worker-orcd"),
    (
        "another program",
        |it| it.place(&fs::read("/bin/true").expect("it is there")),
        "did not rehearse",
    ),
    (
        "a program of another format",
        |it| it.place(b"#!/bin/sh\necho 9\n"),
        "another format",
    ),
    (
        "a program that floods its output",
        |it| it.place(b"#!/bin/sh\nexec yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"),
        "did not rehearse",
    ),
    (
        "a program that floods its complaints",
        |it| it.place(b"#!/bin/sh\nexec yes bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb >&2\n"),
        "bbbb",
    ),
    (
        "a program that exits before it serves",
        |it| it.place_after_rehearsal("exec $real \"$@\" --no-such-setting"),
        "--no-such-setting",
    ),
    (
        "a program that panics before it serves",
        |it| it.place_after_rehearsal("exec env TOKIO_WORKER_THREADS=0 $real \"$@\""),
        "panicked",
    ),
    (
        "a program that hangs before it serves",
        |it| {
            let fifo = it.path("fifo").display().to_string();
            it.place_after_rehearsal(&format!("exec $real \"$@\" --config {fifo}"));
        },
        "did not serve within 2 s",
    ),
    (
        "a program that is gone behind its rehearsal",
        |it| {
            let real = real().display().to_string();
            it.place(format!("#!/bin/sh\nrm \"$0\"\nexec {real} \"$@\"\n").as_bytes());
        },
        "cannot be executed",
    ),
];

/// Output of `worker-orcd upgrade`, and whether it succeeded.
fn upgrade(pid: u32) -> (bool, String) {
    let output = Command::new(real())
        .args(["upgrade", &pid.to_string()])
        .output();
    let output = output.expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

/// Observations of clients while upgrades fail.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    whole: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Seen {
    fn complain(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    /// Repeats the same request.
    fn read_streams(&self, client: &Client, number: usize, expected: &str) {
        for turn in 0.. {
            if self.over.load(Ordering::Acquire) {
                return;
            }
            let job = format!("beside-{number}-{turn}");
            let told = client.execute(&body(&job)).transcript();
            match told.text() == expected && told.last().name == "end" {
                true => self.whole.fetch_add(1, Ordering::AcqRel),
                false => return self.complain(format!("{turn}: {:?}", told.last())),
            };
        }
    }

    /// Longest duration of a probe or a new request.
    fn ask(&self, client: &Client) -> Duration {
        let mut longest = Duration::ZERO;
        while !self.over.load(Ordering::Acquire) {
            let asked_at = Instant::now();
            let alive = client.get("/livez").status;
            let alive_at = asked_at.elapsed();
            // 503 between two children, but without delay.
            let ready = client.get("/readyz").status;
            let ready_at = asked_at.elapsed();
            let told = client.execute(&request("a new one", 1)).transcript();
            let took = asked_at.elapsed();
            longest = longest.max(took);
            if alive != 200 || told.last().name != "end" || took > ANSWER_WITHIN {
                let last = told.last();
                self.complain(format!(
                    "{alive} {alive_at:?}, {ready} {ready_at:?}, {took:?} {last:?}"
                ));
            }
        }
        longest
    }

    /// Longest duration of a probe.
    fn probe(&self, client: &Client) -> Duration {
        let mut longest = Duration::ZERO;
        while !self.over.load(Ordering::Acquire) {
            for path in ["/livez", "/readyz"] {
                let asked_at = Instant::now();
                let answer = client.get(path);
                longest = longest.max(asked_at.elapsed());
                // A hang costs the child, and after many deaths the worker is not ready for a moment.
                if path == "/livez" && answer.status != 200 {
                    self.complain(format!("{path}: {} {}", answer.status, answer.text()));
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        longest
    }
}

/// Request that is sent with half of its body.
fn send_half(client: &Client, head: &str, half: &[u8]) -> TcpStream {
    let mut slow = TcpStream::connect(client.address).expect("a connection");
    slow.set_read_timeout(Some(READ_TIMEOUT))
        .expect("it is one");
    let head = format!(
        "POST /execute HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
    );
    slow.write_all(head.as_bytes()).expect("sent");
    slow.write_all(half).expect("sent");
    slow
}

fn answer(mut slow: TcpStream) -> String {
    let mut answer = String::new();
    slow.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn every_upgrade_that_fails_is_refused_or_undone_by_name_and_no_stream_differs() {
    let stage = stage();
    let runtime = stage.runtime.display().to_string();
    let script = || Script::behave().token_interval_ms(10);
    let expected = {
        let reference = Worker::scripted(script()).start();
        reference
            .client()
            .execute(&body("reference"))
            .transcript()
            .text()
    };
    let worker = Worker::scripted(script())
        .program_at(&stage.program)
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("TMPDIR", &runtime)
        .arg("--read-timeout", "300s")
        .start();
    let client = worker.client();
    let pid = worker.pid();
    let text = body("slow").to_string();
    let (half, rest) = text.split_at(text.len() / 2);
    let length = format!("content-length: {}", text.len());
    let mut slow = send_half(&client, &length, half.as_bytes());
    let count = std::env::var(UPGRADES_VARIABLE).ok();
    let count = count.map_or(FAILURES.len(), |text| text.parse().expect("a number"));

    let seen = Seen::default();
    let longest = thread::scope(|scope| {
        let (seen, client, expected) = (&seen, &client, &expected);
        for number in 0..STREAMS {
            scope.spawn(move || seen.read_streams(client, number, expected));
        }
        let probing = scope.spawn(move || seen.probe(client));
        let failing = scope.spawn(|| {
            for (number, (name, fail, reason)) in (0..count).zip(FAILURES.iter().cycle()) {
                // The other streams may all be between two requests.
                let mut runs = client.execute(&request(&format!("runs-{number}"), 2000));
                runs.wait_for("token");
                fail(&stage);
                let (is_done, said) = upgrade(pid);
                assert!(!is_done && said.contains(reason), "{name}: {said}");
                stage.lead_sockets_to(&stage.path("sockets"));
                // Rolled back or refused, it serves.
                wait::until("the worker to serve", || {
                    (client.get("/readyz").status == 200).then_some(())
                });
            }
            stage.place_real();
            let (is_done, said) = upgrade(pid);
            assert!(is_done, "{said}");
        });
        let failed = failing.join();
        let before = seen.whole.load(Ordering::Acquire);
        // Streams that began after the last of them.
        wait::until("streams behind the upgrades", || {
            let is_enough = seen.whole.load(Ordering::Acquire) >= before + 2 * STREAMS;
            let is_wrong = !seen.wrong.lock().expect("no panic").is_empty();
            (is_enough || is_wrong || failed.is_err()).then_some(())
        });
        seen.over.store(true, Ordering::Release);
        let longest = probing.join().expect("probes are answered");
        if let Err(panic) = failed {
            std::panic::resume_unwind(panic);
        }
        longest
    });
    let wrong = seen.wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(worker.pid(), pid);
    println!("the longest probe took {longest:?}");
    assert!(longest < PROBE_WITHIN, "{longest:?}");
    slow.write_all(rest.as_bytes()).expect("sent");
    let answer = answer(slow);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("event: end"), "{answer}");
}

#[test]
fn a_body_in_chunks_is_waited_for_while_everything_else_is_answered() {
    let worker = Worker::scripted(Script::behave())
        .arg("--read-timeout", "300s")
        .start();
    let client = worker.client();
    let text = body("slow").to_string();
    let (half, rest) = text.split_at(text.len() / 2);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let mut slow = send_half(
        &client,
        "transfer-encoding: chunked",
        chunk(half).as_bytes(),
    );
    thread::sleep(Duration::from_millis(100));
    worker.signal(Signal::SIGUSR2);
    worker.signal(Signal::SIGUSR2);
    for _ in 0..20 {
        let asked_at = Instant::now();
        assert_eq!(client.get("/livez").status, 200);
        worker.assert_serves();
        assert!(asked_at.elapsed() < PROBE_WITHIN);
    }
    assert!(worker.log.events("upgrade").is_empty());
    slow.write_all(chunk(rest).as_bytes()).expect("sent");
    slow.write_all(b"0\r\n\r\n").expect("sent");
    assert!(answer(slow).contains("event: end"));
    worker.log.wait_for_many("ready", 2);
}

#[test]
fn restarts_and_upgrades_beside_a_slow_client_delay_no_answer() {
    let stage = stage();
    let script = Script::behave().token_interval_ms(10);
    let worker = Worker::scripted(script)
        .program_at(&stage.program)
        .arg("--read-timeout", "300s")
        .start();
    let client = worker.client();
    let expected = client.execute(&body("reference")).transcript().text();
    let slow = send_half(&client, "content-length: 1000", b"");
    let begun = stage.path("begun");
    let rehearsal = format!(
        "#!/bin/sh\necho > {}\nsleep {}\necho not today >&2\nexit 1\n",
        begun.display(),
        (ANSWER_WITHIN + Duration::from_secs(2)).as_secs(),
    );

    let seen = Seen::default();
    let longest = thread::scope(|scope| {
        let (seen, client, expected) = (&seen, &client, &expected);
        for number in 0..STREAMS {
            scope.spawn(move || seen.read_streams(client, number, expected));
        }
        let asking = scope.spawn(|| seen.ask(client));
        let happening = scope.spawn(|| {
            worker.restart();
            stage.place(rehearsal.as_bytes());
            worker.signal(Signal::SIGUSR2);
            wait::until("the rehearsal", || begun.exists().then_some(()));
            worker.restart();
            assert!(worker.log.events("upgrade_refused").is_empty());
            let refused = worker.log.wait_for("upgrade_refused");
            let reason = refused["reason"].as_str().expect("a reason");
            assert!(reason.ends_with("not today"), "{reason}");
            stage.place_real();
            worker.upgrade();
            worker.restart();
        });
        let happened = happening.join();
        seen.over.store(true, Ordering::Release);
        let longest = asking.join().expect("answers");
        if let Err(panic) = happened {
            std::panic::resume_unwind(panic);
        }
        longest
    });
    println!("the longest answer took {longest:?}");
    let wrong = seen.wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(seen.whole.into_inner() > STREAMS);
    slow.set_nonblocking(true).expect("it is a socket");
    let waiting = (&slow).read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(waiting, Err(ErrorKind::WouldBlock));
}
