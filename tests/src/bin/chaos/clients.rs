//! Concurrent clients, each with one request after the other, and the comparison of their answers with those of a run
//! without faults.

use super::mix::{Expects, Manner, Random, Request};
use super::stream::{Answer, Ending, ask};
use super::tally::{Tally, check};
use super::worker::Worker;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Clients for the references; answers do not depend on concurrency.
const REFERENCE_CLIENTS: usize = 8;

/// Requests with the answers of a run without faults.
#[derive(Debug, Clone)]
pub struct References(Arc<Vec<(Request, Answer)>>);

impl References {
    /// # Errors
    /// A request fails even without faults.
    pub fn take(worker: &Worker, requests: Vec<Request>) -> Result<Self> {
        let next = AtomicU64::new(0);
        let answers = Mutex::new(vec![None; requests.len()]);
        thread::scope(|scope| {
            for _ in 0..REFERENCE_CLIENTS {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed) as usize;
                        let Some(request) = requests.get(index) else {
                            return;
                        };
                        let job = format!("reference-{index}");
                        let answer = ask(&worker.client, &job, request, Manner::Reads);
                        answers.lock().expect("no holder panics")[index] = Some(answer);
                    }
                });
            }
        });
        let mut references = Vec::new();
        let answers = answers.into_inner().expect("no holder panics");
        for (request, answer) in requests.into_iter().zip(answers) {
            match answer {
                Some(Ok(answer)) if matches!(answer.end, Ending::Complete | Ending::Refused) => {
                    if let Err(why) = check(&request, &answer) {
                        bail!("without faults, {}: {why}: {}", request.what, request.body);
                    }
                    references.push((request, answer));
                }
                answer => bail!(
                    "without faults, {} did not complete: {answer:?}: {}",
                    request.what,
                    request.body
                ),
            }
        }
        Ok(Self(Arc::new(references)))
    }

    pub fn all(&self) -> &[(Request, Answer)] {
        &self.0
    }

    /// Sends a constrained request, if there is one: the supervisor starts its processes for grammars with the first,
    /// and keeps them while it is idle.
    ///
    /// # Errors
    /// The answer breaks off.
    pub fn warm(&self, worker: &Worker) -> Result<()> {
        let is_held = |request: &Request| matches!(request.expects, Expects::Form(_));
        let Some((request, _)) = self.0.iter().find(|(request, _)| is_held(request)) else {
            return Ok(());
        };
        match ask(&worker.client, "warm", request, Manner::Reads) {
            Ok(_) => Ok(()),
            Err(error) => bail!("the first answer: {error}"),
        }
    }
}

/// Running clients.
#[derive(Debug)]
pub struct RunningClients {
    threads: Vec<JoinHandle<()>>,
    tally: Arc<Mutex<Tally>>,
    over: Arc<AtomicBool>,
}

/// Number and behaviour of the clients.
#[derive(Debug, Clone, Copy)]
pub struct Clients {
    pub count: usize,
    /// Every client reads to the end.
    pub steady: bool,
    pub seed: u64,
}

impl RunningClients {
    pub fn start(worker: &Worker, references: &References, clients: Clients) -> Self {
        let tally = Arc::new(Mutex::new(Tally::of(&references.0)));
        let over = Arc::new(AtomicBool::new(false));
        let threads = (0..clients.count)
            .map(|lane| {
                let (tally, over) = (Arc::clone(&tally), Arc::clone(&over));
                let (references, client) = (references.clone(), worker.client.clone());
                thread::spawn(move || {
                    let mut random = Random::new(clients.seed, lane as u64);
                    let dealt = deal(references.0.len(), lane, clients.count);
                    for number in 0.. {
                        if over.load(Ordering::Relaxed) && number >= dealt.len() {
                            return;
                        }
                        let (dealt, drawn) = (dealt.get(number), random.pick(&references.0));
                        let (request, want) = dealt.map_or(drawn, |index| &references.0[*index]);
                        let manner = match clients.steady || dealt.is_some() {
                            true => Manner::Reads,
                            false => Manner::draw(&mut random),
                        };
                        let job = format!("lane-{lane}-{number}");
                        let got = ask(&client, &job, request, manner);
                        lock(&tally).count(request, &job, manner, got, want);
                    }
                })
            })
            .collect();
        Self {
            threads,
            tally,
            over,
        }
    }

    /// Prints one line every ten seconds.
    pub fn show_progress(&self, worker: &Worker, elapsed: Duration) {
        if elapsed.as_millis() % 10_000 < 500 {
            let tally = lock(&self.tally);
            println!(
                "chaos: {:4} s, {} deaths, {} complete, {} cancelled or left, {} quarantined, \
                 {} violations",
                elapsed.as_secs(),
                worker.deaths(),
                tally.complete,
                tally.cancelled + tally.left,
                tally.quarantined,
                tally.violations.len(),
            );
        }
    }

    /// Lets every stream finish, and starts no new one.
    ///
    /// # Errors
    /// The worker dies meanwhile.
    pub fn finish(self, worker: &Worker, patience: Duration) -> Result<Tally> {
        self.over.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + patience;
        let running = || {
            self.threads
                .iter()
                .filter(|thread| !thread.is_finished())
                .count()
        };
        while running() > 0 && Instant::now() < deadline {
            worker.assert_alive()?;
            thread::sleep(Duration::from_millis(100));
        }
        let unfinished = running();
        let mut tally = lock(&self.tally).clone();
        if unfinished > 0 {
            let text = format!(
                "{unfinished} streams had no end {} s later",
                patience.as_secs()
            );
            tally.violations.push(text);
        }
        Ok(tally)
    }
}

/// First requests of a lane: together the lanes cover all requests, even in a short run.
fn deal(requests: usize, lane: usize, lanes: usize) -> Vec<usize> {
    (lane..requests).step_by(lanes).collect()
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().expect("no holder panics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_dealt_to_one_lane() {
        let mut dealt: Vec<_> = (0..5).flat_map(|lane| deal(12, lane, 5)).collect();
        dealt.sort_unstable();
        assert!(dealt.into_iter().eq(0..12));
        assert_eq!(deal(2, 3, 5), [0; 0]);
    }
}
