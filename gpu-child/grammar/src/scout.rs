//! Scout: finds the lexer states that a grammar's answers pass through, at compilation, in the order of their distance
//! and within limits. It computes all transitions from them, so that no matcher computes them again. The result is a
//! function of vocabulary and grammar.

use crate::bias::{Bias, Words};
use crate::limits::{MAX_SCOUTED_BYTES, MAX_SCOUTED_STATES, MAX_SCOUTED_TEXT, SCOUTED_AT_ONCE};
use crate::walk::{NOBODY_CANCELS, first_bytes};
use llguidance::HashSet;
use llguidance::derivre::StateID;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::earley::{BiasComputer, Parser, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Scouted {
    /// Parser with the states that its lexer has learned.
    pub(crate) parser: Parser,
    /// Masks for these states.
    pub(crate) bias: Bias,
    /// All visited states were within the limits.
    pub(crate) is_done: bool,
}

/// Scouts a grammar. `None` if a limit is exceeded: then its matchers do without.
pub(crate) fn scouted(parser: &Parser, words: &Arc<Words>) -> Option<Scouted> {
    let mut parser = parser.deep_clone();
    let most = parser.lexer_stats().num_bytes + MAX_SCOUTED_BYTES;
    let scout = Scout {
        words: Arc::clone(words),
        found: Mutex::default(),
    };
    let is_done = loop {
        // Fuel and items are counted as those of one mask.
        parser.compute_bias(&scout, &[]);
        parser.invalidate_bias_cache();
        if parser.get_error().is_some() {
            return None;
        }
        let is_done = scout.found().is_done();
        let has_no_room = parser.lexer_stats().num_bytes > most;
        if is_done || has_no_room {
            break is_done;
        }
    };
    let found = mem::take(&mut *scout.found());
    let states = found.closed();
    Some(Scouted {
        bias: Bias::new(scout.words, found.first?, states.into_iter()),
        parser,
        is_done,
    })
}

struct Scout {
    words: Arc<Words>,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    first: Option<[bool; 256]>,
    /// Texts that lead the parser to new states.
    texts: VecDeque<Vec<u8>>,
    /// States that the parser was in.
    met: HashSet<StateID>,
    /// Start states of lexemes.
    starts: VecDeque<StateID>,
    seen: HashSet<StateID>,
    /// Known states that are not visited yet.
    states: VecDeque<StateID>,
    /// States visited since the last start or text.
    looked_at: usize,
    /// States not to be visited.
    left: Vec<StateID>,
    /// Transitions inside lexemes: source, target.
    ways: Vec<(StateID, StateID)>,
}

impl Scout {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BiasComputer for Scout {
    /// Runs a part of the search; the result is no mask.
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        let mut found = self.found();
        if found.first.is_none() {
            found.begin(rec);
        }
        rec.trie_started("scout");
        for _ in 0..SCOUTED_AT_ONCE {
            found.go_on(rec);
        }
        rec.trie_finished();
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.words.trie()
    }
}

impl Found {
    fn is_done(&self) -> bool {
        self.texts.is_empty() && self.starts.is_empty() && self.states.is_empty()
    }

    fn go_on(&mut self, rec: &mut ParserRecognizer<'_>) {
        if let Some(state) = self.states.pop_front() {
            self.looked_at += 1;
            if self.looked_at > MAX_SCOUTED_STATES {
                self.left.push(state);
            } else {
                self.close(rec, state);
            }
            return;
        }
        self.looked_at = 0;
        if let Some(start) = self.starts.pop_front() {
            self.see(start);
        } else if let Some(text) = self.texts.pop_front() {
            self.try_text(rec, &text);
        }
    }

    fn begin(&mut self, rec: &mut ParserRecognizer<'_>) {
        self.first = Some(first_bytes(rec));
        self.texts.push_back(Vec::new());
        self.see(rec.lexer_state());
        // Inside most lexemes no other is possible, at any position.
        let lexer = rec.lexer_mut();
        let extra = lexer.lexer_spec().extra_lexeme(0).as_usize();
        for lexeme in 0..extra {
            let mut lexemes = lexer.lexer_spec().alloc_lexeme_set();
            lexemes.add(LexemeIdx::new(lexeme));
            let state = lexer.start_state(&lexemes);
            self.starts.push_back(state);
        }
    }

    fn see(&mut self, state: StateID) {
        if !state.is_dead() && !state.has_lowest_match() && self.seen.insert(state) {
            self.states.push_back(state);
        }
    }

    /// Records the state after a text, and after each further byte that is a single character.
    fn try_text(&mut self, rec: &mut ParserRecognizer<'_>, text: &[u8]) {
        let bytes = text.iter();
        let pushed = bytes.take_while(|byte| rec.try_push_byte(**byte)).count();
        for byte in (b' '..=b'~').chain([b'\n']) {
            if pushed < text.len() || !rec.try_push_byte(byte) {
                continue;
            }
            let state = rec.lexer_state();
            if text.len() < MAX_SCOUTED_TEXT && self.met.insert(state) {
                self.texts.push_back([text, &[byte]].concat());
            }
            self.see(state);
            rec.pop_bytes(1);
        }
        rec.pop_bytes(pushed);
    }

    fn close(&mut self, rec: &mut ParserRecognizer<'_>, state: StateID) {
        let lexer = rec.lexer_mut();
        let mut last = None;
        for byte in 0..=u8::MAX {
            let next = lexer.transition_start_state(state, Some(byte), &NOBODY_CANCELS);
            if !next.is_dead() && !next.has_lowest_match() && last != Some(next) {
                last = Some(next);
                self.ways.push((state, next));
                self.see(next);
            }
        }
    }

    /// States from which no text inside a lexeme leads to an unvisited one.
    fn closed(&self) -> HashSet<StateID> {
        let mut unseen: Vec<StateID> = self.states.iter().chain(&self.left).copied().collect();
        let mut open: HashSet<StateID> = unseen.iter().copied().collect();
        let mut before = self.ways.clone();
        before.sort_unstable_by_key(|(_, to)| to.as_u32());
        while let Some(state) = unseen.pop() {
            let at = before.partition_point(|(_, to)| to.as_u32() < state.as_u32());
            let ways = before[at..].iter().take_while(|(_, to)| *to == state);
            for (from, _) in ways {
                if open.insert(*from) {
                    unseen.push(*from);
                }
            }
        }
        self.seen.difference(&open).copied().collect()
    }
}
