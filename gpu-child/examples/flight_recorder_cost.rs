//! Cost of one record of the flight recorder: `cargo run --release -p worker-orcd-gpu
//! --example flight_recorder_cost`.
//!
//! A step writes one record per layer and four more, so a model of thirty layers has 34 records
//! per step. The measure is CPU time of the thread, so that other processes do not count.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use worker_orcd_gpu::flight_recorder::FlightRecorder;
use worker_orcd_ipc::flight::{Header, Moment, RING_CAPACITY, StepRequests, ring_bytes};
use worker_orcd_ipc::{Generation, RequestId};

const RECORDS: u32 = 1_000_000;

fn main() -> std::io::Result<()> {
    let file = File::from(memfd_create("flight", MFdFlags::MFD_ALLOW_SEALING)?);
    let header = Header {
        capacity: RING_CAPACITY,
        generation: Generation::FIRST,
    };
    file.set_len(ring_bytes(RING_CAPACITY) as u64)?;
    file.write_all_at(&header.encode(), 0)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;

    let recorder = FlightRecorder::at(&file);
    assert!(recorder.is_recording(), "the ring was not accepted");
    let requests = StepRequests::new((1..=16).map(RequestId));
    show("a record, its clock included", || {
        for number in 0..RECORDS {
            recorder.record(u64::from(number), Moment::Layer(number), requests);
        }
    })?;
    show("the clock alone", || {
        for _ in 0..RECORDS {
            black_box(clock_gettime(ClockId::CLOCK_MONOTONIC).ok());
        }
    })
}

fn show(what: &str, work: impl Fn()) -> std::io::Result<()> {
    let mut runs = Vec::new();
    for _ in 0..5 {
        let began = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
        work();
        let ended = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?);
        runs.push((ended - began).as_nanos() as f64 / f64::from(RECORDS));
    }
    runs.sort_unstable_by(f64::total_cmp);
    println!(
        "{what}: {:.1} ns (best {:.1}, worst {:.1})",
        runs[2], runs[0], runs[4]
    );
    Ok(())
}
