//! Embeddings share steps with completions.

use super::counter::{BROKEN, Counter, loaded_with};
use super::*;
use worker_orcd_ipc::Pooling;

fn embed(request: u64, prompt: &[u32], pooling: Pooling) -> Command {
    Command::Submit(Box::new(Submission {
        request: RequestId(request),
        client: ClientId(request),
        prompt: prompt.iter().map(|token| TokenId(*token)).collect(),
        embeds: Some(pooling),
        ..Submission::default()
    }))
}

#[test]
fn they_come_beside_tokens_also_of_a_device_that_is_ahead() {
    for is_ahead in [false, true] {
        let counter = Counter::new(Duration::from_millis(1)).ahead(is_ahead);
        let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
        supervisor.submit(1, 5, 40);
        supervisor.step();
        // The counter's hidden state is the token and its position.
        let long: Vec<u32> = (0..50).collect();
        let asked = [
            (2, &[4, 8, 9][..], Pooling::Mean, [7.0, 1.0]),
            (3, &[4, 8, 9], Pooling::Cls, [4.0, 0.0]),
            (4, &[4, 8, 9], Pooling::Last, [9.0, 2.0]),
            (5, &long, Pooling::Mean, [24.5, 24.5]),
        ];
        for (request, prompt, pooling, _) in asked {
            supervisor.send(&embed(request, prompt, pooling));
        }
        let (mut ends, mut beside) = (Vec::new(), 0);
        while ends.len() < asked.len() + 1 {
            let report = supervisor.step();
            assert!(report.drawn.iter().all(|it| it.request == RequestId(1)));
            beside += report.drawn.len();
            ends.extend(report.finished);
        }
        assert!(beside > 30, "the stream went on");
        for (request, _, _, expected) in asked {
            let end = ends.iter().find(|it| it.request == RequestId(request));
            let values = expected.to_vec();
            assert_eq!(end.unwrap().reason, FinishReason::Embedded { values });
        }
    }
}

#[test]
fn a_hidden_state_that_is_no_number_ends_the_child() {
    let counter = Counter::new(Duration::from_millis(1));
    let mut supervisor = Supervisor::ready_with(move || loaded_with(counter));
    supervisor.send(&embed(7, &[1, BROKEN, 2], Pooling::Mean));
    let Fault::NonFiniteLogits { request, .. } = supervisor.fault() else {
        panic!("another fault");
    };
    assert_eq!(request, RequestId(7));
}
