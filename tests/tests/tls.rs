//! HTTPS: equivalence to HTTP, refused handshakes, and accepted files.

use nix::sys::signal::Signal;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use worker_orcd_tests::script::scripted_text;
use worker_orcd_tests::worker::request;
use worker_orcd_tests::{Script, Worker, WorkerBuilder, wait};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Certificate and its key, in files of their own.
struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> (Self, CertificateDer<'static>) {
        let files = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        let certificate = files.renew();
        (files, certificate)
    }

    fn cert(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    fn write(&self, made: &CertifiedKey<KeyPair>) {
        fs::write(self.cert(), made.cert.pem()).unwrap();
        fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(self.key(), Permissions::from_mode(0o600)).unwrap();
    }

    /// Writes another certificate to the same files.
    fn renew(&self) -> CertificateDer<'static> {
        let made = made();
        self.write(&made);
        made.cert.der().clone()
    }

    fn worker(&self, interval_ms: u64) -> WorkerBuilder {
        Worker::scripted(Script::behave().token_interval_ms(interval_ms))
            .arg("--tls-cert", self.cert().display())
            .arg("--tls-key", self.key().display())
    }
}

fn made() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn ready(builder: WorkerBuilder) -> (Worker, SocketAddr) {
    let worker = builder.listening();
    let _ = worker.log.wait_for("ready");
    let address = worker.client().address;
    (worker, address)
}

/// Connects with trust in this certificate only.
fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
    protocols: &[&str],
) -> io::Result<Stream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let mut config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn bytes(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = "Host: localhost\r\nContent-Type: application/json\r\nConnection: close";
    format!("{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}").into()
}

fn post(stream: &mut Stream, path: &str, body: &Value) {
    let request = bytes("POST", path, &body.to_string());
    stream.write_all(&request).unwrap();
}

fn rest(stream: &mut Stream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, trusted: &CertificateDer<'static>, path: &str) -> String {
    let mut stream = connect(address, trusted, &[]).unwrap();
    stream.write_all(&bytes("GET", path, "")).unwrap();
    rest(&mut stream)
}

/// Text of a stream's tokens.
fn text(answer: &str) -> String {
    let data = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
    events
        .filter_map(|event| event["t"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn streams_and_answers_are_as_without_tls_and_only_http_1_is_offered() {
    let (files, certificate) = Files::new();
    let (worker, address) = ready(files.worker(2));
    let mut stream = connect(address, &certificate, &["h2", "http/1.1"]).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    post(&mut stream, "/execute", &request("abc", 200));
    let answer = rest(&mut stream);
    assert_eq!(text(&answer), scripted_text("abc", 200));
    assert!(answer.contains("event: end\n"), "{answer}");
    assert!(get(address, &certificate, "/health").contains("\"healthy\""));
    assert!(connect(address, &certificate, &["h2"]).is_err());
    assert!(worker.client().try_get("/health").is_err(), "it is no HTTP");
    let stranger = made().cert.der().clone();
    assert!(connect(address, &stranger, &[]).is_err());
    let uri = worker.log.wait_for("ready")["uri"].clone();
    assert!(uri.as_str().unwrap().starts_with("https://"), "{uri}");
}

#[test]
fn who_leaves_is_gone_and_who_only_says_nothing_more_is_answered() {
    let (files, certificate) = Files::new();
    let (worker, address) = ready(files.worker(20));
    let body = json!({ "prompt": "abc", "max_tokens": 30 });
    let mut half = connect(address, &certificate, &[]).unwrap();
    post(&mut half, "/v1/completions", &body);
    half.conn.send_close_notify();
    half.flush().unwrap();
    let answer = rest(&mut half);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(&scripted_text("abc", 30)), "{answer}");

    let endless = json!({ "prompt": "abc", "max_tokens": 100_000 });
    for (path, body) in [
        ("/v1/completions", endless),
        ("/execute", request("abc", 2000)),
    ] {
        let mut stream = connect(address, &certificate, &[]).unwrap();
        post(&mut stream, path, &body);
        let running = || {
            let health = get(address, &certificate, "/health");
            let body = health.split_once("\r\n\r\n").expect("a head").1;
            let health: Value = serde_json::from_str(body).expect("JSON");
            health["load"]["running"].as_u64()
        };
        wait::until("the request to run", || {
            (running() == Some(1)).then_some(())
        });
        stream.sock.shutdown(Shutdown::Write).unwrap();
        wait::until("its end", || (running() == Some(0)).then_some(()));
        let mut unread = Vec::new();
        stream.sock.read_to_end(&mut unread).unwrap();
        let said = String::from_utf8_lossy(&unread);
        assert!(!said.contains("HTTP/1.1"), "in plain text: {said}");
    }
    assert!(worker.log.events("child_death").is_empty());
}

#[test]
fn whoever_does_not_shake_hands_is_given_up_and_keeps_nobody_out() {
    let (files, certificate) = Files::new();
    let (_impatient, address) = ready(files.worker(5).arg("--read-timeout", "1s"));
    // Incomplete record of a handshake.
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&[0x16, 3, 1, 2, 0]).unwrap();
    let mut silent = TcpStream::connect(address).unwrap();
    for waiting in [&mut half, &mut silent] {
        waiting
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // An alert, or nothing.
        let mut said = Vec::new();
        let ended = waiting.read_to_end(&mut said);
        let is_reset = |error: io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(ended.map_or_else(is_reset, |_| true), "it was left open");
    }
    let patient = files.worker(5).arg("--read-timeout", "1h");
    let (_patient, address) = ready(patient.arg("--max-connections", 8));
    let _crowd: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    assert!(get(address, &certificate, "/livez").starts_with("HTTP/1.1 200"));
    let mut stream = connect(address, &certificate, &[]).unwrap();
    post(&mut stream, "/execute", &request("abc", 50));
    assert_eq!(text(&rest(&mut stream)), scripted_text("abc", 50));
}

#[test]
fn sighup_shows_the_next_certificate_and_a_bad_one_changes_nothing() {
    let (files, first) = Files::new();
    let (worker, address) = ready(files.worker(5));
    let mut stream = connect(address, &first, &[]).unwrap();
    post(&mut stream, "/execute", &request("abc", 300));
    let second = files.renew();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for("reload");
    assert!(
        connect(address, &first, &[]).is_err(),
        "it is shown no more"
    );
    assert!(get(address, &second, "/livez").starts_with("HTTP/1.1 200"));

    fs::write(files.cert(), made().cert.pem()).unwrap();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for_many("reload_failed", 1);
    files.renew();
    fs::set_permissions(files.key(), Permissions::from_mode(0o640)).unwrap();
    worker.signal(Signal::SIGHUP);
    worker.log.wait_for_many("reload_failed", 2);
    assert!(get(address, &second, "/livez").starts_with("HTTP/1.1 200"));
    let answer = rest(&mut stream);
    assert_eq!(
        text(&answer),
        scripted_text("abc", 300),
        "who is in stays in"
    );
}

#[test]
fn an_upgrade_waits_for_answers_over_tls_and_is_called_off_for_long_ones() {
    let (files, certificate) = Files::new();
    let (worker, address) = ready(files.worker(20).arg("--read-timeout", "1s"));
    let begin = |tokens| {
        let mut stream = connect(address, &certificate, &[]).unwrap();
        post(&mut stream, "/execute", &request("abc", tokens));
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        stream
    };
    let mut long = begin(400);
    worker.signal(Signal::SIGUSR2);
    let refused = worker.log.wait_for("upgrade_refused");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.contains("TLS"), "{reason}");
    assert_eq!(text(&rest(&mut long)), scripted_text("abc", 400));

    let mut short = begin(60);
    worker.signal(Signal::SIGUSR2);
    assert_eq!(text(&rest(&mut short)), scripted_text("abc", 60));
    wait::until("the next supervisor to be ready", || {
        (worker.log.events("ready").len() == 2).then_some(())
    });
    assert!(get(address, &certificate, "/livez").starts_with("HTTP/1.1 200"));
}

#[test]
fn files_that_are_no_pair_or_not_private_are_refused_by_name() {
    let (files, _) = Files::new();
    let (cert, key) = (files.cert(), files.key());
    let with = |cert: Option<&PathBuf>, key: Option<&PathBuf>| {
        let mut worker = Worker::scripted(Script::behave());
        for (name, path) in [("--tls-cert", cert), ("--tls-key", key)] {
            if let Some(path) = path {
                worker = worker.arg(name, path.display());
            }
        }
        worker
    };
    with(Some(&cert), None).ends_with(2, &["--tls-cert needs --tls-key"]);
    with(None, Some(&key)).ends_with(2, &["--tls-key needs --tls-cert"]);
    with(Some(&key), Some(&key)).ends_with(2, &["holds no certificate"]);
    let log = with(Some(&cert), Some(&cert)).ends_with(2, &["chmod 600"]);
    assert!(!log.contains("BEGIN"), "{log}");
    fs::set_permissions(&cert, Permissions::from_mode(0o600)).unwrap();
    with(Some(&cert), Some(&cert)).ends_with(2, &["holds no private key"]);
    fs::write(&cert, made().cert.pem()).unwrap();
    with(Some(&cert), Some(&key)).ends_with(2, &["--tls-cert with --tls-key"]);
    fs::remove_file(&cert).unwrap();
    with(Some(&cert), Some(&key)).ends_with(2, &["cannot be read"]);
}
