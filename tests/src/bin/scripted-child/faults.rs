//! Faults: one arm for each [`Act`]. A fault that does not end the process happens once, and the child then goes on
//! normally: the supervisor must detect it.

use crate::serve::Child;
use nix::sys::signal::{Signal, raise};
use std::time::{Duration, Instant};
use worker_orcd_ipc::{
    ChildHello, DeviceError, Drawn, Envelope, Event, Fault, FinishReason, Generation,
    MAX_FRAME_BYTES, PROTOCOL_VERSION, Preamble, ReadyReport, RequestId, StepReport, TokenId,
};
use worker_orcd_tests::script::VOCAB_SIZE;
use worker_orcd_tests::{Act, facts};

/// Length of a late step.
const LATE: Duration = Duration::from_millis(500);

/// Number of no request.
const NOBODY: RequestId = RequestId(u64::MAX);

impl Child {
    pub fn misbehave(&mut self) {
        match self.script.act.clone() {
            Act::Behave => {}
            Act::OtherVersion => {
                self.link.send_raw(
                    &Preamble {
                        version: PROTOCOL_VERSION + 1,
                    }
                    .to_bytes(),
                );
            }
            Act::Garbage => self.link.send_raw(&[0xff; 64]),
            Act::TruncatedFrame => self.truncated_frame(),
            Act::OversizedFrame => {
                self.link
                    .send_raw(&(MAX_FRAME_BYTES as u32 + 1).to_le_bytes());
            }
            Act::TrailingBytes => {
                let mut payload = self.link.payload(Event::Goodbye);
                payload.push(0);
                self.link.send_payload(&payload);
            }
            Act::UnknownMessage => self.link.send_payload(&[1, 250]),
            Act::NonsenseTokenizer => {
                let report = ReadyReport {
                    tokenizer: vec![200].into(),
                    ..facts::ready_report(1, None)
                };
                self.link.send(Event::Ready(Box::new(report)));
                loop {
                    std::thread::park();
                }
            }
            Act::SecondHello => self.link.send(Event::Hello(self.hello())),
            Act::WrongGeneration => self.wrong_generation(),
            Act::UnknownRequest => self.send_token(NOBODY, 0, TokenId(65)),
            Act::TokenOutOfRange => {
                let (request, index) = self.somebody();
                self.send_token(request, index, TokenId(VOCAB_SIZE));
            }
            Act::WrongIndex => {
                let (request, index) = self.somebody();
                self.send_token(request, index + 1, TokenId(65));
            }
            Act::UnknownFinish => self.send_finished(NOBODY, FinishReason::Cancelled),
            Act::ForbiddenFeature => {
                let features = vec!["fault-injection".to_owned()];
                self.false_hello(ChildHello {
                    features,
                    ..self.hello()
                });
            }
            Act::WrongPid => self.false_hello(ChildHello {
                pid: 1,
                ..self.hello()
            }),
            Act::Flood => self.flood(),
            Act::SlowDrip => self.slow_drip(),
            Act::Stall => loop {
                std::thread::park();
            },
            Act::StuckStep => self.step_elapsed_ms = Some(3_600_000),
            Act::LateStep => self.steps_late(),
            Act::StuckLoad => loop {
                self.send_progress(50);
                let _ = self.next_command(None);
            },
            Act::NeverRead => self.link.stop_reading(),
            Act::Stop => raise(Signal::SIGSTOP).expect("a process may stop itself"),
            Act::CloseSocket => {
                self.link.close();
                loop {
                    std::thread::park();
                }
            }
            Act::Exit(code) => std::process::exit(code),
            Act::Signal(signal) => die_of(signal),
            Act::FaultDevice => self.last_words(Fault::Device {
                error: DeviceError::Cuda("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned()),
                message: "scripted".to_owned(),
            }),
            Act::FaultModelLoad => {
                self.last_words(Fault::ModelLoad {
                    message: "scripted".to_owned(),
                });
            }
            Act::FaultInsufficientMemory => self.last_words(Fault::InsufficientMemory {
                required_bytes: 150_000_000_000,
                available_bytes: 140_000_000_000,
                device: "scripted device".to_owned(),
                model: "scripted model".to_owned(),
            }),
            Act::FaultNonFinite => {
                let step = self.steps;
                let request = self.requests.keys().next().copied().unwrap_or(NOBODY);
                self.last_words(Fault::NonFiniteLogits { step, request });
            }
        }
    }

    fn steps_late(&mut self) {
        self.next_step = Instant::now() + LATE;
        self.overdue_until = Some(self.next_step);
        self.link.send(self.heartbeat());
    }

    fn truncated_frame(&mut self) {
        let payload = self.link.payload(Event::Goodbye);
        self.link.send_raw(&100u32.to_le_bytes());
        self.link.send_raw(&payload);
        std::process::exit(0);
    }

    fn wrong_generation(&mut self) {
        let generation = Generation(self.link.generation.0 + 7);
        let envelope = Envelope {
            generation,
            event: Event::Goodbye,
        };
        self.link
            .send_payload(&worker_orcd_ipc::encode(&envelope).expect("it fits a frame"));
    }

    fn false_hello(&mut self, hello: ChildHello) {
        self.link.send_preamble();
        self.link.send(Event::Hello(hello));
        loop {
            std::thread::park();
        }
    }

    /// Floods the socket from a thread of its own; service goes on beside it.
    fn flood(&mut self) {
        let link = self.link.clone();
        let payload = link.payload(self.heartbeat());
        std::thread::spawn(move || {
            loop {
                link.send_payload(&payload);
            }
        });
    }

    fn slow_drip(&mut self) {
        for byte in 100u32.to_le_bytes().into_iter().chain([0; 100]) {
            self.link.send_raw(&[byte]);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Running request and its next index.
    fn somebody(&self) -> (RequestId, u32) {
        self.requests
            .iter()
            .next()
            .map(|(request, running)| (*request, running.generated))
            .expect("the script asks for this while a request runs")
    }

    fn send_token(&mut self, request: RequestId, index: u32, token: TokenId) {
        self.steps += 1;
        self.link.send(Event::Step(StepReport {
            step: self.steps,
            began: vec![],
            scored: vec![],
            drawn: vec![Drawn {
                request,
                index,
                token,
            }],
            drafted: vec![],
            logprobs: vec![],
            finished: vec![],
            sealed: vec![],
        }));
    }

    fn last_words(&mut self, fault: Fault) {
        let code = fault.exit_code().code();
        self.link.send(Event::Fault(fault));
        std::process::exit(code);
    }
}

fn die_of(signal: i32) {
    let signal = Signal::try_from(signal).expect("a signal's number");
    // Rust's own handler for SIGSEGV and SIGBUS ignores the signal the first time.
    for _ in 0..2 {
        raise(signal).expect("a process may signal itself");
    }
    unreachable!("{signal} is deadly");
}
