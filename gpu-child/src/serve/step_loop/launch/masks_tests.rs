//! A loop that waits only for a mask.

use super::*;
use crate::exit::ExitHook;
use crate::flight_recorder::FlightRecorder;
use crate::serve::tests::counter::loaded;
use crate::serve::tests::order;
use crate::serve::{Link, Status};
use std::sync::Arc;
use std::sync::mpsc::channel;
use worker_orcd_ipc::{
    Command, Generation, GenerationParams, Grammar, RequestId, Submission, TokenId,
};

fn held_to_a_grammar() -> Submission {
    Submission {
        request: RequestId(1),
        prompt: vec![TokenId(1), TokenId(2)],
        params: Arc::new(GenerationParams {
            max_tokens: 4,
            grammar: Some(Arc::new(Grammar::Regex("a".to_owned()))),
            ..GenerationParams::default()
        }),
        ..Submission::default()
    }
}

#[test]
fn a_reader_that_is_gone_is_noticed_while_a_mask_is_awaited() {
    let (ended, end) = channel();
    std::thread::spawn(move || {
        let exit: ExitHook = Arc::new(|_| {});
        let link = Link::new(std::io::sink(), Generation(3), exit);
        let status = Status::new();
        let loaded = loaded(Duration::ZERO);
        let recorder = FlightRecorder::none();
        let (mut steps, _) = StepLoop::new(&link, &status, recorder, &order(), loaded).unwrap();
        let submission = Box::new(held_to_a_grammar());
        steps.handle(Command::Submit(submission)).unwrap();
        while steps.plan().unwrap() {
            // The request is not forwarded, so its mask never arrives.
            steps.scheduler.take_mask_requests();
            steps.launch().unwrap();
            steps.draw().unwrap();
            let step = steps.in_flight.pop_front().unwrap();
            steps.wait(step).unwrap();
        }
        steps.scheduler.take_mask_requests();
        assert!(steps.scheduler.awaits_masks());
        let (reader, commands) = std::sync::mpsc::sync_channel(1);
        drop(reader);
        ended.send(steps.run(&commands)).unwrap();
    });
    let end = end.recv_timeout(Duration::from_secs(20));
    assert_eq!(end.expect("it ends"), Ok(()));
}
