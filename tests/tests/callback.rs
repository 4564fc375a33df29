//! Registration over TLS: the certificate must be valid for the URL's host, by an authority that the machine trusts.
//! (`contract.rs` has the registration itself.)

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use tempfile::NamedTempFile;
use worker_orcd_tests::worker::WorkerBuilder;
use worker_orcd_tests::{Script, Worker, wait};

/// Authority that signs for one host, and the file that makes it trusted.
struct Authority {
    file: NamedTempFile,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        let distinguished = &mut parameters.distinguished_name;
        distinguished.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let mut file = NamedTempFile::new().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        file.write_all(certificate.pem().as_bytes()).unwrap();
        let issuer = Issuer::new(parameters, key);
        Self { file, issuer }
    }

    /// Listens with a certificate of that name.
    fn orchestrator(&self, name: &str) -> Orchestrator {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(certificate)];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Orchestrator {
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            config: Arc::new(config),
        }
    }

    /// Worker that trusts only this authority, and registers there.
    fn worker(&self, listener: &TcpListener) -> WorkerBuilder {
        let port = listener.local_addr().unwrap().port();
        Worker::scripted(Script::behave())
            .arg("--callback-url", format!("https://localhost:{port}/w"))
            .env("SSL_CERT_FILE", self.file.path().to_str().unwrap())
            // Authorities of the machine that runs the test.
            .env("SSL_CERT_DIR", "")
    }
}

struct Orchestrator {
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl Orchestrator {
    /// Accepts one call, and returns its request line and body.
    fn answer_one(&self) -> std::io::Result<(String, String)> {
        let (stream, _) = self.listener.accept()?;
        let connection = ServerConnection::new(Arc::clone(&self.config)).unwrap();
        let mut reader = BufReader::new(StreamOwned::new(connection, stream));
        let (mut request, mut line, mut length) = (String::new(), String::new(), 0);
        reader.read_line(&mut request)?;
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line)?;
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let stream = reader.get_mut();
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        stream.flush()?;
        Ok((request, String::from_utf8(body).unwrap()))
    }
}

/// Waits until the log has the reason of a failed call.
fn wait_for_reason(worker: &Worker, reason: &str) {
    wait::until(reason, || {
        let text = worker.log.text();
        let mut lines = text.lines().filter(|line| line.contains("callback_failed"));
        let found = lines.any(|line| line.contains(reason));
        assert!(!text.contains("callback_delivered"), "{text}");
        found.then_some(())
    });
}

#[test]
fn a_worker_registers_over_tls_with_whom_its_host_trusts() {
    let authority = Authority::new("ours");
    let orchestrator = authority.orchestrator("localhost");
    let worker = authority.worker(&orchestrator.listener).listening();
    let (request, body) = orchestrator.answer_one().unwrap();
    assert_eq!(request, "POST /w HTTP/1.1\r\n");
    let registration: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert!(registration["worker_id"].is_string(), "{registration}");
    wait::until("the delivery to be logged", || {
        let text = worker.log.text();
        text.contains("callback_delivered").then_some(())
    });
}

#[test]
fn nothing_is_said_to_whom_the_host_does_not_trust() {
    let authority = Authority::new("ours");
    let orchestrator = Authority::new("another").orchestrator("localhost");
    let worker = authority.worker(&orchestrator.listener).listening();
    assert!(orchestrator.answer_one().is_err());
    wait_for_reason(&worker, "invalid peer certificate: UnknownIssuer");
}

#[test]
fn nothing_is_said_to_whom_the_url_does_not_name() {
    let authority = Authority::new("ours");
    let orchestrator = authority.orchestrator("other.example");
    let worker = authority.worker(&orchestrator.listener).listening();
    assert!(orchestrator.answer_one().is_err());
    wait_for_reason(&worker, "certificate not valid for name");
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = Authority::new("ours");
    let worker = authority.worker(&silent).listening();
    let (_held, _) = silent.accept().unwrap();
    wait_for_reason(&worker, "no answer within 5 s");
}

#[test]
fn a_host_that_trusts_nobody_is_told_how_to_name_somebody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let empty = NamedTempFile::new().unwrap();
    let worker = Authority::new("ours")
        .worker(&listener)
        .env("SSL_CERT_FILE", empty.path().to_str().unwrap())
        .listening();
    wait_for_reason(&worker, "SSL_CERT_FILE names a file");
}
