//! Flight recorder part of a crash report: the last steps of a dead child.

use crate::crash::report::milliseconds;
use serde_json::{Value, json};
use std::time::Duration;
use worker_orcd_ipc::flight::{Moment, Record, Recording, StepRequests};

/// Number of steps in a report: the fatal one and its predecessors.
const STEPS_KEPT: usize = 8;

/// Number of raw records in a report.
const RECORDS_KEPT: usize = 16;

/// Last steps and last raw records. Times are in milliseconds before `now_ns`, on the child's clock.
#[must_use]
pub(crate) fn summary(recording: &Recording, now_ns: u64) -> Value {
    let ago = |time_ns: u64| milliseconds(Duration::from_nanos(now_ns.saturating_sub(time_ns)));
    let records = &recording.records;
    let shown = &records[records.len().saturating_sub(RECORDS_KEPT)..];
    json!({
        "records": records.len(),
        "torn": recording.torn,
        "stands": stands(recording, &ago),
        "last_steps": last_steps(records, &ago),
        "last_records": shown.iter().map(|record| json!({
            "number": record.number,
            "ms_before_report": ago(record.time_ns),
            "step": record.step,
            "moment": moment(record.moment),
            "sequences": record.requests.sequences(),
            "requests": requests(&record.requests),
        })).collect::<Vec<_>>(),
    })
}

/// Position of an unfinished step. `None` if the step has ended.
fn stands(recording: &Recording, ago: &dyn Fn(u64) -> f64) -> Option<Value> {
    let note = recording.note.as_ref()?;
    let ended = |record: &Record| record.moment == Moment::StepEnd && record.step >= note.step;
    let stands = !recording.records.iter().any(ended);
    stands.then(|| {
        json!({
            "step": note.step,
            "ms_before_report": ago(note.time_ns),
            "text": note.text,
        })
    })
}

fn last_steps(records: &[Record], ago: &dyn Fn(u64) -> f64) -> Vec<Value> {
    // A child that runs ahead of its device begins a step before the end of the previous one.
    let mut records = records.to_vec();
    records.sort_by_key(|record| record.step);
    let steps: Vec<&[Record]> = records
        .chunk_by(|one, next| one.step == next.step)
        .filter(|step| step[0].step > 0)
        .collect();
    let kept = &steps[steps.len().saturating_sub(STEPS_KEPT)..];
    kept.iter().map(|step| step_value(step, ago)).collect()
}

fn step_value(records: &[Record], ago: &dyn Fn(u64) -> f64) -> Value {
    let (first, last) = (&records[0], &records[records.len() - 1]);
    let tokens = match first.moment {
        Moment::StepBegin { tokens } => Some(tokens),
        // The ring has overwritten the step's first record.
        _ => None,
    };
    let ended = last.moment == Moment::StepEnd;
    let took = Duration::from_nanos(last.time_ns.saturating_sub(first.time_ns));
    let phases: Vec<&str> = records
        .iter()
        .filter_map(|record| match record.moment {
            Moment::Phase(phase) => Some(phase.name()),
            _ => None,
        })
        .collect();
    json!({
        "step": first.step,
        "began_ms_before_report": tokens.map(|_| ago(first.time_ns)),
        "ended": ended,
        "recorded_ms": milliseconds(took),
        "tokens": tokens,
        "phases": phases,
        "last": moment(last.moment),
        "sequences": last.requests.sequences(),
        "requests": requests(&last.requests),
    })
}

fn requests(requests: &StepRequests) -> Vec<u64> {
    requests.ids().map(|request| request.0).collect()
}

fn moment(moment: Moment) -> String {
    match moment {
        Moment::LoadBegin => "load begins".to_owned(),
        Moment::LoadEnd => "load is done".to_owned(),
        Moment::StepBegin { tokens } => format!("step of {tokens} tokens begins"),
        Moment::Prompt { end } => format!("a prompt up to position {end}"),
        Moment::Phase(phase) => phase.name().to_owned(),
        Moment::Layer(layer) => format!("layer {layer} is done"),
        Moment::StepEnd => "step is done".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::flight::{Note, Phase};
    use worker_orcd_ipc::{Generation, RequestId};

    fn record(number: u64, step: u64, moment: Moment) -> Record {
        Record {
            number,
            time_ns: number * 1_000_000,
            step,
            moment,
            requests: StepRequests::new([RequestId(7)].into_iter()),
        }
    }

    #[test]
    fn a_recording_is_told_step_by_step_and_the_unfinished_one_shows_where_it_stopped() {
        let records = vec![
            record(1, 0, Moment::LoadBegin),
            record(2, 0, Moment::LoadEnd),
            record(3, 1, Moment::StepBegin { tokens: 9 }),
            record(4, 1, Moment::Phase(Phase::Prefill)),
            record(5, 1, Moment::StepEnd),
            record(6, 2, Moment::StepBegin { tokens: 1 }),
            record(7, 2, Moment::Phase(Phase::Decode)),
            record(8, 2, Moment::Layer(12)),
        ];
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 1,
            note: None,
        };
        let report = summary(&read, 10_000_000);
        let steps = report["last_steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "loading is no step: {report}");
        assert_eq!(steps[0]["ended"], true);
        assert_eq!(steps[0]["recorded_ms"], 2.0);
        assert_eq!(steps[1]["ended"], false);
        assert_eq!(steps[1]["last"], "layer 12 is done");
        assert_eq!(steps[1]["phases"], json!(["decode"]));
        assert_eq!(steps[1]["began_ms_before_report"], 4.0);
        assert_eq!(steps[1]["requests"], json!([7]));
        assert_eq!(
            (&report["records"], &report["torn"]),
            (&json!(8), &json!(1))
        );
        assert_eq!(report["last_records"][7]["ms_before_report"], 2.0);
    }

    #[test]
    fn where_a_step_stands_is_told_until_it_has_ended() {
        let begin = Moment::StepBegin { tokens: 1 };
        let mut read = Recording {
            generation: Generation(1),
            records: vec![
                record(1, 4, begin),
                record(2, 4, Moment::StepEnd),
                record(3, 5, begin),
            ],
            torn: 0,
            note: Some(Note {
                time_ns: 4_000_000,
                step: 5,
                text: "blocks 0-131 wait".to_owned(),
            }),
        };
        let expected = json!({"step": 5, "ms_before_report": 6.0, "text": "blocks 0-131 wait"});
        assert_eq!(summary(&read, 10_000_000)["stands"], expected);
        read.records.push(record(4, 5, Moment::StepEnd));
        assert_eq!(summary(&read, 10_000_000)["stands"], json!(null));
        read.note = None;
        assert_eq!(summary(&read, 10_000_000)["stands"], json!(null));
    }

    #[test]
    fn steps_that_overlap_are_told_apart() {
        let begin = Moment::StepBegin { tokens: 1 };
        let records = vec![
            record(1, 1, begin),
            record(2, 2, begin),
            record(3, 1, Moment::StepEnd),
            record(4, 3, begin),
        ];
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 0,
            note: None,
        };
        let found = summary(&read, 10_000_000);
        let steps = found["last_steps"].as_array().unwrap();
        let ended: Vec<_> = steps
            .iter()
            .map(|step| (&step["step"], &step["ended"]))
            .collect();
        let (yes, no) = (json!(true), json!(false));
        assert_eq!(
            ended,
            [(&json!(1), &yes), (&json!(2), &no), (&json!(3), &no)]
        );
    }

    #[test]
    fn long_recordings_are_cut() {
        let step = |step| {
            [
                record(2 * step, step, Moment::StepBegin { tokens: 1 }),
                record(2 * step + 1, step, Moment::StepEnd),
            ]
        };
        let records: Vec<_> = (1..500).flat_map(step).collect();
        let read = Recording {
            generation: Generation(1),
            records,
            torn: 0,
            note: None,
        };
        let found = summary(&read, u64::MAX);
        assert_eq!(found["last_steps"].as_array().unwrap().len(), STEPS_KEPT);
        assert_eq!(found["last_steps"][STEPS_KEPT - 1]["step"], 499);
        assert_eq!(
            found["last_records"].as_array().unwrap().len(),
            RECORDS_KEPT
        );
    }
}
