//! Strategies for random messages. Every variant and every optional field is reachable. The strategies are boxed, because
//! nested value trees of all variants would exceed the stack of a test.

mod beats;
mod submissions;

use super::Message;
use beats::{heartbeat, memory};
use proptest::collection::vec;
use proptest::num::f32;
use proptest::option::of;
use proptest::prelude::*;
use submissions::submission;
use worker_orcd_ipc::{
    Began, ChildHello, Command, DeviceError, DeviceFacts, DeviceSelector, Drafted, Drawn,
    DrawnLogprobs, Encoded, Envelope, Event, Fault, FinishReason, Finished, Generation, KvReaders,
    KvSource, LoadOrder, Logprobs, ModelFacts, ModelFile, ModelIdentity, PlacedTensor, ReadyReport,
    RequestId, Role, SamplingAdvice, Scored, SealedPage, SealedPages, Sealing, Speculation,
    StepReport, TokenId, TokenKind, TokenizerFacts, TokenizerKind, TraceOrder, WeightsManifest,
};

pub fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        command().prop_map(Message::Down),
        envelope().prop_map(Message::Up)
    ]
}

pub fn command() -> BoxedStrategy<Command> {
    prop_oneof![
        load_order().prop_map(Command::Load),
        submission().prop_map(|submission| Command::Submit(Box::new(submission))),
        request().prop_map(|request| Command::Cancel { request }),
        Just(Command::Shutdown),
        any::<bool>().prop_map(|traces| Command::Promote { traces }),
        pages().prop_map(|pages| Command::CopyAhead { pages }),
        kv_source().prop_map(Command::Attach),
        any::<u32>().prop_map(|child| Command::ReleaseKv {
            child: Generation(child)
        }),
    ]
    .boxed()
}

pub fn envelope() -> BoxedStrategy<Envelope> {
    (any::<u32>(), event())
        .prop_map(|(generation, event)| Envelope {
            generation: Generation(generation),
            event,
        })
        .boxed()
}

fn event() -> BoxedStrategy<Event> {
    let words = || vec(text(), 0..3);
    let hello = (any::<u32>(), text(), words(), any::<u64>(), words());
    prop_oneof![
        hello.prop_map(|(pid, build, features, arena_layout, confinement_gaps)| {
            Event::Hello(ChildHello {
                pid,
                build,
                features,
                arena_layout,
                confinement_gaps,
            })
        }),
        (any::<u64>(), any::<u64>()).prop_map(|(bytes_done, bytes_total)| {
            Event::LoadProgress {
                bytes_done,
                bytes_total,
            }
        }),
        ready().prop_map(|ready| Event::Ready(Box::new(ready))),
        heartbeat().prop_map(Event::Heartbeat),
        step().prop_map(Event::Step),
        fault().prop_map(Event::Fault),
        text().prop_map(|message| Event::TraceStopped { message }),
        text().prop_map(|message| Event::DraftModelStopped { message }),
        Just(Event::Goodbye),
    ]
    .boxed()
}

/// Text with multi-byte characters.
fn text() -> impl Strategy<Value = String> {
    any::<String>()
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn token() -> impl Strategy<Value = TokenId> {
    any::<u32>().prop_map(TokenId)
}

/// Floats without NaN, which would not be equal to itself.
fn float() -> impl Strategy<Value = f32> {
    f32::NORMAL | f32::SUBNORMAL | f32::ZERO | f32::INFINITE
}

fn load_order() -> BoxedStrategy<LoadOrder> {
    let device = prop_oneof![
        Just(DeviceSelector::Cpu),
        any::<u32>().prop_map(DeviceSelector::Cuda)
    ];
    let trace =
        (text(), any::<u32>()).prop_map(|(path, first_values)| TraceOrder { path, first_values });
    (
        (
            text(),
            prop_oneof![
                Just(ModelFile::AtPath),
                any::<u16>().prop_map(|parts| ModelFile::HandedOver { parts })
            ],
            (of(manifest()), of(text())),
            device,
            any::<Option<u64>>(),
            any::<u16>(),
            any::<u32>(),
            any::<Option<u32>>(),
        ),
        (
            any::<u32>(),
            any::<Option<u32>>(),
            any::<Option<u32>>(),
            any::<bool>(),
            prop_oneof![
                Just(Speculation::Off),
                Just(Speculation::Text),
                Just(Speculation::Auto)
            ],
            of(trace),
            prop_oneof![Just(Role::Active), Just(Role::Standby)],
            kv_readers(),
            of(kv_source()),
            any::<bool>(),
        ),
    )
        .prop_map(
            |(
                (
                    model_path,
                    model_file,
                    (weights, draft_model),
                    device,
                    kv_cache_bytes,
                    memory_permille,
                    max_running,
                    max_sequence_tokens,
                ),
                (
                    prefill_chunk_tokens,
                    step_budget_us,
                    threads,
                    prefix_cache,
                    speculation,
                    trace,
                    role,
                    kv_readers,
                    adopts_from,
                    has_second_fd_socket,
                ),
            )| LoadOrder {
                model_path,
                model_file,
                draft_model,
                weights,
                kv_readers,
                adopts_from,
                has_second_fd_socket,
                device,
                kv_cache_bytes,
                memory_permille,
                max_running,
                max_sequence_tokens,
                prefill_chunk_tokens,
                step_budget_us,
                threads,
                prefix_cache,
                speculation,
                trace,
                role,
            },
        )
        .boxed()
}

fn child() -> impl Strategy<Value = Generation> {
    any::<u32>().prop_map(Generation)
}

fn kv_readers() -> BoxedStrategy<KvReaders> {
    prop_oneof![
        Just(KvReaders::None),
        Just(KvReaders::Siblings),
        Just(KvReaders::Successors),
    ]
    .boxed()
}

fn kv_source() -> impl Strategy<Value = KvSource> {
    (child(), any::<u64>()).prop_map(|(child, bytes)| KvSource { child, bytes })
}

fn pages() -> impl Strategy<Value = Vec<SealedPage>> {
    let page = (any::<u32>(), any::<u32>(), any::<u128>());
    let page = page.prop_map(|(page, tokens, checksum)| SealedPage {
        page,
        tokens,
        checksum,
    });
    vec(page, 0..5)
}

fn sealed_pages() -> impl Strategy<Value = SealedPages> {
    (child(), pages()).prop_map(|(child, pages)| SealedPages { child, pages })
}

fn ready() -> BoxedStrategy<ReadyReport> {
    (
        (
            model(),
            any::<[u8; 16]>().prop_map(ModelIdentity),
            manifest(),
        ),
        (tokenizer(), advice()),
        device(),
        memory(),
        (
            any::<u32>(),
            any::<u32>(),
            any::<u64>(),
            any::<bool>(),
            of(text()),
        ),
    )
        .prop_map(
            |(
                (model, identity, weights),
                (tokenizer, sampling),
                device,
                memory,
                (max_running, max_sequence_tokens, kv, copies_ahead, draft_model),
            )| {
                ReadyReport {
                    model,
                    identity,
                    weights,
                    tokenizer: Encoded::of(&tokenizer).expect("it fits"),
                    sampling,
                    device,
                    memory,
                    max_running,
                    max_sequence_tokens,
                    kv_capacity_tokens: kv,
                    copies_ahead,
                    draft_model,
                }
            },
        )
        .boxed()
}

fn manifest() -> BoxedStrategy<WeightsManifest> {
    let shape = (any::<u64>(), any::<u64>());
    let place = (any::<u64>(), any::<u64>());
    let tensor = (
        any::<String>(),
        any::<String>(),
        shape,
        place,
        any::<u128>(),
    )
        .prop_map(
            |(name, ty, (rows, cols), (offset, bytes), checksum)| PlacedTensor {
                name,
                ty,
                rows,
                cols,
                offset,
                bytes,
                checksum,
            },
        );
    (any::<u64>(), any::<u64>(), vec(tensor, 0..3))
        .prop_map(|(arena_layout, bytes, tensors)| WeightsManifest {
            arena_layout,
            bytes,
            tensors,
        })
        .boxed()
}

fn advice() -> impl Strategy<Value = SamplingAdvice> {
    let floats = [0; 4].map(|_| of(float()));
    let keys = || vec(text(), 0..4);
    (floats, any::<Option<u32>>(), keys(), keys()).prop_map(
        |([temperature, top_p, min_p, repetition_penalty], top_k, out_of_range, unsupported)| {
            SamplingAdvice {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                out_of_range,
                unsupported,
            }
        },
    )
}

fn model() -> BoxedStrategy<ModelFacts> {
    (
        (
            text(),
            text(),
            text(),
            vec((text(), any::<u32>(), any::<u64>()), 0..4),
        ),
        (
            any::<u64>(),
            any::<u64>(),
            any::<[u32; 7]>(),
            of(any::<u32>()),
            of(text()),
        ),
    )
        .prop_map(
            |(
                (name, architecture, quant_kind, tensor_types),
                (
                    parameters,
                    file_bytes,
                    [
                        n_layers,
                        n_embd,
                        n_heads,
                        n_kv_heads,
                        head_dim,
                        vocab_size,
                        context_length,
                    ],
                    pooling_type,
                    rerank_template,
                ),
            )| ModelFacts {
                name,
                architecture,
                quant_kind,
                tensor_types,
                parameters,
                file_bytes,
                n_layers,
                n_embd,
                n_heads,
                n_kv_heads,
                head_dim,
                vocab_size,
                context_length,
                pooling_type,
                rerank_template,
            },
        )
        .boxed()
}

fn tokenizer() -> BoxedStrategy<TokenizerFacts> {
    let kind = prop_oneof![
        Just(TokenizerKind::ByteLevelBpe),
        Just(TokenizerKind::SentencePiece),
        Just(TokenizerKind::CharacterBpe)
    ];
    let token_kind = prop_oneof![
        Just(TokenKind::Normal),
        Just(TokenKind::Unknown),
        Just(TokenKind::Control),
        Just(TokenKind::UserDefined),
        Just(TokenKind::Unused),
        Just(TokenKind::Byte),
    ];
    let words = (
        vec(text(), 0..6),
        vec(token_kind, 0..6),
        vec(float(), 0..6),
        vec(text(), 0..6),
    );
    let ids = (of(token()), of(token()), vec(token(), 0..3), of(token()));
    (kind, text(), words, ids, any::<[bool; 3]>(), of(text()))
        .prop_map(
            |(
                kind,
                pre,
                (tokens, kinds, scores, merges),
                (bos, eos, end_of_generation, unknown),
                [add_bos, add_eos, add_space_prefix],
                chat_template,
            )| TokenizerFacts {
                kind,
                pre,
                tokens,
                kinds,
                scores,
                merges,
                bos,
                eos,
                end_of_generation,
                unknown,
                add_bos,
                add_eos,
                add_space_prefix,
                chat_template,
            },
        )
        .boxed()
}

fn device() -> BoxedStrategy<DeviceFacts> {
    (
        (text(), text(), of(text()), of(text())),
        (
            any::<Option<(u32, u32)>>(),
            vec(text(), 0..3),
            any::<Option<u32>>(),
        ),
    )
        .prop_map(
            |((id, name, uuid, driver), (compute_capability, features, threads))| DeviceFacts {
                id,
                name,
                uuid,
                driver,
                compute_capability,
                features,
                threads,
            },
        )
        .boxed()
}

fn step() -> BoxedStrategy<StepReport> {
    let drawn = (request(), any::<u32>(), token()).prop_map(|(request, index, token)| Drawn {
        request,
        index,
        token,
    });
    let top = vec((token(), float()), 0..5);
    let of_token = (float(), any::<u32>(), top).prop_map(|(of_token, rank, top)| Logprobs {
        of_token,
        rank,
        top,
    });
    let of_token = of_token.boxed();
    let scored = (request(), any::<u32>(), vec(of_token.clone(), 0..4)).prop_map(
        |(request, first, logprobs)| Scored {
            request,
            first,
            logprobs,
        },
    );
    let logprobs =
        (request(), any::<u32>(), of_token).prop_map(|(request, index, logprobs)| DrawnLogprobs {
            request,
            index,
            logprobs,
        });
    let finished = (request(), reason()).prop_map(|(request, reason)| Finished { request, reason });
    let began = (request(), any::<u32>()).prop_map(|(request, cached_tokens)| Began {
        request,
        cached_tokens,
    });
    let drafted =
        (request(), any::<u32>()).prop_map(|(request, drafts)| Drafted { request, drafts });
    let sealing = (request(), any::<u32>(), pages()).prop_map(|(request, first, pages)| Sealing {
        request,
        first,
        pages,
    });
    (
        any::<u64>(),
        vec(began, 0..5),
        vec(scored, 0..3),
        vec(drawn, 0..20),
        vec(drafted, 0..5),
        vec(logprobs, 0..5),
        vec(finished, 0..20),
        vec(sealing, 0..5),
    )
        .prop_map(
            |(step, began, scored, drawn, drafted, logprobs, finished, sealed)| StepReport {
                step,
                began,
                scored,
                drawn,
                drafted,
                logprobs,
                finished,
                sealed,
            },
        )
        .boxed()
}

fn reason() -> impl Strategy<Value = FinishReason> {
    prop_oneof![
        Just(FinishReason::MaxTokens),
        Just(FinishReason::EndOfSequence),
        Just(FinishReason::Cancelled),
        (any::<u64>(), any::<u64>()).prop_map(|(needed_bytes, available_bytes)| {
            FinishReason::OutOfMemory {
                needed_bytes,
                available_bytes,
            }
        }),
        text().prop_map(|message| FinishReason::Refused { message }),
        text().prop_map(|message| FinishReason::GrammarFailed { message }),
        vec(float(), 0..9).prop_map(|values| FinishReason::Embedded { values }),
    ]
}

fn device_error() -> BoxedStrategy<DeviceError> {
    prop_oneof![
        text().prop_map(DeviceError::Cuda),
        Just(DeviceError::WrongResult),
        Just(DeviceError::WeightsChanged),
        Just(DeviceError::NotResident),
    ]
    .boxed()
}

fn fault() -> BoxedStrategy<Fault> {
    let memory = (any::<u64>(), any::<u64>(), text(), text());
    prop_oneof![
        text().prop_map(|message| Fault::ModelLoad { message }),
        memory.prop_map(|(required_bytes, available_bytes, device, model)| {
            Fault::InsufficientMemory {
                required_bytes,
                available_bytes,
                device,
                model,
            }
        }),
        text().prop_map(|message| Fault::DeviceUnavailable { message }),
        (device_error(), text()).prop_map(|(error, message)| Fault::Device { error, message }),
        (any::<u64>(), request())
            .prop_map(|(step, request)| Fault::NonFiniteLogits { step, request }),
        text().prop_map(|message| Fault::Protocol { message }),
        text().prop_map(|message| Fault::OutOfMemory { message }),
        (text(), text()).prop_map(|(message, location)| Fault::Panic { message, location }),
        text().prop_map(|message| Fault::Io { message }),
    ]
    .boxed()
}
