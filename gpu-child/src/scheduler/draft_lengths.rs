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

use super::drafts::{Source, rounded};

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

/// Duration of steps of a number of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub rows: f32,
    pub seconds: f32,
}

/// Durations of steps without prompts, in the order of their rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepSeconds {
    /// Launched while the step before was in flight.
    pub ahead: [Point; SIZES],
    /// Planned after the end of the step before, with the time of the host.
    pub waited: [Point; SIZES],
    /// Steps of the draft model, by their number of sequences.
    pub model: [Point; SIZES],
}

impl StepSeconds {
    /// Before any measurement: no drafts.
    pub const UNKNOWN: Self = Self {
        ahead: flat(f32::INFINITY),
        waited: flat(f32::INFINITY),
        model: flat(f32::INFINITY),
    };

    /// Rows cost nothing.
    pub const FREE: Self = Self {
        ahead: flat(1.0),
        waited: flat(1.0),
        model: flat(0.0),
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

    #[must_use]
    pub fn ahead(&self, rows: usize) -> f32 {
        at(&self.ahead, rows)
    }

    #[must_use]
    pub fn waited(&self, rows: usize) -> f32 {
        at(&self.waited, rows)
    }

    #[must_use]
    pub fn model(&self, sequences: usize) -> f32 {
        at(&self.model, sequences)
    }

    /// True if so many sequences get more tokens in a second with as many further rows of right tokens.
    pub(super) fn favours_rows(&self, sequences: usize) -> bool {
        sequences > 0 && self.waited(2 * sequences) < 2.0 * self.waited(sequences)
    }
}

const fn flat(seconds: f32) -> [Point; SIZES] {
    let mut points = [Point { rows: 1.0, seconds }; SIZES];
    let mut size = 1;
    while size < SIZES {
        points[size].rows = 2.0 * points[size - 1].rows;
        size += 1;
    }
    points
}

/// Linear between two points, and constant outside.
fn at(points: &[Point; SIZES], rows: usize) -> f32 {
    let rows = rows as f32;
    let Some(above) = points.iter().position(|point| point.rows >= rows) else {
        return points[SIZES - 1].seconds;
    };
    let high = points[above];
    let Some(low) = above.checked_sub(1).map(|below| points[below]) else {
        return high.seconds;
    };
    let part = (rows - low.rows) / (high.rows - low.rows);
    match low.seconds == high.seconds {
        // Also for infinite ones.
        true => low.seconds,
        false => low.seconds + part * (high.seconds - low.seconds),
    }
}

/// Drafts that a sequence can have in the next step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offer {
    /// 0 for a sequence without drafts.
    pub most: usize,
    /// Probability of a draft behind right ones.
    pub share: f32,
    pub source: Source,
    /// The draft model has to make them.
    pub needs_turn: bool,
}

/// Drafts of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// Of each sequence.
    pub lengths: Vec<usize>,
    /// Steps of the draft model.
    pub turn: usize,
}

/// Chooses from the offers of all decoding sequences, for at most so many rows. `None`: without drafts, and launched ahead, the
/// step yields most. That is also the choice behind a step with drafts: the next one is launched ahead then.
pub(super) fn choose(offers: &[Offer], seconds: &StepSeconds, most_rows: usize) -> Option<Choice> {
    let sequences = offers.len();
    let least = StepSeconds::size_of(sequences).filter(|_| sequences <= MOST_SEQUENCES)?;
    let makers = offers.iter().filter(|it| it.needs_turn && it.most > 0);
    let makers = makers.count();
    let of_text = offers.iter().any(|it| !it.needs_turn && it.most > 0);
    let without = seconds.ahead(sequences);
    let mut best = (LEAST_GAIN * sequences as f32 / without, None);
    let without_turn = of_text.then_some((0, 0.0));
    let of_turn = seconds.model(makers);
    let turns = TURNS.iter().filter(|_| makers > 0);
    let turns = turns.map(|turn| (*turn, *turn as f32 * of_turn));
    for (turn, turn_seconds) in without_turn.into_iter().chain(turns) {
        let ranked = ranked(offers, turn);
        for size in least..SIZES {
            let room = most_rows.min(1 << size).saturating_sub(sequences);
            let (lengths, gained) = filled(offers, &ranked, room);
            let step = seconds.waited(sequences + lengths.iter().sum::<usize>());
            let delays_others = step > LONGER_BESIDE * seconds.waited(sequences);
            if delays_others && lengths.contains(&0) {
                continue;
            }
            let rate = (sequences as f32 + gained) / (step + turn_seconds);
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
        let most = match offer.needs_turn {
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
    fn stairs() -> StepSeconds {
        let of = |seconds: [f32; SIZES]| {
            let mut points = flat(0.0);
            for (point, seconds) in points.iter_mut().zip(seconds) {
                point.seconds = seconds;
            }
            points
        };
        StepSeconds {
            ahead: of([1.0, 1.4, 1.4, 1.4, 1.6, 1.8, 2.5]),
            waited: of([1.1, 1.5, 1.5, 1.5, 1.7, 1.9, 2.6]),
            model: of([0.2, 0.25, 0.25, 0.3, 0.4, 0.5, 0.6]),
        }
    }

    const NONE: [usize; 0] = [];

    fn text(most: usize, share: f32) -> Offer {
        Offer {
            most,
            share,
            source: Source::Text,
            needs_turn: false,
        }
    }

    fn model(most: usize, share: f32) -> Offer {
        Offer {
            source: Source::Model,
            needs_turn: true,
            ..text(most, share)
        }
    }

    fn lengths(offers: &[Offer]) -> Vec<usize> {
        let choice = choose(offers, &stairs(), 64);
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
    fn times_between_two_points_are_between_theirs() {
        let waited = [1, 8, 12, 16, 64, 100].map(|rows| stairs().waited(rows));
        assert_eq!(waited, [1.1, 1.5, 1.6, 1.7, 2.6, 2.6]);
        assert_eq!(StepSeconds::UNKNOWN.waited(12), f32::INFINITY);
    }

    #[test]
    fn likely_drafts_fill_the_rows_that_cost_least() {
        // 1 + 0.7 + 0.49 + … tokens: eight rows take as long as two.
        assert_eq!(lengths(&[text(15, 0.7)]), [7]);
        assert_eq!(lengths(&[text(15, 0.98)]), [15]);
        assert_eq!(lengths(&[text(3, 0.7)]), [3]);
        // 1.3 tokens in 1.5 times the time.
        assert_eq!(lengths(&[text(15, 0.25)]), NONE);
        assert_eq!(lengths(&[]), NONE);
        assert_eq!(lengths(&[text(0, 0.9)]), NONE);
    }

    #[test]
    fn drafts_gain_on_a_step_that_is_launched_ahead() {
        // 1.45 tokens in 1.5: more than 1 in 1.1, and fewer than 1 in 1.
        assert_eq!(lengths(&[text(1, 0.45)]), NONE);
        let mut slow = stairs();
        slow.ahead = slow.waited;
        assert!(choose(&[text(1, 0.45)], &slow, 64).is_some());
        let each = [text(1, 0.9); 8];
        assert_eq!(lengths(&each), [1; 8]);
    }

    #[test]
    fn rows_up_to_a_power_of_two_are_not_free() {
        let mut linear = StepSeconds::FREE;
        for points in [&mut linear.ahead, &mut linear.waited] {
            points.iter_mut().for_each(|it| it.seconds = it.rows);
        }
        let offers = [text(15, 0.5); 9];
        assert_eq!(choose(&offers, &linear, 64), None);
        assert!(choose(&offers, &StepSeconds::FREE, 64).is_some());
    }

    #[test]
    fn drafts_lengthen_a_step_of_others_little() {
        let beside = |most, share| {
            let mut offers = vec![text(15, 0.98); 4];
            offers.resize(32, text(most, share));
            lengths(&offers)
        };
        // 64 rows take 1.37 times as long as 32.
        let few = beside(0, 0.0);
        let rows: usize = few.iter().sum();
        assert!(stairs().waited(32 + rows) <= LONGER_BESIDE * stairs().waited(32));
        assert_eq!(beside(1, 0.98).iter().sum::<usize>(), 32);
        // Others offer drafts, which find no room.
        let mut offers = vec![text(7, 0.98); 4];
        offers.resize(8, text(7, 0.3));
        let lengths = lengths(&offers);
        let rows: usize = lengths.iter().sum();
        let is_short = stairs().waited(8 + rows) <= LONGER_BESIDE * stairs().waited(8);
        assert!(is_short || !lengths.contains(&0), "{lengths:?}");
    }

    #[test]
    fn many_sequences_have_no_drafts() {
        assert_eq!(lengths(&[text(15, 0.98); 33]), NONE);
    }

    #[test]
    fn a_turn_of_the_draft_model_is_worth_its_steps() {
        let turn = |offers: &[Offer]| choose(offers, &stairs(), 64).map_or(0, |it| it.turn);
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
        assert_eq!(choose(&[text(15, 0.9)], &StepSeconds::UNKNOWN, 64), None);
        let rows = choose(&[text(15, 0.98)], &StepSeconds::FREE, 4);
        assert_eq!(rows.unwrap().lengths, [3]);
    }

    #[test]
    fn further_rows_pay_where_they_take_less_time_than_tokens() {
        assert!(stairs().favours_rows(1) && stairs().favours_rows(9));
        let mut dear = StepSeconds::FREE;
        dear.waited.iter_mut().for_each(|it| it.seconds = it.rows);
        assert!(!dear.favours_rows(1) && !dear.favours_rows(32));
        assert!(!StepSeconds::UNKNOWN.favours_rows(1));
    }
}
