//! Grammars of requests, compiled before a request is let in.
//!
//! What an answer is held to is a stranger's text, and a child compiles it, too. So it is tried first where
//! nothing else lives: in a process that has this model's vocabulary, and a time that is short. Two threads
//! have such a process each, from the first grammar on. They get what streams leave of the processor, so a
//! grammar's time is counted in time of the processor; who has waited for long is sent away meanwhile, so that
//! every request is answered soon, whatever others send and whatever the machine does.
//!
//! What was found of a grammar is kept, for clients send the same one with each request, and who was sent away
//! comes back.

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

/// Processes, so that a grammar that takes its time is not what all others wait for.
const PROCESSES: usize = 2;

/// What a process may take for one grammar. Those of people take some milliseconds of processor time. A child takes the
/// same again, and where streams compute on all cores that is several times as long.
const PATIENCE: Patience = Patience {
    work: Duration::from_millis(300),
    wait: Duration::from_secs(10),
};

/// Time that a process may take for the vocabulary. It is the machine's time, nobody's attack.
const VOCABULARY_PATIENCE: Duration = Duration::from_secs(20);

/// Time that a client waits for what is found.
const LONGEST_WAIT: Duration = Duration::from_millis(1300);

/// Priority of what tries grammars: streams on all cores give it a tenth of one of them, so that they hardly feel it and
/// an ordinary grammar is soon known.
const NICENESS: i32 = 10;

/// Bytes of the grammars that wait; more are sent away at once.
const WAITING_BYTES: usize = 16 << 20;

/// Characters of a refusal that are kept and told.
const SENTENCE_CHARS: usize = 1000;

/// Bytes of what is known of grammars, with all that a map needs.
const KNOWN_BYTES: usize = 1 << 20;
const ENTRY_BYTES: usize = 256;

type Found = Result<(), GrammarFault>;
type Digest = [u8; 32];

/// Why an answer cannot be held to a grammar.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrammarFault {
    /// It is wrong, or too much.
    #[error("{0}")]
    Refused(String),
    #[error("too many grammars are being checked; try again soon")]
    Busy,
    /// The machine's fault.
    #[error("{0}")]
    Unavailable(String),
}

/// The check of one model's grammars. Dropped, its processes end.
#[derive(Debug)]
pub struct Grammars {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The frame of a process's first order: the vocabulary.
    vocabulary: Result<Vec<u8>, String>,
    state: Mutex<State>,
    news: Condvar,
    /// There was a process, or none can be had.
    begun: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Pending>,
    /// Those that are being tried, and who else waits for what is found: a client that came back, as a rule.
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

/// What is asked of a grammar: known, or to be known.
#[derive(Debug)]
pub enum Asked {
    Known(Found),
    Soon(Soon),
}

/// What will be found.
#[derive(Debug)]
pub struct Soon {
    reply: oneshot::Receiver<Found>,
    begun: watch::Receiver<bool>,
}

impl Asked {
    /// # Errors
    /// What is wrong with the grammar, or why nobody could say.
    pub async fn answer(self) -> Found {
        match self {
            Self::Known(found) => found,
            Self::Soon(Soon { reply, mut begun }) => {
                let patience = async {
                    // Nobody is sent away for the time that a first process takes.
                    drop(begun.wait_for(|begun| *begun).await);
                    sleep(LONGEST_WAIT).await;
                };
                tokio::select! {
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
    /// Keeps the vocabulary, and starts nothing.
    #[must_use]
    pub fn new(facts: &TokenizerFacts) -> Self {
        // Grammars are about bytes of tokens: neither merges nor a template say anything of them.
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
                news: Condvar::new(),
                begun: watch::Sender::new(false),
            }),
        }
    }

    /// Asks whether an answer can be held to this grammar. Takes as long as a digest of it.
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
        self.shared.news.notify_one();
        Asked::Soon(Soon {
            reply: answer,
            begun: self.shared.begun.subscribe(),
        })
    }

    /// Starts the threads that are missing: all of them, the first time.
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
        self.shared.news.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let vocabulary = match &self.vocabulary {
            Ok(vocabulary) => vocabulary.as_slice(),
            Err(_) => &[],
        };
        let mut keeper = Keeper::new(VOCABULARY_PATIENCE, PATIENCE);
        let mut prepared = self.prepare(&mut keeper, vocabulary);
        give_way(keeper.pid());
        self.begun.send_replace(true);
        while let Some(pending) = self.next() {
            let found = prepared.and_then(|()| {
                let answer = keeper.ask(vocabulary, &pending.order);
                // A death and a delay may be the machine's, and another time there is none.
                let is_final =
                    matches!(answer, Ok(Answer::Checked(_)) | Err(OrderError::Costly(_)));
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

    /// Sees that there is a process that knows the vocabulary.
    fn prepare(&self, keeper: &mut Keeper, vocabulary: &[u8]) -> Found {
        if let Err(why) = &self.vocabulary {
            return Err(GrammarFault::Unavailable(why.clone()));
        }
        let told = keeper.prepare(vocabulary);
        told.map_err(|failure| GrammarFault::Unavailable(first_fault(&failure)))
    }

    fn next(&self) -> Option<Pending> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            match state.queue.pop_front() {
                // A client that went away takes its order along.
                Some(pending) if pending.reply.is_closed() => {}
                Some(pending) => {
                    if let Some(pending) = state.try_one(pending) {
                        return Some(pending);
                    }
                }
                None => self.news.wait(&mut state),
            }
        }
    }
}

/// The first process is made as fast as it can be: somebody waits. From then on it gets what the others leave, and
/// so do this thread and the processes that it makes in place of that one.
fn give_way(process: Option<u32>) {
    let process = process.and_then(|it| Pid::from_raw(it.cast_signed()));
    for who in [None].into_iter().chain(process.map(Some)) {
        // Refused at worst: then the kernel shares as it would have.
        if getpriority_process(who).is_ok_and(|nice| nice < NICENESS) {
            let _ = setpriority_process(who, NICENESS);
        }
    }
}

impl State {
    /// For a grammar of so many bytes, once those are gone that nobody waits for.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.queue.retain(|pending| !pending.reply.is_closed());
        let waiting: usize = self.queue.iter().map(|it| it.order.len()).sum();
        waiting + bytes <= WAITING_BYTES
    }

    /// Unless it is known by now, or being tried.
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
        Err(OrderError::Late(_)) => Err(GrammarFault::Busy),
        Err(failure) => Err(GrammarFault::Unavailable(first_fault(&failure))),
    }
}

fn first_fault(failure: &OrderError) -> String {
    match failure {
        OrderError::Answered(Answer::NoVocabulary(why)) => why.clone(),
        failure => failure.to_string(),
    }
}

/// What was found of the grammars that came last.
#[derive(Debug, Default)]
struct Known {
    found: HashMap<Digest, Found>,
    /// The oldest first.
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
    async fn who_waits_for_long_is_sent_away_but_not_while_a_first_process_starts() {
        let begun = watch::Sender::new(false);
        let asked = || {
            let (pending, reply) = pending(1);
            let begun = begun.subscribe();
            (pending, Asked::Soon(Soon { reply, begun }))
        };
        let (_nobody_replies, soon) = asked();
        let patient = tokio::time::timeout(LONGEST_WAIT * 2, soon.answer());
        assert!(patient.await.is_err(), "it was sent away");
        begun.send_replace(true);
        let (_nobody_replies, soon) = asked();
        assert_eq!(soon.answer().await, Err(GrammarFault::Busy));
        let (pending, soon) = asked();
        pending.reply.send(Ok(())).unwrap();
        assert_eq!(soon.answer().await, Ok(()));
    }
}
