//! An asynchronous device: it computes while the engine continues.

use super::*;

#[test]
fn a_device_that_is_a_step_ahead_changes_nothing_that_is_told() {
    let mut supervisor = Supervisor::start(|_, _| {
        Ok(loaded_with(
            Counter::new(Duration::from_millis(5)).ahead(true),
        ))
    });
    supervisor.send(&Command::Load(order()));
    supervisor.until(|event| matches!(event, Event::Ready(_)));
    // One ends by a token while the next step is in flight, one by its number of tokens.
    supervisor.submit(1, 40, 100);
    let ended = ((41..=50).collect(), FinishReason::EndOfSequence);
    assert_eq!(supervisor.collect(1), ended);
    supervisor.submit(2, 40, 100);
    supervisor.submit(3, 60, 20);
    let full = ((61..=80).collect(), FinishReason::MaxTokens);
    assert_eq!(supervisor.collect(3), full);
    // Its last step is dropped, and its id can be reused immediately.
    supervisor.submit(4, 60, 30);
    supervisor.step();
    let request = RequestId(4);
    supervisor.send(&Command::Cancel { request });
    assert_eq!(supervisor.collect(4).1, FinishReason::Cancelled);
    supervisor.submit(4, 5, 3);
    let again = (vec![6, 7, 8], FinishReason::MaxTokens);
    assert_eq!(supervisor.collect(4), again);
    supervisor.submit(5, 99, 4);
    assert_eq!(supervisor.fault().exit_code(), supervisor.exit_code());
}

/// Another step may be launched after a first step that only decodes; the loop must not wait for a command before it
/// has ended.
#[test]
fn an_idle_engine_answers_a_prompt_that_needs_no_prefill() {
    for is_ahead in [false, true] {
        let mut supervisor = Supervisor::ready_with(move || {
            loaded_with(Counter::new(Duration::from_millis(5)).ahead(is_ahead))
        });
        // Of one token.
        supervisor.submit_prompt(1, vec![TokenId(5)], 1);
        assert_eq!(supervisor.collect(1).0, [6]);
        supervisor.submit_prompt(2, vec![TokenId(5)], 3);
        assert_eq!(supervisor.collect(2).0, [6, 7, 8]);
        // A prompt with cached pages, except for the last token.
        let prompt: Vec<TokenId> = (1..=5).map(TokenId).collect();
        for request in [3, 4] {
            supervisor.submit_prompt(request, prompt.clone(), 2);
            assert_eq!(supervisor.collect(request).0, [6, 7]);
        }
    }
}
