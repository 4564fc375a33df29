//! Seeds of the fuzz targets, replayed as ordinary tests.
//!
//! `fuzz/corpus/codec` has one payload for each message kind and known malicious payloads; `fuzz/corpus/frame` has complete
//! streams. `REGENERATE=1` writes them.

mod support;

use std::fs;
use support::{corpus_dir, regenerating, samples};
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{Command, Envelope, FrameReader, Preamble, decode, encode};

#[test]
fn codec_seeds_give_a_message_or_an_error() {
    write_seeds("codec", codec_seeds());
    let mut decoded = 0;
    for (name, bytes) in seeds("codec") {
        if let Ok(command) = decode::<Command>(&bytes) {
            assert!(encode(&command).is_ok(), "{name}");
            decoded += 1;
        }
        if let Ok(envelope) = decode::<Envelope>(&bytes) {
            assert!(encode(&envelope).is_ok(), "{name}");
            decoded += 1;
        }
    }
    assert!(
        decoded >= samples::all().len(),
        "only {decoded} seeds are messages"
    );
}

#[test]
fn frame_seeds_give_frames_or_an_error() {
    write_seeds("frame", frame_seeds());
    let mut frames = 0;
    for (_, bytes) in seeds("frame") {
        let mut reader = FrameReader::new();
        for piece in bytes.chunks(7) {
            reader.push(piece);
            while let Ok(Some(_)) = reader.next_frame() {
                frames += 1;
            }
        }
    }
    assert!(
        frames >= samples::all().len(),
        "only {frames} frames were found"
    );
}

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = corpus_dir(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.display().to_string(), fs::read(&path).unwrap()))
        .collect()
}

fn write_seeds(target: &str, seeds: Vec<(String, Vec<u8>)>) {
    if !regenerating() {
        return;
    }
    let dir = corpus_dir(target);
    fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in seeds {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

fn codec_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds: Vec<(String, Vec<u8>)> = samples::all()
        .into_iter()
        .map(|(name, message)| (name, message.payload()))
        .collect();
    let huge = [253, 0, 0, 0, 0, 0, 0, 0, 16];
    seeds.extend([
        ("hostile-empty".to_owned(), vec![]),
        ("hostile-unknown-variant".to_owned(), vec![250]),
        (
            "hostile-huge-list".to_owned(),
            [&[1, 1], huge.as_slice()].concat(),
        ),
        (
            "hostile-huge-string".to_owned(),
            [&[0], huge.as_slice()].concat(),
        ),
        ("hostile-invalid-utf8".to_owned(), vec![0, 2, 0xff, 0xfe]),
        ("hostile-trailing".to_owned(), vec![3, 0]),
    ]);
    seeds
}

fn frame_seeds() -> Vec<(String, Vec<u8>)> {
    let preamble = Preamble::OURS.to_bytes().to_vec();
    let mut all = preamble.clone();
    for (_, message) in samples::all() {
        write_frame(&mut all, &message.payload()).unwrap();
    }
    let after_preamble = |tail: &[u8]| [preamble.as_slice(), tail].concat();
    vec![
        ("whole-conversation".to_owned(), all.clone()),
        ("cut-off".to_owned(), all[..all.len() - 1].to_vec()),
        ("preamble-only".to_owned(), preamble.clone()),
        (
            "other-version".to_owned(),
            Preamble { version: 2 }.to_bytes().to_vec(),
        ),
        ("not-ours".to_owned(), b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("empty-frame".to_owned(), after_preamble(&[0; 4])),
        ("huge-frame".to_owned(), after_preamble(&[0xff; 8])),
    ]
}
