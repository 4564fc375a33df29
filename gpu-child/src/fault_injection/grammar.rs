//! Parser of `WORKER_ORCD_FAULTS`: faults and their conditions.
//!
//! ```text
//! faults    = rule *( ";" rule )
//! rule      = kinds "@" condition *( "," condition )
//! kinds     = group *( "|" group )
//! group     = "any" / "device" / kind
//! kind      = "panic" / "abort" / "segfault" / "exit-zero" / "hang" / "stall" / "flood"
//!           / "garbage" / "drip" / "nan" / "wrong-token" / "out-of-memory" / "stop" / "kill"
//!           / "illegal-address" / "misaligned" / "trap" / "endless-kernel"
//!           / "device-out-of-memory" / "device-full"
//!           / "flipped-page"      where the KV cache is shared
//!           / "read-file" / "open-socket" / "run-program"     refused, where the child is confined
//!           / "flipped-bit"       with generation alone: in the weights that this child places
//! condition = "step=" N           the Nth step of this child, counted from 1
//!           / "generation=" N     this child only, counted from 1
//!           / "prompt-tokens=" N  a sequence draws a token after a prompt of N tokens
//!           / "position=" N       a sequence computes this position, counted from 0
//!           / "token=" N          a sequence computes this token id
//!           / "chance=" P         with this probability, 0 to 1, at each step
//!           / "file=" PATH        once for each time that a file is created there
//!           / "seed=" N           of the draws for `chance` and among several kinds
//! ```
//!
//! `device` is every kind that only a GPU has (`illegal-address` to `device-full`). `any` is every other kind except
//! bit flips and the refused actions. All conditions of a rule must hold in the same step; the last three conditions on
//! a sequence may be met by different sequences. The first matching rule wins. Draws depend on seed, generation, step
//! and rule, so every child of a run fails in its own way, and a repeated run fails identically.
//!
//! `segfault@step=7` · `panic@token=31337` (a query of death) · `any@chance=0.01,seed=42`

use super::Kind;
use crate::device::{Batch, SequenceWork};
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;
use worker_orcd_ipc::{Generation, TokenId};
use worker_orcd_sampler::rng::philox4x32;

/// A usage error: the child does not start with rules that it understands only partly.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GrammarError {
    #[error("{0:?} has no @ between what and when")]
    NoCondition(String),
    #[error("{0:?} is no kind of fault")]
    UnknownKind(String),
    #[error("{0:?} is no condition with a value in its range")]
    BadCondition(String),
    #[error("{0:?} is given twice in one rule")]
    Repeated(String),
    #[error("a flipped-bit has a generation and nothing else: {0:?}")]
    NoStep(String),
    #[error("a seed decides nothing in {0:?}")]
    IdleSeed(String),
}

/// A rule: one or more kinds, and the conditions that must all hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Never empty.
    kinds: Vec<Kind>,
    step: Option<u64>,
    generation: Option<u32>,
    prompt_tokens: Option<usize>,
    position: Option<u32>,
    token: Option<TokenId>,
    chance: Option<f64>,
    seed: Option<u64>,
    /// Removed by the strike.
    file: Option<PathBuf>,
}

/// Parses rules.
///
/// # Errors
/// At the first invalid rule.
pub fn parse(text: &str) -> Result<Vec<Rule>, GrammarError> {
    text.split(';')
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(Rule::parse)
        .collect()
}

impl Rule {
    fn parse(text: &str) -> Result<Self, GrammarError> {
        let (kinds, conditions) = text
            .split_once('@')
            .ok_or_else(|| GrammarError::NoCondition(text.to_owned()))?;
        let mut rule = Self::of_kinds(parse_kinds(kinds.trim())?);
        for condition in conditions.split(',') {
            rule.add(condition.trim())?;
        }
        if rule.seed.is_some() && rule.chance.is_none() && rule.kinds.len() == 1 {
            return Err(GrammarError::IdleSeed(text.to_owned()));
        }
        let flips = Self {
            generation: rule.generation,
            ..Self::of_kinds(vec![Kind::FlippedBit])
        };
        if rule.may(Kind::FlippedBit) && (rule.generation.is_none() || rule != flips) {
            return Err(GrammarError::NoStep(text.to_owned()));
        }
        Ok(rule)
    }

    /// A rule without conditions.
    fn of_kinds(kinds: Vec<Kind>) -> Self {
        Self {
            kinds,
            step: None,
            generation: None,
            prompt_tokens: None,
            position: None,
            token: None,
            chance: None,
            seed: None,
            file: None,
        }
    }

    fn add(&mut self, condition: &str) -> Result<(), GrammarError> {
        let bad = || GrammarError::BadCondition(condition.to_owned());
        let (name, value) = condition.split_once('=').ok_or_else(bad)?;
        let was_given = match name {
            "step" => self
                .step
                .replace(number(value, 1).ok_or_else(bad)?)
                .is_some(),
            "generation" => self
                .generation
                .replace(number(value, 1).ok_or_else(bad)?)
                .is_some(),
            "prompt-tokens" => self
                .prompt_tokens
                .replace(number(value, 1).ok_or_else(bad)?)
                .is_some(),
            "position" => self
                .position
                .replace(number(value, 0).ok_or_else(bad)?)
                .is_some(),
            "token" => self
                .token
                .replace(TokenId(number(value, 0).ok_or_else(bad)?))
                .is_some(),
            "seed" => self
                .seed
                .replace(number(value, 0).ok_or_else(bad)?)
                .is_some(),
            "file" => self.file.replace(value.into()).is_some(),
            "chance" => {
                let chance = number(value, 0.0)
                    .filter(|chance| *chance <= 1.0)
                    .ok_or_else(bad)?;
                self.chance.replace(chance).is_some()
            }
            _ => return Err(bad()),
        };
        if was_given {
            return Err(GrammarError::Repeated(name.to_owned()));
        }
        Ok(())
    }

    /// True if the rule can inject this kind.
    #[must_use]
    pub fn may(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Directory of the file that the strike removes.
    #[must_use]
    pub fn directory(&self) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        file.parent().map(PathBuf::from)
    }

    /// True if a bit must flip in the weights that this child loads.
    #[must_use]
    pub fn flips_a_bit(&self, generation: Generation) -> bool {
        self.may(Kind::FlippedBit) && self.generation == Some(generation.0)
    }

    /// The fault that this rule, the `index`th, injects in this step.
    #[must_use]
    pub fn strike(&self, index: u32, generation: Generation, batch: &Batch<'_>) -> Option<Kind> {
        let any = |meets: &dyn Fn(&SequenceWork<'_>) -> bool| batch.sequences.iter().any(meets);
        let holds = !self.may(Kind::FlippedBit)
            && self.step.is_none_or(|step| batch.step == step)
            && self.generation.is_none_or(|only| generation.0 == only)
            && self.prompt_tokens.is_none_or(|tokens| {
                any(&|work| {
                    work.sample
                        .is_some_and(|sample| sample.prompt.len() == tokens)
                })
            })
            && self
                .position
                .is_none_or(|position| any(&|work| computes(work, position)))
            && self
                .token
                .is_none_or(|token| any(&|work| work.tokens.contains(&token)));
        if !holds {
            return None;
        }
        let seed = self.seed.unwrap_or(0);
        let counter = [
            batch.step as u32,
            (batch.step >> 32) as u32,
            generation.0,
            index,
        ];
        let [luck, choice, ..] = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        let struck = self
            .chance
            .is_none_or(|chance| f64::from(luck) < chance * 2_f64.powi(32));
        let is_there = || {
            let file = self.file.as_ref();
            file.is_none_or(|file| std::fs::remove_file(file).is_ok())
        };
        (struck && is_there()).then(|| self.kinds[choice as usize % self.kinds.len()])
    }
}

fn computes(work: &SequenceWork<'_>, position: u32) -> bool {
    let end = work.first_position as usize + work.tokens.len();
    (work.first_position as usize..end).contains(&(position as usize))
}

fn parse_kinds(text: &str) -> Result<Vec<Kind>, GrammarError> {
    let of_device = |wanted: bool| -> Vec<Kind> {
        let all = Kind::ALL.into_iter();
        all.filter(|kind| kind.of_device().is_some() == wanted)
            .collect()
    };
    let mut kinds = Vec::new();
    for name in text.split('|') {
        match name.trim() {
            "any" => kinds.extend(of_device(false)),
            "device" => kinds.extend(of_device(true)),
            one => kinds
                .push(Kind::named(one).ok_or_else(|| GrammarError::UnknownKind(name.to_owned()))?),
        }
    }
    Ok(kinds)
}

/// A number of at least `least`; NaN is refused.
fn number<T: FromStr + PartialOrd>(text: &str, least: T) -> Option<T> {
    text.parse().ok().filter(|number| *number >= least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SampleWork;
    use worker_orcd_ipc::{RequestId, Sampling};

    /// A step with a sequence of two tokens from position 6 on, which samples after a prompt of eight.
    fn strike(rules: &str, generation: u32, step: u64) -> Option<Kind> {
        let prompt = [TokenId(1); 8];
        let sampling = Sampling::default();
        let sequences = [SequenceWork {
            request: RequestId(1),
            tokens: &[TokenId(4), TokenId(5)],
            first_position: 6,
            pages: &[],
            sample: Some(SampleWork::new(sampling, &prompt, &[])),
            drafts: 0,
        }];
        let batch = Batch {
            step,
            sequences: &sequences,
        };
        let rules = parse(rules).unwrap();
        let strike =
            |(index, rule): (u32, &Rule)| rule.strike(index, Generation(generation), &batch);
        (0..).zip(&rules).find_map(strike)
    }

    #[test]
    fn every_condition_is_asked() {
        for (met, unmet) in [
            ("step=3", "step=4"),
            ("generation=2", "generation=3"),
            ("prompt-tokens=8", "prompt-tokens=7"),
            ("position=6", "position=5"),
            ("position=7", "position=8"),
            ("token=5", "token=6"),
            ("chance=1", "chance=0"),
        ] {
            assert_eq!(
                strike(&format!("panic@{met}"), 2, 3),
                Some(Kind::Panic),
                "{met}"
            );
            assert_eq!(strike(&format!("panic@{unmet}"), 2, 3), None, "{unmet}");
            if !met.starts_with("step") {
                assert_eq!(
                    strike(&format!("panic@{met},step=4"), 2, 3),
                    None,
                    "{met} and more"
                );
            }
        }
        assert_eq!(strike("panic@step=4; stop@step=3", 2, 3), Some(Kind::Stop));
        assert_eq!(strike("", 2, 3), None);
    }

    #[test]
    fn a_chance_is_kept_and_differs_between_children() {
        let strikes = |generation| -> Vec<u64> {
            let rule = "any@chance=0.1,seed=7";
            (1..=2000)
                .filter(|step| strike(rule, generation, *step).is_some())
                .collect()
        };
        let first = strikes(1);
        assert!((150..250).contains(&first.len()), "{} of 2000", first.len());
        assert_eq!(first, strikes(1), "the same run again");
        assert_ne!(first, strikes(2), "another child");
    }

    #[test]
    fn groups_mean_every_kind_of_theirs() {
        let seen = |kinds: &str| {
            let rule = format!("{kinds}@chance=1");
            let mut seen: Vec<_> = (1..=1000)
                .filter_map(|step| strike(&rule, 1, step))
                .collect();
            seen.sort_by_key(|kind| kind.name());
            seen.dedup();
            seen
        };
        assert!(seen("any").iter().all(|kind| kind.of_device().is_none()));
        assert!(seen("device").iter().all(|kind| kind.of_device().is_some()));
        assert_eq!(seen("any|device").len(), Kind::ALL.len());
        assert_eq!(seen("device|nan").len(), seen("device").len() + 1);
        assert_eq!(seen("any|flipped-page").len(), seen("any").len() + 1);
        assert!(
            Kind::ESCAPES
                .iter()
                .all(|kind| !seen("any|device").contains(kind))
        );
        for kind in Kind::ALL
            .into_iter()
            .chain([Kind::FlippedPage])
            .chain(Kind::ESCAPES)
        {
            assert_eq!(strike(&format!("{}@step=1", kind.name()), 1, 1), Some(kind));
        }
    }

    #[test]
    fn a_bit_flips_in_the_weights_of_one_child_and_in_no_step() {
        let rules = parse("flipped-bit@generation=2").unwrap();
        let flips = |generation| rules[0].flips_a_bit(Generation(generation));
        assert_eq!([1, 2, 3].map(flips), [false, true, false]);
        assert_eq!(strike("flipped-bit@generation=2", 2, 1), None);
        for text in ["flipped-bit@step=1", "flipped-bit|kill@generation=1"] {
            assert_eq!(parse(text), Err(GrammarError::NoStep(text.into())));
        }
    }

    #[test]
    fn what_is_half_understood_is_refused() {
        for (text, error) in [
            ("panic", GrammarError::NoCondition("panic".into())),
            ("boom@step=1", GrammarError::UnknownKind("boom".into())),
            ("panic@", GrammarError::BadCondition(String::new())),
            ("panic@step=0", GrammarError::BadCondition("step=0".into())),
            (
                "panic@chance=1.5",
                GrammarError::BadCondition("chance=1.5".into()),
            ),
            (
                "panic@chance=NaN",
                GrammarError::BadCondition("chance=NaN".into()),
            ),
            (
                "panic@moon=full",
                GrammarError::BadCondition("moon=full".into()),
            ),
            ("panic@step=1,step=2", GrammarError::Repeated("step".into())),
            (
                "panic@step=1,seed=2",
                GrammarError::IdleSeed("panic@step=1,seed=2".into()),
            ),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_file_is_met_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("now");
        let rules = format!("panic@step=2,file={}", file.display());
        assert_eq!(strike(&rules, 1, 2), None);
        std::fs::write(&file, "").unwrap();
        assert_eq!(
            strike(&rules, 1, 1),
            None,
            "the other condition does not hold"
        );
        assert_eq!(strike(&rules, 1, 2), Some(Kind::Panic));
        assert_eq!(strike(&rules, 1, 2), None, "it is gone");
    }
}
