//! The engine thread: receives commands, runs one step after the other, sends tokens.
//!
//! An asynchronous device is kept busy: while a step that only decodes is in flight, the next one is planned and
//! launched behind it. The thread then waits for the tokens of the first, sends them and updates the scheduler. No step
//! is launched behind one with prompts: it may be long, and a cancellation or a new request must not wait for two. None is
//! launched behind one with drafts: its number of tokens is not known. No
//! step is launched ahead either while an embedding or a prompt's log probabilities are requested: their rows are
//! copied while the step runs.
//!
//! Under a grammar the next mask depends on the previous token. Such a step is launched without its sampling
//! ([`launch`]), the masks are computed while the device computes, and then it samples.

mod drafting;
mod kept_kv;
mod launch;

use super::pacer::Pacer;
use super::reader::Conversation;
use super::step_times::StepTimes;
use super::watch::watch;
use super::{Doing, Link, Loaded, LoadedDraft, Progress, Status, spawn};
use crate::device::Executor;
use crate::fd_socket::FdSocket;
use crate::flight_recorder::FlightRecorder;
use crate::grammars::Grammars;
use crate::kv_pages::KvPages;
use crate::scheduler::{DraftModelLimits, Limits, Scheduler, SchedulerError};
use crate::trace::LogitsTrace;
use drafting::{Around, Drafting, memory_of};
use launch::StepInFlight;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use worker_orcd_ipc::flight::{Moment, StepRequests};
use worker_orcd_ipc::{
    CodecError, Command, DeviceError, Encoded, Event, Fault, Generation, Load, LoadOrder,
    MemoryReport, ReadyReport, Role, SealedPage, Speculation, StepReport, Submission, TraceOrder,
    Vocabulary,
};

/// Interval of integrity checks of the loaded memory. A check takes microseconds of this thread and of the device
/// (`a_look_costs_little`), a small part of the interval.
const INSPECTION_INTERVAL: Duration = Duration::from_millis(100);

/// Interval in a standby: it checks the same memory as the serving child, and takes device time from it.
const STANDBY_INSPECTION_INTERVAL: Duration = Duration::from_secs(1);

/// Age limit of the memory report. A query may take a system call; a heartbeat shows no finer resolution anyway.
const MEMORY_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Loads the model, then runs steps until the reader is gone or a fault occurs.
pub(super) fn run<L>(
    link: &Link,
    status: &Arc<Status>,
    conversation: &Conversation,
    commands: &Receiver<Command>,
    recorder: FlightRecorder,
    loader: L,
) -> Result<(), Fault>
where
    L: FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault>,
{
    // The reader passes only `Load` at first.
    let Ok(Command::Load(order)) = commands.recv() else {
        return Ok(());
    };
    status.set_progress(Some((0, 0)));
    recorder.record(0, Moment::LoadBegin, StepRequests::NONE);
    let loaded = loader(&order, &|done, total| {
        status.set_progress(Some((done, total)))
    })?;
    recorder.record(0, Moment::LoadEnd, StepRequests::NONE);
    if let Some((_, bytes_total)) = status.progress() {
        // The last progress may have come between two heartbeats.
        link.send(Event::LoadProgress {
            bytes_done: bytes_total,
            bytes_total,
        });
    }
    let left_out = loaded
        .draft
        .as_ref()
        .and_then(|it| it.as_ref().err().cloned());
    let (mut steps, ready) = StepLoop::new(link, status, recorder, &order, loaded)?;
    steps.have_watched(Arc::downgrade(status))?;
    steps.update_status();
    conversation.is_ready(order.role);
    if link.send(Event::Ready(Box::new(ready))) {
        if let Some(message) = left_out {
            link.send(Event::DraftModelStopped { message });
        }
        steps.run(commands)
    } else {
        Ok(())
    }
}

fn inspection_interval(role: Role) -> Duration {
    match role {
        Role::Active => INSPECTION_INTERVAL,
        Role::Standby => STANDBY_INSPECTION_INTERVAL,
    }
}

struct StepLoop<'a> {
    link: &'a Link,
    status: &'a Status,
    recorder: FlightRecorder,
    executor: Box<dyn Executor>,
    drafting: Option<Drafting>,
    scheduler: Scheduler,
    grammars: Grammars,
    trace: Option<LogitsTrace>,
    pacer: Pacer,
    step_times: StepTimes,
    /// Steps begun so far.
    step: u64,
    /// Steps in flight, the oldest first; the end of the step before them, or of a wait for work, and the duration of that
    /// step.
    in_flight: VecDeque<StepInFlight>,
    last_end: Instant,
    last_took: Duration,
    memory: MemoryReport,
    memory_asked: Instant,
    inspected: Instant,
    inspection_interval: Duration,
    /// Children from which pages may be adopted.
    adopts_from: Vec<Generation>,
    /// The serving child, in a standby; its pages that wait to be copied before their requests arrive.
    copies_from: Option<Generation>,
    ahead: VecDeque<SealedPage>,
    /// Requests of other children with pages to copy now.
    adopting: Vec<Submission>,
    /// Socket over which KV caches of other devices' children arrive.
    late_fd_socket: Option<FdSocket>,
}

impl<'a> StepLoop<'a> {
    fn new(
        link: &'a Link,
        status: &'a Status,
        recorder: FlightRecorder,
        order: &LoadOrder,
        mut loaded: Loaded,
    ) -> Result<(Self, ReadyReport), Fault> {
        let limits = limits_of(order, &mut loaded);
        let Loaded {
            mut executor,
            model,
            identity,
            weights,
            tokenizer,
            sampling,
            max_sequence_tokens,
            draft,
            adopts_from,
            late_fd_socket,
            ..
        } = loaded;
        let geometry = executor.kv_geometry();
        let first_tokens = executor.first_prompt_tokens();
        let max_running = limits.max_running;
        let step_budget = order.step_budget_us.map(microseconds);
        let device = executor.facts();
        let trace = order.trace.as_ref();
        let trace = trace.and_then(|order| trace_of(link, order, &device.id));
        let mut scheduler = Scheduler::new(limits, KvPages::new(geometry, order.prefix_cache));
        let draft = draft.and_then(Result::ok);
        if let Some(draft) = &draft {
            let limits = draft_limits_of(draft);
            let cache = KvPages::new(draft.executor.kv_geometry(), order.prefix_cache);
            scheduler = scheduler.with_draft_model(limits, cache);
        }
        let drafting = draft.map(Drafting::of);
        let memory = memory_of(&*executor, drafting.as_ref());
        let ready = ReadyReport {
            model,
            identity,
            weights,
            tokenizer: Encoded::of(&tokenizer).map_err(unsent)?,
            sampling,
            device,
            memory,
            max_running,
            max_sequence_tokens,
            kv_capacity_tokens: geometry.tokens_in(geometry.pages),
            copies_ahead: executor.kv_transfer().is_some_and(|kv| kv.copies_ahead()),
            draft_model: drafting.as_ref().map(|it| it.name.clone()),
        };
        let steps = Self {
            link,
            status,
            recorder,
            executor,
            drafting,
            scheduler,
            grammars: Grammars::new(&tokenizer),
            trace,
            pacer: Pacer::new(first_tokens, order.prefill_chunk_tokens, step_budget),
            step_times: StepTimes::default(),
            step: 0,
            in_flight: VecDeque::new(),
            last_end: Instant::now(),
            last_took: Duration::ZERO,
            memory,
            memory_asked: Instant::now(),
            inspected: Instant::now(),
            inspection_interval: inspection_interval(order.role),
            adopts_from: adopts_from.into_iter().collect(),
            copies_from: adopts_from,
            ahead: VecDeque::new(),
            adopting: Vec::new(),
            late_fd_socket,
        };
        Ok((steps, ready))
    }

    fn have_watched(&mut self, status: Weak<Status>) -> Result<(), Fault> {
        let (notes, progress_probe) = (self.recorder.notes(), self.executor.progress_probe());
        let thread = spawn("watch", move || watch(&status, notes, progress_probe));
        thread.map_err(|error| Fault::Io {
            message: format!("a thread cannot be started: {error}"),
        })
    }

    fn run(&mut self, commands: &Receiver<Command>) -> Result<(), Fault> {
        let mut is_idle = true;
        loop {
            self.inspect_in_time()?;
            if is_idle && self.scheduler.awaits_masks() {
                self.status.does(Doing::WaitsForMasks);
                self.wait_for_a_mask();
            } else if is_idle {
                self.status.does(Doing::WaitsForCommands);
                match commands.recv_timeout(self.patience()) {
                    Ok(command) => self.handle(command)?,
                    Err(RecvTimeoutError::Timeout) => self.copy_ahead()?,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
            if is_idle {
                self.last_end = Instant::now();
            }
            self.status.does(Doing::Plans);
            if !self.handle_all(commands)? {
                return Ok(());
            }
            self.hear_masks()?;
            if self.in_flight.len() == 1 && self.in_flight[0].is_open {
                self.wait_for_draws()?;
                self.draw()?;
            }
            let launches = self.may_launch_ahead() && self.plan()?;
            // A grammar is compiled during the prefill.
            self.ask_for_masks()?;
            if !self.report_between_steps() {
                return Ok(());
            }
            // Set before any further event: a loop that waits for a command while a step is in flight would delay that
            // step's tokens until a command arrives.
            is_idle = !launches && self.in_flight.is_empty();
            if launches {
                self.launch()?;
                if !self.scheduler.draws_wait() && !self.scheduler.drafts_wait() {
                    self.draw()?;
                }
                // Its masks are computed meanwhile, and the step before has its tokens.
                if self.may_launch_ahead() || self.in_flight[0].is_open {
                    continue;
                }
            }
            let report = match self.in_flight.pop_front() {
                Some(step) => self.wait(step)?,
                None => StepReport::default(),
            };
            self.update_status();
            if !self.send(report) {
                return Ok(());
            }
        }
    }

    /// Reports events that need no step: requests that begin, and those that end without a token. False if the
    /// supervisor is gone.
    fn report_between_steps(&mut self) -> bool {
        let finished = self.scheduler.take_finished();
        self.drop_scores_of(&finished);
        let report = StepReport {
            step: self.step,
            began: self.scheduler.take_began(),
            drawn: self.scheduler.take_forced(),
            finished,
            ..StepReport::default()
        };
        self.send(report)
    }

    /// Checks the device's memory between steps. It counts as a device call, so a hang is detected.
    fn inspect_in_time(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        if now.duration_since(self.inspected) < self.inspection_interval {
            return Ok(());
        }
        self.inspected = now;
        self.status.step_begins(self.step, now);
        self.status.does(Doing::Inspects);
        self.executor.inspect()?;
        self.update_status();
        Ok(())
    }

    /// Sends a report, unless it is empty. False if the supervisor is gone.
    fn send(&self, report: StepReport) -> bool {
        let StepReport {
            step: _,
            began,
            scored,
            drawn,
            drafted: _,
            logprobs: _,
            finished,
            sealed,
        } = &report;
        let says_something = !(began.is_empty()
            && scored.is_empty()
            && drawn.is_empty()
            && finished.is_empty()
            && sealed.is_empty());
        self.status.does(Doing::Sends);
        !says_something || self.link.send(Event::Step(report))
    }

    /// Plans the next step, with the drafts of the draft model. False if there is nothing to compute.
    fn plan(&mut self) -> Result<bool, Fault> {
        self.scheduler.set_step_seconds(self.pacer.step_seconds());
        self.draft()?;
        let pacer = &mut self.pacer;
        Ok(self.scheduler.plan(|demand| pacer.prompt_tokens(demand)))
    }

    /// Runs the turn of the draft model before a step.
    fn draft(&mut self) -> Result<(), Fault> {
        let is_between_steps = self.in_flight.is_empty();
        let Some(drafting) = self.drafting.as_mut().filter(|_| is_between_steps) else {
            return Ok(());
        };
        let around = Around {
            scheduler: &mut self.scheduler,
            pacer: &mut self.pacer,
            recorder: &self.recorder,
            status: self.status,
            step: self.step + 1,
            served_took: self.last_took,
        };
        let began = Instant::now();
        match drafting.turn(around) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            // A broken file, or a broken card, which checks of the served model find.
            Err(Fault::NonFiniteLogits { .. }) => {
                self.stop_drafting("its logits are not finite")?
            }
            Err(fault) => return Err(fault),
        }
        self.step += 1;
        // The next step's time has the host's, and not that of the turn.
        self.last_end += began.elapsed();
        self.status.does(Doing::Plans);
        Ok(())
    }

    /// Allocates the memory of the draft model that the serving child had until now.
    fn promote_draft_model(&mut self) -> Result<(), Fault> {
        let Some(drafting) = &mut self.drafting else {
            return Ok(());
        };
        match drafting.executor.promote() {
            Err(fault @ Fault::OutOfMemory { .. }) => self.stop_drafting(&fault.to_string()),
            promoted => promoted,
        }
    }

    /// Ends the use of the draft model, and frees its memory.
    fn stop_drafting(&mut self, reason: &str) -> Result<(), Fault> {
        let Some(mut drafting) = self.drafting.take() else {
            return Ok(());
        };
        self.scheduler.remove_draft_model();
        let message = format!("the draft model {}: {reason}", drafting.name);
        eprintln!("worker-orcd-gpu: serves without a draft model: {message}");
        self.link.send(Event::DraftModelStopped { message });
        drafting.executor.release()?;
        drop(drafting);
        self.memory = self.measured_memory();
        self.memory_asked = Instant::now();
        Ok(())
    }

    /// True if another step may be launched before the next one ends.
    fn may_launch_ahead(&self) -> bool {
        match self.in_flight.back() {
            None => true,
            Some(last) => {
                self.in_flight.len() == 1
                    && !last.is_open
                    && last.shape.prompt_tokens == 0
                    && self.executor.is_ahead()
                    && self.trace.is_none()
                    && !self.scheduler.reads_prompts()
            }
        }
    }

    // === commands of the supervisor, handled between steps ===

    /// Handles the commands that have arrived. False if the reader is gone.
    fn handle_all(&mut self, commands: &Receiver<Command>) -> Result<bool, Fault> {
        loop {
            match commands.try_recv() {
                Ok(command) => self.handle(command)?,
                Err(TryRecvError::Disconnected) => return Ok(false),
                // Further commands may arrive during an adoption.
                Err(TryRecvError::Empty) if self.adopt()? => {}
                Err(TryRecvError::Empty) => return Ok(true),
            }
        }
    }

    fn handle(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Cancel { request } => {
                self.adopt()?;
                self.scheduler.cancel(request);
                Ok(())
            }
            Command::Promote { traces } => self.promote(traces),
            Command::CopyAhead { pages } => {
                self.ahead.extend(pages);
                Ok(())
            }
            Command::Attach(source) => {
                self.attach(source);
                Ok(())
            }
            Command::ReleaseKv { child } => {
                self.adopt()?;
                self.release_kv(child);
                Ok(())
            }
            // The reader handles these itself.
            Command::Load(_) | Command::Shutdown => Ok(()),
        }
    }

    /// Promotes a standby. It counts as a device call, so a hang is detected.
    fn promote(&mut self, traces: bool) -> Result<(), Fault> {
        self.trace = self.trace.take().filter(|_| traces);
        // Their requests arrive now.
        self.ahead.clear();
        self.inspection_interval = INSPECTION_INTERVAL;
        self.status.step_begins(self.step, Instant::now());
        self.status.does(Doing::TakesOver);
        self.executor.promote()?;
        self.promote_draft_model()?;
        self.memory = self.measured_memory();
        self.memory_asked = Instant::now();
        self.update_status();
        Ok(())
    }

    // === statistics and memory usage for the supervisor's reports ===

    fn measured_memory(&self) -> MemoryReport {
        memory_of(&*self.executor, self.drafting.as_ref())
    }

    fn update_status(&mut self) {
        if self.memory_asked.elapsed() >= MEMORY_REPORT_INTERVAL {
            self.memory = self.measured_memory();
            self.memory_asked = Instant::now();
        }
        self.memory.kv_used_bytes = self.scheduler.kv_used_bytes();
        let load = Load {
            step_budget_us: self.pacer.budget().map(|it| it.as_micros() as u32),
            ..self.scheduler.load()
        };
        self.status.between_steps(self.step, load, self.memory);
        if let Some(oldest) = self.in_flight.front() {
            let since = oldest.began.max(self.last_end);
            self.status.step_begins(oldest.step, since);
        }
    }
}

fn limits_of(order: &LoadOrder, loaded: &mut Loaded) -> Limits {
    let (facts, max_batch_tokens) = (&loaded.tokenizer, loaded.executor.max_batch_tokens());
    Limits {
        max_running: order.max_running.clamp(1, max_batch_tokens.max(1)),
        max_sequence_tokens: loaded.max_sequence_tokens,
        max_batch_tokens,
        vocab_size: loaded.model.vocab_size,
        speculates: order.speculation != Speculation::Off,
        traces_logits: order.trace.is_some(),
        end_of_generation: facts.end_of_generation.iter().copied().collect(),
        suppressed: std::mem::take(&mut loaded.suppressed),
        words: Arc::new(Vocabulary::from_facts(facts).unwrap_or_default()),
        rank_head: loaded.rank_head.take().map(Arc::new),
    }
}

fn draft_limits_of(draft: &LoadedDraft) -> DraftModelLimits {
    DraftModelLimits {
        vocab_size: draft.vocab_size,
        max_sequence_tokens: draft.max_sequence_tokens,
        max_batch_tokens: draft.executor.max_batch_tokens(),
    }
}

/// Trace of logits. `None` if its file cannot be created.
fn trace_of(link: &Link, order: &TraceOrder, device: &str) -> Option<LogitsTrace> {
    let created = LogitsTrace::create(order, device);
    created.inspect_err(|error| stop_trace(link, error)).ok()
}

/// Ends a trace that cannot be written. A full disk costs the trace, and no stream.
fn stop_trace(link: &Link, error: &std::io::Error) {
    link.send(Event::TraceStopped {
        message: error.to_string(),
    });
}

fn microseconds(count: u32) -> Duration {
    Duration::from_micros(count.into())
}

fn unsent(error: CodecError) -> Fault {
    Fault::ModelLoad {
        message: format!("the tokenizer cannot be sent to the supervisor: {error}"),
    }
}

fn scheduler_fault(error: SchedulerError) -> Fault {
    let message = error.to_string();
    match error {
        SchedulerError::DuplicateRequest(_) => Fault::Protocol { message },
        SchedulerError::DrawnCount { .. }
        | SchedulerError::TokenOutOfRange { .. }
        | SchedulerError::NotToBeDrawn(_) => Fault::Device {
            error: DeviceError::WrongResult,
            message,
        },
    }
}
