//! Progress of a child for the restart policy: a delivered result, or long service without requests.

use super::Driver;
use super::seat::Seat;
use worker_orcd_ipc::{FinishReason, Role, StepReport};
use worker_orcd_lifecycle::{ChildEvent, DeathCause, Event, SeatId, State};
use worker_orcd_requests::scene::Scene;

/// Progress by an accepted report with `tokens` tokens.
pub(super) fn of_report(seat: &mut Seat, report: &StepReport, tokens: u64) -> Option<ChildEvent> {
    let mut ends = report.finished.iter();
    let is_vector = |reason: &FinishReason| matches!(reason, FinishReason::Embedded { .. });
    let delivers = tokens > 0 || ends.any(|end| is_vector(&end.reason));
    let vitals = seat.vitals.as_mut().filter(|_| delivers)?;
    vitals.progresses().then_some(ChildEvent::Progress)
}

impl Driver {
    /// Progress by long service without requests. Called after messages of the seat's child.
    pub(super) fn note_idle_service(&mut self, seat: SeatId) {
        let now = self.now - self.started;
        let State::Serving { since, .. } = self.worker.seat(seat).state() else {
            return;
        };
        let is_due = now >= *since + self.settings.restart.steady;
        let vitals = self.seats[seat].vitals.as_mut();
        let Some(vitals) = vitals.filter(|it| is_due && !it.has_progressed()) else {
            return;
        };
        if self.requests.in_flight(seat).next().is_none() && vitals.progresses() {
            self.handle_child(seat, ChildEvent::Progress);
        }
    }

    /// Discounts the latest `deaths` deaths of this seat's device, which the journal ascribes to requests. A signal
    /// that stopped the child does not count against the device either.
    pub(super) fn absolve(&mut self, seat: SeatId, cause: &DeathCause, scene: &Scene, deaths: u32) {
        let was_stopped = scene.stopped && !cause.is_from_outside();
        let deaths = deaths.max(u32::from(was_stopped));
        if deaths > 0 && self.seats[seat].role == Role::Active {
            let device = seat.device();
            self.handle(Event::DiscountDeaths { device, deaths });
        }
    }
}
