//! Grammars of requests, compiled before a request is let in.
//!
//! What an answer is held to is a stranger's text, and a child compiles it, too. So it is tried first where
//! nothing else lives: in a process that has this model's vocabulary, and a time that is short. Two threads
//! have such a process each, from the first grammar on. An order that cannot be begun in time is sent away, so
//! that every request is answered soon, whatever others send.
//!
//! What was found of a grammar is kept, for clients send the same one with each request.

#![expect(
    clippy::disallowed_methods,
    reason = "an order waits for a bounded time"
)]

use super::channel::frame;
use super::keeper::{Keeper, OrderError};
use super::{Answer, Order};
use parking_lot::{Condvar, Mutex};
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;
use worker_orcd_ipc::{Grammar, TokenizerFacts};

/// Processes, so that a grammar that takes its time is not what all others wait for.
const PROCESSES: usize = 2;

/// Time that a process may take for one grammar. Those of people take some milliseconds.
const PATIENCE: Duration = Duration::from_millis(600);

/// Time that a process may take for the vocabulary. It is the machine's time, nobody's attack.
const VOCABULARY_PATIENCE: Duration = Duration::from_secs(20);

/// Time that a grammar waits for its turn.
const LONGEST_WAIT: Duration = Duration::from_millis(700);

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
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Pending>,
    known: Known,
    threads: usize,
    closed: bool,
}

#[derive(Debug)]
struct Pending {
    order: Vec<u8>,
    digest: Digest,
    since: Instant,
    reply: oneshot::Sender<Found>,
}

/// What is asked of a grammar: known, or to be known.
#[derive(Debug)]
pub enum Asked {
    Known(Found),
    Soon(oneshot::Receiver<Found>),
}

impl Asked {
    /// # Errors
    /// What is wrong with the grammar, or why nobody could say.
    pub async fn answer(self) -> Found {
        match self {
            Self::Known(found) => found,
            Self::Soon(reply) => reply.await.unwrap_or_else(|_| {
                let why = "the worker is ending".to_owned();
                Err(GrammarFault::Unavailable(why))
            }),
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
        let (reply, answer) = oneshot::channel();
        state.queue.push_back(Pending {
            order,
            digest,
            since: Instant::now(),
            reply,
        });
        self.shared.news.notify_one();
        Asked::Soon(answer)
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
        // Nobody is sent away for the time that a first process took.
        let begun = Instant::now();
        while let Some(pending) = self.next() {
            let found = if pending.since.max(begun).elapsed() > LONGEST_WAIT {
                Err(GrammarFault::Busy)
            } else {
                prepared.and_then(|()| {
                    let answer = keeper.ask(vocabulary, &pending.order);
                    // A death and a delay may be the machine's, and another time there is none.
                    let is_final = matches!(answer, Ok(Answer::Checked(_)));
                    let found = of_answer(answer);
                    if is_final {
                        self.state.lock().known.keep(pending.digest, &found);
                    }
                    found
                })
            };
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
                Some(pending) => return Some(pending),
                None => self.news.wait(&mut state),
            }
        }
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
        Err(failure @ (OrderError::Late(_) | OrderError::Died(_))) => {
            Err(GrammarFault::Refused(failure.to_string()))
        }
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
}
