//! A draft model, with small random models.

use super::*;
use worker_orcd_gpu::model::GgufBuilder;
use worker_orcd_gpu::model::tiny_model::N_EMBD;

const TOKENS: usize = 40;

/// Outcome of three requests that run together.
#[derive(Debug, Default)]
struct Outcome {
    tokens: [Vec<u32>; 3],
    /// Verified and accepted drafts of the draft model.
    drafts: [u64; 2],
    stopped: Vec<String>,
    draft_bytes: u64,
}

/// Serves a model with or without a draft model.
fn served(model: &GgufBuilder, draft: Option<&GgufBuilder>) -> Outcome {
    let mut supervisor = Supervisor::start();
    supervisor.write_model("model.gguf", &model.build());
    let draft = draft.map(|draft| supervisor.write_model("draft.gguf", &draft.build()));
    let order = LoadOrder {
        draft_model: draft.map(|path| path.to_str().unwrap().to_owned()),
        kv_cache_bytes: Some(4 << 20),
        speculation: Speculation::Auto,
        ..supervisor.order("model.gguf")
    };
    let drafts = order.draft_model.is_some();
    assert_eq!(supervisor.load(order).draft_model.is_some(), drafts);
    for (request, temperature) in [(0, 0.0), (1, 0.7), (2, 1.0)] {
        let prompt = (0..8).map(|it| TokenId(20 + 3 * it + request as u32));
        supervisor.send(&Command::Submit(Box::new(Submission {
            request: RequestId(request),
            prompt: prompt.collect(),
            params: Arc::new(GenerationParams {
                max_tokens: TOKENS as u32,
                ignore_eos: true,
                sampling: Sampling {
                    temperature,
                    seed: request,
                    ..Sampling::default()
                },
                ..GenerationParams::default()
            }),
            ..Submission::default()
        })));
    }
    let mut outcome = Outcome::default();
    while !outcome.hear(supervisor.hear()) {}
    assert!(outcome.tokens.iter().all(|it| it.len() == TOKENS));
    outcome
}

impl Outcome {
    /// Records an event. True if all tokens are counted.
    fn hear(&mut self, event: Event) -> bool {
        match event {
            Event::Step(report) => {
                for drawn in report.drawn {
                    self.tokens[drawn.request.0 as usize].push(drawn.token.0);
                }
            }
            Event::DraftModelStopped { message } => self.stopped.push(message),
            Event::Heartbeat(beat) => {
                let counters = beat.load.counters;
                self.drafts = [
                    counters.model_draft_tokens,
                    counters.accepted_model_draft_tokens,
                ];
                self.draft_bytes = beat.memory.draft_bytes;
                return counters.generated_tokens == 3 * TOKENS as u64;
            }
            Event::Fault(fault) => panic!("{fault}"),
            _ => {}
        }
        false
    }
}

/// Drafts of the served file itself, which are all right if its states and windows are those of the text.
#[test]
fn recurrent_and_windowed_draft_models_draft_behind_their_own_states() {
    for architecture in [
        Architecture::Llama,
        Architecture::Gemma3,
        Architecture::Qwen35,
        Architecture::Lfm2,
        Architecture::GraniteHybrid,
    ] {
        let model = tiny_model(architecture);
        let expected = served(&model, None);
        assert_eq!(expected.drafts, [0; 2]);
        let drafting = served(&model, Some(&model));
        assert_eq!(drafting.tokens, expected.tokens, "{architecture:?}");
        let [offered, accepted] = drafting.drafts;
        assert!(
            accepted == offered && accepted > 20,
            "{accepted} of {offered} by {architecture:?}"
        );
        assert!(drafting.stopped.is_empty() && drafting.draft_bytes > 0);
    }
}

#[test]
fn a_draft_model_of_another_kind_changes_no_token() {
    let (model, draft) = (
        tiny_model(Architecture::Llama),
        tiny_model(Architecture::Qwen35),
    );
    let expected = served(&model, None);
    let drafting = served(&model, Some(&draft));
    assert_eq!(drafting.tokens, expected.tokens);
    assert!(drafting.drafts[0] > 0);
}

/// The child goes on without it, and reports no fault.
#[test]
fn a_draft_model_whose_logits_are_not_finite_is_given_up_and_streams_go_on() {
    let model = tiny_model(Architecture::Llama);
    let expected = served(&model, None);
    let norm = "output_norm.weight";
    for value in [f32::NAN, f32::INFINITY] {
        let broken = tiny_model(Architecture::Llama)
            .without_tensor(norm)
            .tensor_f32(norm, &[N_EMBD], &[value; N_EMBD as usize]);
        let drafting = served(&model, Some(&broken));
        assert_eq!(drafting.tokens, expected.tokens);
        assert_eq!((drafting.drafts, drafting.draft_bytes), ([0; 2], 0));
        let [reason] = &drafting.stopped[..] else {
            panic!("it is said once: {:?}", drafting.stopped);
        };
        assert!(reason.contains("its logits are not finite"), "{reason}");
    }
}
