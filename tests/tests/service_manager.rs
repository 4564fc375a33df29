//! Notifications to a service manager: `NOTIFY_SOCKET` and the watchdog, as systemd sets them.

use nix::sys::signal::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker_orcd_gpu::model::Architecture;
use worker_orcd_gpu::model::tiny_model::tiny_model;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{FakeHub, Held, Script, Worker, WorkerBuilder, wait};

const WATCHDOG: Duration = Duration::from_millis(400);

/// Service manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("a socket");
        socket
            .set_read_timeout(Some(wait::PATIENCE))
            .expect("a socket takes it");
        Self { socket, directory }
    }

    fn starts(&self, worker: WorkerBuilder) -> WorkerBuilder {
        let path = |path: &Path| path.display().to_string();
        worker
            .env(
                "NOTIFY_SOCKET",
                &path(&self.directory.path().join("notify")),
            )
            .env("WATCHDOG_USEC", &WATCHDOG.as_micros().to_string())
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a word in time");
        let text = String::from_utf8_lossy(&bytes[..length]);
        text.trim_end().to_owned()
    }

    /// All messages up to the first one that begins like this.
    fn until(&self, beginning: &str) -> Vec<String> {
        let mut words = Vec::new();
        while words
            .last()
            .is_none_or(|it: &String| !it.starts_with(beginning))
        {
            words.push(self.next());
        }
        words
    }
}

#[test]
fn it_is_told_when_the_worker_is_ready_how_it_does_and_when_it_stops() {
    let manager = Manager::new();
    let mut worker = manager.starts(Worker::scripted(Script::behave())).start();
    let words = manager.until("READY=1");
    assert!(
        words.contains(&"EXTEND_TIMEOUT_USEC=10000000".to_owned()),
        "{words:?}"
    );
    assert!(words.contains(&"WATCHDOG=1".to_owned()), "{words:?}");

    worker.replace_child();
    loop {
        let status = manager.until("STATUS=").pop().expect("a status");
        if status.contains("serving") && status.contains("1 restarts") {
            assert!(status.contains("killed by signal 9"), "{status}");
            break;
        }
    }
    worker.signal(Signal::SIGTERM);
    let words = manager.until("STOPPING=1");
    assert!(!words.contains(&"READY=1".to_owned()), "once: {words:?}");
    assert_eq!(worker.wait_exit().code(), Some(0));
}

/// During a download no child reports load progress, so the supervisor extends the timeout itself.
#[test]
fn it_is_told_how_far_a_model_is_that_is_not_here_and_asked_for_the_time() {
    let cache = TempDir::new().expect("a temporary directory");
    let tiny = tiny_model(Architecture::Llama).build();
    let hub = FakeHub::start(vec![
        Held::new("a/b", "m.gguf", &tiny).cut_after(tiny.len() / 2 + 1),
    ]);
    let manager = Manager::new();
    let worker = Worker::with_model("a/b:m.gguf")
        .env("HF_ENDPOINT", &hub.endpoint())
        .env("no_proxy", "127.0.0.1,localhost")
        .env("XDG_CACHE_HOME", &cache.path().display().to_string());
    let _worker = manager.starts(worker).start();
    let words = manager.until("READY=1");
    let told = |beginning: &str| words.iter().any(|it| it.starts_with(beginning));
    assert!(told("STATUS=getting http://"), "{words:?}");
    assert!(told("STATUS=the transfer ended after"), "{words:?}");
    let is_here = words
        .iter()
        .position(|it| it.starts_with("STATUS=m.gguf is here"));
    let before = &words[..is_here.expect("it is told")];
    let extension = "EXTEND_TIMEOUT_USEC=10000000";
    assert!(before.iter().any(|it| it == extension), "{words:?}");
}

#[test]
fn the_watchdog_hears_of_a_worker_to_which_nothing_happens_and_not_of_one_that_stands_still() {
    let manager = Manager::new();
    let worker = manager.starts(Worker::scripted(Script::behave())).start();
    manager.until("READY=1");
    let mut last = Instant::now();
    for _ in 0..6 {
        manager.until("WATCHDOG=1");
        assert!(last.elapsed() < WATCHDOG, "{:?}", last.elapsed());
        last = Instant::now();
    }
    worker.signal(Signal::SIGSTOP);
    manager
        .socket
        .set_nonblocking(true)
        .expect("a socket takes it");
    let mut bytes = [0; 4096];
    while manager.socket.recv(&mut bytes).is_ok() {}
    std::thread::sleep(2 * WATCHDOG);
    assert!(manager.socket.recv(&mut bytes).is_err(), "it stands still");
    worker.signal(Signal::SIGCONT);
}

/// The queue of its socket fills until it is read.
#[test]
fn one_that_does_not_read_stops_nothing() {
    let manager = Manager::new();
    let worker = manager.starts(Worker::scripted(Script::behave()));
    let mut worker = worker.env("WATCHDOG_USEC", "2000").start();
    // Longer than it takes to fill any socket's queue.
    std::thread::sleep(Duration::from_secs(2));
    let transcript = worker.client().execute(&request("abc", 50)).transcript();
    assert_eq!(transcript.end()["tokens_out"], 50);
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.wait_exit().code(), Some(0));
}
