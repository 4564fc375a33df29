//! Suspicion: what the deaths that a request was part of say about it.
//!
//! Replays are exact, so a query of death kills whenever its child comes to one place in it: a
//! position of its prompt, or the step of one token. Chance kills anywhere. So only deaths that
//! one position may have caused add up: getting past it is an acquittal, in company as well as
//! alone, and a death on the way there says nothing. Whoever comes to its place is killed there by
//! chance with the probability that a death falls into that one step: some 2 in 100 where
//! children die every three seconds of steps of 70 ms. That to the power of all deaths there but
//! the first is how likely an innocent is convicted, however many deaths it takes part in.
//!
//! | deaths at one place | few others died lately | more did | others die every two seconds |
//! |---|---|---|---|
//! | of one signature: manner of the cause, and layer | 3, one of them alone | 5, two of them alone | 5, two of them alone |
//! | of several | 5, two of them alone | 5, three of them alone | 7, three of them alone |

use crate::scene::{Spot, Within};

/// Deaths at one place from which on a request runs alone.
const DEATHS_OF_A_SUSPECT: u32 = 2;

/// The first token behind a death comes out of the replayed prompt, the second out of a decode
/// step. The fatal step was one of the two, and a child may die just after its token has left.
const TOKENS_OF_AN_ACQUITTAL: u32 = 2;

/// Deaths in a turn alone before its place was reached, after which it goes back to the others until
/// its place kills again: where replays take longer than children live, a turn alone would keep
/// them waiting for ever.
const MISSED_TURNS: u32 = 3;

/// Deaths that a request had no part in, from which on chance is a likely reason. With fewer, a worker
/// that survives five deaths a minute survives those and a query of death.
const DEATHS_OF_A_BAD_MACHINE: u32 = 3;

/// Deaths in a minute that a request had no part in, from which on several at one place are nothing rare.
const HAIL: u32 = 30;

/// The [manner](worker_orcd_lifecycle::DeathCause::manner) of a death, and where in a step it was.
pub(crate) type Signature = (String, Option<Within>);

/// One death, as one request met it.
#[derive(Debug, Clone)]
pub(crate) struct Sighting {
    /// Place in the request. `None`: it was with the child, but not in the step.
    pub(crate) spot: Option<Spot>,
    /// Tokens of its prompt and its answer.
    pub(crate) history: u32,
    pub(crate) signature: Signature,
    /// A suspect, and the child had nothing else.
    pub(crate) alone: bool,
}

/// Deaths of children lately, whoever was with them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Toll {
    pub(crate) lately: u32,
    pub(crate) last_minute: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Suspicion {
    /// Oldest first.
    open: Vec<Strike>,
    /// Deaths without progress that met it elsewhere.
    elsewhere: u32,
    /// Length of its history at the last death.
    history: u32,
    /// Turns alone that ended on the way to its place.
    missed: u32,
}

/// One death at a place in the request that was not passed since.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Strike {
    /// The positions of the step that may have caused it.
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
    /// True for a death at a place in the request that may be the fatal one.
    pub(super) fn note(&mut self, sighting: Sighting) -> bool {
        if self.is_acquitted_at(sighting.history) {
            *self = Self::default();
        }
        let Some(spot) = sighting.spot else {
            self.elsewhere += 1;
            self.history = sighting.history;
            return false;
        };
        if self.lies_ahead_of(&spot) {
            self.missed += u32::from(sighting.alone);
            return false;
        }
        self.history = sighting.history;
        self.missed = 0;
        self.pass(&spot);
        self.open.push(Strike {
            spot,
            signature: sighting.signature,
            alone: sighting.alone,
        });
        true
    }

    pub(super) fn is_proven(&self, toll: Toll) -> bool {
        let others = |all: u32| all.saturating_sub(self.deaths() + self.elsewhere);
        let least = |deaths, alone| Tally { deaths, alone };
        let (alike, of_any_kind) = match (others(toll.lately), others(toll.last_minute)) {
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

    /// A death at this place is the first that counts.
    pub(super) fn is_clean_at(&self, history: u32) -> bool {
        *self == Self::default() || self.is_acquitted_at(history)
    }

    pub(super) fn is_acquitted_at(&self, history: u32) -> bool {
        let ends = self.open.iter().map(|death| death.spot.positions.end);
        let end = ends.max().unwrap_or(self.history).min(self.history);
        history > self.history && history >= end + TOKENS_OF_AN_ACQUITTAL
    }

    /// Number of deaths at its place, for a message and the machine's account.
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

    /// A child that died there had not come to this request's place.
    fn lies_ahead_of(&self, now: &Spot) -> bool {
        let is_ahead = |strike: &Strike| now.positions.end <= strike.spot.positions.start;
        !self.open.is_empty() && self.open.iter().all(is_ahead)
    }

    /// A child that died there had got past every position in front. Where a decode step kills, the
    /// replay makes the token that it would have died of, and the next one dies: the place of such a
    /// death moves on with it.
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

    /// Deaths of others, beside so many that the request took part in.
    fn toll(own: u32, others: u32) -> Toll {
        let all = own + others;
        Toll {
            lately: all,
            last_minute: all,
        }
    }

    /// Deaths with the same history; alone as soon as it is a suspect.
    fn deaths(suspicion: &mut Suspicion, spots: &[Option<Spot>], signature: &Signature) {
        for spot in spots {
            let alone = suspicion.is_suspect();
            suspicion.note(Sighting {
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
        assert!(suspicion.is_suspect(), "the replay's last part is the step");
        assert!(!suspicion.is_proven(toll(2, 0)), "it was never alone");
        assert!(!suspicion.is_acquitted_at(HISTORY + 1));
        assert!(suspicion.is_acquitted_at(HISTORY + 2));
        deaths(&mut suspicion, &[in_prompt(1984..HISTORY)], &crash());
        assert!(suspicion.is_proven(toll(3, 0)));
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
        assert!(suspicion.is_proven(toll(3, 0)));
        let mut other = Suspicion::default();
        let parts = [640..704, 672..680, 600..672];
        deaths(&mut other, &parts.map(in_prompt), &crash());
        assert!(
            !other.is_proven(toll(3, 0)),
            "the third is not where both others were"
        );
    }

    #[test]
    fn a_decode_step_that_kills_moves_on_by_a_token_each_time() {
        let mut suspicion = Suspicion::default();
        for history in HISTORY..HISTORY + 3 {
            assert!(!suspicion.is_proven(toll(3, 0)));
            suspicion.note(Sighting {
                spot: decoding(history),
                history,
                signature: crash(),
                alone: suspicion.is_suspect(),
            });
        }
        assert!(suspicion.is_proven(toll(3, 0)));
    }

    #[test]
    fn progress_between_deaths_makes_no_suspect_of_any_number() {
        let mut suspicion = Suspicion::default();
        for history in (HISTORY..HISTORY + 200).step_by(2) {
            suspicion.note(Sighting {
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
                let proven = suspicion.is_proven(toll(death, others));
                assert_eq!(proven, death >= alike, "{others}");
                let signature =
                    [crash(), other.clone(), elsewhere.clone()][death as usize % 3].clone();
                deaths(&mut of_many, &[decoding(HISTORY)], &signature);
                let proven = of_many.is_proven(toll(death, others));
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
        assert!(suspicion.is_suspect() && !suspicion.is_proven(toll(4, 0)));
        let mut guilty = suspicion.clone();
        deaths(&mut guilty, &[place], &crash());
        assert!(guilty.is_proven(toll(3, 0)), "it is where it was");
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
        assert!(!suspicion.is_proven(toll(3, 0)), "it was not alone");
        deaths(&mut suspicion, &[place], &crash());
        assert!(suspicion.is_proven(toll(4, 0)));
    }

    #[test]
    fn the_death_of_a_neighbour_close_by_takes_nothing_from_its_own() {
        let mut suspicion = Suspicion::default();
        // Its place is 37; another's death met it while it computed 29 to 31.
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
        assert!(!suspicion.is_proven(toll(22, 0)));
    }
}
