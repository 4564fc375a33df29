//! Timers of the driver: when each is due, and what it does then.

use crate::driver::Driver;
use crate::driver::observer::Observer;
use std::time::Instant;
use worker_orcd_lifecycle::{ChildEvent, Event, SeatId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// Deadlines of requests.
    Requests,
    /// The seat's child does not read its messages.
    Write(SeatId),
    /// The seat's child is overdue.
    Silence(SeatId),
    /// A reading of a GPU monitor is overdue.
    Gpu,
    /// Deadlines of the lifecycle.
    Lifecycle,
    /// Notification to the service manager, which each turn sends at its end.
    ServiceManager,
    /// Limit of a handoff, which each turn examines at its end.
    Departure,
}

/// Armed timers, in the order in which they fire if several are due.
fn armed(driver: &Driver) -> impl Iterator<Item = (Timer, Instant)> {
    let of_seats = driver.seats.iter().flat_map(|seat| {
        let believed = driver.believes(seat.id);
        let silence = seat.silence.deadline().filter(|_| believed);
        [
            (Timer::Write(seat.id), seat.write_deadline()),
            (Timer::Silence(seat.id), silence),
        ]
    });
    let Observer { gpu, crashes, .. } = &driver.observer;
    let lifecycle = driver.worker.poll_deadline();
    let departure = driver.departure.as_ref();
    let requests = (Timer::Requests, driver.requests.next_deadline());
    let others = [
        (Timer::Gpu, gpu.next_deadline(crashes)),
        (Timer::Lifecycle, lifecycle.map(|at| driver.started + at)),
        (Timer::ServiceManager, driver.service_manager.deadline()),
        (Timer::Departure, departure.map(|it| it.until)),
    ];
    let all = [requests].into_iter().chain(of_seats).chain(others);
    all.filter_map(|(timer, at)| Some((timer, at?)))
}

/// The earliest deadline of an armed timer.
pub(super) fn wake_at(driver: &Driver) -> Instant {
    let earliest = armed(driver).map(|(_, at)| at).min();
    earliest.unwrap_or(driver.now)
}

/// Fires the timers that are due.
pub(super) fn fire_due(driver: &mut Driver) {
    let due = armed(driver).filter(|(_, at)| *at <= driver.now);
    let due: Vec<_> = due.map(|(timer, _)| timer).collect();
    due.into_iter().for_each(|timer| fire(driver, timer));
}

fn fire(driver: &mut Driver, timer: Timer) {
    match timer {
        Timer::Requests => driver.requests.expire(driver.now),
        Timer::Write(seat) => {
            if let Some(child) = &mut driver.seats[seat].child {
                child.close_link();
                driver.handle_child(seat, ChildEvent::LinkStalled);
            }
        }
        Timer::Silence(seat) => driver.judge_silence(seat),
        Timer::Gpu => {
            let Observer { gpu, crashes, .. } = &mut driver.observer;
            for (device, verdict) in gpu.overdue(driver.now, crashes) {
                driver.handle(Event::Gpu(device, verdict));
            }
        }
        Timer::Lifecycle => driver.handle(Event::Tick),
        Timer::ServiceManager | Timer::Departure => {}
    }
}
