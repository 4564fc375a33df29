//! Outcomes of the requests, by kind, and violations.

use super::api::Parts;
use super::mix::{Expects, Manner, Request};
use super::stream::{Answer, Ending};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

/// Limit; more would repeat the same defect.
const MAX_VIOLATIONS: usize = 50;

/// Characters of a differing piece in a message.
const SHOWN_CHARACTERS: usize = 300;

/// Outcomes of the requests.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    kinds: BTreeMap<String, Kind>,
    pub complete: u64,
    pub complete_after_recovery: u64,
    pub most_recoveries: u64,
    pub refused: u64,
    pub cancelled: u64,
    pub left: u64,
    pub quarantined: u64,
    pub failed: u64,
    pub mismatched: u64,
    pub pieces: u64,
    /// Gaps of streams with quick readers.
    pub gaps: Vec<(Instant, Instant)>,
    pub violations: Vec<String>,
}

/// Outcomes of one kind and delivery.
#[derive(Debug, Clone, Default)]
struct Kind {
    /// Complete answers: equal to the reference, and valid if they are constrained.
    equal: u64,
    different: u64,
    /// Partial answers of clients that left: equal as far as they were read.
    parts: u64,
    failed: u64,
    under_way: Vec<(Instant, Instant)>,
}

impl Tally {
    /// Tally with a row for each kind of the references.
    pub fn of(references: &[(Request, Answer)]) -> Self {
        let kinds = references.iter().map(|(request, _)| request.what.clone());
        Self {
            kinds: kinds.map(|what| (what, Kind::default())).collect(),
            ..Self::default()
        }
    }

    pub fn count(
        &mut self,
        request: &Request,
        job: &str,
        manner: Manner,
        got: Result<Answer, String>,
        want: &Answer,
    ) {
        let what = &request.what;
        let got = got.unwrap_or_else(|error| Answer {
            end: Ending::Failed(error),
            ..Answer::default()
        });
        self.pieces += u64::from(got.pieces);
        if manner == Manner::Reads {
            self.gaps.extend_from_slice(&got.gaps);
        }
        let wrong = difference(&got, want).err();
        let wrong = wrong.or_else(|| check(request, &got).err());
        let is_wrong = wrong.is_some();
        if let Some(wrong) = wrong {
            self.mismatched += 1;
            self.violation(format!("{job} ({what}): {wrong}"));
        }
        let is_told = matches!(got.end, Ending::Complete | Ending::Refused);
        let is_left = matches!(got.end, Ending::Left | Ending::Cancelled);
        let kind = self.kinds.entry(what.clone()).or_default();
        kind.different += u64::from(is_wrong);
        kind.equal += u64::from(is_told && !is_wrong);
        kind.parts += u64::from(is_left && !is_wrong);
        kind.failed += u64::from(!is_told && !is_left);
        kind.under_way.extend(got.under_way.filter(|_| is_told));
        match got.end {
            Ending::Complete | Ending::Refused if is_wrong => {}
            Ending::Complete => {
                self.complete += 1;
                self.complete_after_recovery += u64::from(got.recoveries > 0);
                self.most_recoveries = self.most_recoveries.max(got.recoveries);
            }
            Ending::Refused => self.refused += 1,
            Ending::Left => self.left += 1,
            Ending::Cancelled if matches!(manner, Manner::Cancels(_)) => self.cancelled += 1,
            Ending::Cancelled => {
                self.failed += 1;
                self.violation(format!("{job} ({what}): cancelled, but not by its client"));
            }
            // No request of the mix kills a child.
            Ending::Quarantined => {
                self.quarantined += 1;
                self.violation(format!("{job} ({what}): convicted, and it is innocent"));
            }
            Ending::Failed(why) => {
                self.failed += 1;
                self.violation(format!("{job} ({what}): {why}"));
            }
        }
    }

    /// Violations. A kind without a complete answer counts as one.
    pub fn verdict(&self) -> Vec<String> {
        let mut violations = self.violations.clone();
        let idle = self.kinds.iter().filter(|(_, kind)| kind.equal == 0);
        violations.extend(idle.map(|(what, _)| format!("no {what} came to its end as it should")));
        if self.kinds.is_empty() {
            violations.push("nothing was asked for, so nothing was shown".to_owned());
        }
        violations
    }

    /// Table. `deaths` are the times at which children died.
    pub fn markdown(&self, deaths: &[Instant]) -> String {
        let mut out =
            "| asked for | completed, equal and valid | … of which a child died under | left or \
                       cancelled, equal so far | different | failed |\n|---|---|---|---|---|---|\n"
                .to_owned();
        for (what, kind) in &self.kinds {
            let disturbed = |(from, to): &&(Instant, Instant)| {
                deaths.iter().any(|at| (*from..=*to).contains(at))
            };
            let disturbed = kind.under_way.iter().filter(disturbed).count();
            let _ = writeln!(
                out,
                "| {what} | {} | {disturbed} | {} | {} | {} |",
                kind.equal, kind.parts, kind.different, kind.failed
            );
        }
        out
    }

    pub fn violation(&mut self, text: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            // Printed at once: the report comes at the end of up to an hour.
            println!("chaos: {text}");
            self.violations.push(text);
        }
    }
}

/// Compares with the reference, of which a partial answer must be the beginning, choice by choice.
///
/// # Errors
/// Description of the first difference.
pub fn difference(got: &Answer, want: &Answer) -> Result<(), String> {
    let is_told = matches!(got.end, Ending::Complete | Ending::Refused);
    if is_told && got.end != want.end {
        return Err(format!(
            "it ended as {:?} instead of {:?}",
            got.end, want.end
        ));
    }
    parts_differ(&got.parts, &want.parts, is_told)
}

fn parts_differ(got: &Parts, want: &Parts, is_told: bool) -> Result<(), String> {
    let none = Vec::new();
    for part in want.keys().chain(got.keys()) {
        let [got, want] = [got, want].map(|parts| parts.get(part).unwrap_or(&none));
        let differs =
            (0..got.len().max(want.len())).find(|index| got.get(*index) != want.get(*index));
        let Some(index) = differs.filter(|index| is_told || *index < got.len()) else {
            continue;
        };
        let shown = |pieces: &[Value]| {
            let piece = pieces.get(index).map(Value::to_string);
            let piece = piece.unwrap_or_else(|| "nothing".to_owned());
            piece.chars().take(SHOWN_CHARACTERS).collect::<String>()
        };
        return Err(format!(
            "piece {index} of part {part} is {} instead of {}",
            shown(got),
            shown(want)
        ));
    }
    Ok(())
}

/// Checks the format of a complete constrained answer, independently of the reference.
///
/// # Errors
/// Description of the defect.
pub fn check(request: &Request, answer: &Answer) -> Result<(), String> {
    match (request.expects, &answer.end) {
        (Expects::Form(is_met), Ending::Complete) => {
            let outcomes = request.api.outcomes(request.is_streamed, &answer.parts);
            match outcomes.iter().find(|outcome| !is_met(outcome)) {
                _ if outcomes.is_empty() => Err("nothing was said".to_owned()),
                Some(wrong) => Err(format!("it is not what it was held to: {wrong:?}")),
                None => Ok(()),
            }
        }
        (Expects::Refusal, Ending::Complete) => Err("a hostile grammar was served".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::api::Api;
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn request(expects: Expects) -> Request {
        Request {
            what: "test".to_owned(),
            api: Api::Completions,
            is_streamed: true,
            body: json!({}),
            expects,
        }
    }

    fn answer(texts: &[&str], end: Ending) -> Answer {
        let pieces = texts
            .iter()
            .map(|text| json!({"choices": [{"text": text}]}));
        Answer {
            parts: Parts::from([("0".to_owned(), pieces.collect())]),
            end,
            ..Answer::default()
        }
    }

    #[test]
    fn parts_are_beginnings_and_wholes_are_equal() {
        let want = answer(&["a", "b", "c"], Ending::Complete);
        let differs = |got: &Answer| difference(got, &want).is_err();
        assert!(!differs(&want));
        assert!(!differs(&answer(&["a", "b"], Ending::Left)));
        assert!(!differs(&answer(&[], Ending::Left)));
        assert!(differs(&answer(&["a", "b"], Ending::Complete)));
        assert!(differs(&answer(&["a", "b", "c", "d"], Ending::Left)));
        assert!(differs(&answer(&["b"], Ending::Cancelled)));
        assert!(differs(&answer(&["a", "b", "c"], Ending::Refused)));
        let mut more = want.clone();
        more.parts.insert("1".to_owned(), vec![json!("a")]);
        assert!(differs(&more));
        more.end = Ending::Left;
        assert!(differs(&more));
    }

    #[test]
    fn every_ending_is_counted_once() {
        let want = answer(&["a", "b"], Ending::Complete);
        let request = request(Expects::Answer);
        let mut tally = Tally::default();
        let mut count = |manner, got| tally.count(&request, "job", manner, got, &want);
        count(Manner::Reads, Ok(want.clone()));
        count(Manner::Cancels(0), Ok(answer(&["a"], Ending::Cancelled)));
        count(Manner::Vanishes(0), Ok(answer(&["a"], Ending::Left)));
        assert!(tally.verdict().is_empty(), "{:?}", tally.violations);
        let mut count = |manner, got| tally.count(&request, "job", manner, got, &want);
        count(Manner::Reads, Ok(answer(&["a"], Ending::Cancelled)));
        count(
            Manner::Reads,
            Ok(answer(&["a"], Ending::Failed("x".into()))),
        );
        count(Manner::Reads, Err("broke off".into()));
        count(Manner::Reads, Ok(answer(&["a"], Ending::Quarantined)));
        count(Manner::Reads, Ok(answer(&["b", "b"], Ending::Complete)));
        assert_eq!(
            (
                tally.complete,
                tally.cancelled,
                tally.left,
                tally.quarantined
            ),
            (1, 1, 1, 1)
        );
        assert_eq!((tally.failed, tally.mismatched), (3, 1));
        assert_eq!(tally.verdict().len(), 5, "{:?}", tally.verdict());
    }

    #[test]
    fn a_kind_that_never_came_to_its_end_is_a_violation() {
        let (want, request) = (answer(&["a"], Ending::Complete), request(Expects::Answer));
        assert_eq!(Tally::default().verdict().len(), 1);
        let mut tally = Tally::of(&[(request.clone(), want.clone())]);
        assert_eq!(tally.verdict().len(), 1);
        let left = answer(&["a"], Ending::Left);
        tally.count(&request, "job", Manner::Vanishes(0), Ok(left), &want);
        assert_eq!(tally.verdict().len(), 1);
        tally.count(&request, "job", Manner::Reads, Ok(want.clone()), &want);
        assert!(tally.verdict().is_empty());
    }

    #[test]
    fn an_equal_answer_without_its_form_and_a_hostile_one_that_is_served_are_violations() {
        let want = answer(&["a", "b"], Ending::Complete);
        for (expects, violations) in [
            (Expects::Form(|it| it.text == "ab"), 0),
            (Expects::Form(|it| it.text == "a"), 1),
            (Expects::Refusal, 1),
        ] {
            let mut tally = Tally::default();
            tally.count(
                &request(expects),
                "job",
                Manner::Reads,
                Ok(want.clone()),
                &want,
            );
            assert_eq!(tally.violations.len(), violations);
        }
    }

    #[test]
    fn who_was_under_way_when_a_child_died_was_disturbed() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut want = answer(&["a"], Ending::Complete);
        let request = request(Expects::Answer);
        let mut tally = Tally::default();
        for (from, to) in [(0, 100), (200, 300), (350, 400)] {
            want.under_way = Some((at(from), at(to)));
            tally.count(&request, "job", Manner::Reads, Ok(want.clone()), &want);
        }
        let table = tally.markdown(&[at(250), at(260), at(320), at(400)]);
        assert!(table.contains("| test | 3 | 2 | 0 | 0 | 0 |"), "{table}");
    }
}
