//! Slow and stalled readers: other streams keep their pace, and memory is bounded.

use nix::sys::socket::{setsockopt, sockopt};
use std::time::{Duration, Instant};
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, process, wait};

/// Sixteen unread streams beside one that is read.
#[test]
fn clients_that_do_not_read_slow_nobody_and_hold_bounded_memory() {
    let script = Script::behave().max_running(32).token_interval_ms(0);
    let worker = Worker::scripted(script).start();
    worker.assert_serves();
    let before = process::anonymous_rss_bytes(worker.pid()).unwrap();
    let unread: Vec<_> = (0..16)
        .map(|_| {
            let mut connection = worker.client().connect().unwrap();
            let body = request("nobody reads this", 2048).to_string();
            let bytes = worker
                .client()
                .request("POST", "/execute", &[], body.as_bytes());
            connection.send(&bytes).unwrap();
            connection
        })
        .collect();
    let start = Instant::now();
    for _ in 0..5 {
        let transcript = worker
            .client()
            .execute(&request("is read", 200))
            .transcript();
        assert_eq!(transcript.end()["tokens_out"], 200);
    }
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    let after = process::anonymous_rss_bytes(worker.pid()).unwrap();
    assert!(
        after < before + (64 << 20),
        "{before} bytes before, {after} with slow readers"
    );
    drop(unread);
    wait::until("the slots to be free", || {
        (worker.client().health()["load"]["running"] == 0).then_some(())
    });
}

/// A reader that pauses for a while finds every token, in order.
#[test]
fn a_slow_reader_loses_nothing() {
    let worker = Worker::scripted(Script::behave().token_interval_ms(0)).start();
    let mut stream = worker.client().execute(&request("abc", 500));
    stream.wait_for("started");
    std::thread::sleep(Duration::from_millis(500));
    let mut text = String::new();
    let mut end = None;
    for event in stream {
        match event.name.as_str() {
            "token" => {
                text.push_str(event.json()["t"].as_str().unwrap());
                if text.len().is_multiple_of(100) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            _ => end = Some(event),
        }
    }
    assert_eq!(text, worker_orcd_tests::script::scripted_text("abc", 500));
    assert_eq!(end.expect("a terminal event").name, "end");
}

/// The text exceeds all buffers on the way, and the client reads none of it: after the write timeout the connection is
/// closed, though the client never closes its side.
#[test]
fn a_client_that_never_reads_is_dropped_after_the_write_timeout() {
    let script = Script::behave().token_interval_ms(0);
    let worker = Worker::scripted(script)
        .arg("--max-tokens-out", 130_000)
        .arg("--write-timeout", "2s")
        // A shorter read timeout would close the connection if the kernel had taken everything.
        .arg("--read-timeout", "3600s")
        .start();
    worker.assert_serves();
    let before = open_files_at_rest(worker.pid());
    let mut deaf = worker.client().connect().unwrap();
    setsockopt(deaf.socket(), sockopt::RcvBuf, &4096).unwrap();
    let body = request("nobody reads this", 130_000).to_string();
    let bytes = worker
        .client()
        .request("POST", "/execute", &[], body.as_bytes());
    deaf.send(&bytes).unwrap();
    wait::until("the connection", || {
        (process::open_files(worker.pid()) > before).then_some(())
    });
    wait::until("the connection to be dropped", || {
        (process::open_files(worker.pid()) <= before).then_some(())
    });
    drop(deaf);
    worker.assert_serves();
}

/// Number of open files. Connections of completed requests close shortly after their clients have the answers.
fn open_files_at_rest(pid: u32) -> usize {
    wait::until("descriptors to stay as they are", || {
        let count = process::open_files(pid);
        let stays = (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(20));
            process::open_files(pid) == count
        });
        stays.then_some(count)
    })
}
