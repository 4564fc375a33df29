//! Rendering of chat templates, the supervisor's side: two threads, each with a process that may die.
//!
//! Plain threads, for two reasons: the kernel ends a process when the *thread* that created it ends (see
//! [`crate::child::spawn`]), and a thread that only waits needs no runtime. One of them takes short conversations only,
//! so that these do not wait for megabytes.
//!
//! A dead process is replaced at once, not at the next order.

use super::channel::frame;
use super::keeper::{Keeper, OrderError, Patience};
use super::{Answer, Order};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use worker_orcd_text::template::{Rendering, TemplateError, TemplateSource};

/// Wall time of an order for each unit of its processor time: on a busy machine a process has a part of one core.
const WAIT_FOR_WORK: u32 = 10;

/// Longest short conversation, in bytes: one or two milliseconds of work.
const SHORT_BYTES: usize = 64 << 10;

type Reply = Result<String, TemplateError>;

/// One chat template, and the processes that have compiled it. Dropping it ends them.
#[derive(Debug)]
pub struct Interpreter {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    /// Frame of a process's first order: the template.
    template: Vec<u8>,
    patience: Patience,
    queue: Mutex<Queue>,
    changed: Condvar,
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

/// Conversations that a thread takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Short,
    Any,
}

impl Interpreter {
    /// Starts the threads and waits until the template is compiled. Blocks: not for the runtime's threads.
    ///
    /// `timeout` is the processor time of the template's compilation, and of each conversation.
    ///
    /// # Errors
    /// If the template does not compile. If only a process is missing, the next order starts one.
    pub fn start(template: TemplateSource, timeout: Duration) -> Result<Self, TemplateError> {
        let template = frame(&Order::Compile(template))
            .map_err(|error| TemplateError::Broken(error.to_string()))?;
        let interpreter = Self {
            pool: Arc::new(Pool {
                template,
                patience: Patience {
                    work: timeout,
                    wait: timeout.saturating_mul(WAIT_FOR_WORK),
                },
                queue: Mutex::default(),
                changed: Condvar::new(),
            }),
        };
        let first = interpreter.employ(Lane::Any)?;
        match first.recv() {
            Ok(Ok(()) | Err(TemplateError::Unavailable(_))) => {}
            Ok(Err(broken)) => return Err(broken),
            Err(mpsc::RecvError) => return Err(TemplateError::Broken("no word of it".to_owned())),
        }
        // The first process has compiled the template, so its result is not awaited.
        drop(interpreter.employ(Lane::Short)?);
        Ok(interpreter)
    }

    /// Renders a conversation to a prompt.
    ///
    /// # Errors
    /// If the template raises an error, fails, kills its process, or takes too long.
    pub async fn render(&self, rendering: Rendering) -> Reply {
        let (reply, answer) = oneshot::channel();
        self.pool.put(PendingRender { rendering, reply });
        let gone = || TemplateError::Unavailable("the worker is ending".to_owned());
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Starts a thread. The receiver gets the result of its first process.
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
        self.pool.changed.notify_all();
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
        // Wakes both threads: each checks whether it may take the order.
        self.changed.notify_all();
    }

    /// Waits for a rendering; `None` after shutdown.
    fn next(&self, lane: Lane) -> Option<PendingRender> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            // Long ones first in the lane that takes both: the other thread takes only short ones.
            let long = (lane == Lane::Any)
                .then(|| queue.long.pop_front())
                .flatten();
            match long.or_else(|| queue.short.pop_front()) {
                // A client that disconnected cancels its order.
                Some(render) if render.reply.is_closed() => {}
                Some(render) => return Some(render),
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

/// Thread with its process.
#[derive(Debug)]
struct Worker {
    pool: Arc<Pool>,
    keeper: Keeper,
}

impl Worker {
    fn new(pool: Arc<Pool>) -> Self {
        let keeper = Keeper::new(pool.patience, pool.patience);
        Self { pool, keeper }
    }

    fn work(mut self, lane: Lane) {
        while let Some(render) = self.pool.next(lane) {
            let answer = self.render(render.rendering);
            // The client may be gone.
            drop(render.reply.send(answer));
            // On failure the next order reports the error.
            let _ = self.prepare();
        }
    }

    /// Ensures a process that has compiled the template.
    fn prepare(&mut self) -> Result<(), TemplateError> {
        let compiled = self.keeper.prepare(&self.pool.template);
        compiled.map_err(of_template)
    }

    fn render(&mut self, rendering: Rendering) -> Reply {
        let order = frame(&Order::Render(rendering))
            .map_err(|error| TemplateError::Failed(error.to_string()))?;
        match self.keeper.ask(&self.pool.template, &order) {
            Ok(Answer::Rendered(prompt)) => Ok(prompt),
            Ok(Answer::Failed(error)) => Err(error),
            Ok(_) => Err(TemplateError::Failed("an answer out of turn".to_owned())),
            Err(failure) => Err(of_messages(failure)),
        }
    }
}

/// `blamed`: the failure if it is the fault of what was ordered.
fn of_order(failure: OrderError, blamed: fn(String) -> TemplateError) -> TemplateError {
    match failure {
        OrderError::Answered(Answer::Failed(error)) => error,
        OrderError::NotStarted(_) | OrderError::Outside(_) | OrderError::Starved(_) => {
            TemplateError::Unavailable(failure.to_string())
        }
        OrderError::Costly(_)
        | OrderError::CostlyStart(_)
        | OrderError::Died(_)
        | OrderError::Garbled(_)
        | OrderError::Answered(_) => blamed(failure.to_string()),
    }
}

fn of_template(failure: OrderError) -> TemplateError {
    of_order(failure, TemplateError::Broken)
}

fn of_messages(failure: OrderError) -> TemplateError {
    match failure {
        // It compiled before: the fault is the machine's, not the template's.
        OrderError::Answered(Answer::Failed(TemplateError::Broken(why))) => {
            TemplateError::Unavailable(why)
        }
        OrderError::CostlyStart(_) => TemplateError::Unavailable(failure.to_string()),
        failure => of_order(failure, TemplateError::Failed),
    }
}
