//! Check after a death that the device memory is free again.
//!
//! It compares the memory that belongs to no process with the value before the first child. The dead child's memory is
//! its own while the process is listed, and unowned if NVIDIA's driver failed to free it. A neighbour or the next child
//! is listed with its own memory and changes neither value.

use super::library::DeviceMemory;
use std::time::{Duration, Instant};

/// Time limit, longer than the teardown of a context of 140 GB.
pub(crate) const BOUND: Duration = Duration::from_secs(5);

/// Tolerance in bytes. The memory of NVIDIA's driver varies by a few pages with the load.
pub(crate) const TOLERANCE: u64 = 16 << 20;

/// Pending check of one death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Examination {
    pub generation: u32,
    pub pid: u32,
    pub reaped_at: Instant,
    /// Unowned bytes before the first child, plus retained memory.
    pub baseline: Option<u64>,
    /// True if NVML uses our process ids. In a container it may list none, and a missing id then proves nothing.
    pub pids_are_known: bool,
}

/// Result of an examination.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measure {
    /// Time from the reaping to the first sample with free memory. `None`: never, or unknown.
    pub freed_after: Option<Duration>,
    /// Bytes above the baseline in the last sample.
    pub residual: Option<u64>,
}

impl Examination {
    /// Checks one sample. `Some` once the result is final.
    #[must_use]
    pub(crate) fn look(&self, memory: Option<&DeviceMemory>, now: Instant) -> Option<Measure> {
        let since = now.saturating_duration_since(self.reaped_at);
        let gone = memory
            .filter(|_| self.pids_are_known)
            .and_then(|memory| memory.lists(self.pid).map(|listed| !listed));
        let residual = memory
            .filter(|_| self.pids_are_known)
            .and_then(DeviceMemory::unowned)
            .zip(self.baseline)
            .map(|(now, before)| now.saturating_sub(before));
        let is_back = gone == Some(true) && residual.is_none_or(|bytes| bytes <= TOLERANCE);
        if is_back {
            return Some(Measure {
                freed_after: Some(since),
                residual,
            });
        }
        let hopeless = !self.pids_are_known || since >= BOUND;
        hopeless.then_some(Measure {
            freed_after: None,
            residual,
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test begins at some moment")]

    use super::super::library::Process;
    use super::*;

    const CHILD: u32 = 7;
    const MIB: u64 = 1 << 20;

    fn memory(used: u64, processes: &[(u32, u64)]) -> DeviceMemory {
        let process = |(pid, bytes): &(u32, u64)| Process {
            pid: *pid,
            bytes: Some(bytes * MIB),
        };
        DeviceMemory {
            used: used * MIB,
            processes: Some(processes.iter().map(process).collect()),
            ..DeviceMemory::default()
        }
    }

    fn examination(reaped_at: Instant) -> Examination {
        Examination {
            generation: 1,
            pid: CHILD,
            reaped_at,
            baseline: Some(4 * MIB),
            pids_are_known: true,
        }
    }

    #[test]
    fn it_is_back_when_the_child_is_gone_and_nothing_is_left_behind() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let it = examination(start);
        let listed = memory(704, &[(CHILD, 500), (8, 200)]);
        assert_eq!(it.look(Some(&listed), at(1)), None);
        let left_behind = memory(704, &[(8, 200)]);
        assert_eq!(it.look(Some(&left_behind), at(2)), None);
        // Neighbours, and the next child, have allocated memory in the meantime.
        let back = memory(1204, &[(8, 900), (9, 300)]);
        let measure = it.look(Some(&back), at(18)).unwrap();
        assert_eq!(measure.freed_after, Some(Duration::from_millis(18)));
        assert_eq!(measure.residual, Some(0));
    }

    #[test]
    fn what_is_not_back_in_time_is_a_residual() {
        let start = Instant::now();
        let it = examination(start);
        let left_behind = memory(504, &[]);
        assert_eq!(it.look(Some(&left_behind), start), None);
        let measure = it.look(Some(&left_behind), start + BOUND).unwrap();
        assert_eq!(measure.freed_after, None);
        assert_eq!(measure.residual, Some(500 * MIB));
    }

    #[test]
    fn without_a_baseline_only_the_child_s_going_can_be_told() {
        let start = Instant::now();
        let it = Examination {
            baseline: None,
            ..examination(start)
        };
        let measure = it.look(Some(&memory(504, &[])), start).unwrap();
        assert_eq!(measure.freed_after, Some(Duration::ZERO));
        assert_eq!(measure.residual, None);
    }

    #[test]
    fn where_numbers_mean_nothing_nothing_is_measured() {
        let start = Instant::now();
        let it = Examination {
            pids_are_known: false,
            ..examination(start)
        };
        let unknown = Some(Measure::default());
        assert_eq!(it.look(Some(&memory(4, &[])), start), unknown);
        let it = examination(start);
        assert_eq!(it.look(None, start), None, "perhaps at the next look");
        assert_eq!(it.look(None, start + BOUND), unknown);
    }
}
