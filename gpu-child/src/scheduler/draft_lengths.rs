//! Numbers of drafts with which a step yields most tokens in a second.
//!
//! A step of n sequences yields n tokens, and the drafts that are right. With the share p of a sequence's recent drafts that were right
//! behind right ones, its i-th draft is right with the probability p^i. The time of a step depends on its rows, in stairs:
//! a device computes some more rows in the same blocks. [`StepSeconds`] has the measured times by powers of two, and
//! for each of these the most likely drafts fill the rows.
//!
//! A step with drafts is planned after the end of the step before, because they follow its tokens. Without drafts it may be launched
//! while that one is in flight, which saves the time of the host. Drafts of a draft model also take its steps, which all sequences
//! share.

use super::drafts::rounded;

/// Numbers of rows: up to 1, 2, 4, … 64.
pub const SIZES: usize = 7;

/// Sequences of a step with drafts, at most. The rows of more fill the device.
const MOST_SEQUENCES: usize = 32;

/// Least gain of a step with drafts.
const LEAST_GAIN: f32 = 1.03;

/// Factor by which the rows of drafts may lengthen a step in which other sequences have none.
const LONGER_BESIDE: f32 = 1.15;

/// Steps of the draft model in a turn, beside none.
const TURNS: [usize; 4] = [1, 3, 7, 15];

/// Seconds of steps without prompts, by their number of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSeconds {
    /// Launched while the step before was in flight.
    pub ahead: [f32; SIZES],
    /// Planned after the end of the step before, with the time of the host.
    pub waited: [f32; SIZES],
    /// Steps of the draft model, by their number of sequences.
    pub model: [f32; SIZES],
}

impl StepSeconds {
    /// Before any measurement: no drafts.
    pub const UNKNOWN: Self = Self {
        ahead: [f32::INFINITY; SIZES],
        waited: [f32::INFINITY; SIZES],
        model: [f32::INFINITY; SIZES],
    };

    /// Rows cost nothing.
    pub const FREE: Self = Self {
        ahead: [1.0; SIZES],
        waited: [1.0; SIZES],
        model: [0.0; SIZES],
    };

    /// Index of a number of rows; `None` for 0 and for more than the largest.
    #[must_use]
    pub fn size_of(rows: usize) -> Option<usize> {
        let size = rows
            .checked_sub(1)?
            .checked_ilog2()
            .map_or(0, |log| log + 1) as usize;
        (size < SIZES).then_some(size)
    }

    /// True if so many sequences get more tokens in a second with further rows of right tokens.
    pub(super) fn favours_rows(&self, sequences: usize) -> bool {
        let Some(size) = Self::size_of(sequences).filter(|size| size + 1 < SIZES) else {
            return false;
        };
        let rows = (1 << (size + 1)) as f32;
        rows / self.waited[size + 1] > sequences as f32 / self.waited[size]
    }
}

/// Drafts that a sequence can have in the next step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offer {
    /// 0 for a sequence without drafts.
    pub most: usize,
    /// Probability of a draft behind right ones.
    pub share: f32,
    /// The draft model has to make them.
    pub of_model: bool,
}

/// Drafts of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Of each sequence.
    pub lengths: Vec<usize>,
    /// Steps of the draft model.
    pub turn: usize,
}

/// Chooses from the offers of all decoding sequences. `None`: without drafts the step yields most. `is_in_flight`: the step
/// before is, so a step without drafts can be launched ahead.
pub(super) fn choose(
    offers: &[Offer],
    seconds: &StepSeconds,
    is_in_flight: bool,
    most_rows: usize,
) -> Option<Choice> {
    let sequences = offers.len();
    let least = StepSeconds::size_of(sequences).filter(|_| sequences <= MOST_SEQUENCES)?;
    let makers = offers
        .iter()
        .filter(|it| it.of_model && it.most > 0)
        .count();
    let of_text = offers.iter().any(|it| !it.of_model && it.most > 0);
    let without = match is_in_flight {
        true => seconds.ahead[least],
        false => seconds.waited[least],
    };
    let mut best = (LEAST_GAIN * sequences as f32 / without, None);
    let without_turn = of_text.then_some((0, 0.0));
    let of_turn = StepSeconds::size_of(makers).map_or(f32::INFINITY, |size| seconds.model[size]);
    let turns = TURNS.iter().filter(|_| makers > 0);
    let turns = turns.map(|turn| (*turn, *turn as f32 * of_turn));
    for (turn, turn_seconds) in without_turn.into_iter().chain(turns) {
        let ranked = ranked(offers, turn);
        for size in least..SIZES {
            let room = most_rows.min(1 << size).saturating_sub(sequences);
            let is_beside = offers.iter().any(|it| it.most == 0);
            if is_beside && seconds.waited[size] > LONGER_BESIDE * seconds.waited[least] {
                break;
            }
            let (lengths, gained) = filled(offers, &ranked, room);
            let rate = (sequences as f32 + gained) / (seconds.waited[size] + turn_seconds);
            if gained > 0.0 && rate > best.0 {
                best = (rate, Some(Choice { lengths, turn }));
            }
        }
    }
    best.1
}

/// Probabilities of all drafts and their sequences, the most likely first.
fn ranked(offers: &[Offer], turn: usize) -> Vec<(f32, usize)> {
    let of_each = offers.iter().enumerate().flat_map(|(index, offer)| {
        let most = match offer.of_model {
            true => offer.most.min(turn),
            false => offer.most,
        };
        let chances = std::iter::successors(Some(offer.share), |chance| Some(chance * offer.share));
        chances.take(most).map(move |chance| (chance, index))
    });
    let mut ranked: Vec<_> = of_each.collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    ranked
}

/// Lengths that fill this many rows, and the expected tokens.
fn filled(offers: &[Offer], ranked: &[(f32, usize)], room: usize) -> (Vec<usize>, f32) {
    let mut lengths = vec![0; offers.len()];
    for (_, index) in ranked.iter().take(room) {
        lengths[*index] += 1;
    }
    let mut gained = 0.0;
    for (length, offer) in lengths.iter_mut().zip(offers) {
        *length = rounded(*length);
        let chances = std::iter::successors(Some(offer.share), |chance| Some(chance * offer.share));
        gained += chances.take(*length).sum::<f32>();
    }
    (lengths, gained)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device on which up to 8 rows take a little longer than one, and each doubling behind them more.
    const STAIRS: StepSeconds = StepSeconds {
        ahead: [1.0, 1.4, 1.4, 1.4, 1.6, 1.8, 2.5],
        waited: [1.1, 1.5, 1.5, 1.5, 1.7, 1.9, 2.6],
        model: [0.2, 0.25, 0.25, 0.3, 0.4, 0.5, 0.6],
    };

    const NONE: [usize; 0] = [];

    fn text(most: usize, share: f32) -> Offer {
        Offer {
            most,
            share,
            of_model: false,
        }
    }

    fn model(most: usize, share: f32) -> Offer {
        Offer {
            of_model: true,
            ..text(most, share)
        }
    }

    fn lengths(offers: &[Offer], is_in_flight: bool) -> Vec<usize> {
        let choice = choose(offers, &STAIRS, is_in_flight, 64);
        choice.map_or_else(Vec::new, |it| it.lengths)
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let sizes = [0, 1, 2, 3, 4, 5, 8, 9, 64, 65].map(StepSeconds::size_of);
        let expected = [None, Some(0), Some(1), Some(2), Some(2), Some(3), Some(3)];
        assert_eq!(sizes[..7], expected);
        assert_eq!(sizes[7..], [Some(4), Some(6), None]);
    }

    #[test]
    fn likely_drafts_fill_the_rows_that_cost_least() {
        // 1 + 0.7 + 0.49 + … tokens: eight rows take as long as two.
        assert_eq!(lengths(&[text(15, 0.7)], true), [7]);
        assert_eq!(lengths(&[text(15, 0.98)], true), [15]);
        assert_eq!(lengths(&[text(3, 0.7)], true), [3]);
        // 1.3 tokens in 1.5 times the time.
        assert_eq!(lengths(&[text(15, 0.25)], true), NONE);
        assert_eq!(lengths(&[], true), NONE);
        assert_eq!(lengths(&[text(0, 0.9)], true), NONE);
    }

    #[test]
    fn a_step_that_can_be_launched_ahead_waits_only_for_a_gain() {
        // Two rows of one sequence among eight: their step is shorter if it is launched ahead.
        let mut offers = vec![text(1, 0.9)];
        offers.resize(8, text(0, 0.0));
        assert_eq!(lengths(&offers, true), NONE);
        let each = vec![text(1, 0.9); 8];
        assert_eq!(lengths(&each, true), [1; 8]);
    }

    #[test]
    fn drafts_lengthen_a_step_of_others_little() {
        let beside = |most| {
            let mut offers = vec![text(15, 0.98); 4];
            offers.resize(32, text(most, 0.98));
            lengths(&offers, true)
        };
        // 64 rows take 1.37 times as long as 32.
        assert_eq!(beside(0), NONE);
        assert_eq!(beside(1).iter().sum::<usize>(), 32);
        let many = vec![text(15, 0.98); 33];
        assert_eq!(lengths(&many, true), NONE);
    }

    #[test]
    fn a_turn_of_the_draft_model_is_worth_its_steps() {
        let turn = |offers: &[Offer]| choose(offers, &STAIRS, true, 64).map_or(0, |it| it.turn);
        assert_eq!(turn(&[model(15, 0.95)]), 15);
        assert_eq!(turn(&[model(15, 0.8)]), 7);
        assert_eq!(turn(&[model(15, 0.5)]), 0);
        assert_eq!(turn(&[model(1, 0.95)]), 1, "1.95 tokens in 1.7");
        assert_eq!(turn(&[model(1, 0.7)]), 0, "1.7 tokens in 1.7");
        // Each step of the model delays all of eight sequences.
        let mut one_of_eight = vec![model(15, 0.95)];
        one_of_eight.resize(8, text(0, 0.0));
        assert_eq!(turn(&one_of_eight), 0);
        assert!(turn(&[model(15, 0.95); 8]) > 0);
    }

    #[test]
    fn nothing_is_drafted_before_a_measurement_or_beyond_the_rows() {
        assert_eq!(
            choose(&[text(15, 0.9)], &StepSeconds::UNKNOWN, false, 64),
            None
        );
        let rows = choose(&[text(15, 0.98)], &StepSeconds::FREE, false, 4);
        assert_eq!(rows.unwrap().lengths, [3]);
    }

    #[test]
    fn further_rows_pay_where_they_take_less_time_than_tokens() {
        assert!(STAIRS.favours_rows(1) && STAIRS.favours_rows(9));
        let mut dear = STAIRS;
        for (size, seconds) in dear.waited.iter_mut().enumerate() {
            *seconds = (1 << size) as f32;
        }
        assert!(!dear.favours_rows(1) && !dear.favours_rows(64));
        assert!(!StepSeconds::UNKNOWN.favours_rows(1));
    }
}
