//! What the deaths that a request was part of say about it.
//!
//! Replays are exact, so a query of death kills whenever its child comes to one place in it: a
//! position of its prompt, or the step of one token. Chance kills anywhere. So only deaths at one
//! place add up: getting past it is an acquittal, in company as well as alone; a death on the way
//! there says nothing, and one further on begins a new account. Whoever comes to its place is killed
//! there by chance with the probability that a death falls into that one step: some 2 in 100 where
//! children die every three seconds of steps of 70 ms. That to the power of all deaths there but
//! the first is how likely an innocent is convicted, however many deaths it takes part in.
//!
//! | deaths at one place | where few others died lately | where more did |
//! |---|---|---|
//! | of one signature: cause and layer | 3, one of them alone | 5, three of them alone |
//! | of several | 5, two of them alone | 7, three of them alone |

use crate::requests::scene::{Spot, Within};

/// Deaths at one place from which on a request runs alone.
const DEATHS_OF_A_SUSPECT: u32 = 2;

/// The first token behind a death comes out of the replayed prompt, the second out of a decode
/// step. The fatal step was one of the two, and a child may die just after its token has left.
const TOKENS_OF_AN_ACQUITTAL: u32 = 2;

/// Deaths in a turn alone before its place was reached, after which it goes back to the others:
/// where replays take longer than children live, a turn alone would keep them waiting for ever.
const MISSED_TURNS: u32 = 3;

/// Deaths that a request had no part in, from which on chance is a likely reason.
const DEATHS_OF_A_BAD_MACHINE: u32 = 3;

/// How a child died, apart from where in the request.
pub(crate) type Signature = (&'static str, Option<Within>);

/// One death, as one request met it.
#[derive(Debug, Clone)]
pub(crate) struct Sighting {
    /// Where in it. `None`: it was with the child, but not in the step.
    pub spot: Option<Spot>,
    /// Tokens of its prompt and its answer.
    pub history: u32,
    pub signature: Signature,
    /// A suspect, and the child had nothing else.
    pub alone: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Suspicion {
    /// At its present place, one for each signature.
    accounts: Vec<Account>,
    /// Deaths without progress that met it elsewhere.
    elsewhere: u32,
    /// Its history at the last death.
    history: u32,
    /// Turns alone that ended on the way to its place.
    missed: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    signature: Signature,
    /// What all its deaths have in common.
    place: Spot,
    deaths: u32,
    /// Those of them at which the request was alone.
    alone: u32,
}

impl Suspicion {
    pub(super) fn note(&mut self, sighting: Sighting) {
        if self.is_acquitted_at(sighting.history) {
            *self = Self::default();
        }
        let Some(spot) = sighting.spot else {
            self.elsewhere += 1;
            self.history = sighting.history;
            return;
        };
        let mut accounts = self.accounts.iter();
        if !self.accounts.is_empty() && accounts.all(|it| it.place.lies_behind(&spot)) {
            return self.miss(sighting.alone);
        }
        if self.accounts.iter().any(|it| it.place.is_passed_at(&spot)) {
            self.elsewhere = 0;
            self.accounts.retain(|it| !it.place.is_passed_at(&spot));
        }
        self.history = sighting.history;
        self.missed = 0;
        let mut known = self.accounts.iter_mut();
        let alone = u32::from(sighting.alone);
        match known.find(|it| it.signature == sighting.signature && it.place.overlaps(&spot)) {
            Some(account) => account.note(spot, alone),
            None => self.accounts.push(Account {
                signature: sighting.signature,
                place: spot,
                deaths: 1,
                alone,
            }),
        }
    }

    /// `all_deaths`: of children, lately, whoever was with them.
    pub(super) fn is_proven(&self, all_deaths: u32) -> bool {
        let others = all_deaths.saturating_sub(self.deaths());
        let (alike, of_any_kind, alone) = match others >= DEATHS_OF_A_BAD_MACHINE {
            false => (3, 5, 1),
            true => (5, 7, 3),
        };
        let of_one = |it: &Account| it.deaths >= alike && it.alone >= alone;
        let alone_in_all: u32 = self.accounts.iter().map(|it| it.alone).sum();
        self.accounts.iter().any(of_one)
            || (self.deaths() >= of_any_kind && alone_in_all >= alone.max(2))
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.deaths() + self.elsewhere >= DEATHS_OF_A_SUSPECT
    }

    pub(super) fn is_acquitted_at(&self, history: u32) -> bool {
        let ends = self.accounts.iter().map(|it| it.place.positions.end);
        let end = ends.max().unwrap_or(self.history).min(self.history);
        history > self.history && history >= end + TOKENS_OF_AN_ACQUITTAL
    }

    /// At its place, for a message and the machine's account.
    pub(super) fn deaths(&self) -> u32 {
        self.accounts.iter().map(|it| it.deaths).sum()
    }

    fn miss(&mut self, alone: bool) {
        self.missed += u32::from(alone);
        if self.missed >= MISSED_TURNS {
            *self = Self::default();
        }
    }
}

impl Account {
    fn note(&mut self, spot: Spot, alone: u32) {
        let (then, now) = (&self.place.positions, &spot.positions);
        let common = then.start.max(now.start)..then.end.min(now.end);
        self.place = match common.is_empty() {
            true => spot,
            false => Spot {
                positions: common,
                ..spot
            },
        };
        self.deaths += 1;
        self.alone += alone;
    }
}

impl Spot {
    fn overlaps(&self, now: &Self) -> bool {
        !self.lies_behind(now) && !self.is_passed_at(now)
    }

    /// A child that died there had not come to this place.
    fn lies_behind(&self, now: &Self) -> bool {
        now.positions.end <= self.positions.start
    }

    /// A child that died there had got past this place. Where a decode step kills, the replay makes
    /// the token that it would have died of, and the next one dies.
    fn is_passed_at(&self, now: &Self) -> bool {
        let (end, start) = (self.positions.end, now.positions.start);
        start > end || (start == end && !(self.decoding && now.decoding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    const HISTORY: u32 = 2000;
    const CRASH: Signature = ("signalled", Some(Within::Layer(3)));

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

    /// Deaths with the same history; alone as soon as it is a suspect.
    fn deaths(suspicion: &mut Suspicion, spots: &[Option<Spot>], signature: Signature) {
        for spot in spots {
            let alone = suspicion.is_suspect();
            suspicion.note(Sighting {
                spot: spot.clone(),
                history: HISTORY,
                signature,
                alone,
            });
        }
    }

    #[test]
    fn two_deaths_at_one_place_make_a_suspect_and_a_third_alone_proves_it() {
        let mut suspicion = Suspicion::default();
        deaths(&mut suspicion, &[decoding(HISTORY)], CRASH);
        assert!(!suspicion.is_suspect());
        deaths(&mut suspicion, &[in_prompt(1990..HISTORY)], CRASH);
        assert!(suspicion.is_suspect(), "the replay's last part is the step");
        assert!(!suspicion.is_proven(2), "it was never alone");
        assert!(!suspicion.is_acquitted_at(HISTORY + 1));
        assert!(suspicion.is_acquitted_at(HISTORY + 2));
        deaths(&mut suspicion, &[in_prompt(1984..HISTORY)], CRASH);
        assert!(suspicion.is_proven(3));
    }

    #[test]
    fn deaths_all_over_a_long_prompt_prove_nothing_however_many() {
        let mut suspicion = Suspicion::default();
        for round in 0..40 {
            let at = 7 * round % 61 * 32;
            deaths(&mut suspicion, &[in_prompt(at..at + 32)], CRASH);
            assert!(!suspicion.is_suspect(), "round {round}");
        }
    }

    #[test]
    fn a_part_of_a_prompt_is_the_same_whatever_the_parts_are_cut_into() {
        let mut suspicion = Suspicion::default();
        let parts = [640..704, 672..680, 600..700];
        deaths(&mut suspicion, &parts.map(in_prompt), CRASH);
        assert!(suspicion.is_proven(3));
        let mut other = Suspicion::default();
        let parts = [640..704, 672..680, 600..672];
        deaths(&mut other, &parts.map(in_prompt), CRASH);
        assert!(
            !other.is_proven(3),
            "the third is not where both others were"
        );
    }

    #[test]
    fn a_decode_step_that_kills_moves_on_by_a_token_each_time() {
        let mut suspicion = Suspicion::default();
        for history in HISTORY..HISTORY + 3 {
            assert!(!suspicion.is_proven(3));
            suspicion.note(Sighting {
                spot: decoding(history),
                history,
                signature: CRASH,
                alone: suspicion.is_suspect(),
            });
        }
        assert!(suspicion.is_proven(3));
    }

    #[test]
    fn progress_between_deaths_makes_no_suspect_of_any_number() {
        let mut suspicion = Suspicion::default();
        for history in (HISTORY..HISTORY + 200).step_by(2) {
            suspicion.note(Sighting {
                spot: decoding(history),
                history,
                signature: CRASH,
                alone: false,
            });
            assert!(!suspicion.is_suspect());
        }
    }

    #[test]
    fn where_others_die_too_or_in_other_ways_it_takes_more() {
        let other = ("panic", Some(Within::Layer(3)));
        let elsewhere = ("signalled", Some(Within::Layer(4)));
        for (others, alike, mixed) in [(0, 3, 5), (2, 3, 5), (3, 5, 7)] {
            let mut suspicion = Suspicion::default();
            let mut of_many = Suspicion::default();
            for death in 1..=7 {
                deaths(&mut suspicion, &[decoding(HISTORY)], CRASH);
                assert_eq!(suspicion.is_proven(death + others), death >= alike);
                let signature = [CRASH, other, elsewhere][death as usize % 3];
                deaths(&mut of_many, &[decoding(HISTORY)], signature);
                assert_eq!(of_many.is_proven(death + others), death >= mixed);
            }
        }
    }

    #[test]
    fn deaths_on_the_way_to_its_place_say_nothing_and_end_its_turns_alone() {
        let mut suspicion = Suspicion::default();
        let place = in_prompt(1024..1056);
        deaths(&mut suspicion, &[place.clone(), place.clone()], CRASH);
        let at_start = in_prompt(0..32);
        deaths(&mut suspicion, &[at_start.clone(), at_start.clone()], CRASH);
        assert!(suspicion.is_suspect() && !suspicion.is_proven(4));
        let mut guilty = suspicion.clone();
        deaths(&mut guilty, &[place], CRASH);
        assert!(guilty.is_proven(3), "it is where it was");
        deaths(&mut suspicion, &[at_start], CRASH);
        assert!(!suspicion.is_suspect());
    }

    #[test]
    fn whoever_was_not_in_the_step_is_suspected_and_never_convicted() {
        let mut suspicion = Suspicion::default();
        deaths(&mut suspicion, &[None, None], CRASH);
        assert!(suspicion.is_suspect());
        deaths(&mut suspicion, &vec![None; 20], CRASH);
        assert!(!suspicion.is_proven(22));
    }
}
