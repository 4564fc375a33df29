//! Faulty connections: incomplete requests, late ones, other protocols, too many of them. Each test also checks that
//! others are served meanwhile and afterwards.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use worker_orcd_tests::client::Connection;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, wait};

fn worker() -> Worker {
    Worker::scripted(Script::behave().token_interval_ms(0)).start()
}

#[test]
fn half_sent_requests_hold_nobody_up_and_are_closed() {
    let worker = Worker::scripted(Script::behave())
        .arg("--read-timeout", "2s")
        .start();
    let whole = worker
        .client()
        .request("POST", "/execute", &[], b"{\"job_id\":\"half\"}");
    let cuts = [3, 20, whole.len() - 5];
    let mut halves: Vec<Connection> = cuts
        .iter()
        .map(|cut| {
            let mut connection = worker.client().connect().unwrap();
            connection.send(&whole[..*cut]).unwrap();
            connection
        })
        .collect();
    worker.assert_serves();
    for (half, cut) in halves.iter_mut().zip(cuts) {
        let start = Instant::now();
        let said = half
            .read_to_close()
            .unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert!(start.elapsed() < Duration::from_secs(20), "cut at {cut}");
        let text = String::from_utf8_lossy(&said);
        assert!(
            said.is_empty() || text.starts_with("HTTP/1.1 4"),
            "cut at {cut}: {text}"
        );
    }
    worker.assert_serves();
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_is_no_trouble() {
    let worker = worker();
    let whole = worker
        .client()
        .request("POST", "/execute", &[], &[b' '; 1000]);
    for cut in [1, 40, whole.len() - 1] {
        let mut connection = worker.client().connect().unwrap();
        connection.send(&whole[..cut]).unwrap();
        connection.socket().shutdown(Shutdown::Both).unwrap();
    }
    worker.assert_serves();
}

#[test]
fn a_request_that_drips_in_is_served_or_refused_while_others_are_served() {
    let worker = worker();
    let body = request("drip", 2).to_string();
    let bytes = worker
        .client()
        .request("POST", "/execute", &[], body.as_bytes());
    let mut slow = worker.client().connect().unwrap();
    for (sent, byte) in bytes.iter().enumerate() {
        slow.send(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        if sent == bytes.len() / 2 {
            worker.assert_serves();
        }
    }
    let response = slow.read_response().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(
        response.text().contains("event: end"),
        "{}",
        response.text()
    );
}

#[test]
fn a_body_that_never_ends_is_given_up_after_the_read_timeout() {
    let worker = Worker::scripted(Script::behave())
        .arg("--read-timeout", "2s")
        .start();
    let bytes = worker
        .client()
        .request("POST", "/execute", &[], &[b' '; 10_000]);
    let mut slow = worker.client().connect().unwrap();
    let start = Instant::now();
    // One byte at a time prevents a timeout between bytes.
    let sent = bytes
        .iter()
        .take_while(|byte| {
            std::thread::sleep(Duration::from_millis(20));
            slow.send(&[**byte]).is_ok() && start.elapsed() < Duration::from_secs(30)
        })
        .count();
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{sent} bytes dripped in unhindered"
    );
    worker.assert_serves();
}

#[test]
fn what_is_no_http_is_closed() {
    let worker = worker();
    for noise in [
        b"\x16\x03\x01\x02\x00\x01\x00".as_slice(),
        b"HELO there\r\n\r\n",
        &[0; 64],
    ] {
        let mut connection = worker.client().connect().unwrap();
        connection.send(noise).unwrap();
        let said = connection.read_to_close().unwrap();
        let text = String::from_utf8_lossy(&said);
        assert!(said.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    worker.assert_serves();
}

#[test]
fn headers_without_end_are_refused() {
    let worker = worker();
    let mut connection = worker.client().connect().unwrap();
    connection.send(b"GET /health HTTP/1.1\r\n").unwrap();
    let header = format!("X-Padding: {}\r\n", "x".repeat(8000));
    // The server may close before it has read everything.
    let sent = (0..1000)
        .take_while(|_| connection.send(header.as_bytes()).is_ok())
        .count();
    let said = connection.read_to_close().unwrap_or_default();
    let text = String::from_utf8_lossy(&said);
    assert!(text.starts_with("HTTP/1.1 4") || sent < 1000, "{text}");
    worker.assert_serves();
}

// === Too many ===

#[test]
fn more_connections_than_allowed_do_not_keep_the_worker_from_serving() {
    let worker = Worker::scripted(Script::behave())
        .arg("--max-connections", 200)
        .start();
    let open_before = worker_orcd_tests::process::open_files(worker.pid());
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..600 {
        // At its limit the server may refuse, or leave connections in the kernel's queue.
        let attempt =
            TcpStream::connect_timeout(&worker.client().address, Duration::from_millis(200));
        match attempt {
            Ok(stream) => idle.push(stream),
            Err(_) => break,
        }
    }
    assert!(idle.len() >= 100, "only {} connections", idle.len());
    let open = worker_orcd_tests::process::open_files(worker.pid());
    assert!(
        open < open_before + 300,
        "{open} open files: connections are not bounded"
    );
    drop(idle);
    wait::until("the worker to serve again", || {
        worker
            .client()
            .try_request("GET", "/readyz", &[], &[])
            .is_ok_and(|response| response.status == 200)
            .then_some(())
    });
    worker.assert_serves();
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let script = Script::behave().max_running(1).token_interval_ms(20);
    let worker = Worker::scripted(script).arg("--max-queue", 2).start();
    let client = worker.client();
    let mut streams = Vec::new();
    let refusal = loop {
        let answer = client.open("/execute", &request("long", 2048)).unwrap();
        if answer.status != 200 {
            break answer.into_response().unwrap();
        }
        streams.push(answer);
        assert!(streams.len() <= 3, "one runs, two wait, and there is room");
    };
    assert_eq!(refusal.status, 429, "{}", refusal.text());
    let seconds = refusal
        .header("retry-after")
        .expect("Retry-After")
        .parse::<u64>()
        .unwrap();
    assert!(seconds >= 1);
    assert!(refusal.text().contains("QUEUE_FULL"), "{}", refusal.text());
    drop(streams);
    wait::until("everybody who left to be noticed", || {
        (client.health()["load"]["live"] == 0).then_some(())
    });
    worker.assert_serves();
}

// === On the wire ===

/// Reads a stream to its end without the client, for the raw bytes.
#[test]
fn the_stream_is_plain_sse_on_the_wire() {
    let worker = worker();
    let mut stream = TcpStream::connect(worker.client().address).unwrap();
    let body = request("wire", 2).to_string();
    let head = worker
        .client()
        .request("POST", "/execute", &[("Connection", "close")], &[]);
    let head = String::from_utf8(head).unwrap();
    let head = head.replace(
        "Content-Length: 0",
        &format!("Content-Length: {}", body.len()),
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let lower = text.to_lowercase();
    assert!(lower.contains("content-type: text/event-stream"), "{text}");
    assert!(lower.contains("cache-control: no-cache"), "{text}");
    assert!(
        text.contains("event: started\n") || text.contains("event:started\n"),
        "{text}"
    );
}
