//! Siege: attacks by strangers, operators, log readers and disks on the worker, beside honest streams.
//!
//! Every attack is a row of [`attacks::ATTACKS`] with a thread of its own. A stranger may be refused or cut off in any
//! way that HTTP permits; an honest request in between must be served, and a probe answered in time. The lanes check
//! the honest streams.

mod attacks;
mod ground;
mod template;

pub use ground::Ground;

use super::mix::Random;
use super::pauses::quantile;
use super::storm::{pause, rest};
use super::worker::Worker;
use attacks::{ATTACKS, Attack, Outcome};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// 200 MiB: limit of the supervisor's resident memory under siege.
pub const MEMORY_BYTES: u64 = 200 << 20;

/// 2 s: an orchestrator restarts a worker after a slower probe, on this kind of machine.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
const PROBE_EVERY: Duration = Duration::from_millis(250);

/// Durations for which the reader of the log sleeps, and reads in between.
const LOG_UNREAD: Duration = Duration::from_secs(20);
const LOG_READ: Duration = Duration::from_secs(40);

const FIRST_STRIKE_SECONDS: f64 = 3.0;

/// Limit; more would repeat the same defect.
const MAX_VIOLATIONS: usize = 20;

/// Outcome of the attacks.
#[derive(Debug, Default)]
pub struct Ledger {
    outcomes: BTreeMap<&'static str, BTreeMap<String, u64>>,
    probes: Vec<Duration>,
    pub violations: Vec<String>,
}

#[derive(Debug)]
pub struct Siege {
    threads: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
    ledger: Arc<Mutex<Ledger>>,
}

impl Siege {
    pub fn start(worker: &Arc<Worker>, seed: u64) -> Self {
        let siege = Self {
            threads: Vec::new(),
            over: Arc::default(),
            ledger: Arc::default(),
        };
        let (address, pid) = (worker.client.address, worker.pid);
        let attackers = ATTACKS.iter().enumerate().map(|(lane, attack)| {
            let random = Random::new(seed, 1000 + lane as u64);
            siege.spawn(move |siege| siege.attack(attack, address, pid, random))
        });
        let mut threads: Vec<_> = attackers.collect();
        threads.push(siege.spawn(move |siege| siege.probe(address)));
        let worker = Arc::clone(worker);
        threads.push(siege.spawn(move |siege| siege.leave_the_log_unread(&worker)));
        Self { threads, ..siege }
    }

    /// Ends the attacks, and returns their outcome.
    pub fn stop(self) -> Ledger {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("an attack does not panic");
        }
        std::mem::take(&mut self.ledger.lock().expect("no holder panics"))
    }

    fn spawn(&self, work: impl FnOnce(Self) + Send + 'static) -> JoinHandle<()> {
        let siege = Self {
            threads: Vec::new(),
            over: Arc::clone(&self.over),
            ledger: Arc::clone(&self.ledger),
        };
        thread::spawn(move || work(siege))
    }

    fn attack(&self, attack: &'static Attack, address: SocketAddr, pid: u32, mut random: Random) {
        // Each once in the beginning, also in a short siege.
        let mut wait = pause(FIRST_STRIKE_SECONDS, &mut random);
        while rest(wait, &self.over) {
            let outcome = (attack.strike)(address, pid, &mut random);
            let mut ledger = self.ledger.lock().expect("no holder panics");
            ledger.record(attack, &outcome);
            drop(ledger);
            wait = pause(attack.every_seconds, &mut random);
        }
    }

    fn probe(&self, address: SocketAddr) {
        while rest(PROBE_EVERY, &self.over) {
            let began = Instant::now();
            let outcome = attacks::get(address, "/livez", PROBE_PATIENCE);
            let took = began.elapsed();
            let mut ledger = self.ledger.lock().expect("no holder panics");
            ledger.probes.push(took);
            if outcome != Outcome::Status(200) || took > PROBE_PATIENCE {
                ledger.violation(format!("/livez: {outcome} after {} ms", took.as_millis()));
            }
        }
    }

    fn leave_the_log_unread(&self, worker: &Worker) {
        while rest(LOG_READ, &self.over) {
            worker.read_log(false);
            rest(LOG_UNREAD, &self.over);
            worker.read_log(true);
        }
    }
}

impl Ledger {
    fn record(&mut self, attack: &Attack, outcome: &Outcome) {
        let outcomes = self.outcomes.entry(attack.name).or_default();
        *outcomes.entry(outcome.to_string()).or_default() += 1;
        if !attack.expects.allows(outcome) {
            self.violation(format!("{}: {outcome}", attack.name));
        }
    }

    fn violation(&mut self, text: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(text);
        }
    }

    /// Violations. An attack that was never made counts as one.
    pub fn verdict(&self) -> Vec<String> {
        let idle = ATTACKS
            .iter()
            .filter(|it| !self.outcomes.contains_key(it.name));
        let idle = idle.map(|it| format!("{} was never tried", it.name));
        self.violations.iter().cloned().chain(idle).collect()
    }

    pub fn markdown(&self, ground: &Ground) -> String {
        let mut out = "| attack | times | outcomes |\n|---|---|---|\n".to_owned();
        for (name, outcomes) in &self.outcomes {
            let times: u64 = outcomes.values().sum();
            let told: Vec<_> = outcomes
                .iter()
                .map(|(outcome, times)| format!("{outcome} × {times}"))
                .collect();
            let _ = writeln!(out, "| {name} | {times} | {} |", told.join(", "));
        }
        let mut probes = self.probes.clone();
        probes.sort_unstable();
        let ms = |share| quantile(&probes, share).as_millis();
        let _ = writeln!(
            out,
            "\n{} probes of `/livez`: p50 {} ms, p99 {} ms, at most {} ms. The log was left unread for \
             {} s of every {} s. {}\n",
            probes.len(),
            ms(0.5),
            ms(0.99),
            ms(1.0),
            LOG_UNREAD.as_secs(),
            (LOG_UNREAD + LOG_READ).as_secs(),
            ground.description(),
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attack(name: &str) -> &'static Attack {
        ATTACKS.iter().find(|attack| attack.name == name).unwrap()
    }

    #[test]
    fn a_stranger_who_is_served_and_a_client_who_is_not_are_violations() {
        let mut ledger = Ledger::default();
        ledger.record(attack("wrong messages"), &Outcome::Status(400));
        ledger.record(attack("honest chat"), &Outcome::Status(200));
        assert!(ledger.violations.is_empty());
        ledger.record(attack("wrong messages"), &Outcome::Status(200));
        ledger.record(attack("honest chat"), &Outcome::Status(503));
        ledger.record(attack("honest chat"), &Outcome::Silent);
        assert_eq!(ledger.violations.len(), 3);
    }

    #[test]
    fn an_attack_that_was_never_made_is_a_violation() {
        assert_eq!(Ledger::default().verdict().len(), ATTACKS.len());
    }
}
