//! Log probabilities of prompts arrive before the tokens after them, beside completions.

use super::counter::{BROKEN, Counter, loaded_with};
use super::*;
use worker_orcd_ipc::PromptLogprobs;
use worker_orcd_sampler::logprobs;

/// A request with log probabilities of its prompt.
pub fn scoring(request: u64, prompt: &[u32], max_tokens: u32) -> Command {
    Command::Submit(Box::new(Submission {
        request: RequestId(request),
        client: ClientId(request),
        prompt: prompt.iter().map(|token| TokenId(*token)).collect(),
        params: Arc::new(GenerationParams {
            max_tokens,
            ignore_eos: true,
            ..GenerationParams::default()
        }),
        prompt_logprobs: Some(PromptLogprobs {
            top: 2,
            reported: 0,
        }),
        ..Submission::default()
    }))
}

#[test]
fn all_of_a_prompt_is_told_also_by_a_device_that_is_ahead() {
    for is_ahead in [false, true] {
        let counter = Counter::new(Duration::from_millis(1)).ahead(is_ahead);
        let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
        supervisor.submit(1, 5, 40);
        supervisor.step();
        let prompt: Vec<u32> = (3..70).collect();
        supervisor.send(&scoring(2, &prompt, 3));
        supervisor.send(&scoring(3, &prompt, 0));
        let (mut told, mut drawn, mut ends) = (Vec::new(), 0, 0);
        while ends < 3 {
            let report = supervisor.step();
            for part in report.scored.iter().filter(|it| it.request == RequestId(2)) {
                assert_eq!((part.first as usize, drawn), (told.len(), 0));
                told.extend(part.logprobs.clone());
            }
            assert!(report.drawn.iter().all(|it| it.request != RequestId(3)));
            let own = report.drawn.iter().filter(|it| it.request == RequestId(2));
            drawn += own.count();
            ends += report.finished.len();
        }
        assert_eq!(drawn, 3);
        let row = |pair: &[u32]| {
            let mut row = [0.0; VOCAB as usize];
            row[0] = pair[0] as f32;
            logprobs(&row, TokenId(pair[1]), 2)
        };
        let expected: Vec<_> = prompt.windows(2).map(row).collect();
        assert_eq!(told, expected);
    }
}

#[test]
fn a_row_of_a_prompt_that_is_no_number_ends_the_child() {
    let counter = Counter::new(Duration::from_millis(1));
    let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
    supervisor.send(&scoring(7, &[1, BROKEN, 2], 1));
    let Fault::NonFiniteLogits { request, .. } = supervisor.fault() else {
        panic!("another fault");
    };
    assert_eq!(request, RequestId(7));
}
