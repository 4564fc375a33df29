//! The real binary, over a real socket, with a tiny model on the CPU device.

#[path = "child_process/drafting.rs"]
mod drafting;
#[path = "child_process/grammars.rs"]
mod grammars;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker_orcd_gpu::model::{Architecture, tiny_model::tiny_model};
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    Command, DeviceSelector, Envelope, Event, ExitCode, Fault, FaultKind, FinishReason,
    FrameReader, Generation, GenerationParams, KvReaders, LoadOrder, ModelFile, Preamble,
    ReadyReport, RequestId, Role, Sampling, Speculation, Submission, TokenId, TraceOrder, decode,
    encode,
};

const PATIENCE: Duration = Duration::from_secs(30);

struct Supervisor {
    child: Child,
    socket: Option<UnixStream>,
    frames: FrameReader,
    directory: TempDir,
}

impl Supervisor {
    fn start() -> Self {
        Self::start_with(
            &mut Process::new(env!("CARGO_BIN_EXE_worker-orcd-gpu")),
            &[],
        )
    }

    fn start_with(process: &mut Process, arguments: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let child = process
            .arg("--socket")
            .arg(&path)
            .args([
                "--generation",
                "5",
                "--parent",
                &std::process::id().to_string(),
            ])
            // Its model is written after the start. The supervisor's tests cover the confinement.
            .arg("--unconfined")
            .args(arguments)
            .env("SOCKET", &path)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut this = Self {
            child,
            socket: Some(socket),
            frames: FrameReader::new(),
            directory,
        };
        this.socket
            .as_mut()
            .unwrap()
            .write_all(&Preamble::OURS.to_bytes())
            .unwrap();
        this
    }

    fn order(&self, model: &str) -> LoadOrder {
        LoadOrder {
            model_path: self
                .directory
                .path()
                .join(model)
                .to_str()
                .unwrap()
                .to_owned(),
            model_file: ModelFile::AtPath,
            draft_model: None,
            weights: None,
            kv_readers: KvReaders::None,
            adopts_from: None,
            has_second_fd_socket: false,
            device: DeviceSelector::Cpu,
            kv_cache_bytes: Some(1 << 20),
            memory_permille: 900,
            max_running: 4,
            max_sequence_tokens: None,
            prefill_chunk_tokens: 32,
            step_budget_us: None,
            threads: Some(1),
            prefix_cache: true,
            speculation: Speculation::Text,
            trace: None,
            role: Role::Active,
        }
    }

    fn write_model(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn send(&mut self, command: &Command) {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &encode(command).unwrap()).unwrap();
        self.socket.as_mut().unwrap().write_all(&bytes).unwrap();
    }

    fn hear(&mut self) -> Event {
        loop {
            if let Some(payload) = self.frames.next_frame().unwrap() {
                let envelope: Envelope = decode(payload).unwrap();
                assert_eq!(envelope.generation, Generation(5));
                return envelope.event;
            }
            let mut buffer = [0; 4096];
            let length = match self.socket.as_mut().unwrap().read(&mut buffer) {
                // A machine that stops for a while interrupts a read with a timeout.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(length > 0, "the child hung up");
            self.frames.push(&buffer[..length]);
        }
    }

    fn until<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(found) = pick(self.hear()) {
                return found;
            }
        }
        panic!("it was not said in time");
    }

    fn load(&mut self, order: LoadOrder) -> ReadyReport {
        self.send(&Command::Load(order));
        self.until(|event| match event {
            Event::Ready(ready) => Some(*ready),
            Event::Fault(fault) => panic!("{fault}"),
            _ => None,
        })
    }

    fn load_tiny(&mut self, architecture: Architecture) -> ReadyReport {
        self.write_model("tiny.gguf", &tiny_model(architecture).build());
        let order = self.order("tiny.gguf");
        self.load(order)
    }

    fn refusal(&mut self, order: LoadOrder) -> Fault {
        self.send(&Command::Load(order));
        self.until(|event| match event {
            Event::Fault(fault) => Some(fault),
            Event::Ready(_) => panic!("it was loaded"),
            _ => None,
        })
    }

    fn generate(&mut self, submission: &Submission) -> Vec<TokenId> {
        self.send(&Command::Submit(Box::new(submission.clone())));
        let mut tokens = Vec::new();
        loop {
            let report = self.until(|event| match event {
                Event::Step(report) => Some(report),
                _ => None,
            });
            tokens.extend(report.drawn.iter().map(|token| token.token));
            if let Some(end) = report.finished.first() {
                assert_eq!(end.reason, FinishReason::MaxTokens);
                return tokens;
            }
        }
    }

    fn exit_code(&mut self) -> Option<ExitCode> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().and_then(ExitCode::from_code);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the child does not end");
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn submission(request: u64, temperature: f32) -> Submission {
    Submission {
        request: RequestId(request),
        prompt: b"Hello, world"
            .iter()
            .map(|&byte| TokenId(byte.into()))
            .collect(),
        params: Arc::new(GenerationParams {
            sampling: Sampling {
                temperature,
                seed: 11,
                ..Sampling::default()
            },
            max_tokens: 20,
            ignore_eos: true,
            ..GenerationParams::default()
        }),
        ..Submission::default()
    }
}

#[test]
fn every_architecture_is_served_and_repeats_itself() {
    for architecture in Architecture::ALL {
        let mut supervisor = Supervisor::start();
        let ready = supervisor.load_tiny(architecture);
        assert_eq!(ready.model.architecture, architecture.name());
        assert_eq!(ready.model.quant_kind, "F32");
        assert_eq!(ready.max_sequence_tokens, ready.model.context_length);
        for temperature in [0.0, 0.8] {
            let first = supervisor.generate(&submission(1, temperature));
            assert_eq!(first.len(), 20);
            assert_eq!(supervisor.generate(&submission(2, temperature)), first);
            let mut rest = submission(3, temperature);
            rest.generated = first[..7].to_vec();
            assert_eq!(supervisor.generate(&rest), first[7..], "{architecture:?}");
        }
        supervisor.send(&Command::Shutdown);
        supervisor.until(|event| (event == Event::Goodbye).then_some(()));
        assert_eq!(supervisor.exit_code(), Some(ExitCode::Clean));
    }
}

#[test]
fn the_trace_has_every_drawn_token() {
    let mut supervisor = Supervisor::start();
    let trace = supervisor.directory.path().join("trace.jsonl");
    supervisor.write_model("tiny.gguf", &tiny_model(Architecture::Llama).build());
    let mut order = supervisor.order("tiny.gguf");
    order.trace = Some(TraceOrder {
        path: trace.to_str().unwrap().to_owned(),
        first_values: 4,
    });
    supervisor.load(order);
    let tokens = supervisor.generate(&submission(1, 0.0));
    let text = std::fs::read_to_string(trace).unwrap();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), tokens.len());
    for ((line, token), position) in lines.iter().zip(&tokens).zip(12..) {
        assert_eq!(line["argmax"], token.0);
        assert_eq!(line["token_idx"], position);
        assert_eq!(line["values"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn what_cannot_be_loaded_is_told_and_ends_with_its_own_code() {
    let mut supervisor = Supervisor::start();
    let order = supervisor.order("missing.gguf");
    assert!(matches!(supervisor.refusal(order), Fault::ModelLoad { .. }));
    assert_eq!(
        supervisor.exit_code(),
        Some(ExitCode::Fault(FaultKind::ModelLoad))
    );

    let mut supervisor = Supervisor::start();
    let bytes = tiny_model(Architecture::Llama).build();
    supervisor.write_model("cut.gguf", &bytes[..bytes.len() / 2]);
    let order = supervisor.order("cut.gguf");
    assert!(matches!(supervisor.refusal(order), Fault::ModelLoad { .. }));

    let mut supervisor = Supervisor::start();
    supervisor.write_model("tiny.gguf", &bytes);
    let order = LoadOrder {
        // No machine has that many.
        device: DeviceSelector::Cuda(99),
        ..supervisor.order("tiny.gguf")
    };
    let fault = supervisor.refusal(order);
    assert!(
        fault.to_string().contains("cuda:99 cannot be used"),
        "{fault}"
    );
    assert_eq!(
        supervisor.exit_code(),
        Some(ExitCode::Fault(FaultKind::DeviceUnavailable))
    );
}

#[test]
fn it_ignores_ctrl_c_and_ends_when_the_socket_closes() {
    let mut supervisor = Supervisor::start();
    supervisor.load_tiny(Architecture::Llama);
    kill(Pid::from_raw(supervisor.child.id() as i32), Signal::SIGINT).unwrap();
    supervisor.generate(&submission(1, 0.0));
    supervisor.socket = None;
    assert_eq!(supervisor.exit_code(), Some(ExitCode::SupervisorLost));
}

#[test]
fn it_does_not_work_for_a_stranger() {
    let path = TempDir::new().unwrap().path().join("none.sock");
    let binary = env!("CARGO_BIN_EXE_worker-orcd-gpu");
    let run = |parent: &str| {
        let mut process = Process::new(binary);
        process
            .arg("--socket")
            .arg(&path)
            .args(["--generation", "1", "--parent", parent]);
        process
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .code()
            .and_then(ExitCode::from_code)
    };
    assert_eq!(run("1"), Some(ExitCode::SupervisorLost));
    assert_eq!(
        run(&std::process::id().to_string()),
        Some(ExitCode::Fault(FaultKind::Io)),
        "no socket there"
    );
    assert_eq!(run("x"), Some(ExitCode::Usage));
}

/// Runs this file's own binary, in the role below.
#[test]
fn a_panic_in_any_thread_is_told_and_ends_the_process() {
    let mut this = Process::new(std::env::current_exe().unwrap());
    this.args(["--exact", "role_of_a_panicking_child", "--nocapture", "--"]);
    this.env("ROLE", "panicking child");
    let mut supervisor = Supervisor::start_with(&mut this, &[]);
    let order = supervisor.order("any");
    let fault = supervisor.refusal(order);
    assert!(
        matches!(&fault, Fault::Panic { message, location } if message == "a test panics" && location.contains("child_process.rs")),
        "{fault}"
    );
    assert_eq!(
        supervisor.exit_code(),
        Some(ExitCode::Fault(FaultKind::Panic))
    );
}

/// A child with a panic in a thread of its loader; inactive unless the test above starts it.
#[test]
fn role_of_a_panicking_child() {
    use worker_orcd_gpu::flight_recorder::FlightRecorder;
    use worker_orcd_gpu::{exit, serve};
    if std::env::var_os("ROLE").is_none() {
        return;
    }
    let socket = UnixStream::connect(std::env::var_os("SOCKET").unwrap()).unwrap();
    let reader = socket.try_clone().unwrap();
    let link = std::sync::Arc::new(serve::Link::new(socket, Generation(5), exit::end_process()));
    let speaker = std::sync::Arc::clone(&link);
    exit::end_process_on_panic(move |fault| speaker.try_last_words(fault));
    let hello = serve::hello(&[], Vec::new());
    serve::serve(reader, link, hello, FlightRecorder::none(), |_, _| {
        std::thread::spawn(|| panic!("a test panics"))
            .join()
            .unwrap();
        unreachable!("the hook ends the process")
    });
}
