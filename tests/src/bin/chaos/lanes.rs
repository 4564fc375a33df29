//! A number of clients, each with one request after the other, and the comparison of what they
//! got with what they would have got without faults.

use super::mix::{Manner, Random, Request};
use super::stream::{Answer, Ending, ask};
use super::worker::Worker;
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Clients that take the references; answers do not depend on who else is asking.
const REFERENCE_CLIENTS: usize = 8;

/// More would be the same mistake again.
const MAX_VIOLATIONS: usize = 50;

/// Requests with the answers of a run without faults.
#[derive(Debug, Clone)]
pub struct References(Arc<Vec<(Request, Answer)>>);

impl References {
    /// # Errors
    /// When a request does not even complete without faults.
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
                        let answer = ask(&worker.client, &job, &request.body, Manner::Reads);
                        answers.lock().expect("no holder panics")[index] = Some(answer);
                    }
                });
            }
        });
        let mut references = Vec::new();
        let answers = answers.into_inner().expect("no holder panics");
        for (request, answer) in requests.into_iter().zip(answers) {
            match answer {
                Some(Ok(answer)) if answer.end == Ending::Complete => {
                    references.push((request, answer));
                }
                answer => bail!(
                    "without faults, {} did not complete: {answer:?}",
                    request.what
                ),
            }
        }
        Ok(Self(Arc::new(references)))
    }
}

/// What became of the streams.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub complete: u64,
    pub complete_after_recovery: u64,
    pub most_recoveries: u64,
    pub cancelled: u64,
    pub left: u64,
    pub quarantined: u64,
    pub failed: u64,
    pub mismatched: u64,
    pub tokens: u64,
    /// Of streams whose readers were quick.
    pub gaps: Vec<(Instant, Instant)>,
    pub violations: Vec<String>,
}

impl Tally {
    fn count(
        &mut self,
        what: &str,
        job: &str,
        manner: Manner,
        got: Result<Answer, String>,
        want: &Answer,
    ) {
        let got = match got {
            Ok(got) => got,
            Err(error) => {
                self.failed += 1;
                return self.violation(format!("{job} ({what}): {error}"));
            }
        };
        self.tokens += u64::from(got.tokens);
        if manner == Manner::Reads {
            self.gaps.extend_from_slice(&got.gaps);
        }
        if let Some(difference) = difference(&got, want) {
            self.mismatched += 1;
            self.violation(format!("{job} ({what}): {difference}"));
        }
        match got.end {
            Ending::Complete => {
                self.complete += 1;
                self.complete_after_recovery += u64::from(got.recoveries > 0);
                self.most_recoveries = self.most_recoveries.max(got.recoveries);
            }
            Ending::Left => self.left += 1,
            Ending::Cancelled if matches!(manner, Manner::Cancels(_)) => self.cancelled += 1,
            Ending::Cancelled => {
                self.failed += 1;
                self.violation(format!("{job} ({what}): cancelled, but not by its client"));
            }
            // No request of the mix kills anybody.
            Ending::Quarantined => {
                self.quarantined += 1;
                self.violation(format!("{job} ({what}): convicted, and it is innocent"));
            }
            Ending::Failed(why) => {
                self.failed += 1;
                self.violation(format!("{job} ({what}): {why}"));
            }
        }
    }

    /// A run in which no stream came to its end has shown nothing.
    pub fn verdict(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        if self.complete == 0 {
            violations.push("no stream was completed, so nothing was shown".to_owned());
        }
        violations
    }

    fn violation(&mut self, text: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(text);
        }
    }
}

/// A whole answer must be the reference; a part of one its beginning. Texts are not shown: how
/// far they agree is what helps.
fn difference(got: &Answer, want: &Answer) -> Option<String> {
    let agrees = if got.end == Ending::Complete {
        got.text == want.text
    } else {
        want.text.starts_with(&got.text)
    };
    if !agrees {
        let same = got
            .text
            .bytes()
            .zip(want.text.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let (got, want) = (got.text.len(), want.text.len());
        return Some(format!(
            "{got} bytes differ from the reference's {want} after {same}"
        ));
    }
    let differs = got.end == Ending::Complete && got.facts != want.facts;
    differs.then(|| format!("its end says {} instead of {}", got.facts, want.facts))
}

/// Clients at work.
#[derive(Debug)]
pub struct Lanes {
    threads: Vec<JoinHandle<()>>,
    tally: Arc<Mutex<Tally>>,
    over: Arc<AtomicBool>,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Clients {
    pub count: usize,
    /// All read to the end.
    pub steady: bool,
    pub seed: u64,
}

impl Lanes {
    pub fn start(worker: &Worker, references: &References, clients: Clients) -> Self {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let over = Arc::new(AtomicBool::new(false));
        let threads = (0..clients.count)
            .map(|lane| {
                let (tally, over) = (Arc::clone(&tally), Arc::clone(&over));
                let (references, client) = (references.clone(), worker.client.clone());
                thread::spawn(move || {
                    let mut random = Random::new(clients.seed, lane as u64);
                    for number in 0_u64.. {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let (request, want) = random.pick(&references.0);
                        let manner = match clients.steady {
                            true => Manner::Reads,
                            false => Manner::draw(&mut random),
                        };
                        let job = format!("lane-{lane}-{number}");
                        let got = ask(&client, &job, &request.body, manner);
                        lock(&tally).count(request.what, &job, manner, got, want);
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

    /// One line every ten seconds.
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
    /// When the worker dies meanwhile.
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

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().expect("no holder panics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(text: &str, end: Ending) -> Answer {
        Answer {
            text: text.into(),
            end,
            facts: json!([1]),
            ..Answer::default()
        }
    }

    #[test]
    fn parts_are_beginnings_and_wholes_are_equal() {
        let want = answer("abc", Ending::Complete);
        assert_eq!(difference(&answer("abc", Ending::Complete), &want), None);
        assert_eq!(difference(&answer("ab", Ending::Left), &want), None);
        assert!(difference(&answer("ab", Ending::Complete), &want).is_some());
        assert!(difference(&answer("b", Ending::Cancelled), &want).is_some());
        let lies = Answer {
            facts: json!([2]),
            ..want.clone()
        };
        assert!(difference(&lies, &want).is_some());
    }

    #[test]
    fn every_ending_is_counted_once() {
        let (want, mut tally) = (answer("abc", Ending::Complete), Tally::default());
        let mut count = |manner, got| tally.count("test", "job", manner, got, &want);
        count(Manner::Reads, Ok(want.clone()));
        count(Manner::Cancels(0), Ok(answer("a", Ending::Cancelled)));
        count(Manner::Vanishes(0), Ok(answer("a", Ending::Left)));
        assert!(tally.verdict().is_empty(), "{:?}", tally.violations);
        let mut count = |manner, got| tally.count("test", "job", manner, got, &want);
        count(Manner::Reads, Ok(answer("a", Ending::Cancelled)));
        count(Manner::Reads, Ok(answer("a", Ending::Failed("x".into()))));
        count(Manner::Reads, Err("broke off".into()));
        count(Manner::Reads, Ok(answer("a", Ending::Quarantined)));
        assert_eq!(
            (
                tally.complete,
                tally.cancelled,
                tally.left,
                tally.quarantined
            ),
            (1, 1, 1, 1)
        );
        assert_eq!((tally.failed, tally.verdict().len()), (3, 4));
    }

    #[test]
    fn a_run_without_a_completed_stream_has_failed() {
        let (want, mut tally) = (answer("abc", Ending::Complete), Tally::default());
        assert_eq!(tally.verdict().len(), 1);
        tally.count(
            "test",
            "job",
            Manner::Vanishes(0),
            Ok(answer("a", Ending::Left)),
            &want,
        );
        assert_eq!(tally.verdict().len(), 1);
        tally.count("test", "job", Manner::Reads, Ok(want.clone()), &want);
        assert!(tally.verdict().is_empty());
    }
}
