//! Device memory during a storm: after each death it must return to its previous level.
//!
//! The program polls `nvidia-smi`, because it checks the worker's own figures; with a process for each query, so that
//! no answer waits in a buffer. The KV cache has a fixed size, so a serving child always uses the same memory; more is
//! memory of dead children that did not return.

use super::worker::Change;
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// 50 ms between an answer and the next query.
const PERIOD: Duration = Duration::from_millis(50);
/// 16 MiB: the driver's own usage varies by a few MiB; a leaked model is a hundred.
const TOLERANCE_MIB: u64 = 16;
/// 3 s: the driver frees memory shortly after the process is gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// MiB in use at some moment between the query and the answer.
#[derive(Debug, Clone, Copy)]
struct Reading {
    asked: Instant,
    answered: Instant,
    mib: u64,
}

#[derive(Debug)]
pub struct Vram {
    asking: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
    readings: Arc<Mutex<Vec<Reading>>>,
    /// MiB in use before the worker started.
    empty: u64,
}

/// Result of the polling.
#[derive(Debug)]
pub struct Verdict {
    pub summary: String,
    pub violations: Vec<String>,
}

impl Vram {
    /// Poller; `None` for anything but one GPU.
    ///
    /// # Errors
    /// nvidia-smi does not answer.
    pub fn of(device: &str) -> Result<Option<Self>> {
        let ordinal = device.strip_prefix("cuda:");
        let Some(ordinal) = ordinal.filter(|it| !it.contains(',')) else {
            return Ok(None);
        };
        let mut smi = Command::new("nvidia-smi");
        smi.args(["--query-gpu=memory.used", "--format=csv,noheader,nounits"]);
        smi.args(["-i", ordinal]);
        Self::asking(smi).map(Some)
    }

    /// Polls `smi`, a command that prints a number and ends.
    fn asking(mut smi: Command) -> Result<Self> {
        let readings = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let (kept, is_over) = (Arc::clone(&readings), Arc::clone(&over));
        let asking = thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let printed = smi.output().map(|output| output.stdout).unwrap_or_default();
                if let Ok(mib) = String::from_utf8_lossy(&printed).trim().parse() {
                    kept.lock().expect("no holder panics").push(Reading {
                        asked,
                        answered: Instant::now(),
                        mib,
                    });
                }
                thread::sleep(PERIOD);
            }
        });
        let mut vram = Self {
            asking: Some(asking),
            over,
            readings,
            empty: 0,
        };
        vram.empty = vram
            .in_use()
            .context("what runs on the GPU cannot be told")?;
        Ok(vram)
    }

    /// MiB in use after this call.
    ///
    /// # Errors
    /// No answer arrives.
    pub fn in_use(&mut self) -> Result<u64> {
        let now = Instant::now();
        while now.elapsed() < PATIENCE {
            let last = self.readings().last().copied();
            if let Some(reading) = last.filter(|reading| reading.asked > now) {
                return Ok(reading.mib);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("nvidia-smi said nothing for {PATIENCE:?}")
    }

    fn readings(&self) -> Vec<Reading> {
        self.readings.lock().expect("no holder panics").clone()
    }

    /// Verdict after the worker's end. `served` is the usage of an idle worker. `filled` are the times at which
    /// children were ordered to allocate all memory.
    ///
    /// # Errors
    /// nvidia-smi does not answer any more.
    pub fn verdict(
        mut self,
        served: u64,
        changes: &[(Change, Instant)],
        filled: &[Instant],
    ) -> Result<Verdict> {
        let stopped = Instant::now();
        let mut left = self.in_use()?;
        while left > self.empty + TOLERANCE_MIB && stopped.elapsed() < PATIENCE {
            left = self.in_use()?;
        }
        let returns = Returns::of(&self.readings(), served, changes, filled);
        let mut violations: Vec<_> = returns
            .excesses
            .iter()
            .map(|mib| format!("device memory stayed {mib} MiB above {served} MiB after a death"))
            .collect();
        if left > self.empty + TOLERANCE_MIB {
            violations.push(format!(
                "device memory: {} MiB before the worker, {left} MiB after it",
                self.empty
            ));
        }
        let summary = format!(
            "{} MiB without a worker, {served} MiB with one; back there after {} of {} children \
             that followed a death ({} lived too short to be seen), at most {} ms after they \
             were ready; {left} MiB when the worker had ended",
            self.empty,
            returns.back.len(),
            returns.back.len() + returns.excesses.len() + returns.unseen,
            returns.unseen,
            returns.back.iter().max().map_or(0, Duration::as_millis),
        );
        Ok(Verdict {
            summary,
            violations,
        })
    }
}

impl Drop for Vram {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(asking) = self.asking.take() {
            // The thread only reads; its panic has been printed.
            let _ = asking.join();
        }
    }
}

/// Return of memory, for each child after a death.
#[derive(Debug, Default)]
struct Returns {
    /// Time after the child was ready.
    back: Vec<Duration>,
    /// Lowest excess over `served` while the child lived, in MiB.
    excesses: Vec<u64>,
    /// Children without a reading in their life.
    unseen: usize,
}

impl Returns {
    fn of(
        readings: &[Reading],
        served: u64,
        changes: &[(Change, Instant)],
        filled: &[Instant],
    ) -> Self {
        let mut returns = Self::default();
        for (index, (change, ready)) in changes.iter().enumerate() {
            if *change != Change::Ready || index == 0 {
                continue;
            }
            let next = changes[index + 1..].first().map(|(_, at)| *at);
            let filled = filled.iter().copied().find(|at| at >= ready);
            let end = next.into_iter().chain(filled).min();
            let life = || {
                let lies_in_it = |reading: &&Reading| {
                    reading.asked >= *ready && end.is_none_or(|end| reading.answered <= end)
                };
                readings.iter().filter(lies_in_it)
            };
            let back = life().find(|reading| reading.mib <= served + TOLERANCE_MIB);
            match (back, life().map(|reading| reading.mib).min()) {
                (Some(reading), _) => returns.back.push(reading.answered - *ready),
                (None, Some(least)) => returns.excesses.push(least - served),
                (None, None) => returns.unseen += 1,
            }
        }
        returns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_must_be_back_while_the_next_child_lives() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let changes = [
            (Change::Ready, at(0)),
            (Change::Death, at(100)),
            (Change::Ready, at(200)),
            (Change::Death, at(300)),
            (Change::Ready, at(400)),
            (Change::Death, at(500)),
            (Change::Ready, at(600)),
        ];
        let reading = |(ms, mib)| Reading {
            asked: at(ms - 5),
            answered: at(ms),
            mib,
        };
        let readings = [
            (50, 1000),
            (210, 1900),
            (260, 1005),
            // Query during the third child's life, answer after its death: ambiguous.
            (302, 200),
            (410, 1100),
            (490, 1200),
        ]
        .map(reading);
        let returns = Returns::of(&readings, 1000, &changes, &[]);
        assert_eq!(returns.back, [Duration::from_millis(60)]);
        assert_eq!(returns.excesses, [100]);
        assert_eq!(returns.unseen, 1);
        // Memory that the third child allocated on command is not a leak.
        let returns = Returns::of(&readings, 1000, &changes, &[at(405)]);
        assert_eq!((returns.excesses.len(), returns.unseen), (0, 2));
    }

    #[test]
    fn memory_that_does_not_return_is_told() {
        let counter = tempfile::NamedTempFile::new().unwrap();
        let mut smi = Command::new("sh");
        // 100 MiB more with every query.
        let script = "echo x >> $0; echo $(($(wc -l < $0) * 100))";
        smi.args(["-c", script]).arg(counter.path());
        let mut vram = Vram::asking(smi).unwrap();
        let served = vram.in_use().unwrap();
        assert!(served > vram.empty);
        let verdict = vram.verdict(served, &[], &[]).unwrap();
        assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
        assert!(verdict.violations[0].contains("after it"), "{verdict:?}");
    }

    #[test]
    fn a_driver_that_says_nothing_is_an_error() {
        assert!(Vram::asking(Command::new("true")).is_err());
    }

    #[test]
    fn a_cpu_has_no_device_memory_to_watch() {
        assert!(Vram::of("cpu").is_ok_and(|vram| vram.is_none()));
    }
}
