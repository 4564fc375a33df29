//! Watch thread: records the state of the child while a step does not end, as evidence for a death by the step
//! deadline.
//!
//! This process has no access to that deadline. The thread records when a step is half a second old, then each time its
//! age has doubled. So the last record before any deadline of a second or more is at least half as old as the deadline.
//! Records go into the flight recorder ([`Notes`]): first the engine thread's present work, which is free to read, then
//! the account of the device's [`ProgressProbe`], which may have to query NVIDIA's driver, and that may not answer.

use super::Status;
use crate::device::ProgressProbe;
use crate::flight_recorder::Notes;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two readings of the step's age.
const GLANCE: Duration = Duration::from_millis(50);
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// Watches until the engine is gone.
pub(super) fn watch(
    status: &Weak<Status>,
    mut notes: Notes,
    mut progress_probe: Option<Box<dyn ProgressProbe>>,
) {
    let mut patience = Patience::default();
    while let Some(status) = status.upgrade() {
        let now = Instant::now();
        if let Some((step, began)) = patience.is_over(status.step(), now) {
            let age = now.saturating_duration_since(began).as_millis();
            let engine = status.doing().words();
            let mut text = format!("after {age} ms the engine {engine}");
            notes.write(step, &text);
            if let Some(progress_probe) = &mut progress_probe {
                text = format!("{text}; {}", progress_probe.account());
                notes.write(step, &text);
            }
        }
        drop(status);
        thread::sleep(GLANCE);
    }
}

/// Time of the next record of the present step.
#[derive(Debug)]
struct Patience {
    step: Option<(u64, Instant)>,
    lasts: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            step: None,
            lasts: FIRST_LOOK,
        }
    }
}

impl Patience {
    /// The step, if its record is due.
    fn is_over(&mut self, step: Option<(u64, Instant)>, now: Instant) -> Option<(u64, Instant)> {
        if step != self.step {
            *self = Self {
                step,
                ..Self::default()
            };
        }
        let (_, began) = step?;
        let age = now.saturating_duration_since(began);
        if age < self.lasts {
            return None;
        }
        while self.lasts <= age {
            self.lasts *= 2;
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_half_a_second_one_two_and_four_into_a_step_and_begin_again_with_the_next() {
        let mut patience = Patience::default();
        let began = Instant::now();
        let mut looks = |step, ages: std::ops::Range<u64>| -> Vec<u64> {
            let at = |ms: &u64| began + Duration::from_millis(*ms);
            ages.step_by(50)
                .filter(|ms| patience.is_over(Some((step, began)), at(ms)).is_some())
                .collect()
        };
        assert_eq!(looks(1, 0..7000), [500, 1000, 2000, 4000]);
        assert_eq!(looks(2, 0..450), [0; 0]);
        assert_eq!(looks(2, 3000..5000), [3000, 4000], "a glance came late");
        assert_eq!(patience.is_over(None, began), None);
    }
}
