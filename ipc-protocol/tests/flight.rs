//! Ring of the flight recorder: exactly the intact records are read back.

use proptest::collection::vec;
use proptest::prelude::*;
use worker_orcd_ipc::flight::{
    Header, Line, Moment, NotARing, Phase, RECORD_BYTES, Record, Recording, StepRequests,
    ring_bytes,
};
use worker_orcd_ipc::{Generation, RequestId};

fn moment() -> impl Strategy<Value = Moment> {
    prop_oneof![
        Just(Moment::LoadBegin),
        Just(Moment::LoadEnd),
        any::<u32>().prop_map(|tokens| Moment::StepBegin { tokens }),
        any::<u32>().prop_map(|end| Moment::Prompt { end }),
        prop::sample::select(Phase::ALL.to_vec()).prop_map(Moment::Phase),
        any::<u32>().prop_map(Moment::Layer),
        Just(Moment::StepEnd),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let ids = vec(any::<u64>(), 0..6);
    (1_u64.., any::<u64>(), any::<u64>(), moment(), ids).prop_map(
        |(number, time_ns, step, moment, ids)| Record {
            number,
            time_ns,
            step,
            moment,
            requests: StepRequests::new(ids.into_iter().map(RequestId)),
        },
    )
}

/// Ring with the records 1 to `count`, written in order.
fn ring(capacity: u32, count: u64, template: &Record) -> Vec<u8> {
    let header = Header {
        capacity,
        generation: Generation(7),
    };
    let mut ring = vec![0; ring_bytes(capacity)];
    ring[..RECORD_BYTES].copy_from_slice(&header.encode());
    for number in 1..=count {
        let at = Record::offset(number, capacity);
        let line = Record {
            number,
            ..*template
        }
        .encode();
        ring[at..at + RECORD_BYTES].copy_from_slice(&line);
    }
    ring
}

fn numbers(recording: &Recording) -> Vec<u64> {
    recording
        .records
        .iter()
        .map(|record| record.number)
        .collect()
}

proptest! {
    #[test]
    fn every_record_survives_encoding(record in record()) {
        prop_assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    /// An interrupted write leaves words of two records, in any order.
    #[test]
    fn a_torn_record_is_detected(old in record(), new in record(), kept in 1_u8..255) {
        let (old_line, new_line) = (old.encode(), new.encode());
        let torn: Line = std::array::from_fn(|at| {
            if kept >> (at / 8) & 1 == 1 { new_line[at] } else { old_line[at] }
        });
        prop_assume!(torn != old_line && torn != new_line);
        prop_assert_eq!(Record::decode(&torn), None);
    }

    #[test]
    fn a_stray_write_is_detected(record in record(), at in 0..RECORD_BYTES, flip in 1_u8..) {
        let mut line = record.encode();
        line[at] ^= flip;
        prop_assert_eq!(Record::decode(&line), None);
    }

    #[test]
    fn a_ring_keeps_the_latest_records_in_order(
        capacity in 1_u32..40, count in 0_u64..120, template in record(),
    ) {
        let recording = Recording::read(&ring(capacity, count, &template)).unwrap();
        let kept = count.min(u64::from(capacity));
        prop_assert_eq!(numbers(&recording), (count - kept + 1..=count).collect::<Vec<_>>());
        prop_assert_eq!((recording.torn, recording.generation), (0, Generation(7)));
    }

    #[test]
    fn damage_affects_only_the_damaged_record(
        capacity in 1_u32..40, template in record(), seed in any::<u64>(), flip in 1_u8..,
    ) {
        let count = 3 * u64::from(capacity);
        let mut bytes = ring(capacity, count, &template);
        let lost = count - seed % u64::from(capacity);
        bytes[Record::offset(lost, capacity) + (seed >> 32) as usize % RECORD_BYTES] ^= flip;
        let recording = Recording::read(&bytes).unwrap();
        let expected: Vec<_> = (count - u64::from(capacity) + 1..=count)
            .filter(|number| *number != lost)
            .collect();
        prop_assert_eq!(numbers(&recording), expected);
        prop_assert_eq!(recording.torn, 1);
    }

    #[test]
    fn random_bytes_never_panic_and_never_decode(garbage in vec(any::<u8>(), 0..2000)) {
        prop_assert_eq!(Recording::read(&garbage), Err(NotARing));
        let mut bytes = ring(30, 0, &TEMPLATE);
        let room = bytes.len() - RECORD_BYTES;
        let len = garbage.len().min(room);
        bytes[RECORD_BYTES..RECORD_BYTES + len].copy_from_slice(&garbage[..len]);
        prop_assert_eq!(numbers(&Recording::read(&bytes).unwrap()), Vec::<u64>::new());
    }
}

const TEMPLATE: Record = Record {
    number: 1,
    time_ns: 0,
    step: 0,
    moment: Moment::LoadBegin,
    requests: StepRequests::NONE,
};

#[test]
fn a_record_of_another_turn_in_the_wrong_slot_is_torn() {
    let mut bytes = ring(4, 4, &TEMPLATE);
    let stray = Record {
        number: 9,
        ..TEMPLATE
    }
    .encode();
    bytes[Record::offset(2, 4)..][..RECORD_BYTES].copy_from_slice(&stray);
    let recording = Recording::read(&bytes).unwrap();
    assert_eq!((numbers(&recording), recording.torn), (vec![1, 3, 4], 1));
}

#[test]
fn a_record_older_than_one_turn_is_torn() {
    let mut bytes = ring(4, 8, &TEMPLATE);
    let stale = Record {
        number: 2,
        ..TEMPLATE
    }
    .encode();
    bytes[Record::offset(2, 4)..][..RECORD_BYTES].copy_from_slice(&stale);
    let recording = Recording::read(&bytes).unwrap();
    assert_eq!((numbers(&recording), recording.torn), (vec![5, 7, 8], 1));
}

#[test]
fn requests_beyond_the_capacity_of_a_record_are_counted() {
    let requests = StepRequests::new((1..=5).map(RequestId));
    assert_eq!(requests.sequences(), 5);
    assert_eq!(requests.ids().collect::<Vec<_>>(), [1, 2, 3].map(RequestId));
}

#[test]
fn a_wrong_size_version_or_capacity_is_an_error() {
    let whole = ring(4, 4, &TEMPLATE);
    assert_eq!(Recording::read(&whole[..whole.len() - 1]), Err(NotARing));
    for at in [0, 8, 12, 40] {
        let mut other = whole.clone();
        other[at] ^= 1;
        assert_eq!(Recording::read(&other), Err(NotARing), "byte {at}");
    }
}
