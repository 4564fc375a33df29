//! Decoding speed of the child: the engine around the device, and the socket to the supervisor.
//!
//!     cargo run --release --example child_speed -- [0.5b|7b|135m] [F16|Q8_0|...] \
//!         [greedy|plain|top_k|top_p|both|penalties] [streams...]
//!
//! Random weights as in `cuda_speed`, which measures the step without waits of the device for
//! the host. Each stream has a prompt of 128 tokens and draws 64; the measured time is from the
//! first step with a token of every stream to the last such step.

use shapes::BoxError;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use worker_orcd_gpu::device::cuda::{CudaExecutor, CudaOptions, Device};
use worker_orcd_gpu::device::{Beside, LoadOptions, Source};
use worker_orcd_gpu::flight_recorder::FlightRecorder;
use worker_orcd_gpu::serve::{Link, Loaded, hello, serve};
use worker_orcd_ipc::frame::write_frame;
use worker_orcd_ipc::{
    Command, DeviceSelector, Envelope, Event, FrameReader, Generation, GenerationParams, KvReaders,
    LoadOrder, ModelFacts, ModelFile, ModelIdentity, Preamble, RequestId, Role, Sampling,
    SamplingAdvice, Speculation, Submission, TokenId, TokenizerFacts, TokenizerKind,
    WeightsManifest, decode, encode,
};

#[path = "shared/shapes.rs"]
mod shapes;
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod support;

const PROMPT: u32 = 128;
const COMPLETION: u32 = 64;
const MAX_STREAMS: u32 = 256;

fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let shape = args.first().map_or("0.5b", String::as_str);
    let ty = shapes::tensor_type(args.get(1).map_or("F16", String::as_str))?;
    let name = args.get(2).map_or("greedy", String::as_str);
    let sampling = shapes::sampling(name)?;
    let streams: Vec<u32> = match args.get(3..) {
        None | Some([]) => vec![1, 8, 32, 256],
        Some(numbers) => numbers
            .iter()
            .map(|n| n.parse())
            .collect::<Result<_, _>>()?,
    };
    let model = support::Model::random_tied(shapes::config(shape)?, [ty; 9]);
    let (ours, theirs) = UnixStream::pair()?;
    let reader = theirs.try_clone()?;
    // The link ends with this process.
    let link = Arc::new(Link::new(theirs, Generation::FIRST, Arc::new(|_| ())));
    std::thread::spawn(move || {
        serve(
            reader,
            link,
            hello(&[], Vec::new()),
            FlightRecorder::none(),
            |_, _| load(&model),
        );
    });
    let mut supervisor = Supervisor {
        socket: ours,
        frames: FrameReader::new(),
    };
    supervisor.begin()?;
    for streams in streams {
        let (steps, seconds) = supervisor.measure(streams.min(MAX_STREAMS), sampling)?;
        let micros = seconds * 1e6 / f64::from(steps);
        let rate = f64::from(streams) * 1e6 / micros;
        println!("served {streams:4} {name}: {micros:8.0} us a step, {rate:8.0} tok/s");
    }
    Ok(())
}

fn load(model: &support::Model) -> Result<Loaded, worker_orcd_ipc::Fault> {
    let options = CudaOptions {
        memory_permille: 900,
        max_sequences: MAX_STREAMS,
        load: LoadOptions {
            kv_cache_bytes: Some(8 << 30),
            max_batch_tokens: 2048,
            max_sequence_tokens: 2048,
            role: worker_orcd_ipc::Role::Active,
            kv_readers: KvReaders::None,
            lent: 0,
            beside: Beside::default(),
            model: "random".to_owned(),
        },
    };
    let executor = CudaExecutor::load(
        Device::open(0)?,
        Source {
            config: &model.config,
            weights: &model.weights(),
            file: None,
            retained: None,
        },
        &options,
        &mut |_, _| (),
    )?;
    let config = &model.config;
    Ok(Loaded {
        executor: Box::new(executor),
        model: ModelFacts {
            name: "random".to_owned(),
            architecture: "qwen2".to_owned(),
            quant_kind: String::new(),
            tensor_types: vec![],
            parameters: 0,
            file_bytes: 0,
            n_layers: config.n_layers as u32,
            n_embd: config.n_embd as u32,
            n_heads: config.n_heads as u32,
            n_kv_heads: config.n_kv_heads as u32,
            head_dim: config.head_dim as u32,
            vocab_size: config.vocab_size as u32,
            context_length: 2048,
            pooling_type: None,
            rerank_template: None,
        },
        identity: ModelIdentity([0; 16]),
        weights: WeightsManifest::default(),
        tokenizer: TokenizerFacts {
            kind: TokenizerKind::ByteLevelBpe,
            pre: String::new(),
            tokens: vec![],
            kinds: vec![],
            scores: vec![],
            merges: vec![],
            bos: None,
            eos: None,
            end_of_generation: vec![],
            unknown: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            chat_template: None,
        },
        sampling: SamplingAdvice::default(),
        max_sequence_tokens: 2048,
        suppressed: Vec::new(),
        rank_head: None,
        draft: None,
        adopts_from: None,
        late_fd_socket: None,
    })
}

struct Supervisor {
    socket: UnixStream,
    frames: FrameReader,
}

impl Supervisor {
    fn begin(&mut self) -> Result<(), BoxError> {
        self.socket.write_all(&Preamble::OURS.to_bytes())?;
        self.send(&Command::Load(LoadOrder {
            model_path: String::new(),
            model_file: ModelFile::AtPath,
            draft_model: None,
            weights: None,
            kv_readers: KvReaders::None,
            adopts_from: None,
            has_second_fd_socket: false,
            device: DeviceSelector::Cuda(0),
            kv_cache_bytes: None,
            memory_permille: 900,
            max_running: MAX_STREAMS,
            max_sequence_tokens: None,
            prefill_chunk_tokens: 2048,
            step_budget_us: None,
            threads: None,
            prefix_cache: false,
            speculation: Speculation::Off,
            trace: None,
            role: Role::Active,
        }))?;
        loop {
            match self.hear()? {
                Event::Ready(_) => return Ok(()),
                Event::Fault(fault) => return Err(fault.to_string().into()),
                _ => {}
            }
        }
    }

    fn send(&mut self, command: &Command) -> Result<(), BoxError> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &encode(command)?)?;
        Ok(self.socket.write_all(&bytes)?)
    }

    fn hear(&mut self) -> Result<Event, BoxError> {
        loop {
            if let Some(payload) = self.frames.next_frame()? {
                let envelope: Envelope = decode(payload)?;
                return Ok(envelope.event);
            }
            let mut buffer = [0; 65536];
            let length = self.socket.read(&mut buffer)?;
            if length == 0 {
                return Err("the child hung up".into());
            }
            self.frames.push(&buffer[..length]);
        }
    }

    /// Steps with a token of every stream, and the seconds between the first and the last.
    fn measure(&mut self, streams: u32, sampling: Sampling) -> Result<(u32, f64), BoxError> {
        for stream in 0..streams {
            self.send(&Command::Submit(Box::new(Submission {
                request: RequestId(u64::from(stream)),
                prompt: (0..PROMPT)
                    .map(|i| TokenId((i * 37 + stream) % 1000))
                    .collect(),
                params: Arc::new(GenerationParams {
                    sampling: Sampling {
                        seed: u64::from(stream),
                        ..sampling
                    },
                    max_tokens: COMPLETION,
                    ignore_eos: true,
                    ..GenerationParams::default()
                }),
                ..Submission::default()
            })))?;
        }
        let (mut left, mut full, mut first, mut last) = (streams, 0, None, Instant::now());
        while left > 0 {
            match self.hear()? {
                Event::Step(report) => {
                    left -= report.finished.len() as u32;
                    if report.drawn.len() as u32 == streams {
                        last = Instant::now();
                        first.get_or_insert(last);
                        full += 1;
                    }
                }
                Event::Fault(fault) => return Err(fault.to_string().into()),
                _ => {}
            }
        }
        let first = first.ok_or("never all of them")?;
        Ok((full - 1, (last - first).as_secs_f64()))
    }
}
