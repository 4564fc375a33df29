//! Log probabilities come with the tokens of those who want them, and with no others.

use super::counter::{Counter, loaded_with};
use super::*;
use worker_orcd_ipc::Logprobs;

fn submission(request: u64, logprobs: Option<u8>) -> Submission {
    Submission {
        request: RequestId(request),
        client: ClientId(request),
        prompt: vec![TokenId(1), TokenId(5)],
        generated: vec![],
        sealed: None,
        sampling: Sampling::default(),
        // The first is there before the others, and after them.
        max_tokens: if logprobs.is_some() { 20 } else { 90 },
        ignore_eos: true,
        logprobs,
        prompt_logprobs: None,
        grammar: None,
        logit_bias: vec![],
        thinking: None,
        embeds: None,
    }
}

#[test]
fn they_come_with_the_tokens_of_those_who_want_them_also_beside_steps_ahead() {
    for is_ahead in [false, true] {
        let counter = Counter::new(Duration::from_millis(1)).ahead(is_ahead);
        let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
        let wishes = [(1, None), (2, Some(0)), (3, Some(3))];
        for (request, logprobs) in wishes {
            let submission = submission(request, logprobs);
            supervisor.say(&Command::Submit(Box::new(submission)));
            if request == 1 {
                supervisor.step();
            }
        }
        let (mut ends, mut shared) = (0, false);
        while ends < wishes.len() {
            let report = supervisor.step();
            ends += report.finished.len();
            let wanted = report.drawn.iter().filter(|it| it.request != RequestId(1));
            let wanted: Vec<_> = wanted.map(|it| (it.request, it.index)).collect();
            let told = report.logprobs.iter();
            let told: Vec<_> = told.map(|it| (it.request, it.index)).collect();
            assert_eq!(told, wanted, "{report:?}");
            shared |= report.drawn.len() == wishes.len();
            for its in &report.logprobs {
                // The counter finds every token as likely as any other.
                let each = -(VOCAB as f32).ln();
                let Logprobs { of_token, top } = &its.logprobs;
                let ids: Vec<_> = top.iter().map(|(id, _)| id.0).collect();
                let expected: &[u32] = match its.request.0 {
                    3 => &[0, 1, 2],
                    _ => &[],
                };
                assert_eq!(ids, expected);
                assert!((of_token - each).abs() < 1e-5, "{of_token}");
            }
        }
        assert!(shared, "nobody was beside them");
    }
}
