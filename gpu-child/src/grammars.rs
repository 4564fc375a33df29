//! Threads that compile grammars and compute masks, so that the engine thread does neither.
//!
//! ```text
//!                 grammar  ┌───────────────────┐ matcher, first mask
//!              ┌──────────►│ compilers, a few  ├──────────────┐
//!   ┌──────────┴──┐        └───────────────────┘              │
//!   │ Grammars    │◄──────────────────────────────────────────┤ answers
//!   └──────────┬──┘        ┌───────────────────┐              │
//!              ├──────────►│ workers, a few    ├──────────────┤
//!              │           └─────────┬─────────┘              │
//!              │        copy, drafts ▼                        │
//!              │           ┌───────────────────┐              │
//!              │           │ drafters, a few   ├──────────────┤
//!              │           └───────────────────┘ their masks  │
//!              │           ┌───────────────────┐              │
//!              └──────────►│ a slow worker     ├──────────────┘
//!        matcher, tokens   └───────────────────┘ matcher, next mask
//! ```
//!
//! A matcher moves between threads: it is here between two masks, and at a worker during the computation. Long work,
//! such as a compilation or the replay of a history, belongs to the compilers, so that it delays no other masks; the
//! slow worker has the matchers with a slow last mask. Compilers and slow worker run at low priority, after the
//! streams. The threads start with the first grammar.
//!
//! Masks behind drafts come from a copy of the matcher, because an accepted token cannot be taken back exactly: the states
//! that a mask leaves in the lexer count. The copy is dropped, and the matcher gets the tokens that were sampled. Drafters
//! have threads of their own, so that the next mask of another matcher waits for none of theirs.
//!
//! An error, even a panic inside llguidance, is the answer to one ticket and ends nothing else.

mod drafting;

use crate::scheduler::MaskRequest;
use drafting::Drafting;
use nix::time::{ClockId, clock_gettime};
use rustix::process::{getpriority_process, setpriority_process};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};
use worker_orcd_grammar::limits::STACK_BYTES;
use worker_orcd_grammar::{Compiler, GrammarError, Mask, Matcher};
use worker_orcd_ipc::{Grammar, TokenId, TokenizerFacts};

/// Maximum number of compilers, and of workers. A mask takes a small part of a step, so few serve many streams.
const MOST_WORKERS: usize = 4;

/// Processor time of a mask after which the next one goes to the slow worker: an ordinary one takes far less.
const SLOW_MASK: Duration = Duration::from_millis(1);

/// Priority of compilers and slow workers: beside streams on all cores each gets a seventh of a core, so that a grammar
/// of the maximum cost is done within two seconds or so, and streams lose little meanwhile.
const NICENESS: i32 = 8;

/// Minimum number of compilers: no grammar waits for a single other one.
const FEWEST_COMPILERS: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub enum Answer {
    /// A mask, or the end of its matcher.
    Next {
        ticket: u64,
        /// Tokens forced by the grammar before the mask.
        forced: Vec<TokenId>,
        mask: Result<Mask, GrammarError>,
    },
    /// The mask behind the next draft; `None`: there are no more.
    Drafted { ticket: u64, mask: Option<Mask> },
}

/// Result of a thread.
#[derive(Debug)]
enum Done {
    Next {
        ticket: u64,
        forced: Vec<TokenId>,
        mask: Result<Mask, GrammarError>,
        /// The matcher, unless it has failed.
        matcher: Option<Traveller>,
    },
    Drafted {
        ticket: u64,
        mask: Option<Mask>,
        still: Weak<()>,
    },
}

#[derive(Debug)]
struct Traveller {
    matcher: Box<Matcher>,
    /// The last mask took long.
    is_slow: bool,
    /// Held until its next token, so that drafters see it.
    drafted: Option<Arc<()>>,
}

#[derive(Debug)]
enum Place {
    Here(Traveller),
    /// Moved to a thread, which drops it when it is no longer needed.
    Away(#[expect(dead_code, reason = "held, so that the thread sees it")] Arc<()>),
}

/// All matchers of this child.
#[derive(Debug)]
pub struct Grammars {
    workshop: Arc<Workshop>,
    queues: Option<Queues>,
    matchers: HashMap<u64, Place>,
    done: Receiver<Done>,
    /// Cloned by the threads when they start.
    answers: Sender<Done>,
}

#[derive(Debug)]
struct Queues {
    compiler: Sender<Job>,
    workers: Sender<Job>,
    drafters: Sender<Job>,
    slow_worker: Sender<Job>,
}

/// The compiler for this vocabulary, created when it is needed.
#[derive(Debug)]
struct Workshop {
    facts: Mutex<Option<TokenizerFacts>>,
    compiler: OnceLock<Result<Compiler, GrammarError>>,
}

impl Grammars {
    #[must_use]
    pub fn new(facts: &TokenizerFacts) -> Self {
        let (answers, done) = channel();
        // Merges and the template are the supervisor's.
        let facts = TokenizerFacts {
            tokens: facts.tokens.clone(),
            kinds: facts.kinds.clone(),
            scores: facts.scores.clone(),
            end_of_generation: facts.end_of_generation.clone(),
            pre: String::new(),
            merges: Vec::new(),
            chat_template: None,
            ..*facts
        };
        Self {
            workshop: Arc::new(Workshop {
                facts: Mutex::new(Some(facts)),
                compiler: OnceLock::new(),
            }),
            queues: None,
            matchers: HashMap::new(),
            done,
            answers,
        }
    }

    /// Starts the work of a request.
    ///
    /// # Errors
    /// If the threads cannot be started, independently of the grammar.
    pub fn hear(&mut self, mask_request: MaskRequest) -> io::Result<()> {
        match mask_request {
            MaskRequest::Begin {
                ticket,
                grammar,
                generated,
                most_forced,
            } => self.begin(ticket, (grammar, generated), most_forced)?,
            MaskRequest::Next {
                ticket,
                tokens,
                most_forced,
                drafts,
            } => self.next(ticket, tokens, most_forced, drafts),
            MaskRequest::Forget { ticket } => self.forget(ticket),
        }
        Ok(())
    }

    /// The next answer that arrives before the deadline.
    pub fn answer_by(&mut self, deadline: Instant) -> Option<Answer> {
        loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            let done = match patience {
                Duration::ZERO => self.done.try_recv().ok()?,
                patience => self.done.recv_timeout(patience).ok()?,
            };
            if let Some(answer) = self.answer(done) {
                return Some(answer);
            }
        }
    }

    /// The answer, if it is still needed.
    fn answer(&mut self, done: Done) -> Option<Answer> {
        match done {
            Done::Drafted {
                ticket,
                mask,
                still,
            } => (still.strong_count() > 0).then_some(Answer::Drafted { ticket, mask }),
            Done::Next {
                ticket,
                forced,
                mask,
                matcher,
            } => {
                let is_needed = self.matchers.remove(&ticket).is_some();
                match matcher {
                    Some(matcher) if is_needed => {
                        self.matchers.insert(ticket, Place::Here(matcher));
                    }
                    Some(matcher) => self.free(matcher),
                    None => {}
                }
                is_needed.then_some(Answer::Next {
                    ticket,
                    forced,
                    mask,
                })
            }
        }
    }

    fn begin(
        &mut self,
        ticket: u64,
        (grammar, generated): (Arc<Grammar>, Vec<TokenId>),
        most_forced: usize,
    ) -> io::Result<()> {
        let (wanted, answers) = (Arc::new(()), self.answers.clone());
        let (workshop, still) = (Arc::clone(&self.workshop), Arc::downgrade(&wanted));
        let job = move || {
            if let Some(begun) = workshop.begin(&grammar, &generated, &still) {
                drop(answers.send(done(ticket, || begun, 0, most_forced)));
            }
        };
        drop(self.queues()?.compiler.send(Box::new(job)));
        self.matchers.insert(ticket, Place::Away(wanted));
        Ok(())
    }

    fn next(
        &mut self,
        ticket: u64,
        tokens: Vec<TokenId>,
        most_forced: usize,
        drafts: Vec<TokenId>,
    ) {
        let wanted = Arc::new(());
        let (still, answers) = (Arc::downgrade(&wanted), self.answers.clone());
        let place = self.matchers.insert(ticket, Place::Away(wanted));
        let (Some(Place::Here(here)), Some(queues)) = (place, &self.queues) else {
            debug_assert!(false, "a token for a matcher that is not here");
            return;
        };
        let Traveller {
            mut matcher,
            is_slow,
            drafted: _,
        } = here;
        let drafters = queues.drafters.clone();
        let job = move || {
            if still.strong_count() == 0 {
                return;
            }
            let accepted = || matcher.catch_up(&tokens).map(|()| matcher);
            let mut done = done(ticket, accepted, tokens.len() - 1, most_forced);
            let drafting = Drafting::new(&mut done, &drafts, answers.clone());
            drop(answers.send(done));
            if let Some(drafting) = drafting {
                drop(drafters.send(Box::new(|| drafting.run())));
            }
        };
        let worker = match is_slow {
            true => &queues.slow_worker,
            false => &queues.workers,
        };
        drop(worker.send(Box::new(job)));
    }

    fn forget(&mut self, ticket: u64) {
        if let Some(Place::Here(matcher)) = self.matchers.remove(&ticket) {
            self.free(matcher);
        }
    }

    /// Frees a matcher on another thread: it may be large.
    fn free(&self, matcher: Traveller) {
        if let Some(queues) = &self.queues {
            drop(queues.slow_worker.send(Box::new(move || drop(matcher))));
        }
    }

    fn queues(&mut self) -> io::Result<&Queues> {
        let queues = match self.queues.take() {
            Some(queues) => queues,
            None => Queues {
                compiler: start("grammar", workers().max(FEWEST_COMPILERS), Some(NICENESS))?,
                workers: start("mask", workers(), None)?,
                drafters: start("draft-mask", workers(), None)?,
                slow_worker: start("slow-mask", 1, Some(NICENESS))?,
            },
        };
        Ok(self.queues.insert(queues))
    }
}

impl Workshop {
    /// Creates a matcher after a history; `None` if it is no longer needed.
    fn begin(
        &self,
        grammar: &Grammar,
        generated: &[TokenId],
        wanted: &Weak<()>,
    ) -> Option<Result<Box<Matcher>, GrammarError>> {
        let is_wanted = || wanted.strong_count() > 0;
        if !is_wanted() {
            return None;
        }
        let mut matcher = match self.compiler().and_then(|it| it.compile(grammar)) {
            Ok(matcher) => Box::new(matcher),
            Err(error) => return Some(Err(error)),
        };
        for token in generated {
            if !is_wanted() {
                return None;
            }
            if let Err(error) = matcher.replay(&[*token]) {
                return Some(Err(error));
            }
        }
        Some(Ok(matcher))
    }

    fn compiler(&self) -> Result<&Compiler, GrammarError> {
        let made = self.compiler.get_or_init(|| {
            let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
            let facts = facts.take().expect("they are taken once");
            Compiler::new(&facts)
        });
        made.as_ref().map_err(Clone::clone)
    }
}

/// Result of a matcher's next mask, with the matcher unless it has failed. `before`: masks that are computed to get it.
fn done(
    ticket: u64,
    matcher: impl FnOnce() -> Result<Box<Matcher>, GrammarError>,
    before: usize,
    most_forced: usize,
) -> Done {
    let began = processor_time();
    let (forced, mask, matcher) = match matcher() {
        Ok(mut matcher) => {
            let (forced, mask) = matcher.forced(most_forced);
            let goes_on = mask.is_ok();
            (forced, mask, goes_on.then_some(matcher))
        }
        Err(error) => (Vec::new(), Err(error), None),
    };
    let masks = (before + forced.len() + 1) as u32;
    let is_slow = processor_time().saturating_sub(began) > SLOW_MASK * masks;
    Done::Next {
        ticket,
        forced,
        mask,
        matcher: matcher.map(|matcher| Traveller {
            matcher,
            is_slow,
            drafted: None,
        }),
    }
}

/// Processor time of this thread, independent of other threads' load.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::ZERO, Duration::from)
}

/// Number of threads: one core is left to the engine.
fn workers() -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    cores.saturating_sub(1).clamp(1, MOST_WORKERS)
}

/// Starts threads that serve one queue until its sender is gone.
fn start(name: &str, threads: usize, niceness: Option<i32>) -> io::Result<Sender<Job>> {
    let (sender, jobs) = channel::<Job>();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..threads {
        let jobs = Arc::clone(&jobs);
        let next = move || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                niceness.into_iter().for_each(give_way);
                while let Ok(job) = next() {
                    job();
                }
            })?;
    }
    Ok(sender)
}

/// Lowers the priority of this thread; on Linux it applies to a single thread.
fn give_way(niceness: i32) {
    // If it is refused, the kernel schedules with the old priority.
    if getpriority_process(None).is_ok_and(|nice| nice < niceness) {
        let _ = setpriority_process(None, niceness);
    }
}

#[cfg(test)]
mod tests;
