//! Scene of a death: the position of each request, according to the flight recorder.
//!
//! The child died in a step without an end record. The child recorded the parts of prompts in the step by position, so
//! two deaths in a long prompt can be distinguished. Decoding requests are in every step. Without an open step, the
//! child died between two steps, or recorded none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use worker_orcd_ipc::RequestId;
use worker_orcd_ipc::flight::{Moment, Phase, Record, Recording};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scene {
    /// Place within the newest open step. `None`: between two steps, as far as recorded.
    pub within: Option<Within>,
    /// Requests that the draft model computed for in the newest open step. `None`: it was a step of the served model.
    pub drafting: Option<BTreeSet<RequestId>>,
    /// Prompt positions in open steps.
    pub prompts: BTreeMap<RequestId, Range<u32>>,
    /// The process was stopped by a signal (SIGSTOP, a debugger), not by its work.
    pub stopped: bool,
}

/// Place within a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within {
    Beginning,
    /// Place after this layer.
    Layer(u32),
    Sampling,
    /// The draft model was computing.
    Drafting,
}

/// Positions of a request's tokens, one of which was being computed at the death.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub positions: Range<u32>,
    /// True for a token of a decode step, false for one of a prompt.
    pub decoding: bool,
}

impl Scene {
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let records = &recording.records;
        let ended: BTreeSet<u64> = records
            .iter()
            .filter(|record| record.moment == Moment::StepEnd)
            .map(|record| record.step)
            .collect();
        let is_open = |record: &&Record| record.step > 0 && !ended.contains(&record.step);
        let newest = records.iter().rfind(is_open);
        let mut scene = Self {
            within: newest.map(|record| within(record.moment)),
            drafting: newest.and_then(|newest| drafting(records, newest.step)),
            ..Self::default()
        };
        let mut ends: BTreeMap<RequestId, u32> = BTreeMap::new();
        for record in records {
            if let (Moment::Prompt { end }, Some(request)) =
                (record.moment, record.requests.ids().next())
            {
                let before = ends.insert(request, end);
                if is_open(&record) {
                    // A part that goes backwards belongs to a later submission of this request.
                    let start = before.filter(|before| *before < end).unwrap_or(0);
                    let open = scene.prompts.entry(request).or_insert(start..end);
                    open.end = end;
                }
            }
        }
        scene
    }

    /// Place of a request with `history` tokens at the death. `has_moved`: the child had drawn a token of it. `None`:
    /// it was not in the step.
    #[must_use]
    pub fn spot(&self, id: RequestId, history: u32, has_moved: bool) -> Option<Spot> {
        if let Some(positions) = self.prompts.get(&id) {
            return Some(Spot {
                positions: positions.clone(),
                decoding: false,
            });
        }
        // All requests of a step of the draft model are recorded.
        if self.drafting.as_ref().is_some_and(|it| !it.contains(&id)) {
            return None;
        }
        // Position of the newest token, and of the step that was launched after it.
        let newest = history.saturating_sub(1)..history + 1;
        match (has_moved, self.within) {
            (true, _) => Some(Spot {
                positions: newest,
                decoding: true,
            }),
            (false, Some(_)) => None,
            (false, None) => Some(Spot {
                positions: 0..history,
                decoding: false,
            }),
        }
    }
}

/// Requests of a step of the draft model; `None` for another step.
fn drafting(records: &[Record], step: u64) -> Option<BTreeSet<RequestId>> {
    let drafts = records
        .iter()
        .filter(|record| record.step == step && record.moment == Moment::Phase(Phase::Draft));
    let requests = drafts.flat_map(|record| record.requests.ids()).collect();
    Some(requests).filter(|it: &BTreeSet<_>| !it.is_empty())
}

fn within(moment: Moment) -> Within {
    match moment {
        Moment::Layer(layer) => Within::Layer(layer),
        Moment::Phase(Phase::Sample) => Within::Sampling,
        Moment::Phase(Phase::Draft) => Within::Drafting,
        Moment::LoadBegin
        | Moment::LoadEnd
        | Moment::StepBegin { .. }
        | Moment::Prompt { .. }
        | Moment::Phase(_)
        | Moment::StepEnd => Within::Beginning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker_orcd_ipc::Generation;
    use worker_orcd_ipc::flight::StepRequests;

    const ONE: RequestId = RequestId(1);
    const TWO: RequestId = RequestId(2);

    fn scene(records: &[(u64, Moment, RequestId)]) -> Scene {
        let record = |(number, (step, moment, request)): (u64, &(u64, Moment, RequestId))| Record {
            number,
            time_ns: number,
            step: *step,
            moment: *moment,
            requests: StepRequests::new([*request].into_iter()),
        };
        Scene::of(&Recording {
            generation: Generation(1),
            records: (1..).zip(records).map(record).collect(),
            torn: 0,
            note: None,
        })
    }

    fn prompt(end: u32) -> Moment {
        Moment::Prompt { end }
    }

    #[test]
    fn the_open_step_tells_which_part_of_each_prompt_it_was_and_how_far_it_came() {
        let begin = Moment::StepBegin { tokens: 9 };
        let mut records = vec![
            (0, Moment::LoadEnd, ONE),
            (1, begin, ONE),
            (1, prompt(32), ONE),
            (1, Moment::StepEnd, ONE),
            (2, begin, ONE),
            (2, prompt(64), ONE),
            (2, prompt(7), TWO),
            (2, Moment::Phase(Phase::Prefill), ONE),
        ];
        let begun = scene(&records);
        assert_eq!(begun.within, Some(Within::Beginning));
        assert_eq!(begun.prompts, [(ONE, 32..64), (TWO, 0..7)].into());
        records.push((2, Moment::Layer(4), ONE));
        assert_eq!(scene(&records).within, Some(Within::Layer(4)));
        records.push((2, Moment::Phase(Phase::Sample), ONE));
        assert_eq!(scene(&records).within, Some(Within::Sampling));
        records.push((2, Moment::StepEnd, ONE));
        assert_eq!(scene(&records), Scene::default());
    }

    #[test]
    fn of_two_open_steps_the_parts_are_one() {
        let records = [(1, prompt(32), ONE), (2, prompt(64), ONE)];
        assert_eq!(scene(&records).prompts, [(ONE, 0..64)].into());
    }

    #[test]
    fn a_request_is_in_its_prompt_at_its_newest_token_or_elsewhere() {
        let records = [(1, prompt(32), ONE)];
        let (open, between) = (scene(&records), Scene::default());
        let spot = |positions, decoding| {
            Some(Spot {
                positions,
                decoding,
            })
        };
        assert_eq!(open.spot(ONE, 50, false), spot(0..32, false));
        assert_eq!(open.spot(TWO, 50, true), spot(49..51, true));
        assert_eq!(open.spot(TWO, 50, false), None, "the request waits");
        assert_eq!(between.spot(TWO, 50, false), spot(0..50, false));
    }

    /// A bystander that decodes is in every step of the served model, and in none of the draft model but its own.
    #[test]
    fn a_step_of_the_draft_model_is_that_of_its_requests() {
        let drafts = Moment::Phase(Phase::Draft);
        let steps = [
            (2, Moment::StepBegin { tokens: 2 }, ONE),
            (2, Moment::StepEnd, ONE),
            (3, Moment::StepBegin { tokens: 1 }, ONE),
            (3, drafts, ONE),
        ];
        let died = scene(&steps);
        assert_eq!(died.within, Some(Within::Drafting));
        let is_in_it = [ONE, TWO].map(|id| died.spot(id, 9, true).is_some());
        assert_eq!(is_in_it, [true, false]);
        let ended = [&steps[..], &[(3, Moment::StepEnd, ONE)]].concat();
        let next = [&ended[..], &[(4, Moment::StepBegin { tokens: 3 }, ONE)]].concat();
        for records in [ended, next] {
            let died = scene(&records);
            assert!(died.spot(TWO, 9, true).is_some(), "{died:?}");
        }
    }
}
