//! Logit biases of a request: forwarding to the device, and refusals.

use super::*;
use worker_orcd_ipc::MAX_LOGIT_BIASES;

fn biased(bias: &[(u32, f32)]) -> Submission {
    let bias = bias.iter().map(|(id, bias)| (TokenId(*id), *bias));
    with(submission(1, &[1, 2], 2), |it| {
        it.logit_bias = bias.collect()
    })
}

#[test]
fn the_device_is_given_the_biases_of_each_draw() {
    let mut bench = Bench::new(limits(), 16, true);
    let submission = biased(&[(0, -100.0), (3, 0.5)]);
    bench.submit(submission.clone());
    for _ in 0..2 {
        assert!(bench.scheduler.plan(|_| 5));
        let work = bench.scheduler.work();
        assert_eq!(work[0].sample.unwrap().bias, submission.params.logit_bias);
        bench.device.begin(&work);
        bench.scheduler.launched();
        bench.draw();
        let drawn = bench.answers.pop_front().unwrap();
        bench.scheduler.complete(1, drawn).unwrap();
    }
}

#[test]
fn biases_that_are_no_biases_are_refused() {
    let too_many: Vec<_> = (0..=MAX_LOGIT_BIASES as u32).map(|id| (id, 1.0)).collect();
    let wrong: [&[(u32, f32)]; 6] = [
        &[(VOCAB, 1.0)],
        &[(3, 1.0), (2, 1.0)],
        &[(3, 1.0), (3, 1.0)],
        &[(3, 100.5)],
        &[(3, f32::NAN)],
        &too_many,
    ];
    for bias in wrong {
        let mut bench = Bench::new(limits(), 16, true);
        bench.submit(biased(bias));
        bench.run();
        let reason = bench.only_reason(1);
        assert!(matches!(reason, FinishReason::Refused { .. }), "{reason:?}");
    }
}
