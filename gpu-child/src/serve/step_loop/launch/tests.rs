//! Steps in flight with requests that end meanwhile.

use super::*;
use crate::exit::ExitHook;
use crate::flight_recorder::FlightRecorder;
use crate::serve::tests::counter::loaded;
use crate::serve::tests::order;
use crate::serve::tests::prompts::scoring;
use crate::serve::{Link, Status};
use std::sync::Arc;
use std::time::Duration;
use worker_orcd_ipc::{Command, Generation, RequestId};

/// A step stays in flight while the masks of other rows are computed, and commands are read meanwhile.
#[test]
fn a_report_names_no_request_after_its_end() {
    let exit: ExitHook = Arc::new(|_| {});
    let link = Link::new(std::io::sink(), Generation(3), exit);
    let status = Status::new();
    let loaded = loaded(Duration::ZERO);
    let recorder = FlightRecorder::none();
    let (mut steps, _) = StepLoop::new(&link, &status, recorder, &order(), loaded).unwrap();
    for is_cancelled in [false, true] {
        let request = RequestId(u64::from(is_cancelled));
        steps.handle(scoring(request.0, &[1, 2, 3], 1)).unwrap();
        assert!(steps.plan().unwrap());
        steps.launch().unwrap();
        if is_cancelled {
            steps.handle(Command::Cancel { request }).unwrap();
        }
        assert!(steps.report_between_steps());
        steps.draw().unwrap();
        let step = steps.in_flight.pop_front().unwrap();
        let report = steps.wait(step).unwrap();
        let scored = usize::from(!is_cancelled);
        assert_eq!(report.scored.len(), scored, "{report:?}");
        assert_eq!(report.drawn.len(), scored, "{report:?}");
    }
}
