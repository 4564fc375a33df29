//! One fixed sample of each message kind.
//!
//! Fields have distinct values, so that exchanged fields change the bytes. The `match` expressions have no wildcard: a new
//! variant does not compile without a sample.

use super::Message;
use std::sync::Arc;
use worker_orcd_ipc::{
    Began, ChildHello, ClientId, Command, Counters, DeviceError, DeviceFacts, DeviceSelector,
    Drafted, Drawn, DrawnLogprobs, Encoded, Envelope, Event, Fault, FinishReason, Finished,
    Generation, GenerationParams, Grammar, Heartbeat, KvReaders, KvSource, Load, LoadOrder,
    Logprobs, MemoryBound, MemoryReport, ModelFacts, ModelFile, ModelIdentity, PlacedTensor,
    Pooling, PromptLogprobs, ReadyReport, RequestId, Role, Sampling, SamplingAdvice, Scored,
    SealedPage, SealedPages, Sealing, Speculation, StepReport, Submission, ThinkingBudget, TokenId,
    TokenKind, TokenizerFacts, TokenizerKind, TraceOrder, WeightsManifest,
};

/// Samples as `(file stem, message)`, one for each kind.
pub fn all() -> Vec<(String, Message)> {
    let down = commands().into_iter().map(|command| {
        (
            format!("command-{}", command_name(&command)),
            Message::Down(command),
        )
    });
    let up = events().into_iter().map(|event| {
        let name = format!("event-{}", event_name(&event));
        (
            name,
            Message::Up(Envelope {
                generation: Generation(3),
                event,
            }),
        )
    });
    down.chain(up).collect()
}

fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Load(order) if order.device == DeviceSelector::Cpu => "load-cpu",
        Command::Load(_) => "load-cuda",
        Command::Submit(_) => "submit",
        Command::Cancel { .. } => "cancel",
        Command::Shutdown => "shutdown",
        Command::Promote { .. } => "promote",
        Command::CopyAhead { .. } => "copy-ahead",
        Command::Attach(_) => "attach",
        Command::ReleaseKv { .. } => "release-kv",
    }
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Hello(_) => "hello",
        Event::LoadProgress { .. } => "load-progress",
        Event::Ready(_) => "ready",
        Event::Heartbeat(_) => "heartbeat",
        Event::Step(_) => "step",
        Event::Fault(fault) => fault_name(fault),
        Event::TraceStopped { .. } => "trace-stopped",
        Event::DraftModelStopped { .. } => "draft-model-stopped",
        Event::Goodbye => "goodbye",
    }
}

fn fault_name(fault: &Fault) -> &'static str {
    match fault {
        Fault::ModelLoad { .. } => "fault-model-load",
        Fault::InsufficientMemory { .. } => "fault-insufficient-memory",
        Fault::DeviceUnavailable { .. } => "fault-device-unavailable",
        Fault::Device { error, .. } => match error {
            DeviceError::Cuda(_) => "fault-device-cuda",
            DeviceError::WrongResult => "fault-device-wrong-result",
            DeviceError::WeightsChanged => "fault-device-weights-changed",
            DeviceError::NotResident => "fault-device-not-resident",
        },
        Fault::NonFiniteLogits { .. } => "fault-non-finite-logits",
        Fault::Protocol { .. } => "fault-protocol",
        Fault::OutOfMemory { .. } => "fault-out-of-memory",
        Fault::Panic { .. } => "fault-panic",
        Fault::Io { .. } => "fault-io",
    }
}

fn commands() -> Vec<Command> {
    vec![
        Command::Load(load_order(DeviceSelector::Cpu)),
        Command::Load(load_order(DeviceSelector::Cuda(1))),
        Command::Submit(Box::new(submission())),
        Command::Cancel {
            request: RequestId(300),
        },
        Command::Shutdown,
        Command::Promote { traces: true },
        Command::CopyAhead {
            pages: vec![sealed_page(1), sealed_page(300)],
        },
        Command::Attach(KvSource {
            child: Generation(260),
            bytes: 1 << 21,
        }),
        Command::ReleaseKv {
            child: Generation(260),
        },
    ]
}

fn load_order(device: DeviceSelector) -> LoadOrder {
    LoadOrder {
        model_path: "/m.gguf".to_owned(),
        model_file: match device {
            DeviceSelector::Cpu => ModelFile::AtPath,
            DeviceSelector::Cuda(_) => ModelFile::HandedOver { parts: 3 },
        },
        draft_model: match device {
            DeviceSelector::Cpu => None,
            DeviceSelector::Cuda(_) => Some("/d.gguf".to_owned()),
        },
        weights: match device {
            DeviceSelector::Cpu => None,
            DeviceSelector::Cuda(_) => Some(manifest()),
        },
        kv_readers: match device {
            DeviceSelector::Cpu => KvReaders::Siblings,
            DeviceSelector::Cuda(_) => KvReaders::Successors,
        },
        adopts_from: match device {
            DeviceSelector::Cpu => None,
            DeviceSelector::Cuda(_) => Some(KvSource {
                child: Generation(260),
                bytes: 1 << 21,
            }),
        },
        has_second_fd_socket: true,
        device,
        kv_cache_bytes: Some(1 << 20),
        memory_permille: 900,
        max_running: 16,
        max_sequence_tokens: Some(2048),
        prefill_chunk_tokens: 512,
        step_budget_us: match device {
            DeviceSelector::Cpu => None,
            DeviceSelector::Cuda(_) => Some(20_000),
        },
        threads: Some(2),
        prefix_cache: true,
        speculation: match device {
            DeviceSelector::Cpu => Speculation::Text,
            DeviceSelector::Cuda(_) => Speculation::Auto,
        },
        trace: Some(TraceOrder {
            path: "/t".to_owned(),
            first_values: 8,
        }),
        role: match device {
            DeviceSelector::Cpu => Role::Active,
            DeviceSelector::Cuda(_) => Role::Standby,
        },
    }
}

fn submission() -> Submission {
    Submission {
        request: RequestId(300),
        client: ClientId(0x0123_4567_89ab_cdef),
        prompt: vec![TokenId(1), TokenId(250), TokenId(251), TokenId(70_000)],
        generated: vec![TokenId(9)],
        sealed: Some(SealedPages {
            child: Generation(261),
            pages: vec![sealed_page(70_001)],
        }),
        params: Arc::new(GenerationParams {
            sampling: Sampling {
                temperature: 0.75,
                top_k: 40,
                top_p: 0.5,
                min_p: 0.125,
                repetition_penalty: 1.25,
                frequency_penalty: -0.5,
                presence_penalty: 1.5,
                seed: u64::MAX,
            },
            max_tokens: 64,
            ignore_eos: true,
            logprobs: Some(20),
            grammar: Some(Arc::new(Grammar::Choice(vec![
                "yes".to_owned(),
                "no".to_owned(),
            ]))),
            logit_bias: vec![(TokenId(250), -100.0), (TokenId(70_000), 0.5)],
            thinking: Some(Arc::new(ThinkingBudget {
                tokens: 300,
                open: Some("<think>".to_owned()),
                close: "</think>".to_owned(),
                closing: vec![TokenId(251), TokenId(70_000)],
            })),
            min_tokens: 252,
            stop_token_ids: [TokenId(253), TokenId(70_002)].into(),
            allowed_token_ids: [TokenId(254)].into(),
            without_drafts: true,
            prediction: [TokenId(255), TokenId(70_003)].into(),
        }),
        prompt_logprobs: Some(PromptLogprobs {
            top: 20,
            reported: 3,
        }),
        embeds: Some(Pooling::Cls),
    }
}

fn sealed_page(page: u32) -> SealedPage {
    SealedPage {
        page,
        tokens: 300,
        checksum: (1 << 100) + u128::from(page),
    }
}

fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Hello(ChildHello {
            pid: 4242,
            build: "0.1.0".to_owned(),
            features: vec!["fault-injection".to_owned()],
            arena_layout: 0x0123_4567_89ab_cdef,
            confinement_gaps: vec!["it was switched off".to_owned()],
        }),
        Event::LoadProgress {
            bytes_done: 65_536,
            bytes_total: 98_362_432,
        },
        Event::Ready(Box::new(ready())),
        Event::Heartbeat(heartbeat()),
        Event::Step(step()),
        Event::TraceStopped {
            message: "/trace.jsonl: No space left on device".to_owned(),
        },
        Event::DraftModelStopped {
            message: "/draft.gguf: No such file or directory".to_owned(),
        },
        Event::Goodbye,
    ];
    events.extend(faults().into_iter().map(Event::Fault));
    events
}

fn ready() -> ReadyReport {
    ReadyReport {
        model: ModelFacts {
            name: "tiny".to_owned(),
            architecture: "llama".to_owned(),
            quant_kind: "Q4_1".to_owned(),
            tensor_types: vec![("F32".to_owned(), 3, 96), ("Q4_1".to_owned(), 7, 140)],
            parameters: 1000,
            file_bytes: 2000,
            n_layers: 2,
            n_embd: 32,
            n_heads: 4,
            n_kv_heads: 1,
            head_dim: 8,
            vocab_size: 3,
            context_length: 128,
            pooling_type: Some(3),
            rerank_template: Some("{query}{document}".to_owned()),
        },
        identity: ModelIdentity(std::array::from_fn(|i| 0xa0 + i as u8)),
        weights: manifest(),
        tokenizer: Encoded::of(&tokenizer()).unwrap(),
        sampling: SamplingAdvice {
            temperature: Some(0.625),
            top_k: Some(20),
            top_p: Some(0.9375),
            min_p: None,
            repetition_penalty: Some(1.0625),
            out_of_range: vec!["general.sampling.min_p".to_owned()],
            unsupported: vec!["general.sampling.mirostat".to_owned()],
        },
        device: DeviceFacts {
            id: "cuda:1".to_owned(),
            name: "card".to_owned(),
            uuid: Some("GPU-1".to_owned()),
            driver: Some("580".to_owned()),
            compute_capability: Some((9, 0)),
            features: vec!["avx2".to_owned()],
            threads: Some(5),
        },
        memory: memory(),
        max_running: 16,
        max_sequence_tokens: 127,
        kv_capacity_tokens: 4096,
        copies_ahead: true,
        draft_model: Some("d".to_owned()),
    }
}

fn tokenizer() -> TokenizerFacts {
    TokenizerFacts {
        kind: TokenizerKind::ByteLevelBpe,
        pre: "smollm".to_owned(),
        tokens: vec!["a".to_owned(), "Ġb".to_owned(), "<|end|>".to_owned()],
        kinds: vec![
            TokenKind::Normal,
            TokenKind::UserDefined,
            TokenKind::Control,
        ],
        scores: vec![-1.0, 0.0, 0.5],
        merges: vec!["Ġ b".to_owned()],
        bos: Some(TokenId(1)),
        eos: Some(TokenId(2)),
        end_of_generation: vec![TokenId(2)],
        unknown: None,
        add_bos: true,
        add_eos: false,
        add_space_prefix: true,
        chat_template: Some("{{ x }}".to_owned()),
    }
}

fn memory() -> MemoryReport {
    MemoryReport {
        total_bytes: Some(1 << 40),
        free_bytes: None,
        bound: Some(MemoryBound::ControlGroup),
        weights_bytes: 98_000_000,
        kv_capacity_bytes: 1 << 24,
        kv_used_bytes: 300,
        kv_taken_bytes: Some(1 << 20),
        scratch_bytes: 70_000,
        graphs_bytes: 6_000,
        draft_bytes: 5_000,
        context_bytes: Some(250),
        resident: Some(true),
        weights_checked: 7,
    }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        steps: 1000,
        step_elapsed_ms: Some(251),
        step_overdue: true,
        load: Load {
            running: 4,
            waiting: 2,
            kv_used_tokens: 999,
            counters: Counters {
                prefix_hit_tokens: 10,
                prompt_tokens: 20,
                generated_tokens: 30,
                draft_tokens: 80,
                accepted_draft_tokens: 90,
                model_draft_tokens: 55,
                accepted_model_draft_tokens: 44,
                adopted_tokens: 40,
                changed_pages: 50,
                mixed_steps: 60,
                mixed_prompt_tokens: 70,
            },
            step_budget_us: Some(8_000),
        },
        memory: memory(),
    }
}

fn step() -> StepReport {
    let finish = |request, reason| Finished {
        request: RequestId(request),
        reason,
    };
    StepReport {
        step: 1001,
        began: vec![Began {
            request: RequestId(4),
            cached_tokens: 256,
        }],
        scored: vec![Scored {
            request: RequestId(5),
            first: 3,
            logprobs: vec![Logprobs {
                of_token: -0.25,
                rank: 1,
                top: vec![(TokenId(252), -0.25)],
            }],
        }],
        drawn: vec![Drawn {
            request: RequestId(5),
            index: 6,
            token: TokenId(49_151),
        }],
        drafted: vec![Drafted {
            request: RequestId(5),
            drafts: 300,
        }],
        logprobs: vec![DrawnLogprobs {
            request: RequestId(5),
            index: 6,
            logprobs: Logprobs {
                of_token: -2.5,
                rank: 2,
                top: vec![(TokenId(252), -0.25), (TokenId(49_151), -2.5)],
            },
        }],
        finished: vec![
            finish(5, FinishReason::MaxTokens),
            finish(6, FinishReason::EndOfSequence),
            finish(7, FinishReason::Cancelled),
            finish(
                8,
                FinishReason::OutOfMemory {
                    needed_bytes: 11,
                    available_bytes: 12,
                },
            ),
            finish(
                9,
                FinishReason::Refused {
                    message: "no".to_owned(),
                },
            ),
            finish(
                15,
                FinishReason::GrammarFailed {
                    message: "too deep".to_owned(),
                },
            ),
            finish(
                10,
                FinishReason::Embedded {
                    values: vec![0.5, -2.0],
                },
            ),
        ],
        sealed: vec![Sealing {
            request: RequestId(10),
            first: 3,
            pages: vec![sealed_page(13), sealed_page(14)],
        }],
    }
}

fn faults() -> Vec<Fault> {
    let text = |text: &str| text.to_owned();
    let device = |error| Fault::Device {
        error,
        message: text("x"),
    };
    vec![
        Fault::ModelLoad {
            message: text("bad magic"),
        },
        Fault::InsufficientMemory {
            required_bytes: 100,
            available_bytes: 50,
            device: text("cpu"),
            model: text("m"),
        },
        Fault::DeviceUnavailable {
            message: text("no driver"),
        },
        device(DeviceError::Cuda(text("CUDA_ERROR_ECC_UNCORRECTABLE"))),
        device(DeviceError::WrongResult),
        device(DeviceError::WeightsChanged),
        device(DeviceError::NotResident),
        Fault::NonFiniteLogits {
            step: 7,
            request: RequestId(8),
        },
        Fault::Protocol { message: text("p") },
        Fault::OutOfMemory { message: text("o") },
        Fault::Panic {
            message: text("m"),
            location: text("a.rs:1"),
        },
        Fault::Io { message: text("i") },
    ]
}

fn manifest() -> WeightsManifest {
    WeightsManifest {
        arena_layout: 77,
        bytes: 512,
        tensors: vec![PlacedTensor {
            name: "w".to_owned(),
            ty: "Q4_K".to_owned(),
            rows: 1,
            cols: 256,
            offset: 256,
            bytes: 144,
            checksum: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        }],
    }
}
