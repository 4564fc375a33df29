//! Faults from outside: signals to whichever child there is, at random moments.
//!
//! They hit children in every state, loading ones too, which faults from inside do not.

use super::mix::Random;
use super::worker::Worker;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SIGNALS: [Signal; 3] = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGSTOP];

/// What hit when.
pub type Hit = (String, Instant);

#[derive(Debug)]
pub struct Storm {
    thread: JoinHandle<Vec<Hit>>,
    over: Arc<AtomicBool>,
}

impl Storm {
    /// One signal every `mean_seconds`, on average; none at all for 0.
    pub fn start(worker: &Arc<Worker>, mean_seconds: f64, seed: u64) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let worker = Arc::clone(worker);
        let mut random = Random::new(seed, u64::MAX - 1);
        let thread = thread::spawn(move || {
            let mut hits = Vec::new();
            while mean_seconds > 0.0 && rest(pause(mean_seconds, &mut random), &stop) {
                let signal = *random.pick(&SIGNALS);
                if let Some(child) = worker.child()
                    && kill(Pid::from_raw(child.cast_signed()), signal).is_ok()
                {
                    hits.push((signal.as_str().to_owned(), Instant::now()));
                }
            }
            hits
        });
        Self { thread, over }
    }

    pub fn stop(self) -> Vec<Hit> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the storm does not panic")
    }
}

/// As between independent events.
fn pause(mean_seconds: f64, random: &mut Random) -> Duration {
    Duration::from_secs_f64(-mean_seconds * (1.0 - random.unit()).ln())
}

/// False when the storm is over.
fn rest(pause: Duration, over: &AtomicBool) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if over.load(Ordering::Relaxed) {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    !over.load(Ordering::Relaxed)
}
