//! Faults from outside: signals to any child, serving or not, at random times.
//!
//! They hit children in every state, also while loading, unlike injected faults.

use super::mix::Random;
use super::pauses::Hit;
use super::worker::Worker;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// 0.6 s: longer than the start of a child and the load of a small model.
const CHASE_WITHIN: f64 = 0.6;

#[derive(Debug)]
pub struct Storm {
    thread: JoinHandle<Vec<Hit>>,
    over: Arc<AtomicBool>,
}

/// Parameters of the signals.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Seconds between signals, on average; 0 sends none.
    pub mean_seconds: f64,
    pub signals: Vec<Signal>,
    /// Sends a second signal after each while the next child starts and loads.
    pub chase: bool,
    pub seed: u64,
}

impl Storm {
    pub fn start(worker: &Arc<Worker>, weather: Weather) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let worker = Arc::clone(worker);
        let mut random = Random::new(weather.seed, u64::MAX - 1);
        let thread = thread::spawn(move || {
            let mut hits = Vec::new();
            let mut hit = |signal: Signal, random: &mut Random| {
                let children = worker.children();
                if !children.is_empty()
                    && let child = *random.pick(&children)
                    && kill(Pid::from_raw(child.cast_signed()), signal).is_ok()
                {
                    hits.push((signal.as_str().to_owned(), Instant::now()));
                }
            };
            let mean = weather.mean_seconds;
            while mean > 0.0 && rest(pause(mean, &mut random), &stop) {
                let signal = *random.pick(&weather.signals);
                hit(signal, &mut random);
                let soon = Duration::from_secs_f64(CHASE_WITHIN * random.unit());
                if weather.chase && rest(soon, &stop) {
                    hit(signal, &mut random);
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

/// Random pause between independent events.
pub fn pause(mean_seconds: f64, random: &mut Random) -> Duration {
    Duration::from_secs_f64(-mean_seconds * (1.0 - random.unit()).ln())
}

/// Sleeps; false when the storm is over.
pub fn rest(pause: Duration, over: &AtomicBool) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if over.load(Ordering::Relaxed) {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    !over.load(Ordering::Relaxed)
}
