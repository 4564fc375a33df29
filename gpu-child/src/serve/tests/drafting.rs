//! Reports about a draft model.

use super::*;

#[test]
fn a_draft_model_that_is_left_out_is_reported_behind_ready() {
    let mut supervisor = Supervisor::start(|_, _| {
        Ok(Loaded {
            draft: Some(Err("no such file".to_owned())),
            ..loaded(Duration::ZERO)
        })
    });
    supervisor.send(&Command::Load(order()));
    let Event::Ready(ready) = supervisor.until(|event| matches!(event, Event::Ready(_))) else {
        unreachable!()
    };
    assert_eq!(ready.draft_model, None);
    let stopped = |event: &Event| matches!(event, Event::DraftModelStopped { .. });
    let message = "no such file".to_owned();
    assert_eq!(
        supervisor.until(stopped),
        Event::DraftModelStopped { message }
    );
}
