//! Regular behaviour: heartbeats, tokens that repeat the prompt, cancel, shutdown.

use crate::link::Link;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use worker_orcd_ipc::{
    ChildHello, Command, Counters, DeviceSelector, Drawn, DrawnLogprobs, Event, ExitCode,
    FaultKind, FinishReason, Finished, Generation, HEARTBEAT_INTERVAL_MS, Heartbeat, Load,
    LoadOrder, Logprobs, PromptLogprobs, RequestId, Scored, StepReport, Submission, TokenId,
};
use worker_orcd_tests::script::{EOS, scripted_token};
use worker_orcd_tests::{Moment, Script, facts};

const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_INTERVAL_MS);

pub struct Child {
    pub link: Link,
    pub script: Script,
    /// Requests in order of arrival; the first `max_running` run, the others wait.
    pub requests: BTreeMap<RequestId, Running>,
    pub steps: u64,
    pub tokens_said: u64,
    /// Value for heartbeats; only a fault sets it.
    pub step_elapsed_ms: Option<u64>,
    /// Time until which its heartbeats report a step as overdue.
    pub overdue_until: Option<Instant>,
    next_heartbeat: Instant,
    pub next_step: Instant,
}

pub struct Running {
    submission: Submission,
    pub generated: u32,
}

impl Running {
    fn logprobs(&self, request: RequestId, token: TokenId) -> Option<DrawnLogprobs> {
        let top = self.submission.params.logprobs?;
        Some(DrawnLogprobs {
            request,
            index: self.generated,
            logprobs: logprobs(token, top),
        })
    }

    /// Log probabilities of the prompt, all in one step.
    fn scored(&mut self, request: RequestId) -> Option<Scored> {
        let PromptLogprobs { top, reported } = self.submission.prompt_logprobs.take()?;
        let rest = self.submission.prompt.iter().skip(1 + reported as usize);
        Some(Scored {
            request,
            first: reported,
            logprobs: rest.map(|token| logprobs(*token, top)).collect(),
        })
    }
}

/// Log probabilities: the token is the most likely, and the ids before it follow.
fn logprobs(token: TokenId, top: u8) -> Logprobs {
    let likely = |rank: u32| (TokenId(token.0.saturating_sub(rank)), -0.5 - rank as f32);
    Logprobs {
        of_token: -0.5,
        rank: 1,
        top: (0..u32::from(top)).map(likely).collect(),
    }
}

impl Child {
    pub fn new(link: Link, mut script: Script) -> Self {
        if link.generation > Generation(script.faulty_generations) {
            script = Script {
                token_interval_ms: script.token_interval_ms,
                max_running: script.max_running,
                chat_template: script.chat_template,
                merges: script.merges,
                controls: script.controls,
                ..Script::behave()
            };
        }
        Self {
            link,
            script,
            requests: BTreeMap::new(),
            steps: 0,
            tokens_said: 0,
            step_elapsed_ms: None,
            overdue_until: None,
            next_heartbeat: Instant::now(),
            next_step: Instant::now(),
        }
    }

    /// Causes the script's fault, if this is its moment.
    pub fn reach(&mut self, moment: Moment) {
        if self.script.moment == moment {
            self.misbehave();
        }
    }

    pub fn send_hello(&mut self) {
        self.link.send_preamble();
        self.link.send(Event::Hello(self.hello()));
    }

    pub fn hello(&self) -> ChildHello {
        ChildHello {
            pid: std::process::id(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            features: Vec::new(),
            arena_layout: 0,
            confinement_gaps: Vec::new(),
        }
    }

    pub fn send_progress(&mut self, percent: u64) {
        self.link.send(Event::LoadProgress {
            bytes_done: percent,
            bytes_total: 100,
        });
    }

    pub fn send_ready(&mut self, order: &LoadOrder) {
        let max_running = self.script.max_running.min(order.max_running);
        self.script.max_running = max_running;
        let mut report = facts::ready_report(max_running, order.max_sequence_tokens);
        if let DeviceSelector::Cuda(ordinal) = order.device {
            report.device.id = format!("cuda:{ordinal}");
        }
        if let Some(template) = &self.script.chat_template {
            facts::change_tokenizer(&mut report, |tokenizer| {
                tokenizer.chat_template = Some(template.clone());
            });
        }
        facts::add_merges(&mut report, &self.script.merges);
        facts::add_controls(&mut report, &self.script.controls);
        self.link.send(Event::Ready(Box::new(report)));
    }

    pub fn end(&mut self) -> ExitCode {
        self.link.send(Event::Goodbye);
        ExitCode::Clean
    }

    pub fn serve(mut self) -> ExitCode {
        loop {
            let deadline = (!self.requests.is_empty()).then_some(self.next_step);
            match self.next_command(deadline) {
                Some(Command::Submit(submission)) => self.accept(*submission),
                Some(Command::Cancel { request }) => self.cancel(request),
                Some(Command::Shutdown) if self.script.ignore_shutdown => {}
                Some(Command::Shutdown) => return self.end(),
                Some(
                    Command::Promote { .. }
                    | Command::CopyAhead { .. }
                    | Command::Attach(_)
                    | Command::ReleaseKv { .. },
                ) => {}
                Some(Command::Load(_)) => return ExitCode::Fault(FaultKind::Protocol),
                None if Instant::now() >= self.next_step => self.step(),
                None => {}
            }
        }
    }

    /// Waits for a command until `deadline` or the next heartbeat, which it sends when due.
    pub fn next_command(&mut self, deadline: Option<Instant>) -> Option<Command> {
        let now = Instant::now();
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + HEARTBEAT;
            self.link.send(self.heartbeat());
        }
        let until = deadline.map_or(self.next_heartbeat, |step| step.min(self.next_heartbeat));
        self.link
            .receive(until.saturating_duration_since(Instant::now()))
    }

    pub fn heartbeat(&self) -> Event {
        let running = self.requests.len().min(self.script.max_running as usize) as u32;
        Event::Heartbeat(Heartbeat {
            steps: self.steps,
            step_elapsed_ms: self.step_elapsed_ms,
            step_overdue: self
                .overdue_until
                .is_some_and(|until| Instant::now() < until),
            load: Load {
                running,
                waiting: self.requests.len() as u32 - running,
                counters: Counters {
                    generated_tokens: self.tokens_said,
                    ..Counters::default()
                },
                ..Load::default()
            },
            memory: facts::memory(),
        })
    }

    fn accept(&mut self, submission: Submission) {
        if submission.prompt.is_empty() {
            let reason = FinishReason::Refused {
                message: "an empty prompt".to_owned(),
            };
            return self.send_finished(submission.request, reason);
        }
        if self.requests.is_empty() {
            self.next_step = Instant::now();
        }
        let generated = submission.generated.len() as u32;
        self.requests.insert(
            submission.request,
            Running {
                submission,
                generated,
            },
        );
    }

    fn cancel(&mut self, request: RequestId) {
        if self.requests.remove(&request).is_some() {
            self.send_finished(request, FinishReason::Cancelled);
        }
    }

    pub fn send_finished(&mut self, request: RequestId, reason: FinishReason) {
        let finished = vec![Finished { request, reason }];
        self.steps += 1;
        self.link.send(Event::Step(StepReport {
            step: self.steps,
            began: vec![],
            scored: vec![],
            drawn: vec![],
            drafted: vec![],
            logprobs: vec![],
            finished,
            sealed: vec![],
        }));
    }

    /// Sends one token for each running request.
    fn step(&mut self) {
        self.next_step = Instant::now() + Duration::from_millis(self.script.token_interval_ms);
        self.steps += 1;
        let mut report = StepReport {
            step: self.steps,
            ..StepReport::default()
        };
        for (&request, running) in self
            .requests
            .iter_mut()
            .take(self.script.max_running as usize)
        {
            let index = running.generated;
            let token = scripted_token(&running.submission.prompt, index as usize);
            report.scored.extend(running.scored(request));
            report.drawn.push(Drawn {
                request,
                index,
                token,
            });
            report.logprobs.extend(running.logprobs(request, token));
            running.generated += 1;
            let is_end = token == EOS && !running.submission.params.ignore_eos;
            if is_end || running.generated >= running.submission.params.max_tokens {
                let reason = match is_end {
                    true => FinishReason::EndOfSequence,
                    false => FinishReason::MaxTokens,
                };
                report.finished.push(Finished { request, reason });
            }
        }
        for finished in &report.finished {
            self.requests.remove(&finished.request);
        }
        let before = self.tokens_said;
        self.tokens_said += report.drawn.len() as u64;
        self.link.send(Event::Step(report));
        for said in before + 1..=self.tokens_said {
            self.reach(Moment::MidStream(said));
        }
    }
}
