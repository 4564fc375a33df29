//! Strategies for requests.

use super::*;
use std::sync::Arc;
use worker_orcd_ipc::{
    ClientId, GenerationParams, Grammar, Pooling, PromptLogprobs, Sampling, Submission,
    ThinkingBudget,
};

pub(super) fn submission() -> BoxedStrategy<Submission> {
    let tokens = || vec(token(), 0..40);
    (
        request(),
        any::<u64>().prop_map(ClientId),
        tokens(),
        tokens(),
        of(sealed_pages()),
        sampling(),
        any::<u32>(),
        (
            any::<bool>(),
            of(any::<u8>()),
            of((any::<u8>(), any::<u32>())),
            of(grammar()),
            of(pooling()),
            vec((token(), float()), 0..5),
            of(thinking()),
            (
                any::<u32>(),
                vec(token(), 0..3),
                vec(token(), 0..3),
                any::<bool>(),
                vec(token(), 0..3),
            ),
        ),
    )
        .prop_map(
            |(
                request,
                client,
                prompt,
                generated,
                sealed,
                sampling,
                max_tokens,
                (
                    ignore_eos,
                    logprobs,
                    scores,
                    grammar,
                    embeds,
                    logit_bias,
                    thinking,
                    (min, stop, allowed, without_drafts, prediction),
                ),
            )| {
                Submission {
                    request,
                    client,
                    prompt,
                    generated,
                    sealed,
                    params: Arc::new(GenerationParams {
                        sampling,
                        max_tokens,
                        ignore_eos,
                        logprobs,
                        grammar: grammar.map(Arc::new),
                        logit_bias,
                        thinking: thinking.map(Arc::new),
                        min_tokens: min,
                        stop_token_ids: stop.into(),
                        allowed_token_ids: allowed.into(),
                        without_drafts,
                        prediction: prediction.into(),
                    }),
                    prompt_logprobs: scores.map(|(top, reported)| PromptLogprobs { top, reported }),
                    embeds,
                }
            },
        )
        .boxed()
}

fn grammar() -> impl Strategy<Value = Grammar> {
    prop_oneof![
        text().prop_map(Grammar::JsonSchema),
        text().prop_map(Grammar::Regex),
        vec(text(), 0..4).prop_map(Grammar::Choice),
        text().prop_map(Grammar::Lark),
    ]
}

fn thinking() -> impl Strategy<Value = ThinkingBudget> {
    (any::<u32>(), of(text()), text(), vec(token(), 0..4)).prop_map(
        |(tokens, open, close, closing)| ThinkingBudget {
            tokens,
            open,
            close,
            closing,
        },
    )
}

fn pooling() -> impl Strategy<Value = Pooling> {
    prop_oneof![
        Just(Pooling::Mean),
        Just(Pooling::Cls),
        Just(Pooling::Last),
        Just(Pooling::Rank),
    ]
}

fn sampling() -> impl Strategy<Value = Sampling> {
    (
        float(),
        any::<u32>(),
        float(),
        float(),
        float(),
        float(),
        float(),
        any::<u64>(),
    )
        .prop_map(
            |(
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
                seed,
            )| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
                seed,
            },
        )
}
