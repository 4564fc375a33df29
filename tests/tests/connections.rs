//! More connections than descriptors or connection slots, and half-closed connections: effect on clients in service.
//! Upgrades of full workers.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{
    Bystander, Client, EventStream, Script, Worker, on_the_beat, process, wait,
};

const PROBES: [&str; 4] = ["/livez", "/readyz", "/health", "/metrics"];

fn idle(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    (0..count)
        .map(|_| TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap())
        .collect()
}

#[test]
fn the_soft_limit_of_descriptors_is_raised_to_the_hard_one() {
    let places = |worker: &Worker| worker.client().health()["connections"]["limit"].clone();
    let scripted = || Worker::scripted(Script::behave()).open_files(1024);
    let whole = places(&scripted().start());
    assert_eq!(places(&scripted().soft_open_files(256).start()), whole);
    assert!(whole.as_u64() > Some(256), "{whole}");
}

/// The test lowers the limit from outside, which clients cannot do.
#[test]
fn want_of_descriptors_is_no_death_and_is_waited_for() {
    let worker = Worker::scripted(on_the_beat()).start();
    let bystander = Bystander::of_a_script(worker.client());
    let stream = bystander.begin();
    let pid = rustix::process::Pid::from_raw(worker.pid().cast_signed());
    let limit = |current: Option<u64>, maximum: Option<u64>| {
        let limit = rustix::process::Rlimit { current, maximum };
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap()
    };
    let child = worker.child_pid().expect("a child");
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let before = limit(Some(4), Some(hard));
    process::signal(child, Signal::SIGKILL);
    wait::until("the want to be said", || {
        let said = worker.log.events("impaired");
        said.iter()
            .any(|it| it["what"] == "child_socket")
            .then_some(())
    });
    // Ten attempts; as deaths, six of them would have ended the worker.
    std::thread::sleep(Duration::from_millis(2500));
    limit(before.current, before.maximum);
    let (text, end) = stream.end();
    assert_eq!(text, bystander.alone());
    assert_eq!(end["recoveries"], 1);
    let faults = &worker.client().health()["faults"];
    assert_eq!(
        faults["deaths_by_cause"],
        json!({ "signalled": 1 }),
        "{faults}"
    );
}

#[test]
fn a_limit_that_leaves_no_connections_is_said_at_start() {
    let mut worker = Worker::scripted(Script::behave()).open_files(100).spawn();
    assert_eq!(worker.wait_exit().code(), Some(1));
    let log = worker.log.text();
    assert!(
        log.contains("100 file descriptors") && log.contains("ulimit -n"),
        "{log}"
    );
}

#[test]
fn probes_are_answered_although_every_place_is_taken() {
    let script = Script::behave().token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--max-connections", 8).start();
    let client = worker.client();
    let mut streams: Vec<_> = (0..8)
        .map(|_| client.execute(&request("abc", 2000)))
        .collect();
    for stream in &mut streams {
        stream.wait_for("token");
    }
    let _crowd = idle(client.address, 100);
    for path in PROBES {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    let refused = client.post("/execute", &request("abc", 1));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(client.health()["connections"]["open"], 8);
    for stream in streams.drain(..2) {
        stream.disconnect();
    }
    wait::until("a place", || {
        let answer = client.open("/execute", &request("abc", 1)).ok()?;
        (answer.status == 200).then_some(())
    });
    for stream in streams {
        stream.disconnect();
    }
}

/// An idle connection is as good as a new one, unless a newcomer needs its slot.
#[test]
fn idle_connections_give_way_and_busy_ones_do_not() {
    let script = Script::behave().token_interval_ms(10);
    let worker = Worker::scripted(script).arg("--max-connections", 4).start();
    let client = worker.client();
    let mut stream = client.execute(&request("abc", 300));
    let first = stream.wait_for("token").json()["t"].clone();
    let crowd = idle(client.address, 50);
    worker.assert_serves();
    let mut closed = 0;
    for connection in &crowd {
        connection.set_nonblocking(true).unwrap();
        let mut byte = [0];
        closed += usize::from(matches!((&*connection).read(&mut byte), Ok(0)));
    }
    assert!(closed >= 46, "{closed} of 50 gave way");
    let text = format!("{}{}", first.as_str().unwrap(), stream.transcript().text());
    assert_eq!(text, scripted_text("abc", 300));
    assert!(client.health()["connections"]["evicted"].as_u64().unwrap() >= 46);
}

// === Upgrades ===

/// Waits until the worker has accepted or inherited `count` connections.
fn wait_open(client: &Client, count: usize) {
    wait::until("the connections to be the worker's", || {
        let open = client.health()["connections"]["open"].as_u64()?;
        (open >= count as u64).then_some(())
    });
}

/// Full worker with a running stream.
struct Full {
    worker: Worker,
    crowd: Vec<TcpStream>,
    job: Value,
    stream: EventStream,
}

impl Full {
    fn start() -> Self {
        let worker = Worker::scripted(Script::behave().token_interval_ms(20))
            .unprivileged()
            .open_files(1024)
            .arg("--read-timeout", "300s")
            .start();
        let client = worker.client();
        let places = client.health()["connections"]["limit"].as_u64().unwrap();
        assert!(places > 700, "{places}");
        let mut crowd = Vec::new();
        // The test itself needs some. The kernel delays those that the worker does not accept soon enough.
        while crowd.len() < places as usize - 60 {
            crowd.extend(idle(client.address, 50));
            wait_open(&client, crowd.len());
        }
        let job = request("abcdefghijklmnopqrstuvwxyz ", 2000);
        let stream = client.execute(&job);
        client.wait_until_it_computes();
        Self {
            worker,
            crowd,
            job,
            stream,
        }
    }

    fn wait_tokens(&self) {
        wait::until("tokens", || {
            let client = self.worker.client();
            let tokens = client.try_metric("worker_orcd_generated_tokens_total");
            (tokens.unwrap() > 20).then_some(())
        });
    }

    /// Asserts that no connection was lost, and that the stream is complete.
    fn end(self) {
        let client = self.worker.client();
        let question = client.request("GET", "/livez", &[], b"");
        for mut connection in &self.crowd {
            connection.write_all(&question).unwrap();
        }
        for mut connection in &self.crowd {
            let mut line = [0; 15];
            connection.read_exact(&mut line).unwrap();
            assert_eq!(&line, b"HTTP/1.1 200 OK");
        }
        let cancelled = client.post("/cancel", &json!({"job_id": self.job["job_id"]}));
        assert_eq!(cancelled.status, 202, "{}", cancelled.text());
        let told = self.stream.transcript();
        told.error("CANCELLED");
        let text = told.text();
        let prompt = self.job["prompt"].as_str().unwrap();
        assert_eq!(text, scripted_text(prompt, text.len()));
    }
}

/// The kernel limits a user's descriptors in flight, over all processes, by the limit of each of them.
#[test]
fn full_workers_of_one_user_that_upgrade_at_once_lose_no_connection() {
    let full: Vec<_> = (0..3).map(|_| Full::start()).collect();
    for upgrades in 1..=2 {
        for it in &full {
            it.worker.signal(Signal::SIGUSR2);
        }
        for it in &full {
            it.worker.log.wait_for_many("ready", 1 + upgrades);
            wait_open(&it.worker.client(), it.crowd.len() + 1);
        }
    }
    for it in full {
        it.wait_tokens();
        it.end();
    }
}

// === Half closed ===

/// Response to a client that closes its side after its request.
fn half_closed(worker: &Worker, path: &str, body: &serde_json::Value) -> String {
    let client = worker.client();
    let bytes = client.request("POST", path, &[], body.to_string().as_bytes());
    let mut connection = client.connect().unwrap();
    connection.send(&bytes).unwrap();
    connection.socket().shutdown(Shutdown::Write).unwrap();
    String::from_utf8(connection.read_to_close().unwrap()).unwrap()
}

#[test]
fn a_half_closed_client_gets_its_whole_answer() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(20)).start();
    let stream = half_closed(&worker, "/execute", &request("abc", 30));
    assert!(stream.contains("event: end\n"), "{stream}");
    assert!(stream.ends_with("0\r\n\r\n"), "{stream}");
    let body = json!({ "prompt": "abc", "max_tokens": 30 });
    let whole = half_closed(&worker, "/v1/completions", &body);
    let interim = whole.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n");
    let answer = interim.unwrap_or(&whole);
    assert!(answer.starts_with("HTTP/1.1 200"), "{whole}");
    assert!(answer.contains(&scripted_text("abc", 30)), "{whole}");
}

/// Runs alone on the machine.
mod pace {
    use super::*;

    #[test]
    fn a_thousand_idle_connections_cost_no_stream_its_next_child() {
        for limit in [1024, 256] {
            let worker = Worker::scripted(on_the_beat()).open_files(limit).start();
            let client = worker.client();
            let bystander = Bystander::of_a_script(worker.client());
            let mut crowd = Vec::new();
            bystander.keeps_pace_beside(|| crowd = idle(client.address, 1000));
            let stream = bystander.begin();
            let open = process::open_files(worker.pid());
            assert!(open < limit as usize, "{open} of {limit}");
            for _ in 0..2 {
                let child = worker.child_pid().expect("a child");
                process::signal(child, Signal::SIGKILL);
                wait::until("the next child", || {
                    crowd.extend(idle(client.address, 10));
                    assert_eq!(client.get("/livez").status, 200);
                    worker.child_pid().filter(|pid| *pid != child)
                });
            }
            let (text, end) = stream.end();
            assert_eq!(text, bystander.alone(), "limit {limit}");
            assert!(end["recoveries"].as_u64() >= Some(1), "{end}");
            let health = client.health();
            assert_eq!(
                health["faults"]["deaths_by_cause"]["spawn_failed"],
                json!(null)
            );
            let places = health["connections"]["limit"].as_u64().unwrap();
            assert!(places < u64::from(limit) - 100, "{}", health["connections"]);
            assert!(!worker.log_until_now().contains("accept_failed"));
        }
    }

    /// Each response is cheap; unfairness shows only with thousands of requests.
    #[test]
    fn clients_that_ask_many_things_at_once_take_turns_with_a_stream() {
        let worker = Worker::scripted(on_the_beat()).start();
        let client = worker.client();
        let questions = client.request("GET", "/metrics", &[], b"").repeat(300);
        Bystander::of_a_script(worker.client()).keeps_pace_beside(|| {
            let crowd: Vec<_> = (0..10)
                .map(|_| {
                    let mut connection = client.connect().unwrap();
                    connection.send(&questions).unwrap();
                    connection.socket().shutdown(Shutdown::Write).unwrap();
                    std::thread::spawn(move || connection.read_to_close().unwrap())
                })
                .collect();
            for reader in crowd {
                let answers = String::from_utf8(reader.join().unwrap()).unwrap();
                assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 300);
            }
        });
    }
}
