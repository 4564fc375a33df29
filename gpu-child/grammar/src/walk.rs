//! Walk through the tokens: by the lexer alone inside a lexeme, and by the parser after its end.
//!
//! The parser's result after the end of a lexeme does not depend on the lexeme's text, so it is computed once for all
//! tokens that end the same one, not for each.

use crate::limits::MAX_TOKEN_BYTES;
use crate::trie::Trie;
use llguidance::derivre::StateID;
use llguidance::earley::ParserRecognizer;
use llguidance::earley::lexerspec::LexemeIdx;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use llguidance::{CancellationHandle, HashMap};

/// Argument of llguidance's signature: no cancellation.
pub(crate) const NOBODY_CANCELS: Option<CancellationHandle> = None;

/// Tokens, and the possible first bytes of the grammar's lexemes.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) trie: &'a Trie,
    pub(crate) first: &'a [bool; 256],
}

/// Exits from a lexeme with the same parser state behind them.
pub(crate) struct Crossing {
    /// One of them, including the byte that shows the lexeme's end.
    pub(crate) path: Vec<u8>,
    /// Trie nodes at the end of all of them.
    pub(crate) nodes: Vec<u32>,
}

/// Crossings of the same key are merged.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Key {
    /// The one lexeme that ends here, and the byte after it if that ends it.
    Lexeme(LexemeIdx, Option<u8>),
    /// Several may end: identified by the state.
    State(StateID, Option<u8>),
}

/// Possible first bytes of the grammar's lexemes. After the end of a lexeme, the parser drops all others.
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

/// Sets the tokens below `roots` that the parser allows at its present position, after an exit from the lexeme.
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

/// Walks the tokens below `roots` from the lexer state `begin`: sets those that end inside the lexeme, and returns its
/// exits. Skips subtrees that are completely in one of the sets `skipped`.
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
                    // It ends with this byte. The last bytes of some lexemes belong to the next one: those are
                    // separate.
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
    /// Most are equal to the one before.
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

/// True for tokens with the byte that marks control tokens. The parser walks them, because it reads their numbers.
pub(crate) fn is_marked(trie: &TokTrie, token: u32) -> bool {
    trie.token(token).contains(&TokTrie::SPECIAL_TOKEN_MARKER)
}
