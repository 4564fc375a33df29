//! Bytes on the wire, one text file for each message kind.
//!
//! A change of bytes is a change of the protocol: increase `PROTOCOL_VERSION`, run
//! `REGENERATE=1 cargo test -p worker-orcd-ipc --test golden`, and review the diff. The comments in the files are Rust's
//! `Debug` output and may change with names.

mod support;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use support::{Message, golden_dir, regenerating, samples};
use worker_orcd_ipc::{FdKind, PROTOCOL_VERSION, Preamble, decode};

#[test]
fn every_message_kind_has_the_bytes_of_its_golden_file() {
    for (name, message) in samples::all() {
        check(&name, &describe(&message), &message.payload());
    }
}

#[test]
fn golden_bytes_decode_to_their_message() {
    for (name, message) in samples::all() {
        let bytes = parse(&read(&name));
        let decoded = match &message {
            Message::Down(_) => decode(&bytes).map(Message::Down),
            Message::Up(_) => decode(&bytes).map(Message::Up),
        };
        assert_eq!(decoded.expect(&name), message, "{name}");
    }
}

#[test]
fn the_preamble_has_the_bytes_of_its_golden_file() {
    let title = format!("Preamble, protocol version {PROTOCOL_VERSION}");
    check("preamble", &title, &Preamble::OURS.to_bytes());
}

#[test]
fn every_fd_kind_has_the_byte_of_its_golden_file() {
    for kind in FdKind::ALL {
        let title = format!("FdKind {kind:?}");
        check(fd_kind_file(kind), &title, &[kind.to_byte()]);
    }
}

#[test]
fn every_golden_file_has_a_message() {
    let expected: BTreeSet<String> = samples::all()
        .into_iter()
        .map(|(name, _)| format!("{name}.hex"))
        .chain(FdKind::ALL.map(|kind| format!("{}.hex", fd_kind_file(kind))))
        .chain(["preamble.hex".to_owned()])
        .collect();
    let found: BTreeSet<String> = fs::read_dir(golden_dir())
        .expect("tests/golden")
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected);
}

fn fd_kind_file(kind: FdKind) -> &'static str {
    match kind {
        FdKind::ModelFile => "fd-kind-model-file",
        FdKind::Weights => "fd-kind-weights",
        FdKind::KvCache => "fd-kind-kv-cache",
        FdKind::SecondSocket => "fd-kind-second-socket",
    }
}

fn describe(message: &Message) -> String {
    match message {
        Message::Down(command) => format!("{command:#?}"),
        Message::Up(envelope) => format!("{envelope:#?}"),
    }
}

fn check(name: &str, title: &str, bytes: &[u8]) {
    let rendered = render(title, bytes);
    if regenerating() {
        fs::write(golden_dir().join(format!("{name}.hex")), &rendered).unwrap();
    }
    assert_eq!(
        read(name),
        rendered,
        "{name}: the wire format changed; see the head of golden.rs"
    );
}

fn read(name: &str) -> String {
    let path = golden_dir().join(format!("{name}.hex"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Text of a golden file: `title` as comments, then the bytes in hexadecimal, sixteen per line.
fn render(title: &str, bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in title.lines() {
        writeln!(out, "# {line}").unwrap();
    }
    for chunk in bytes.chunks(16) {
        let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "{}", hex.join(" ")).unwrap();
    }
    out
}

fn parse(rendered: &str) -> Vec<u8> {
    rendered
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect()
}
