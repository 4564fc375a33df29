//! Fake model hub with configurable defects: serves the requests of `worker-orcd pull` from memory.

use crate::played::{Delivery, serve};
use crate::worker::binary;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

/// Commit of every file.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// File, and its defects.
#[derive(Debug, Clone)]
pub struct Held {
    repository: String,
    file: String,
    bytes: Vec<u8>,
    promised_bytes: usize,
    promised_sha256: String,
    delivery: Delivery,
    ranges: bool,
    /// Size and SHA-256 are in headers; otherwise in the listing.
    headers: bool,
    /// The listing of its repository is endless.
    endless_listing: bool,
    /// Token that the request must contain.
    token: Option<String>,
}

impl Held {
    #[must_use]
    pub fn new(repository: &str, file: &str, bytes: &[u8]) -> Self {
        Self {
            repository: repository.to_owned(),
            file: file.to_owned(),
            bytes: bytes.to_vec(),
            promised_bytes: bytes.len(),
            promised_sha256: sha256(bytes),
            delivery: Delivery::Whole,
            ranges: true,
            headers: true,
            endless_listing: false,
            token: None,
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
    pub fn but_sends(mut self, bytes: &[u8]) -> Self {
        self.bytes = bytes.to_vec();
        self
    }

    #[must_use]
    pub fn without_ranges(mut self) -> Self {
        self.ranges = false;
        self
    }

    #[must_use]
    pub fn for_holders_of(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    #[must_use]
    pub fn listed_without_end(mut self) -> Self {
        self.endless_listing = true;
        self
    }

    #[must_use]
    pub fn without_headers(mut self) -> Self {
        self.headers = false;
        self
    }
}

/// Hub that serves until the test process ends.
#[derive(Debug)]
pub struct FakeHub {
    address: SocketAddr,
    held: Arc<Mutex<Vec<Held>>>,
    /// First byte of each transfer's range.
    starts: Arc<Mutex<Vec<usize>>>,
}

impl FakeHub {
    #[must_use]
    pub fn start(held: Vec<Held>) -> Self {
        let held = Arc::new(Mutex::new(held));
        let starts = Arc::<Mutex<Vec<usize>>>::default();
        let shared = (Arc::clone(&held), Arc::clone(&starts));
        let address = serve(move |stream| answer(stream, &shared.0, &shared.1));
        Self {
            address,
            held,
            starts,
        }
    }

    /// URL for `HF_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Replaces the files.
    pub fn hold(&self, held: Vec<Held>) {
        *self.held.lock().expect("no holder panics") = held;
    }

    #[must_use]
    pub fn starts(&self) -> Vec<usize> {
        self.starts.lock().expect("no holder panics").clone()
    }
}

/// Runs `worker-orcd pull`.
#[must_use]
pub fn pull(hub: &FakeHub, cache: &Path, name: &str) -> Output {
    pull_with(hub, cache, name, &binary("tested-worker-orcd-gpu"))
}

/// Runs `worker-orcd pull` with another program that reads the files.
#[must_use]
pub fn pull_with(hub: &FakeHub, cache: &Path, name: &str, child: &Path) -> Output {
    command(hub, cache, name, child)
        .output()
        .expect("it starts")
}

/// Runs `worker-orcd pull` with a token for the hub.
#[must_use]
pub fn pull_as(hub: &FakeHub, cache: &Path, name: &str, token: &str) -> Output {
    let mut command = command(hub, cache, name, &binary("tested-worker-orcd-gpu"));
    command.env("HF_TOKEN", token).output().expect("it starts")
}

fn command(hub: &FakeHub, cache: &Path, name: &str, child: &Path) -> Command {
    let mut command = Command::new(binary("tested-worker-orcd"));
    command
        .args(["pull", name, "--child-binary"])
        .arg(child)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("XDG_CACHE_HOME", cache)
        .env("no_proxy", "127.0.0.1,localhost")
        .env_remove("HF_TOKEN");
    for variable in ["HF_HOME", "HF_TOKEN_PATH"] {
        command.env_remove(variable);
    }
    command
}

/// The printed path. Panics if there is none.
#[expect(
    clippy::must_use_candidate,
    reason = "that it was pulled may be all that counts"
)]
pub fn pulled(output: &Output) -> PathBuf {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

fn answer(
    stream: TcpStream,
    held: &Mutex<Vec<Held>>,
    starts: &Mutex<Vec<usize>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let (mut start, mut token) = (None, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some(range) = header.to_ascii_lowercase().strip_prefix("range: bytes=") {
            start = range.trim().trim_end_matches('-').parse().ok();
        }
        if let Some(bearer) = header.strip_prefix("Authorization: Bearer ") {
            token = Some(bearer.trim().to_owned());
        }
    }
    let held = held.lock().expect("no holder panics").clone();
    let mut out = stream;
    let is_kept_from = |it: &Held| it.token.is_some() && it.token != token;
    if let Some(repository) = path.strip_prefix("/api/models/") {
        let repository = repository.split("/revision/").next().unwrap_or("");
        let shown: Vec<_> = held.into_iter().filter(|it| !is_kept_from(it)).collect();
        return list(&mut out, &shown, repository);
    }
    let is_meant = |it: &&Held, prefix: &str| path == format!("{prefix}/{}", it.file);
    let named = held.iter().find(|it| {
        [COMMIT, "main"]
            .iter()
            .any(|revision| is_meant(it, &format!("/{}/resolve/{revision}", it.repository)))
    });
    match named {
        Some(file) if is_kept_from(file) => {
            return out.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        }
        Some(file) => return redirect(&mut out, file),
        None => {}
    }
    let bytes = |it: &&Held| is_meant(it, &format!("/bytes/{}", it.repository));
    match held.iter().find(bytes) {
        // The host of the bytes must not receive the token.
        Some(_) if token.is_some() => {
            out.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        }
        Some(file) if method == "GET" => {
            let start = start.unwrap_or(0);
            starts.lock().expect("no holder panics").push(start);
            send(&mut out, file, start)
        }
        _ => out
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    }
}

fn list(out: &mut TcpStream, held: &[Held], repository: &str) -> std::io::Result<()> {
    let mut held = held.iter().filter(|it| it.repository == repository);
    if held.clone().any(|it| it.endless_listing) {
        out.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"siblings\": [")?;
        // Until the client disconnects.
        loop {
            out.write_all(&[b' '; 1 << 16])?;
        }
    }
    let files: Vec<_> = held
        .by_ref()
        .map(|it| {
            json!({
                "rfilename": it.file,
                "lfs": {"sha256": it.promised_sha256, "size": it.promised_bytes},
            })
        })
        .collect();
    let body = json!({ "siblings": files }).to_string();
    let length = body.len();
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn redirect(out: &mut TcpStream, file: &Held) -> std::io::Result<()> {
    let promise = if file.headers {
        let (bytes, sha256) = (file.promised_bytes, &file.promised_sha256);
        format!("X-Linked-Size: {bytes}\r\nX-Linked-ETag: \"{sha256}\"\r\n")
    } else {
        String::new()
    };
    // Another name of this machine, which clients treat as another host.
    let port = out.local_addr()?.port();
    write!(
        out,
        "HTTP/1.1 302 Found\r\nX-Repo-Commit: {COMMIT}\r\n{promise}Location: \
         http://localhost:{port}/bytes/{}/{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        file.repository, file.file
    )
}

fn send(out: &mut TcpStream, file: &Held, start: usize) -> std::io::Result<()> {
    let whole = file.bytes.len();
    let start = if file.ranges { start } else { 0 };
    let rest = &file.bytes[start.min(whole)..];
    let length = rest.len();
    let status = if start > 0 {
        format!(
            "206 Partial Content\r\nContent-Range: bytes {start}-{}/{whole}",
            whole - 1
        )
    } else {
        "200 OK".to_owned()
    };
    write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    file.delivery.send(out, rest)
}

#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
