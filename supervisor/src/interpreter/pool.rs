//! The supervisor's side: two threads, each with a process that it may lose.
//!
//! Plain threads, for two reasons: the kernel ends a process when the *thread* that made it ends
//! (see [`crate::child::spawn`]), and one that only waits needs no runtime. One of them takes
//! short conversations only, so that nobody with a few lines waits behind megabytes.
//!
//! An order whose process died is given to one more: when memory is short, the kernel takes this
//! process first, and an idle one may have been gone before the order came. An order that was late
//! had its time. Whatever ended, the next process is started at once and not when it is asked for.

#![expect(clippy::disallowed_methods, reason = "an order has a deadline")]

use super::channel::{Channel, ChannelError, frame};
use super::process::{COMMAND, CPU_SECONDS, PARENT};
use super::{Answer, Order};
use crate::text::template::{Rendering, TemplateError, TemplateSource};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{info, warn};

/// A conversation that takes a millisecond or two.
const SHORT_BYTES: usize = 64 << 10;

/// Path of this program, even if its file was replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";

type Reply = Result<String, TemplateError>;

/// One chat template, and the processes that have compiled it. Dropped, they end.
#[derive(Debug)]
pub struct Interpreter {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    template: TemplateSource,
    patience: Duration,
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    short: VecDeque<PendingRender>,
    long: VecDeque<PendingRender>,
    closed: bool,
}

#[derive(Debug)]
struct PendingRender {
    rendering: Rendering,
    reply: oneshot::Sender<Reply>,
}

/// Which conversations a thread takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Short,
    Any,
}

impl Interpreter {
    /// Waits until the template is compiled; not for the runtime's threads.
    ///
    /// # Errors
    /// When it cannot be. Where only a process is missing, the next order asks for one again.
    pub fn start(template: TemplateSource, patience: Duration) -> Result<Self, TemplateError> {
        let interpreter = Self {
            pool: Arc::new(Pool {
                template,
                patience,
                queue: Mutex::default(),
                news: Condvar::new(),
            }),
        };
        let first = interpreter.employ(Lane::Any)?;
        match first.recv() {
            Ok(Ok(()) | Err(TemplateError::Unavailable(_))) => {}
            Ok(Err(broken)) => return Err(broken),
            Err(mpsc::RecvError) => return Err(TemplateError::Broken("no word of it".to_owned())),
        }
        // What the first process could compile, the second one can.
        drop(interpreter.employ(Lane::Short)?);
        Ok(interpreter)
    }

    /// The prompt that these messages become.
    ///
    /// # Errors
    /// When the template refuses them, fails on them, ends its process, or takes too long.
    pub async fn render(&self, rendering: Rendering) -> Reply {
        let (reply, answer) = oneshot::channel();
        self.pool.put(PendingRender { rendering, reply });
        let gone = || TemplateError::Unavailable("the worker is ending".to_owned());
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Starts a thread. The receiver gets the word on its first process.
    fn employ(
        &self,
        lane: Lane,
    ) -> Result<mpsc::Receiver<Result<(), TemplateError>>, TemplateError> {
        let (ready, word) = mpsc::sync_channel(1);
        let pool = Arc::clone(&self.pool);
        thread::Builder::new()
            .name("interpreter".to_owned())
            .spawn(move || {
                let mut worker = Worker::new(pool);
                let compiled = worker.prepare();
                let broken = matches!(compiled, Err(TemplateError::Broken(_)));
                drop(ready.send(compiled));
                if !broken {
                    worker.work(lane);
                }
            })
            .map_err(|error| TemplateError::Unavailable(error.to_string()))?;
        Ok(word)
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        self.pool.queue.lock().closed = true;
        self.pool.news.notify_all();
    }
}

impl Pool {
    fn put(&self, render: PendingRender) {
        let mut queue = self.queue.lock();
        if render.rendering.conversation.cost() <= SHORT_BYTES {
            queue.short.push_back(render);
        } else {
            queue.long.push_back(render);
        }
        drop(queue);
        // Both: which of them may take it, they know themselves.
        self.news.notify_all();
    }

    /// Waits for a render; `None` when there will be no more.
    fn next(&self, lane: Lane) -> Option<PendingRender> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            // Long ones first where they may be taken at all: the other thread has time for
            // nothing but short ones.
            let long = (lane == Lane::Any)
                .then(|| queue.long.pop_front())
                .flatten();
            match long.or_else(|| queue.short.pop_front()) {
                // A client that went away takes its order along.
                Some(render) if render.reply.is_closed() => {}
                Some(render) => return Some(render),
                None => self.news.wait(&mut queue),
            }
        }
    }
}

/// A thread, and the process it has.
#[derive(Debug)]
struct Worker {
    pool: Arc<Pool>,
    process: Option<Process>,
}

impl Worker {
    fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            process: None,
        }
    }

    fn work(mut self, lane: Lane) {
        while let Some(render) = self.pool.next(lane) {
            let answer = self.render(render.rendering);
            // The client may be gone.
            drop(render.reply.send(answer));
            // What it could not do now, it says to the next one.
            let _ = self.prepare();
        }
    }

    /// Sees that there is a process with the template compiled.
    fn prepare(&mut self) -> Result<(), TemplateError> {
        if self.process.is_none() {
            let compiled = self.twice(|worker| worker.start());
            self.process = Some(compiled.map_err(OrderError::of_template)?);
        }
        Ok(())
    }

    fn render(&mut self, rendering: Rendering) -> Reply {
        let order = frame(&Order::Render(rendering))
            .map_err(|error| TemplateError::Failed(error.to_string()))?;
        match self.twice(|worker| worker.ask(&order)) {
            Ok(Answer::Rendered(prompt)) => Ok(prompt),
            Ok(Answer::Failed(error)) => Err(error),
            Ok(Answer::Compiled) => Err(TemplateError::Failed("an answer out of turn".to_owned())),
            Err(failure) => Err(failure.of_messages()),
        }
    }

    fn twice<T>(
        &mut self,
        attempt: impl Fn(&mut Self) -> Result<T, OrderError>,
    ) -> Result<T, OrderError> {
        match attempt(self) {
            Err(OrderError::Died(_)) => attempt(self),
            outcome => outcome,
        }
    }

    /// Asks the process there is, or else a new one. After an error there is none.
    fn ask(&mut self, order: &[u8]) -> Result<Answer, OrderError> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.start()?,
        };
        let answer = process.ask(order, self.pool.patience)?;
        self.process = Some(process);
        Ok(answer)
    }

    fn start(&self) -> Result<Process, OrderError> {
        let source = Order::Compile(self.pool.template.clone());
        let order = frame(&source)
            .map_err(|error| OrderError::Answered(TemplateError::Broken(error.to_string())))?;
        let mut process = Process::spawn(self.pool.patience)?;
        match process.ask(&order, self.pool.patience)? {
            Answer::Compiled => Ok(process),
            Answer::Failed(error) => Err(OrderError::Answered(error)),
            Answer::Rendered(_) => Err(OrderError::Garbled("an answer out of turn".to_owned())),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, Error)]
enum OrderError {
    #[error("no process can be had: {0}")]
    NotStarted(io::Error),
    #[error("it took longer than {} ms", .0.as_millis())]
    Late(Duration),
    #[error(
        "it ended the process that interprets it ({}), as nesting too deep and values too large do",
        in_words(*.0)
    )]
    Died(ExitStatus),
    #[error("{0}")]
    Garbled(String),
    #[error("{0}")]
    Answered(TemplateError),
}

impl OrderError {
    fn of_template(self) -> TemplateError {
        match self {
            Self::Answered(error) => error,
            Self::NotStarted(_) => TemplateError::Unavailable(self.to_string()),
            Self::Late(_) | Self::Died(_) | Self::Garbled(_) => {
                TemplateError::Broken(self.to_string())
            }
        }
    }

    fn of_messages(self) -> TemplateError {
        match self {
            // Compiled before, and not now: the machine's state, not the template's.
            Self::Answered(TemplateError::Broken(why)) => TemplateError::Unavailable(why),
            Self::Answered(error) => error,
            Self::NotStarted(_) => TemplateError::Unavailable(self.to_string()),
            Self::Late(_) | Self::Died(_) | Self::Garbled(_) => {
                TemplateError::Failed(self.to_string())
            }
        }
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, code) => format!("code {}", code.unwrap_or_default()),
    }
}

/// Killed and waited for when dropped.
#[derive(Debug)]
struct Process {
    child: Child,
    channel: Channel,
}

impl Process {
    fn spawn(patience: Duration) -> Result<Self, OrderError> {
        let (ours, theirs) = UnixStream::pair().map_err(OrderError::NotStarted)?;
        let child = Command::new(OWN_PROGRAM)
            .arg0("worker-orcd")
            .arg(COMMAND)
            .args([format!("--{PARENT}"), std::process::id().to_string()])
            .args([
                format!("--{CPU_SECONDS}"),
                (patience.as_secs() + 1).to_string(),
            ])
            // The allocator would reserve more addresses than this process may have.
            .env("MIMALLOC_ARENA_RESERVE", "32M")
            // Ctrl-C in a terminal is for the supervisor alone.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // Nobody would read them, and a full pipe stops who writes.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(OrderError::NotStarted)?;
        info!(pid = child.id(), "interpreter_started");
        Ok(Self {
            child,
            channel: Channel::new(ours),
        })
    }

    fn ask(&mut self, order: &[u8], patience: Duration) -> Result<Answer, OrderError> {
        let deadline = Some(Instant::now() + patience);
        let answer = self
            .channel
            .send(order, deadline)
            .and_then(|()| self.channel.receive(deadline));
        answer.map_err(|error| {
            let failure = self.explain(error, patience);
            warn!(pid = self.child.id(), reason = %failure, "interpreter_ended");
            failure
        })
    }

    /// The reason for which the process gave no answer. It is not asked again, whatever it was.
    fn explain(&mut self, error: ChannelError, patience: Duration) -> OrderError {
        match error {
            ChannelError::Late => OrderError::Late(patience),
            ChannelError::Closed => match self.end() {
                Ok(status) => OrderError::Died(status),
                Err(error) => OrderError::Garbled(error.to_string()),
            },
            error => OrderError::Garbled(error.to_string()),
        }
    }

    /// One that has ended already keeps the status it ended with.
    fn end(&mut self) -> io::Result<ExitStatus> {
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            warn!(pid = self.child.id(), %error, "interpreter_unreaped");
        }
    }
}
