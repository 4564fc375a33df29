//! A walk through the tokens: by the lexer alone inside of a lexeme, and by the parser behind its end.
//!
//! What a parser says behind the end of a lexeme does not depend on the lexeme's text, so it is asked once for all
//! tokens that end the same one, and not for each.

use crate::limits::MAX_TOKEN_BYTES;
use crate::trie::Trie;
use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use llguidance::{CancellationHandle, HashMap};

/// In the signature of llguidance.
pub(crate) const NOBODY_CANCELS: Option<CancellationHandle> = None;

/// Tokens, and the bytes that some lexeme of the grammar begins with.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) trie: &'a Trie,
    pub(crate) first: &'a [bool; 256],
}

/// Ways out of a lexeme behind which the parser is at the same place.
pub(crate) struct Crossing {
    /// One of them, to the byte that shows that the lexeme has ended.
    pub(crate) path: Vec<u8>,
    /// Where all of them lead to in the trie.
    pub(crate) nodes: Vec<u32>,
}

/// Crossings of the same key are one.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Key {
    /// The one lexeme that ends here, and the byte behind it where that is what ends it.
    Lexeme(LexemeIdx, Option<u8>),
    /// Several may end: the state says which.
    State(StateID, Option<u8>),
}

/// Bytes that a lexeme of the grammar may begin with. The parser drops all others behind the end of a lexeme.
pub(crate) fn first_bytes(rec: &mut ParserRecognizer<'_>) -> [bool; 256] {
    let lexer = rec.lexer_mut();
    let all = lexer.lexer_spec().all_lexemes();
    let start = lexer.start_state(&all);
    let mut first = [false; 256];
    for (byte, is_first) in (0..=u8::MAX).zip(&mut first) {
        let next = lexer.transition_start_state(start, Some(byte), &NOBODY_CANCELS);
        *is_first = !next.is_dead();
    }
    first
}

/// From the place where the parser is, sets the tokens that it allows behind a way out of the lexeme: those below `roots`.
pub(crate) fn follow(
    rec: &mut ParserRecognizer<'_>,
    ground: Ground<'_>,
    path: &[u8],
    roots: &[u32],
    set: &mut SimpleVob,
) {
    let bytes = path.iter();
    let pushed = bytes.take_while(|byte| rec.try_push_byte(**byte)).count();
    if pushed == path.len() {
        let mut allow = |token| set.allow_token(token);
        let at_once = roots.iter().map(|root| ground.trie.tokens(*root as usize));
        at_once.flatten().for_each(|token| allow(*token));
        let begin = rec.lexer_state();
        for next in inside(rec, ground, begin, roots, 0, allow) {
            follow(rec, ground, &next.path, &next.nodes, set);
        }
    }
    rec.pop_bytes(pushed);
}

/// Of the tokens below `roots`, where the lexer has state `begin`: allows those that end inside of the lexeme, and gives
/// the ways out of it. Passes over what is wholly in one of the sets `skipped`.
pub(crate) fn inside(
    rec: &mut ParserRecognizer<'_>,
    ground: Ground<'_>,
    begin: StateID,
    roots: &[u32],
    skipped: u8,
    mut allow: impl FnMut(u32),
) -> Vec<Crossing> {
    let lexer = rec.lexer_mut();
    let nodes = ground.trie.nodes();
    let mut states = [StateID::DEAD; MAX_TOKEN_BYTES + 1];
    let mut path = [0_u8; MAX_TOKEN_BYTES + 1];
    let mut ways = Ways::default();
    for root in roots {
        let root = *root as usize;
        let top = nodes[root].depth();
        states[top] = begin;
        let (mut at, end) = (root + 1, root + nodes[root].size());
        while at < end {
            let node = nodes[at];
            let depth = node.depth();
            let state = states[depth - 1];
            path[depth] = node.byte;
            let mut below = node.size();
            if node.sets & skipped == 0 {
                let next = lexer.transition_start_state(state, Some(node.byte), &NOBODY_CANCELS);
                if next.is_dead() {
                    // The lexeme has ended before this byte, or there was none.
                    if ground.first[usize::from(node.byte)]
                        && !lexer.try_lexeme_end(state).is_error()
                    {
                        let way = (state, Some(node.byte));
                        let possible = || only(lexer.possible_lexemes(state).iter());
                        ways.add(way, possible, true, at, &path[top + 1..=depth]);
                    }
                } else if next.has_lowest_match() {
                    // It ends with this byte. Of some the last bytes belong to the next one: those are alone.
                    let is_alike = lexer.possible_hidden_len(next) == 0;
                    let possible = || only(lexer.possible_lexemes(next).iter());
                    ways.add((next, None), possible, is_alike, at, &path[top + 1..=depth]);
                } else {
                    states[depth] = next;
                    for token in ground.trie.tokens(at) {
                        allow(*token);
                    }
                    below = 1;
                }
            }
            at += below;
        }
    }
    ways.crossings
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next();
    first.filter(|_| all.next().is_none())
}

#[derive(Default)]
struct Ways {
    crossings: Vec<Crossing>,
    places: HashMap<Key, usize>,
    /// Most are as the one before.
    last: Option<((StateID, Option<u8>), usize)>,
}

impl Ways {
    fn add(
        &mut self,
        way: (StateID, Option<u8>),
        possible: impl FnOnce() -> Option<LexemeIdx>,
        is_alike: bool,
        node: usize,
        path: &[u8],
    ) {
        let place = match self.last {
            Some((last, place)) if last == way => place,
            _ => {
                let new = self.crossings.len();
                let key = possible().map_or(Key::State(way.0, way.1), |it| Key::Lexeme(it, way.1));
                let place = if is_alike {
                    *self.places.entry(key).or_insert(new)
                } else {
                    new
                };
                self.last = is_alike.then_some((way, place));
                if place == new {
                    self.crossings.push(Crossing {
                        path: path.to_vec(),
                        nodes: Vec::new(),
                    });
                }
                place
            }
        };
        self.crossings[place].nodes.push(node as u32);
    }
}

/// Tokens with the byte that marks control tokens are walked by the parser: it reads their numbers.
pub(crate) fn is_marked(trie: &TokTrie, token: u32) -> bool {
    trie.token(token).contains(&TokTrie::SPECIAL_TOKEN_MARKER)
}
