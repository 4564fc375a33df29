//! Upgrades and kills of supervisors under requests of each kind.
//!
//! After an upgrade every answer goes on, on its connection. After a kill the connection is lost; the client requests
//! the unread rest from the next supervisor, which inherits the stored state of the first.

mod rest;

use super::clients::References;
use super::mix::{Expects, Manner, Request};
use super::stream::{Answer, Ending, ask};
use super::tally::{check, difference};
use super::worker::{Faults, Setup, Worker};
use anyhow::Result;
use rest::Stream;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use worker_orcd_harness::Client;
use worker_orcd_tests::descriptor_store::DescriptorStore;

/// Concurrent requests under one supervisor, few enough that all run. Further rounds have fewer, because short answers
/// end before the last of many has begun.
const TOGETHER: usize = 6;

/// Rounds for a kind of answers that end before their supervisor does.
const ROUNDS: usize = 6;

/// Minimum of pieces: a shorter stream may end before its supervisor can be killed, in any number of rounds.
const LONG: u32 = 8;

/// 60 s for each stream's first token, or for the next supervisor.
const PATIENCE: Duration = Duration::from_secs(60);
/// 100 ms between an unstreamed request and the event; halved in each further round, because a fast machine completes a
/// short answer by then.
const HEAD_START: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(5);

type Reference<'a> = &'a (Request, Answer);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Replaced,
    Killed,
}

/// Counts of one kind: answers that lost their supervisor in progress, and that equal the reference.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    replaced: u64,
    killed: u64,
    /// A client can be in the middle of it, and resume.
    is_long_stream: bool,
}

#[derive(Debug, Default)]
pub struct Handovers {
    rows: BTreeMap<String, Row>,
    supervisors: [u64; 2],
    violations: Vec<String>,
}

impl Handovers {
    /// # Errors
    /// A supervisor does not start.
    pub fn run(setup: &Setup, faults: &Faults, references: &References) -> Result<Self> {
        let mut handovers = Self::default();
        let mut longest = BTreeMap::<&str, &(Request, Answer)>::new();
        let served =
            |(request, _): &&(Request, Answer)| !matches!(request.expects, Expects::Refusal);
        for reference in references.all().iter().filter(served) {
            let known = longest.entry(&reference.0.what).or_insert(reference);
            if known.1.pieces < reference.1.pieces {
                *known = reference;
            }
        }
        for (what, reference) in &longest {
            let row = Row {
                is_long_stream: is_long_stream(reference),
                ..Row::default()
            };
            handovers.rows.insert((*what).to_owned(), row);
        }
        let all: Vec<_> = longest.into_values().collect();
        println!(
            "chaos: supervisors are replaced under {} requests",
            all.len()
        );
        let worker = Worker::start(setup, Some(&faults.of_worker(1)))?;
        for round in 0..ROUNDS {
            let left = handovers.left(&all, End::Replaced);
            for together in left.chunks(TOGETHER.div_ceil(1 + round)) {
                handovers.replace(&worker, together, round)?;
            }
        }
        worker.stop()?;
        // Unstreamed answers have no id for a client.
        let streams: Vec<_> = all.into_iter().filter(|it| is_long_stream(it)).collect();
        println!(
            "chaos: supervisors are killed under {} streams",
            streams.len()
        );
        for round in 0..ROUNDS {
            let left = handovers.left(&streams, End::Killed);
            for together in left.chunks(TOGETHER.div_ceil(1 + round)) {
                handovers.kill(setup, faults, together)?;
            }
        }
        Ok(handovers)
    }

    /// References of kinds that had no answer in progress yet.
    fn left<'a>(&self, all: &[Reference<'a>], end: End) -> Vec<Reference<'a>> {
        let is_left = |(request, _): &&&(Request, Answer)| {
            let row = self.rows[&request.what];
            match end {
                End::Replaced => row.replaced == 0,
                End::Killed => row.killed == 0,
            }
        };
        all.iter().filter(is_left).copied().collect()
    }

    fn replace(&mut self, worker: &Worker, together: &[Reference<'_>], round: usize) -> Result<()> {
        let stage = Stage::new(&worker.client, together);
        let name = format!("replaced-{round}");
        let head_start = HEAD_START / 2_u32.pow(round as u32);
        let (outcome, followed) = stage.play(&name, together, head_start, || worker.upgrade());
        outcome?;
        self.supervisors[0] += 1;
        self.count(together, followed, End::Replaced);
        Ok(())
    }

    fn kill(&mut self, setup: &Setup, faults: &Faults, together: &[Reference<'_>]) -> Result<()> {
        let nth = 2 * (1 + self.supervisors[1]);
        let store = DescriptorStore::default();
        let first = Setup {
            notified: Some(store.socket()),
            ..setup.clone()
        };
        let first = Worker::start(&first, Some(&faults.of_worker(nth)))?;
        let kept = store.stored();
        let second = Setup {
            program: Some(store.successor(&kept)),
            ..setup.clone()
        };
        let stage = Stage::new(&first.client, together);
        let (second, followed) = stage.play("killed", together, Duration::ZERO, || {
            first.kill();
            let second = Worker::start(&second, Some(&faults.of_worker(nth + 1)))?;
            stage.go_on_with(&second.client);
            Ok(second)
        });
        second?.stop()?;
        self.supervisors[1] += 1;
        self.count(together, followed, End::Killed);
        Ok(())
    }

    fn count(
        &mut self,
        together: &[Reference<'_>],
        followed: Vec<Result<Followed, String>>,
        end: End,
    ) {
        for ((request, want), followed) in together.iter().zip(followed) {
            let checked = followed.and_then(|followed| {
                difference(&followed.answer, want)?;
                check(request, &followed.answer)?;
                match followed.answer.end == want.end {
                    true if end == End::Killed => Ok(followed.has_rested),
                    true => Ok(followed.was_under_way),
                    false => Err(format!("it ended as {:?}", followed.answer.end)),
                }
            });
            let row = self.rows.entry(request.what.clone()).or_default();
            match (checked, end) {
                (Ok(hit), End::Replaced) => row.replaced += u64::from(hit),
                (Ok(hit), End::Killed) => row.killed += u64::from(hit),
                (Err(why), _) => {
                    let told = format!("{}, the supervisor {end:?}: {why}", request.what);
                    println!("chaos: {told}");
                    self.violations.push(told);
                }
            }
        }
    }

    /// Violations. A kind that was never interrupted counts as one.
    pub fn verdict(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        for (what, row) in &self.rows {
            if row.replaced == 0 {
                violations.push(format!("no supervisor was replaced under {what}"));
            }
            if row.is_long_stream && row.killed == 0 {
                violations.push(format!("no supervisor was killed under {what}"));
            }
        }
        violations
    }

    pub fn markdown(&self) -> String {
        let [replaced, killed] = self.supervisors;
        let mut out = format!(
            "{replaced} supervisors were replaced under {TOGETHER} requests or fewer, and {killed} killed, their children \
             failing as before. An answer that a client was in the middle of was then told to its end, equal to the \
             reference and valid:\n\n\
             | asked for | on the same connection, behind an upgrade | the rest asked for, behind a kill |\n\
             |---|---|---|\n"
        );
        for (what, row) in &self.rows {
            let killed = match row.is_long_stream {
                true => row.killed.to_string(),
                false => String::new(),
            };
            let _ = writeln!(out, "| {what} | {} | {killed} |", row.replaced);
        }
        out
    }
}

fn is_long_stream((request, answer): &(Request, Answer)) -> bool {
    request.is_streamed && answer.pieces >= LONG
}

/// Present supervisor, from the clients' side.
struct Stage {
    client: Mutex<Option<Client>>,
    changed: Condvar,
    /// Number of streams without a first token and of unsent unstreamed requests; the supervisor ends at zero.
    awaited: AtomicUsize,
    is_over: AtomicBool,
}

/// Answer of a client, and whether it was in progress when the supervisor ended.
struct Followed {
    answer: Answer,
    was_under_way: bool,
    /// True if it was completed on another connection.
    has_rested: bool,
}

impl Stage {
    fn new(client: &Client, together: &[Reference<'_>]) -> Self {
        Self {
            client: Mutex::new(Some(client.clone())),
            changed: Condvar::new(),
            awaited: AtomicUsize::new(together.len()),
            is_over: AtomicBool::new(false),
        }
    }

    /// Sends all requests, ends the supervisor when each stream has a first token and unstreamed answers had their head
    /// start, and reads to the end.
    fn play<T>(
        &self,
        name: &str,
        together: &[Reference<'_>],
        head_start: Duration,
        end: impl FnOnce() -> Result<T>,
    ) -> (Result<T>, Vec<Result<Followed, String>>) {
        let client = self.client().clone().expect("a supervisor serves");
        thread::scope(|scope| {
            let clients: Vec<_> = together
                .iter()
                .enumerate()
                .map(|(index, (request, _))| {
                    let job = format!("{name}-{index}");
                    let client = client.clone();
                    scope.spawn(move || self.follow(&client, request, &job))
                })
                .collect();
            let began = Instant::now();
            while self.awaited.load(Ordering::Relaxed) > 0 && began.elapsed() < PATIENCE {
                thread::sleep(POLL);
            }
            if together.iter().any(|(request, _)| !request.is_streamed) {
                thread::sleep(head_start);
            }
            self.is_over.store(true, Ordering::Relaxed);
            *self.client() = None;
            let outcome = end();
            let followed = clients
                .into_iter()
                .map(|client| client.join().expect("a client does not panic"));
            (outcome, followed.collect())
        })
    }

    fn client(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().expect("no holder panics")
    }

    fn go_on_with(&self, client: &Client) {
        *self.client() = Some(client.clone());
        self.changed.notify_all();
    }

    /// Client of the supervisor that serves, or serves next.
    fn served(&self) -> Result<Client, String> {
        let (client, _) = self
            .changed
            .wait_timeout_while(self.client(), PATIENCE, |client| client.is_none())
            .expect("no holder panics");
        client
            .clone()
            .ok_or_else(|| "no supervisor followed".to_owned())
    }

    fn follow(&self, client: &Client, request: &Request, job: &str) -> Result<Followed, String> {
        if !request.is_streamed {
            let was_asked_for = !self.is_over.load(Ordering::Relaxed);
            self.awaited.fetch_sub(1, Ordering::Relaxed);
            let answer = ask(client, job, request, Manner::Reads)?;
            return Ok(Followed {
                was_under_way: was_asked_for
                    && answer.end == Ending::Complete
                    && self.is_over.load(Ordering::Relaxed),
                has_rested: false,
                answer,
            });
        }
        let (mut was_under_way, mut has_rested) = (false, false);
        let mut stream = Stream::open(client, request, job)?;
        loop {
            let ended = stream.read(|words| {
                if words == 1 {
                    self.awaited.fetch_sub(1, Ordering::Relaxed);
                }
                was_under_way |= self.is_over.load(Ordering::Relaxed);
            })?;
            if ended {
                return Ok(Followed {
                    answer: stream.reading.finish()?,
                    was_under_way,
                    has_rested,
                });
            }
            if !self.is_over.load(Ordering::Relaxed) {
                return Err("its connection broke, and the supervisor lives".to_owned());
            }
            has_rested |= stream.reading.has_words(1);
            stream = stream.rest(&self.served()?, request, job)?;
        }
    }
}
