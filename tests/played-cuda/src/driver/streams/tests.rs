use super::super::events::Event;
use super::*;
use std::sync::mpsc::{Sender, channel};

fn stream() -> (Arc<Stream>, &'static Health) {
    let health = Box::leak(Box::new(Health::new()));
    (Stream::start(health).expect("a thread"), health)
}

fn sending(number: u32, to: &Sender<u32>) -> Work {
    let to = to.clone();
    Arc::new(move || {
        let _ = to.send(number);
        Ok(())
    })
}

/// Work that runs until the sender is dropped.
fn held() -> (Sender<()>, Work) {
    let (hold, held) = channel();
    let held = Mutex::new(held);
    let work = move || {
        let _ = held.lock().recv();
        Ok(())
    };
    (hold, Arc::new(work))
}

fn failing(error: CUresult) -> Work {
    Arc::new(move || Err(error))
}

#[test]
fn work_is_done_in_order_while_the_host_goes_on() {
    let (stream, _) = stream();
    let (hold, work) = held();
    let (said, says) = channel();
    stream.add(work).unwrap();
    for number in 0..100 {
        stream.add(sending(number, &said)).unwrap();
    }
    let end = stream.end().unwrap();
    assert!(!stream.is_past(end));
    assert!(says.try_recv().is_err());
    drop(hold);
    stream.wait(end).unwrap();
    assert!(says.try_iter().eq(0..100));
}

#[test]
fn an_event_is_reached_when_its_stream_got_there() {
    let (stream, _) = stream();
    let event = Event::default();
    assert!(event.is_reached());
    let (hold, work) = held();
    stream.add(work).unwrap();
    event.record(Arc::clone(&stream)).unwrap();
    assert!(!event.is_reached());
    // Later work is not waited for.
    let (later, work) = held();
    stream.add(work).unwrap();
    drop(hold);
    event.wait().unwrap();
    assert!(event.is_reached());
    drop(later);
}

#[test]
fn streams_do_not_wait_for_each_other() {
    let ((one, health), (said, says)) = (stream(), channel());
    let other = Stream::start(health).unwrap();
    let (_hold, work) = held();
    one.add(work).unwrap();
    other.add(sending(1, &said)).unwrap();
    other.wait(other.end().unwrap()).unwrap();
    assert_eq!(says.try_recv(), Ok(1));
}

#[test]
fn a_recording_is_done_when_it_is_put_in_again() {
    let (stream, _) = stream();
    let (said, says) = channel();
    stream.begin_recording().unwrap();
    assert!(stream.begin_recording().is_err());
    for number in 0..3 {
        stream.add(sending(number, &said)).unwrap();
    }
    assert!(stream.end().is_err(), "waiting would be for ever");
    let recorded = stream.end_recording().unwrap();
    assert!(stream.end_recording().is_err());
    stream.wait(stream.end().unwrap()).unwrap();
    assert!(says.try_recv().is_err());
    for work in recorded.iter().chain(&recorded) {
        stream.add(Arc::clone(work)).unwrap();
    }
    stream.wait(stream.end().unwrap()).unwrap();
    assert!(says.try_iter().eq([0, 1, 2, 0, 1, 2]));
}

#[test]
fn after_a_failure_nothing_is_done_and_nobody_waits() {
    let (stream, health) = stream();
    let other = Stream::start(health).unwrap();
    let (hold, work) = held();
    let (said, says) = channel();
    let lost = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    stream.add(work).unwrap();
    stream.add(failing(lost)).unwrap();
    stream.add(sending(1, &said)).unwrap();
    stream
        .add(failing(CUresult::CUDA_ERROR_LAUNCH_FAILED))
        .unwrap();
    let event = Event::default();
    event.record(Arc::clone(&stream)).unwrap();
    drop(hold);
    assert_eq!(event.wait(), Err(lost));
    assert!(event.is_reached());
    assert!(says.try_recv().is_err());
    for stream in [&stream, &other] {
        assert_eq!(stream.add(sending(2, &said)), Err(lost));
        assert_eq!(stream.begin_recording(), Err(lost));
        assert_eq!(stream.wait(stream.end().unwrap()), Err(lost));
    }
}

#[test]
fn a_panic_is_a_failure_as_well() {
    let (stream, _) = stream();
    stream.add(Arc::new(|| panic!("on purpose"))).unwrap();
    let outcome = stream.wait(stream.end().unwrap());
    assert_eq!(outcome, Err(CUresult::CUDA_ERROR_UNKNOWN));
}
