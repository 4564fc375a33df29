//! Grammars of requests, compiled before admission.
//!
//! A grammar is untrusted text that a child also compiles. So it is tried first in an isolated process that has the
//! model's vocabulary and a short time limit. Two threads have one such process each, from the first grammar on. Their
//! priority is low, and limits count processor time, so that streams are not disturbed and a busy machine fails no
//! grammar. A client that has waited for too many expensive grammars gets a retryable error.
//!
//! Results are cached, because clients repeat grammars, and refused clients retry.

use super::channel::frame;
use super::keeper::{Keeper, OrderError, Patience};
use super::{Answer, Order};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, getpriority_process, setpriority_process};
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use worker_orcd_ipc::{Grammar, TokenizerFacts};

/// Number of processes: a slow grammar does not block all others.
const PROCESSES: usize = 2;

/// Time limits for one grammar. Ordinary ones take some milliseconds of processor time. A child takes the same again,
/// which is several times as long while streams compute on all cores.
const PATIENCE: Patience = Patience {
    work: Duration::from_millis(300),
    wait: Duration::from_secs(60),
};

/// Time limits for the vocabulary. It is trusted, and its time depends on the machine alone: beside a dozen busy processes it has
/// taken more than 20 s of wall time. Clients wait for the first process.
const VOCABULARY_PATIENCE: Patience = Patience {
    work: Duration::from_secs(20),
    wait: Duration::from_secs(180),
};

/// Processor time of all processes after which a client that still waits for its result is refused: on free cores half as long.
/// Starts of processes are included.
const LONGEST_WORK: Duration = Duration::from_millis(3600);

/// Longest wait of a client for a result, for a machine on which the processes hardly run.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Nice value of the threads and processes. Beside streams on all cores they get about a tenth of one core: enough for
/// an ordinary grammar, and hardly noticeable for streams.
const NICENESS: i32 = 10;

/// Bytes of the waiting grammars. Further ones are refused at once.
const WAITING_BYTES: usize = 16 << 20;

/// Characters of a cached error message.
const SENTENCE_CHARS: usize = 1000;

/// Bytes of the cache, with the map's overhead.
const KNOWN_BYTES: usize = 1 << 20;
const ENTRY_BYTES: usize = 256;

type Found = Result<(), GrammarFault>;
type Digest = [u8; 32];

/// Reason that a grammar cannot constrain an answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarFault {
    /// Invalid or too expensive grammar.
    #[error("{0}")]
    Refused(String),
    #[error("too many grammars are being checked; try again soon")]
    Busy,
    /// A fault of the machine.
    #[error("{0}")]
    Unavailable(String),
}

/// Grammar checker of one model. Dropping it ends its processes.
#[derive(Debug)]
pub struct Grammars {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Frame of a process's first order: the vocabulary.
    vocabulary: Result<Vec<u8>, String>,
    state: Mutex<State>,
    changed: Condvar,
    /// The first process is ready, or failed to start.
    begun: watch::Sender<bool>,
    /// Processor time of all processes so far, counted while they run.
    worked: watch::Sender<Duration>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Pending>,
    /// Grammars in progress, with further receivers of their results: usually a client that retried.
    tried: HashMap<Digest, Vec<oneshot::Sender<Found>>>,
    known: Known,
    threads: usize,
    closed: bool,
}

#[derive(Debug)]
struct Pending {
    order: Vec<u8>,
    digest: Digest,
    reply: oneshot::Sender<Found>,
}

/// Result of a lookup: cached, or pending.
#[derive(Debug)]
pub enum Asked {
    Known(Found),
    Soon(Soon),
}

/// Pending result.
#[derive(Debug)]
pub struct Soon {
    reply: oneshot::Receiver<Found>,
    begun: watch::Receiver<bool>,
    worked: watch::Receiver<Duration>,
    /// Value of `worked` at which the client is refused.
    most_worked: Duration,
}

impl Asked {
    /// Waits for the result, no longer than `limit`.
    ///
    /// # Errors
    /// The error of the grammar, or why there is no result.
    pub async fn answer(self, limit: Option<Duration>) -> Found {
        match self {
            Self::Known(found) => found,
            Self::Soon(soon) => {
                let Soon {
                    reply,
                    mut begun,
                    mut worked,
                    mut most_worked,
                } = soon;
                let longest_wait = limit.map_or(LONGEST_WAIT, |limit| limit.min(LONGEST_WAIT));
                let patience = async {
                    // The start of the first process does not count as a client's wait.
                    if !*begun.borrow() {
                        drop(begun.wait_for(|begun| *begun).await);
                        most_worked = *worked.borrow() + LONGEST_WORK;
                    }
                    tokio::select! {
                        _ = worked.wait_for(|worked| *worked >= most_worked) => {}
                        () = sleep(longest_wait) => {}
                    }
                };
                tokio::select! {
                    // A result that is there counts, whatever was waited for.
                    biased;
                    found = reply => found.unwrap_or_else(|_| {
                        let why = "the worker is ending".to_owned();
                        Err(GrammarFault::Unavailable(why))
                    }),
                    () = patience => Err(GrammarFault::Busy),
                }
            }
        }
    }
}

impl Grammars {
    /// Stores the vocabulary. Starts no process.
    #[must_use]
    pub(crate) fn new(facts: &TokenizerFacts) -> Self {
        // Grammars use the bytes of tokens alone: merges and templates are omitted.
        let facts = TokenizerFacts {
            kind: facts.kind,
            pre: String::new(),
            tokens: facts.tokens.clone(),
            kinds: facts.kinds.clone(),
            scores: facts.scores.clone(),
            merges: Vec::new(),
            bos: facts.bos,
            eos: facts.eos,
            end_of_generation: facts.end_of_generation.clone(),
            unknown: facts.unknown,
            add_bos: facts.add_bos,
            add_eos: facts.add_eos,
            add_space_prefix: facts.add_space_prefix,
            chat_template: None,
        };
        let vocabulary = frame(&Order::Vocabulary(facts)).map_err(|error| error.to_string());
        Self {
            shared: Arc::new(Shared {
                vocabulary,
                state: Mutex::default(),
                changed: Condvar::new(),
                begun: watch::Sender::new(false),
                worked: watch::Sender::default(),
            }),
        }
    }

    /// Looks up whether this grammar can constrain an answer, or queues its check. Costs one digest of the grammar.
    #[must_use]
    pub fn ask(&self, grammar: &Grammar) -> Asked {
        let order = match frame(&Order::Check(grammar.clone())) {
            Ok(order) => order,
            Err(error) => return Asked::Known(Err(GrammarFault::Refused(error.to_string()))),
        };
        let digest = Sha256::digest(&order).into();
        let mut state = self.shared.state.lock();
        if let Some(found) = state.known.get(&digest) {
            return Asked::Known(found);
        }
        if let Err(error) = self.employ(&mut state) {
            return Asked::Known(Err(error));
        }
        if !state.has_room(order.len()) {
            return Asked::Known(Err(GrammarFault::Busy));
        }
        let (reply, answer) = oneshot::channel();
        state.queue.push_back(Pending {
            order,
            digest,
            reply,
        });
        self.shared.changed.notify_one();
        let worked = self.shared.worked.subscribe();
        let most_worked = *worked.borrow() + LONGEST_WORK;
        Asked::Soon(Soon {
            reply: answer,
            begun: self.shared.begun.subscribe(),
            worked,
            most_worked,
        })
    }

    /// Starts the missing threads: all of them at the first call.
    fn employ(&self, state: &mut State) -> Found {
        while state.threads < PROCESSES {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name("grammars".to_owned())
                .spawn(move || shared.work());
            match started {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads > 0 => break,
                Err(error) => return Err(GrammarFault::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }
}

impl Drop for Grammars {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let vocabulary = match &self.vocabulary {
            Ok(vocabulary) => vocabulary.as_slice(),
            Err(_) => &[],
        };
        let mut keeper = Keeper::new(VOCABULARY_PATIENCE, PATIENCE).counting(self.worked.clone());
        let mut prepared = self.prepare(&mut keeper, vocabulary);
        give_way(keeper.pid());
        self.begun.send_replace(true);
        while let Some(pending) = self.next() {
            let found = prepared.and_then(|()| {
                let answer = keeper.ask(vocabulary, &pending.order);
                // What may be the machine's fault is not cached.
                let is_final = match &answer {
                    Ok(answer) => matches!(answer, Answer::Checked(_)),
                    Err(failure) => failure.is_of_the_order(),
                };
                let found = of_answer(answer);
                if is_final {
                    self.state.lock().known.keep(pending.digest, &found);
                }
                found
            });
            let others = self.state.lock().tried.remove(&pending.digest);
            for other in others.unwrap_or_default() {
                drop(other.send(found.clone()));
            }
            // The client may be gone.
            drop(pending.reply.send(found));
            prepared = self.prepare(&mut keeper, vocabulary);
        }
    }

    /// Ensures a process that has the vocabulary.
    fn prepare(&self, keeper: &mut Keeper, vocabulary: &[u8]) -> Found {
        if let Err(why) = &self.vocabulary {
            return Err(GrammarFault::Unavailable(why.clone()));
        }
        let sent = keeper.prepare(vocabulary);
        sent.map_err(|failure| GrammarFault::Unavailable(first_fault(&failure)))
    }

    fn next(&self) -> Option<Pending> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.queue.pop_front() {
                // A client that disconnected cancels its order.
                Some(pending) if pending.reply.is_closed() => {}
                Some(pending) => {
                    if let Some(pending) = state.try_one(pending) {
                        return Some(pending);
                    }
                }
                None => self.changed.wait(&mut state),
            }
        }
    }
}

/// Lowers the priority of this thread, of its process and of its later processes. The first process starts at normal
/// priority, because a client waits for it.
fn give_way(process: Option<u32>) {
    let process = process.and_then(|it| Pid::from_raw(it.cast_signed()));
    for who in [None].into_iter().chain(process.map(Some)) {
        // On failure the normal priority stays.
        if getpriority_process(who).is_ok_and(|nice| nice < NICENESS) {
            let _ = setpriority_process(who, NICENESS);
        }
    }
}

impl State {
    /// Whether the queue has room for this many bytes, after cancelled checks are removed.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.queue.retain(|pending| !pending.reply.is_closed());
        let waiting: usize = self.queue.iter().map(|it| it.order.len()).sum();
        waiting + bytes <= WAITING_BYTES
    }

    /// Takes a check, unless its result is cached or in progress.
    fn try_one(&mut self, pending: Pending) -> Option<Pending> {
        if let Some(found) = self.known.get(&pending.digest) {
            drop(pending.reply.send(found));
            return None;
        }
        if let Some(others) = self.tried.get_mut(&pending.digest) {
            others.retain(|other| !other.is_closed());
            others.push(pending.reply);
            return None;
        }
        self.tried.insert(pending.digest, Vec::new());
        Some(pending)
    }
}

fn of_answer(answer: Result<Answer, OrderError>) -> Found {
    match answer {
        Ok(Answer::Checked(found)) => found.map_err(|why| {
            let shortened = why.chars().take(SENTENCE_CHARS).collect();
            GrammarFault::Refused(shortened)
        }),
        Ok(_) => Err(GrammarFault::Unavailable(
            "an answer out of turn".to_owned(),
        )),
        Err(failure @ (OrderError::Costly(_) | OrderError::Died(_))) => {
            Err(GrammarFault::Refused(failure.to_string()))
        }
        Err(OrderError::CostlyStart(_)) => Err(GrammarFault::Busy),
        Err(failure) => Err(GrammarFault::Unavailable(first_fault(&failure))),
    }
}

fn first_fault(failure: &OrderError) -> String {
    match failure {
        OrderError::Answered(Answer::NoVocabulary(why)) => why.clone(),
        failure => failure.to_string(),
    }
}

/// Cache of the latest results.
#[derive(Debug, Default)]
struct Known {
    found: HashMap<Digest, Found>,
    /// Oldest first.
    order: VecDeque<Digest>,
    bytes: usize,
}

impl Known {
    fn get(&self, digest: &Digest) -> Option<Found> {
        self.found.get(digest).cloned()
    }

    fn keep(&mut self, digest: Digest, found: &Found) {
        if self.found.insert(digest, found.clone()).is_some() {
            return;
        }
        self.order.push_back(digest);
        self.bytes += bytes_of(found);
        while self.bytes > KNOWN_BYTES {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            if let Some(found) = self.found.remove(&oldest) {
                self.bytes -= bytes_of(&found);
            }
        }
    }
}

fn bytes_of(found: &Found) -> usize {
    let sentence = match found {
        Err(GrammarFault::Refused(why)) => why.len(),
        _ => 0,
    };
    ENTRY_BYTES + sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(of: u32) -> Digest {
        Sha256::digest(of.to_le_bytes()).into()
    }

    #[test]
    fn what_is_known_has_a_bound_and_the_newest_stays() {
        let mut known = Known::default();
        let refused: Found = Err(GrammarFault::Refused("x".repeat(SENTENCE_CHARS)));
        for number in 0..10_000 {
            known.keep(digest(number), &refused);
            known.keep(digest(number), &refused);
            assert!(known.bytes <= KNOWN_BYTES);
        }
        assert_eq!(known.found.len(), known.order.len());
        assert_eq!(known.get(&digest(9_999)), Some(refused));
        assert_eq!(known.get(&digest(0)), None);
    }

    fn pending(bytes: usize) -> (Pending, oneshot::Receiver<Found>) {
        let (reply, answer) = oneshot::channel();
        let pending = Pending {
            order: vec![0; bytes],
            digest: digest(0),
            reply,
        };
        (pending, answer)
    }

    #[test]
    fn grammars_that_wait_have_a_bound_and_those_nobody_waits_for_have_no_room() {
        let mut state = State::default();
        let (one, answer) = pending(WAITING_BYTES);
        assert!(state.has_room(WAITING_BYTES));
        state.queue.push_back(one);
        assert!(!state.has_room(1));
        drop(answer);
        assert!(state.has_room(WAITING_BYTES));
        assert!(state.queue.is_empty());
    }

    #[test]
    fn a_grammar_that_is_being_tried_is_not_tried_beside_itself() {
        let mut state = State::default();
        let (one, _first) = pending(1);
        assert!(state.try_one(one).is_some());
        let (again, mut second) = pending(1);
        assert!(state.try_one(again).is_none());
        for other in state.tried.remove(&digest(0)).unwrap() {
            other.send(Ok(())).unwrap();
        }
        assert_eq!(second.try_recv(), Ok(Ok(())));
        state.known.keep(digest(0), &Ok(()));
        let (late, mut third) = pending(1);
        assert!(state.try_one(late).is_none());
        assert_eq!(third.try_recv(), Ok(Ok(())));
        assert!(state.tried.is_empty());
    }

    #[tokio::test]
    async fn a_client_waits_for_cheap_grammars_and_is_refused_after_expensive_ones() {
        const SHORT: Duration = Duration::from_millis(20);
        let (begun, worked) = (watch::Sender::new(false), watch::Sender::default());
        let asked = |limit: Duration| {
            let (pending, reply) = pending(1);
            let soon = Soon {
                reply,
                begun: begun.subscribe(),
                worked: worked.subscribe(),
                most_worked: LONGEST_WORK,
            };
            (pending, Asked::Soon(soon).answer(Some(limit)))
        };
        let waits = async |answer| {
            let answer: Result<Found, _> = tokio::time::timeout(SHORT * 3, answer).await;
            answer.expect_err("it was refused");
        };
        let (_unanswered, before_the_first_process) = asked(SHORT);
        waits(before_the_first_process).await;
        begun.send_replace(true);
        let (_unanswered, behind_cheap_ones) = asked(LONGEST_WAIT);
        worked.send_replace(LONGEST_WORK / 2);
        waits(behind_cheap_ones).await;
        let (_unanswered, on_a_busy_machine) = asked(SHORT);
        assert_eq!(on_a_busy_machine.await, Err(GrammarFault::Busy));
        let (_unanswered, behind_expensive_ones) = asked(LONGEST_WAIT);
        worked.send_replace(LONGEST_WORK);
        assert_eq!(behind_expensive_ones.await, Err(GrammarFault::Busy));
        let (pending, checked) = asked(LONGEST_WAIT);
        pending.reply.send(Ok(())).unwrap();
        assert_eq!(checked.await, Ok(()));
    }
}
