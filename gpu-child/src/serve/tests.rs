//! Connections in memory: the test is the supervisor, over two pipes.

mod ahead;
pub(super) mod counter;
mod drafting;
mod embeddings;
mod logprobs;
pub(super) mod prompts;
mod standby;
mod watched;

use super::*;
use counter::{Counter, Spoilt, loaded, loaded_and, loaded_with};
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    ClientId, Command, DeviceError, DeviceSelector, Envelope, ExitCode, FaultKind, FinishReason,
    FrameReader, Generation, GenerationParams, KvReaders, ModelFile, Preamble, RequestId, Role,
    Speculation, StepReport, Submission, TokenId, decode, encode,
};

const VOCAB: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(20);

/// The supervisor's end.
struct Supervisor {
    down: Option<PipeWriter>,
    up: PipeReader,
    frames: FrameReader,
    exits: Receiver<ExitCode>,
}

impl Supervisor {
    fn start(
        load: impl FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault> + Send + 'static,
    ) -> Self {
        Self::start_recorded(FlightRecorder::none(), load)
    }

    fn start_recorded(
        recorder: FlightRecorder,
        load: impl FnOnce(&LoadOrder, Progress<'_>) -> Result<Loaded, Fault> + Send + 'static,
    ) -> Self {
        let (child_reader, down) = pipe().unwrap();
        let (up, child_writer) = pipe().unwrap();
        let (sender, exits): (Sender<ExitCode>, _) = channel();
        // A process would exit here; the test only records it.
        let exit: crate::exit::ExitHook = Arc::new(move |code| {
            let _ = sender.send(code);
        });
        let link = Arc::new(Link::new(child_writer, Generation(3), exit));
        std::thread::spawn(move || {
            serve(
                child_reader,
                link,
                hello(&["test"], Vec::new()),
                recorder,
                load,
            )
        });
        let mut this = Self {
            down: Some(down),
            up,
            frames: FrameReader::new(),
            exits,
        };
        this.write(&Preamble::OURS.to_bytes());
        this
    }

    fn ready(step_takes: Duration) -> Self {
        Self::ready_with(move || loaded(step_takes))
    }

    fn ready_with(load: impl FnOnce() -> Loaded + Send + 'static) -> Self {
        let mut this = Self::start(move |_, _| Ok(load()));
        this.send(&Command::Load(order()));
        this.until(|event| matches!(event, Event::Ready(_)));
        this
    }

    fn write(&mut self, bytes: &[u8]) {
        self.down.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, command: &Command) {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &encode(command).unwrap()).unwrap();
        self.write(&bytes);
    }

    fn submit(&mut self, request: u64, last: u32, max_tokens: u32) {
        self.submit_prompt(request, vec![TokenId(1), TokenId(last)], max_tokens);
    }

    fn submit_prompt(&mut self, request: u64, prompt: Vec<TokenId>, max_tokens: u32) {
        self.send(&Command::Submit(Box::new(Submission {
            request: RequestId(request),
            prompt,
            params: Arc::new(GenerationParams {
                max_tokens,
                ..GenerationParams::default()
            }),
            ..Submission::default()
        })));
    }

    fn hang_up(&mut self) {
        self.down = None;
    }

    fn hear(&mut self) -> Event {
        loop {
            if let Some(payload) = self.frames.next_frame().unwrap() {
                let envelope: Envelope = decode(payload).unwrap();
                assert_eq!(envelope.generation, Generation(3));
                return envelope.event;
            }
            let mut buffer = [0; 4096];
            let length = self.up.read(&mut buffer).unwrap();
            assert!(length > 0, "the child hung up");
            self.frames.push(&buffer[..length]);
        }
    }

    fn until(&mut self, is_it: impl Fn(&Event) -> bool) -> Event {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let event = self.hear();
            if is_it(&event) {
                return event;
            }
        }
        panic!("it was not said in time");
    }

    fn step(&mut self) -> StepReport {
        let is_more_than_a_beginning = |event: &Event| match event {
            Event::Step(report) => !report.drawn.is_empty() || !report.finished.is_empty(),
            event => matches!(event, Event::Fault(_)),
        };
        match self.until(is_more_than_a_beginning) {
            Event::Step(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// All output of one request.
    fn collect(&mut self, request: u64) -> (Vec<u32>, FinishReason) {
        let mut tokens = Vec::new();
        loop {
            let report = self.step();
            let of_request = report
                .drawn
                .iter()
                .filter(|token| token.request.0 == request);
            for token in of_request {
                assert_eq!(token.index as usize, tokens.len());
                tokens.push(token.token.0);
            }
            if let Some(end) = report.finished.iter().find(|end| end.request.0 == request) {
                return (tokens, end.reason.clone());
            }
        }
    }

    fn exit_code(&self) -> ExitCode {
        self.exits.recv_timeout(PATIENCE).expect("the process ends")
    }

    fn fault(&mut self) -> Fault {
        let Event::Fault(fault) = self.until(|event| matches!(event, Event::Fault(_))) else {
            unreachable!()
        };
        fault
    }
}

pub(super) fn order() -> LoadOrder {
    LoadOrder {
        model_path: "test".into(),
        model_file: ModelFile::AtPath,
        draft_model: None,
        weights: None,
        kv_readers: KvReaders::None,
        adopts_from: None,
        has_second_fd_socket: false,
        device: DeviceSelector::Cpu,
        kv_cache_bytes: None,
        memory_permille: 900,
        max_running: 4,
        max_sequence_tokens: None,
        prefill_chunk_tokens: 16,
        step_budget_us: None,
        threads: None,
        prefix_cache: true,
        speculation: Speculation::Text,
        trace: None,
        role: Role::Active,
    }
}

#[test]
fn hello_load_ready_tokens_goodbye() {
    let mut supervisor = Supervisor::start(|order, progress| {
        assert_eq!(order.model_path, "test");
        progress(5, 10);
        std::thread::sleep(Duration::from_millis(250));
        Ok(loaded(Duration::ZERO))
    });
    let Event::Hello(hello) = supervisor.hear() else {
        panic!("hello comes first")
    };
    assert_eq!(
        (hello.pid, hello.features),
        (std::process::id(), vec!["test".to_owned()])
    );
    supervisor.send(&Command::Load(order()));
    let progress = Event::LoadProgress {
        bytes_done: 5,
        bytes_total: 10,
    };
    supervisor.until(|event| *event == progress);
    let Event::Ready(ready) = supervisor.until(|event| matches!(event, Event::Ready(_))) else {
        unreachable!()
    };
    assert_eq!((ready.max_running, ready.kv_capacity_tokens), (4, 256));
    supervisor.submit(1, 5, 4);
    assert_eq!(
        supervisor.collect(1),
        (vec![6, 7, 8, 9], FinishReason::MaxTokens)
    );
    supervisor.submit(2, 47, 9);
    assert_eq!(
        supervisor.collect(2),
        (vec![48, 49, 50], FinishReason::EndOfSequence)
    );
    supervisor.submit(3, VOCAB, 4);
    assert!(
        matches!(supervisor.collect(3), (tokens, FinishReason::Refused { .. }) if tokens.is_empty())
    );
    let Event::Heartbeat(beat) = supervisor.until(|event| matches!(event, Event::Heartbeat(_)))
    else {
        unreachable!()
    };
    assert_eq!(
        (
            beat.steps,
            beat.load.counters.generated_tokens,
            beat.memory.weights_bytes
        ),
        (7, 7, 123)
    );
    supervisor.send(&Command::Shutdown);
    supervisor.until(|event| *event == Event::Goodbye);
    assert_eq!(supervisor.exit_code(), ExitCode::Clean);
}

#[test]
fn steps_are_shared_and_a_cancelled_request_stops() {
    let mut supervisor = Supervisor::ready(Duration::from_millis(20));
    supervisor.submit(1, 5, 100);
    supervisor.step();
    supervisor.submit(2, 5, 100);
    let shared =
        supervisor.until(|event| matches!(event, Event::Step(report) if report.drawn.len() == 2));
    assert!(matches!(shared, Event::Step(_)));
    supervisor.send(&Command::Cancel {
        request: RequestId(1),
    });
    let end = loop {
        let report = supervisor.step();
        if let Some(end) = report.finished.into_iter().next() {
            break end;
        }
    };
    assert_eq!(
        (end.request, end.reason),
        (RequestId(1), FinishReason::Cancelled)
    );
    let next = supervisor.step().drawn;
    assert_eq!(
        next.iter().map(|token| token.request.0).collect::<Vec<_>>(),
        [2]
    );
}

#[test]
fn a_hung_up_socket_ends_the_process_in_the_middle_of_a_step() {
    let mut supervisor = Supervisor::ready(Duration::ZERO);
    supervisor.submit(1, 97, 4);
    supervisor
        .until(|event| matches!(event, Event::Heartbeat(beat) if beat.step_elapsed_ms.is_some()));
    supervisor.hang_up();
    assert_eq!(supervisor.exit_code(), ExitCode::SupervisorLost);
}

#[test]
fn a_hung_up_socket_ends_the_process_in_the_middle_of_a_load() {
    let mut supervisor = Supervisor::start(|_, _| {
        std::thread::sleep(Duration::from_secs(3600));
        Ok(loaded(Duration::ZERO))
    });
    supervisor.send(&Command::Load(order()));
    supervisor.hang_up();
    assert_eq!(supervisor.exit_code(), ExitCode::SupervisorLost);
}

#[test]
fn a_shutdown_does_not_wait_for_the_step() {
    let mut supervisor = Supervisor::ready(Duration::ZERO);
    supervisor.submit(1, 97, 4);
    supervisor.send(&Command::Shutdown);
    supervisor.until(|event| *event == Event::Goodbye);
    assert_eq!(supervisor.exit_code(), ExitCode::Clean);
}

#[test]
fn a_fault_is_the_last_word_and_the_exit_code() {
    let mut supervisor = Supervisor::ready(Duration::ZERO);
    supervisor.submit(1, 99, 4);
    assert!(matches!(
        supervisor.fault(),
        Fault::Device {
            error: DeviceError::Cuda(_),
            ..
        }
    ));
    assert_eq!(supervisor.exit_code(), ExitCode::Fault(FaultKind::Device));
}

#[test]
fn a_token_outside_the_vocabulary_is_a_fault_and_never_sent() {
    let mut supervisor = Supervisor::ready(Duration::ZERO);
    supervisor.submit(1, 98, 4);
    assert!(matches!(
        supervisor.fault(),
        Fault::Device {
            error: DeviceError::WrongResult,
            ..
        }
    ));
}

#[test]
fn a_load_that_fails_is_told() {
    let mut supervisor = Supervisor::start(|_, _| {
        Err(Fault::ModelLoad {
            message: "no".into(),
        })
    });
    supervisor.send(&Command::Load(order()));
    assert_eq!(
        supervisor.fault(),
        Fault::ModelLoad {
            message: "no".into()
        }
    );
    assert_eq!(
        supervisor.exit_code(),
        ExitCode::Fault(FaultKind::ModelLoad)
    );
}

#[test]
fn what_is_out_of_place_is_a_protocol_fault() {
    let submit_early: fn(&mut Supervisor) = |supervisor| supervisor.submit(1, 1, 1);
    let garbage: fn(&mut Supervisor) =
        |supervisor| supervisor.write(&[5, 0, 0, 0, 255, 1, 2, 3, 4]);
    let huge: fn(&mut Supervisor) = |supervisor| supervisor.write(&[255; 4]);
    let load_twice: fn(&mut Supervisor) = |supervisor| {
        supervisor.send(&Command::Load(order()));
        supervisor.send(&Command::Load(order()));
    };
    let duplicate: fn(&mut Supervisor) = |supervisor| {
        supervisor.send(&Command::Load(order()));
        supervisor.until(|event| matches!(event, Event::Ready(_)));
        // The first is in a step that does not end before the second has come.
        supervisor.submit(1, 5, 100);
        supervisor.submit(1, 5, 100);
    };
    for wrong in [submit_early, garbage, huge, load_twice, duplicate] {
        let mut supervisor = Supervisor::start(|_, _| Ok(loaded(Duration::from_millis(50))));
        wrong(&mut supervisor);
        assert!(matches!(supervisor.fault(), Fault::Protocol { .. }));
        assert_eq!(supervisor.exit_code(), ExitCode::Fault(FaultKind::Protocol));
    }
}

#[test]
fn nothing_is_said_after_the_last_words() {
    let mut supervisor = Supervisor::start(|_, _| {
        Err(Fault::ModelLoad {
            message: "no".into(),
        })
    });
    supervisor.send(&Command::Load(order()));
    supervisor.fault();
    std::thread::sleep(Duration::from_millis(250));
    assert!(supervisor.frames.next_frame().unwrap().is_none());
    assert_eq!(supervisor.frames.pending_bytes(), 0);
}

#[test]
fn weights_that_changed_end_the_child_whether_it_works_or_not() {
    for works in [false, true] {
        let mut supervisor = Supervisor::ready_with(|| loaded_and(Spoilt::Found));
        if works {
            supervisor.submit(1, 5, 10_000);
        }
        let Fault::Device { error, .. } = supervisor.fault() else {
            panic!("another fault")
        };
        assert_eq!(error, DeviceError::WeightsChanged);
        assert_eq!(supervisor.exit_code(), ExitCode::Fault(FaultKind::Device));
    }
}

#[test]
fn a_device_that_hangs_while_nobody_works_is_seen_as_a_step_without_end() {
    let mut supervisor = Supervisor::ready_with(|| loaded_and(Spoilt::Wedged));
    let seen = supervisor.until(|event| {
        matches!(event, Event::Heartbeat(beat) if beat.step_elapsed_ms.is_some_and(|ms| ms > 150))
    });
    assert!(matches!(seen, Event::Heartbeat(beat) if beat.steps == 0));
}
