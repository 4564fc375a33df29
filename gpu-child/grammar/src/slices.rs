//! Slices: large sets of tokens that are allowed or forbidden together where a text is free, as inside a string.

use crate::error::GrammarError;
use llguidance::derivre::{Regex, StateID};
use llguidance::toktrie::{SimpleVob, TokTrie};
use llguidance::{HashMap, HashSet};

/// Each is a part of the one before: JSON strings without an escape, and parts of them for limited lengths.
const TEXTS: [&str; 3] = [
    r#"[^"\\\x00-\x1F\x7F]+"#,
    r#"[^"\\\x00-\x1F\x7F]{1,30}"#,
    r#"[^"\\\x00-\x1F\x7F]{1,10}"#,
];

/// Pairs of a state of the set and one of the lexer that are examined for one set. Beyond that, the tokens of the set
/// are examined one by one.
const MOST_PAIRS: usize = 512;

/// The sets, the largest first. A token has a bit for each.
pub(crate) struct Slices(Vec<Slice>);

struct Slice {
    tokens: SimpleVob,
    /// The automaton: transitions from each state, sorted by byte.
    states: Vec<Vec<(u8, usize)>>,
}

impl Slices {
    /// Builds the slices.
    ///
    /// # Errors
    /// If an expression is invalid.
    pub(crate) fn new(trie: &TokTrie, tokens: &[u32]) -> Result<Self, GrammarError> {
        let slice = |text: &&str| {
            let mut regex = Regex::new(text).map_err(GrammarError::new)?;
            let mut set = trie.alloc_token_set();
            for token in tokens {
                if regex.is_match_bytes(trie.token(*token)) {
                    set.allow_token(*token);
                }
            }
            Ok(Slice {
                tokens: set,
                states: states(&mut regex),
            })
        };
        TEXTS.iter().map(slice).collect::<Result<_, _>>().map(Self)
    }

    /// The sets of a token.
    pub(crate) fn of(&self, token: u32) -> u8 {
        let slices = self.0.iter().enumerate();
        let bits = slices.filter(|(_, slice)| slice.tokens.is_allowed(token));
        bits.map(|(at, _)| 1 << at).sum()
    }

    /// The largest set with all texts inside a lexeme, as a bit, and its tokens. `step`: transition of a lexer state by
    /// a byte, inside a lexeme.
    pub(crate) fn inside(
        &self,
        begin: StateID,
        mut step: impl FnMut(StateID, u8) -> Option<StateID>,
    ) -> Option<(u8, &SimpleVob)> {
        let slices = self.0.iter().enumerate();
        let mut inside = slices.filter(|(_, slice)| slice.stays(begin, &mut step));
        inside.next().map(|(at, slice)| (1 << at, &slice.tokens))
    }
}

impl Slice {
    fn stays(&self, begin: StateID, step: &mut impl FnMut(StateID, u8) -> Option<StateID>) -> bool {
        let mut seen = HashSet::from_iter([(0, begin)]);
        let mut unseen = vec![(0, begin)];
        while let Some((at, state)) = unseen.pop() {
            for (byte, to) in &self.states[at] {
                let Some(next) = step(state, *byte) else {
                    return false;
                };
                if seen.insert((*to, next)) {
                    unseen.push((*to, next));
                }
            }
            if seen.len() > MOST_PAIRS {
                return false;
            }
        }
        true
    }
}

/// States of an expression; the first one is the start.
fn states(regex: &mut Regex) -> Vec<Vec<(u8, usize)>> {
    let begin = regex.initial_state();
    let mut places = HashMap::from_iter([(begin, 0)]);
    let mut order = vec![begin];
    let mut states = Vec::new();
    while let Some(state) = order.get(states.len()).copied() {
        let mut ways = Vec::new();
        for byte in 0..=u8::MAX {
            let next = regex.transition(state, byte);
            if !next.is_dead() {
                let place = *places.entry(next).or_insert(order.len());
                if place == order.len() {
                    order.push(next);
                }
                ways.push((byte, place));
            }
        }
        states.push(ways);
    }
    states
}
