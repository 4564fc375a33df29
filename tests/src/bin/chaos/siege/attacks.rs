//! Table of attacks: frequency, action, and permitted outcome.

use super::super::mix::Random;
use super::template;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

/// Default limit of a body.
const BODY_BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// 5 s: stay of an idle client.
const LOITERING: Duration = Duration::from_secs(5);
/// Loopback addresses of strangers; the honest clients have 127.0.0.1.
const STRANGERS: usize = 8;

#[derive(Debug)]
pub struct Attack {
    pub name: &'static str,
    /// Seconds between two, on average.
    pub every_seconds: f64,
    pub strike: Strike,
    pub expects: Expects,
}

#[derive(Debug, Clone, Copy)]
pub enum Expects {
    /// HTTP error, or end of the connection.
    Refusal,
    /// 200, as without an attack.
    Service,
    /// Not checked.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Status(u16),
    /// The connection ended without a response.
    Closed,
    /// Neither a response nor an end for a long time.
    Silent,
    /// Not waited for.
    Done,
}

impl Attack {
    const fn new(name: &'static str, every_seconds: f64, expects: Expects, strike: Strike) -> Self {
        Self {
            name,
            every_seconds,
            strike,
            expects,
        }
    }
}

impl Expects {
    pub fn allows(self, outcome: &Outcome) -> bool {
        match self {
            Self::Refusal => matches!(outcome, Outcome::Status(400..=599) | Outcome::Closed),
            Self::Service => *outcome == Outcome::Status(200),
            Self::Nothing => true,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Closed => f.write_str("closed"),
            Self::Silent => f.write_str("silent"),
            Self::Done => f.write_str("done"),
        }
    }
}

type Strike = fn(SocketAddr, u32, &mut Random) -> Outcome;

const fn refused(name: &'static str, every_seconds: f64, strike: Strike) -> Attack {
    Attack::new(name, every_seconds, Expects::Refusal, strike)
}

const fn ignored(name: &'static str, every_seconds: f64, strike: Strike) -> Attack {
    Attack::new(name, every_seconds, Expects::Nothing, strike)
}

pub const ATTACKS: [Attack; 17] = [
    refused("wrong messages", 10.0, |to, _, random| {
        execute(
            to,
            random,
            &filled("{\"job_id\":\"a\",\"messages\":[0", ",0", "]}"),
        )
    }),
    refused("wrong messages, /v1", 15.0, |to, _, random| {
        ask(
            to,
            random,
            "/v1/chat/completions",
            &filled("{\"messages\":[0", ",0", "]}"),
        )
    }),
    refused("unknown fields", 10.0, |to, _, random| {
        let fields = (0..250_000).map(|index| format!("\"f{index:08}\":1"));
        let fields: Vec<_> = fields.collect();
        execute(to, random, &format!("{{{}}}", fields.join(",")))
    }),
    refused("numbers without end", 15.0, |to, _, random| {
        execute(to, random, &filled("{\"prompt\":[1", ",1", "]}"))
    }),
    refused("brackets", 10.0, |to, _, random| {
        execute(to, random, &"[".repeat(BODY_BYTES))
    }),
    refused("empty messages", 10.0, |to, _, random| {
        let message = ",{\"role\":\"user\",\"content\":\"\"}";
        let body = filled(
            "{\"job_id\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"\"}",
            message,
            "]}",
        );
        execute(to, random, &body)
    }),
    refused("spaces", 10.0, |to, _, random| {
        execute(
            to,
            random,
            &filled("{\"job_id\":\"a\",\"prompt\":\" ", " ", "\"}"),
        )
    }),
    refused("too large a body", 10.0, |to, _, random| {
        execute(to, random, &"x".repeat(2 * BODY_BYTES))
    }),
    refused("no HTTP", 5.0, |to, _, random| {
        let bytes: Vec<u8> = (0..10_000).map(|_| random.below(256) as u8).collect();
        exchange(to, random, &bytes, PATIENCE)
    }),
    refused("template bombs", 6.0, |to, _, random| {
        let fuse = template::fuse(random.below(template::COUNT));
        ask(to, random, "/v1/chat/completions", &chat(fuse).to_string())
    }),
    Attack::new("honest chat", 10.0, Expects::Service, |to, _, random| {
        let body = chat("Say hello.").to_string();
        ask(to, random, "/v1/chat/completions", &body)
    }),
    ignored("half a body", 5.0, |to, _, random| {
        let head = head("/execute", BODY_BYTES);
        loiter(
            to,
            random,
            1,
            &[head.as_bytes(), &vec![b' '; BODY_BYTES / 4]].concat(),
        )
    }),
    ignored("half a head, 50 times", 10.0, |to, _, random| {
        loiter(to, random, 50, b"POST /execute HTTP/1.1\r\nHost: local")
    }),
    ignored("idle, 300 times", 15.0, |to, _, random| {
        loiter(to, random, 300, b"")
    }),
    ignored(
        "answers that are not read, 4 times",
        15.0,
        |to, _, random| {
            let body = filled("{\"job_id\":\"a\",\"messages\":[0", ",0", "]}");
            let request = [head("/execute", body.len()).as_bytes(), body.as_bytes()].concat();
            loiter(to, random, 4, &request)
        },
    ),
    ignored("streams that are not read", 10.0, |to, _, random| {
        let job = format!("unread-{}", random.below(usize::MAX));
        let body = json!({"job_id": job, "prompt": "Once", "max_tokens": 64}).to_string();
        let request = [head("/execute", body.len()), body].concat();
        loiter(to, random, 1, request.as_bytes())
    }),
    ignored("signals", 20.0, |_, pid, random| {
        let signals = [
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGALRM,
            Signal::SIGPIPE,
        ];
        // Another check detects a dead worker.
        let _ = kill(Pid::from_raw(pid.cast_signed()), *random.pick(&signals));
        Outcome::Done
    }),
];

pub fn get(to: SocketAddr, path: &str, patience: Duration) -> Outcome {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    match TcpStream::connect_timeout(&to, patience) {
        Ok(socket) => answer(socket, request.as_bytes(), patience),
        Err(_) => Outcome::Closed,
    }
}

fn chat(words: &str) -> Value {
    json!({"messages": [{"role": "user", "content": words}], "max_tokens": 4})
}

fn execute(to: SocketAddr, random: &mut Random, body: &str) -> Outcome {
    ask(to, random, "/execute", body)
}

fn ask(to: SocketAddr, random: &mut Random, path: &str, body: &str) -> Outcome {
    let request = [head(path, body.len()).as_bytes(), body.as_bytes()].concat();
    exchange(to, random, &request, PATIENCE)
}

fn head(path: &str, bytes: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    )
}

/// Body of `start`, as many `more` as fit, and `end`.
fn filled(start: &str, more: &str, end: &str) -> String {
    let times = (BODY_BYTES - start.len() - end.len()) / more.len();
    [start, &more.repeat(times), end].concat()
}

fn exchange(to: SocketAddr, random: &mut Random, request: &[u8], patience: Duration) -> Outcome {
    match stranger(to, random) {
        Ok(socket) => answer(socket, request, patience),
        Err(_) => Outcome::Closed,
    }
}

/// Status of the complete response; the worker may respond before it has read all.
fn answer(mut socket: TcpStream, request: &[u8], patience: Duration) -> Outcome {
    let timeouts = socket
        .set_read_timeout(Some(patience))
        .and_then(|()| socket.set_write_timeout(Some(patience)));
    if timeouts.is_err() {
        return Outcome::Closed;
    }
    // A worker that refuses early closes; its response is still readable.
    let _ = socket.write_all(request);
    let mut head = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) if head.len() < piece.len() => head.extend_from_slice(&piece[..bytes]),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Outcome::Silent,
            Err(_) => break,
        }
    }
    let status = head
        .get(9..12)
        .and_then(|code| std::str::from_utf8(code).ok());
    match status.and_then(|code| code.parse().ok()) {
        Some(status) => Outcome::Status(status),
        None => Outcome::Closed,
    }
}

/// Opens `times` connections that send something and then neither read nor write.
fn loiter(to: SocketAddr, random: &mut Random, times: usize, words: &[u8]) -> Outcome {
    let mut loiterers = Vec::new();
    for _ in 0..times {
        let Ok(mut socket) = stranger(to, random) else {
            break;
        };
        // Long enough for a worker that reads; it need not.
        let _ = socket.set_write_timeout(Some(LOITERING));
        let _ = socket.write_all(words);
        loiterers.push(socket);
    }
    thread::sleep(LOITERING);
    Outcome::Done
}

/// Connection from a loopback address of its own, like another client's; from the default address if the worker listens
/// elsewhere.
fn stranger(to: SocketAddr, random: &mut Random) -> std::io::Result<TcpStream> {
    let SocketAddr::V4(to_v4) = to else {
        return TcpStream::connect_timeout(&to, PATIENCE);
    };
    let from = Ipv4Addr::new(127, 0, 0, 2 + random.below(STRANGERS) as u8);
    debug_assert!(IpAddr::V4(from).is_loopback());
    let descriptor = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    bind(
        descriptor.as_raw_fd(),
        &SockaddrIn::from(std::net::SocketAddrV4::new(from, 0)),
    )?;
    connect(descriptor.as_raw_fd(), &SockaddrIn::from(to_v4))?;
    Ok(TcpStream::from(descriptor))
}
