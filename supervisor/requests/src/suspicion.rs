//! Suspicion: evidence of deaths against one request.
//!
//! Replays are exact, so a query of death kills at one place: a position of its prompt, or the step of one token.
//! Random deaths occur anywhere. Only deaths that one position may have caused are therefore added up. A request that
//! gets past the position is acquitted, alone or beside others, and a death before the position is no evidence. At its
//! place, an innocent request is met by a random death with the probability that a death falls into that one step:
//! about 2 in 100 if children die every three seconds in steps of 70 ms. The probability of a wrong conviction is that
//! number to the power of all deaths there but the first, independent of the total number of deaths.
//!
//! | deaths at one place | few other recent deaths | more | a death every two seconds |
//! |---|---|---|---|
//! | of one signature: manner of death, layer | 3, one of them alone | 5, two of them alone | 5, two of them alone |
//! | of several | 5, two of them alone | 5, three of them alone | 7, three of them alone |

use crate::scene::{Spot, Within};

/// Deaths at one place that make a request run alone.
const DEATHS_OF_A_SUSPECT: u32 = 2;

/// Tokens past the fatal place that acquit a request. The first token after a death comes from the replayed prompt, the
/// second from a decode step. Either may be the fatal step, and a child may die just after it has sent a token.
const TOKENS_OF_AN_ACQUITTAL: u32 = 2;

/// Deaths in turns alone before the fatal place, after which the request rejoins the others until its place kills
/// again. Otherwise a request with a replay longer than the life of a child would block the others forever.
const MISSED_TURNS: u32 = 3;

/// Deaths of other causes that make a random death likely. Below it, a worker that survives five deaths a minute
/// survives these and a query of death.
const DEATHS_OF_A_BAD_MACHINE: u32 = 3;

/// Deaths of other causes in a minute that make several random deaths at one place likely.
const HAIL: u32 = 30;

/// [Manner](worker_orcd_lifecycle::DeathCause::manner) of a death, and its place within a step.
pub(crate) type Signature = (String, Option<Within>);

/// A death from the view of one request.
#[derive(Debug, Clone)]
pub(crate) struct DeathEvidence {
    /// Place in the request. `None`: the request was with the child, but not in the step.
    pub(crate) spot: Option<Spot>,
    /// Number of tokens of the prompt and the answer.
    pub(crate) history: u32,
    pub(crate) signature: Signature,
    /// The request is a suspect and ran alone.
    pub(crate) alone: bool,
}

/// Numbers of recent deaths of children, with any requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecentDeaths {
    pub(crate) lately: u32,
    pub(crate) last_minute: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Suspicion {
    /// Deaths that count as evidence, oldest first.
    open: Vec<Strike>,
    /// Deaths without progress at no known place of the request.
    elsewhere: u32,
    /// Length of the history at the last death.
    history: u32,
    /// Turns alone that ended before the fatal place.
    missed: u32,
}

/// A death at a place in the request that the request has not passed since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Strike {
    /// Positions in the step of the death.
    spot: Spot,
    signature: Signature,
    alone: bool,
}

/// Deaths that one position may have caused.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    deaths: u32,
    alone: u32,
}

impl Suspicion {
    /// Adds a death. Returns true if it occurred at a place that may be the fatal one.
    pub(super) fn note(&mut self, evidence: DeathEvidence) -> bool {
        if self.is_acquitted_at(evidence.history) {
            *self = Self::default();
        }
        let Some(spot) = evidence.spot else {
            self.elsewhere += 1;
            self.history = evidence.history;
            return false;
        };
        if self.lies_ahead_of(&spot) {
            self.missed += u32::from(evidence.alone);
            return false;
        }
        self.history = evidence.history;
        self.missed = 0;
        self.pass(&spot);
        self.open.push(Strike {
            spot,
            signature: evidence.signature,
            alone: evidence.alone,
        });
        true
    }

    pub(super) fn is_proven(&self, recent_deaths: RecentDeaths) -> bool {
        let others = |all: u32| all.saturating_sub(self.deaths() + self.elsewhere);
        let least = |deaths, alone| Tally { deaths, alone };
        let (alike, of_any_kind) = match (
            others(recent_deaths.lately),
            others(recent_deaths.last_minute),
        ) {
            (..DEATHS_OF_A_BAD_MACHINE, _) => (least(3, 1), least(5, 2)),
            (_, ..HAIL) => (least(5, 2), least(5, 3)),
            _ => (least(5, 2), least(7, 3)),
        };
        self.open.iter().any(
            |Strike {
                 spot, signature, ..
             }| {
                let at = spot.positions.start;
                let same = |strike: &Strike| strike.signature == *signature;
                self.tally(at, same).reaches(alike) || self.tally(at, |_| true).reaches(of_any_kind)
            },
        )
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.missed < MISSED_TURNS && self.deaths() + self.elsewhere >= DEATHS_OF_A_SUSPECT
    }

    /// True if no earlier death counts at this length of the history.
    pub(super) fn is_clean_at(&self, history: u32) -> bool {
        *self == Self::default() || self.is_acquitted_at(history)
    }

    pub(super) fn is_acquitted_at(&self, history: u32) -> bool {
        let ends = self.open.iter().map(|death| death.spot.positions.end);
        let end = ends.max().unwrap_or(self.history).min(self.history);
        history > self.history && history >= end + TOKENS_OF_AN_ACQUITTAL
    }

    /// Maximum number of deaths at one position, for messages and for the machine's count.
    pub(super) fn deaths(&self) -> u32 {
        let starts = self.open.iter().map(|death| death.spot.positions.start);
        let deaths = starts.map(|start| self.tally(start, |_| true).deaths);
        deaths.max().unwrap_or(0)
    }

    fn tally(&self, position: u32, of: impl Fn(&Strike) -> bool) -> Tally {
        let is_here = |strike: &&Strike| strike.spot.positions.contains(&position) && of(strike);
        let here = self.open.iter().filter(is_here);
        here.fold(Tally::default(), |tally, death| Tally {
            deaths: tally.deaths + 1,
            alone: tally.alone + u32::from(death.alone),
        })
    }

    /// True if the child died before it reached the fatal place of this request.
    fn lies_ahead_of(&self, now: &Spot) -> bool {
        let is_ahead = |strike: &Strike| now.positions.end <= strike.spot.positions.start;
        !self.open.is_empty() && self.open.iter().all(is_ahead)
    }

    /// Removes all positions that the child had passed at this death. If a decode step kills, the replayed prompt
    /// yields the token of that step and the next step kills, so the place of such a death advances with the history.
    fn pass(&mut self, now: &Spot) {
        for Strike { spot, .. } in &mut self.open {
            let moves_on = spot.decoding && now.decoding;
            if moves_on && now.positions.start <= spot.positions.end {
                spot.positions = now.positions.clone();
            }
            spot.positions.start = spot.positions.start.max(now.positions.start);
        }
        let before = self.open.len();
        self.open.retain(|death| !death.spot.positions.is_empty());
        if self.open.len() < before {
            self.elsewhere = 0;
        }
    }
}

impl Tally {
    fn reaches(self, least: Self) -> bool {
        self.deaths >= least.deaths && self.alone >= least.alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    const HISTORY: u32 = 2000;

    fn in_prompt(positions: Range<u32>) -> Option<Spot> {
        Some(Spot {
            positions,
            decoding: false,
        })
    }

    fn decoding(history: u32) -> Option<Spot> {
        Some(Spot {
            positions: history - 1..history + 1,
            decoding: true,
        })
    }

    fn crash() -> Signature {
        ("signalled".to_owned(), Some(Within::Layer(3)))
    }

    /// Recent deaths: `own` of them with the request, `others` without it.
    fn recent_deaths(own: u32, others: u32) -> RecentDeaths {
        let all = own + others;
        RecentDeaths {
            lately: all,
            last_minute: all,
        }
    }

    /// Notes deaths at the same history. The request is alone once it is a suspect.
    fn deaths(suspicion: &mut Suspicion, spots: &[Option<Spot>], signature: &Signature) {
        for spot in spots {
            let alone = suspicion.is_suspect();
            suspicion.note(DeathEvidence {
                spot: spot.clone(),
                history: HISTORY,
                signature: signature.clone(),
                alone,
            });
        }
    }

    #[test]
    fn two_deaths_at_one_place_make_a_suspect_and_a_third_alone_proves_it() {
        let mut suspicion = Suspicion::default();
        deaths(&mut suspicion, &[decoding(HISTORY)], &crash());
        assert!(!suspicion.is_suspect());
        deaths(&mut suspicion, &[in_prompt(1990..HISTORY)], &crash());
        assert!(
            suspicion.is_suspect(),
            "the last part of the replay counts as the step"
        );
        assert!(
            !suspicion.is_proven(recent_deaths(2, 0)),
            "the request never ran alone"
        );
        assert!(!suspicion.is_acquitted_at(HISTORY + 1));
        assert!(suspicion.is_acquitted_at(HISTORY + 2));
        deaths(&mut suspicion, &[in_prompt(1984..HISTORY)], &crash());
        assert!(suspicion.is_proven(recent_deaths(3, 0)));
    }

    #[test]
    fn deaths_all_over_a_long_prompt_prove_nothing_however_many() {
        let mut suspicion = Suspicion::default();
        for round in 0..40 {
            let at = 7 * round % 61 * 32;
            deaths(&mut suspicion, &[in_prompt(at..at + 32)], &crash());
            assert!(!suspicion.is_suspect(), "round {round}");
        }
    }

    #[test]
    fn a_part_of_a_prompt_is_the_same_whatever_the_parts_are_cut_into() {
        let mut suspicion = Suspicion::default();
        let parts = [640..704, 672..680, 600..700];
        deaths(&mut suspicion, &parts.map(in_prompt), &crash());
        assert!(suspicion.is_proven(recent_deaths(3, 0)));
        let mut other = Suspicion::default();
        let parts = [640..704, 672..680, 600..672];
        deaths(&mut other, &parts.map(in_prompt), &crash());
        assert!(
            !other.is_proven(recent_deaths(3, 0)),
            "the third death is at another place"
        );
    }

    #[test]
    fn a_decode_step_that_kills_moves_on_by_a_token_each_time() {
        let mut suspicion = Suspicion::default();
        for history in HISTORY..HISTORY + 3 {
            assert!(!suspicion.is_proven(recent_deaths(3, 0)));
            suspicion.note(DeathEvidence {
                spot: decoding(history),
                history,
                signature: crash(),
                alone: suspicion.is_suspect(),
            });
        }
        assert!(suspicion.is_proven(recent_deaths(3, 0)));
    }

    #[test]
    fn progress_between_deaths_makes_no_suspect_of_any_number() {
        let mut suspicion = Suspicion::default();
        for history in (HISTORY..HISTORY + 200).step_by(2) {
            suspicion.note(DeathEvidence {
                spot: decoding(history),
                history,
                signature: crash(),
                alone: false,
            });
            assert!(!suspicion.is_suspect());
        }
    }

    #[test]
    fn where_others_die_too_or_in_other_ways_it_takes_more() {
        let other = ("panic".to_owned(), Some(Within::Layer(3)));
        let elsewhere = ("signalled".to_owned(), Some(Within::Layer(4)));
        for (others, alike, mixed) in [
            (0, 3, 5),
            (2, 3, 5),
            (3, 5, 5),
            (HAIL - 1, 5, 5),
            (HAIL, 5, 7),
        ] {
            let mut suspicion = Suspicion::default();
            let mut of_many = Suspicion::default();
            for death in 1..=7 {
                deaths(&mut suspicion, &[decoding(HISTORY)], &crash());
                let proven = suspicion.is_proven(recent_deaths(death, others));
                assert_eq!(proven, death >= alike, "{others}");
                let signature =
                    [crash(), other.clone(), elsewhere.clone()][death as usize % 3].clone();
                deaths(&mut of_many, &[decoding(HISTORY)], &signature);
                let proven = of_many.is_proven(recent_deaths(death, others));
                assert_eq!(proven, death >= mixed, "{others}");
            }
        }
    }

    #[test]
    fn deaths_on_the_way_to_its_place_say_nothing_and_end_its_turns_alone() {
        let mut suspicion = Suspicion::default();
        let place = in_prompt(1024..1056);
        deaths(&mut suspicion, &[place.clone(), place.clone()], &crash());
        let at_start = in_prompt(0..32);
        deaths(
            &mut suspicion,
            &[at_start.clone(), at_start.clone()],
            &crash(),
        );
        assert!(suspicion.is_suspect() && !suspicion.is_proven(recent_deaths(4, 0)));
        let mut guilty = suspicion.clone();
        deaths(&mut guilty, &[place], &crash());
        assert!(
            guilty.is_proven(recent_deaths(3, 0)),
            "the place has not moved"
        );
        deaths(&mut suspicion, &[at_start], &crash());
        assert!(!suspicion.is_suspect());
    }

    #[test]
    fn who_went_back_to_the_others_is_a_suspect_again_as_soon_as_its_place_kills() {
        let mut suspicion = Suspicion::default();
        let place = in_prompt(1024..1056);
        deaths(&mut suspicion, &[place.clone(), place.clone()], &crash());
        let at_start = in_prompt(0..32);
        let missed = [at_start.clone(), at_start.clone(), at_start];
        deaths(&mut suspicion, &missed, &crash());
        assert!(!suspicion.is_suspect());
        deaths(&mut suspicion, std::slice::from_ref(&place), &crash());
        assert!(suspicion.is_suspect());
        assert!(
            !suspicion.is_proven(recent_deaths(3, 0)),
            "the request did not run alone"
        );
        deaths(&mut suspicion, &[place], &crash());
        assert!(suspicion.is_proven(recent_deaths(4, 0)));
    }

    #[test]
    fn the_death_of_a_neighbour_close_by_takes_nothing_from_its_own() {
        let mut suspicion = Suspicion::default();
        // The fatal position is 37. Another request's death occurred at positions 29 to 31.
        let spots = [31..38, 29..32, 32..49, 36..39].map(in_prompt);
        deaths(&mut suspicion, &spots, &crash());
        assert_eq!(suspicion.deaths(), 3);
    }

    #[test]
    fn whoever_was_not_in_the_step_is_suspected_and_never_convicted() {
        let mut suspicion = Suspicion::default();
        deaths(&mut suspicion, &[None, None], &crash());
        assert!(suspicion.is_suspect());
        deaths(&mut suspicion, &vec![None; 20], &crash());
        assert!(!suspicion.is_proven(recent_deaths(22, 0)));
    }
}
