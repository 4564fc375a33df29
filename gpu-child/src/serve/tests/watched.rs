//! A step that does not end: its notes in the flight recorder, and the time at which it is overdue.

use super::*;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use worker_orcd_ipc::flight::{Header, Note, Recording, ring_bytes};

/// A ring as the supervisor makes it.
fn ring() -> File {
    let file = File::from(memfd_create("flight", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    let header = Header {
        capacity: 64,
        generation: Generation(3),
    };
    file.set_len(ring_bytes(header.capacity) as u64).unwrap();
    file.write_all_at(&header.encode(), 0).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    file
}

/// Note of the hung step, once it contains `all`.
fn note_of(is_ahead: bool, stands: Option<&'static str>, all: &str) -> Note {
    let file = ring();
    let recorder = FlightRecorder::at(&file);
    let mut supervisor = Supervisor::start_recorded(recorder, move |_, _| {
        let device = Counter::new(Duration::ZERO);
        Ok(loaded_with(device.ahead(is_ahead).standing(stands)))
    });
    supervisor.send(&Command::Load(order()));
    supervisor.until(|event| matches!(event, Event::Ready(_)));
    supervisor.submit(1, 97, 4);
    let read = || {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let note = Recording::read(&bytes).unwrap().note;
        note.filter(|note| note.text.contains(all))
    };
    supervisor.until(|event| matches!(event, Event::Heartbeat(_)) && read().is_some());
    read().unwrap()
}

#[test]
fn a_step_that_does_not_end_leaves_word_where_it_stands() {
    let places = "the device has 1 to end, blocks 0-131 wait";
    for is_ahead in [false, true] {
        let note = note_of(is_ahead, Some(places), "blocks 0-131");
        assert_eq!(note.step, 1, "{note:?}");
        let expected = format!(" ms the engine launches or computes a step; {places}");
        assert!(note.text.ends_with(&expected), "{note:?}");
    }
}

#[test]
fn without_a_witness_it_says_at_least_what_the_engine_does() {
    let note = note_of(false, None, "engine");
    assert!(note.text.ends_with("computes a step"), "{note:?}");
}

/// A heartbeat of a child with two decoding sequences and a last step that does not end.
fn heartbeat_of_the_last_step(steps_before: usize) -> worker_orcd_ipc::Heartbeat {
    let mut supervisor = Supervisor::ready(Duration::from_millis(1));
    supervisor.submit(1, 1, 60);
    supervisor.submit(2, 1, 60);
    for _ in 0..steps_before {
        supervisor.until(|event| matches!(event, Event::Step(report) if report.drawn.len() == 2));
    }
    supervisor.submit_prompt(3, vec![TokenId(97)], 1);
    let began = |event: &Event| match event {
        Event::Step(report) => report.began.iter().any(|it| it.request == RequestId(3)),
        _ => false,
    };
    supervisor.until(began);
    let hangs = |event: &Event| match event {
        Event::Heartbeat(beat) => beat.step_overdue || beat.step_elapsed_ms > Some(1000),
        _ => false,
    };
    match supervisor.until(hangs) {
        Event::Heartbeat(beat) => beat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_step_is_called_overdue_where_others_of_its_size_are_known() {
    assert!(heartbeat_of_the_last_step(20).step_overdue);
    let unknown = heartbeat_of_the_last_step(2);
    assert!(!unknown.step_overdue, "{unknown:?}");
}
