//! Mask at one position of a text. If the lexer's state was [scouted](crate::scout), the tokens that stay inside the
//! lexeme are the same for all matchers of a grammar, and computed once.

use crate::error::GrammarError;
use crate::limits::MAX_TABLE_BYTES;
use crate::slices::Slices;
use crate::trie::Trie;
use crate::walk::{Crossing, Ground, NOBODY_CANCELS, follow, inside, is_marked};
use llguidance::HashMap;
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of nodes merged at one end of a lexeme.
const MAX_MERGED_NODES: usize = 20_000;

/// The vocabulary in the order of the walk.
pub(crate) struct Words {
    trie: Trie,
    slices: Slices,
    marked: TokTrie,
    env: TokEnv,
    /// Computes masks in states that were not scouted.
    sliced: Arc<SlicedBiasComputer>,
}

impl Words {
    /// Prepares the vocabulary.
    ///
    /// # Errors
    /// If a built-in expression is invalid.
    pub(crate) fn new(env: &TokEnv, sliced: Arc<SlicedBiasComputer>) -> Result<Self, GrammarError> {
        let trie = env.tok_trie();
        let tokens = 0..trie.vocab_size() as u32;
        let tokens = tokens.filter(|token| !trie.token(*token).is_empty());
        let (marked, plain): (Vec<u32>, Vec<u32>) = tokens.partition(|it| is_marked(trie, *it));
        let slices = Slices::new(trie, &plain)?;
        let entries = plain.iter();
        let entries = entries.map(|it| (trie.token(*it), *it, slices.of(*it)));
        let mut set = trie.alloc_token_set();
        for token in marked {
            set.allow_token(token);
        }
        Ok(Self {
            trie: Trie::new(entries.collect()),
            slices,
            marked: trie.filter(&set),
            env: env.clone(),
            sliced,
        })
    }

    pub(crate) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    /// Table of a scouted state. `rec` may be at any position: all transitions of a scouted state exist, so its lexer
    /// learns nothing here.
    fn table(&self, rec: &mut ParserRecognizer<'_>, first: &[bool; 256], state: StateID) -> Table {
        let lexer = rec.lexer_mut();
        let step = |state, byte| {
            let next = lexer.transition_start_state(state, Some(byte), &NOBODY_CANCELS);
            (!next.is_dead() && !next.has_lowest_match()).then_some(next)
        };
        let slice = self.slices.inside(state, step);
        let (skipped, mut many) = match slice {
            Some((bit, tokens)) => (bit, Some(tokens.clone())),
            None => (0, None),
        };
        let ground = Ground {
            trie: &self.trie,
            first,
        };
        let mut few = Vec::new();
        let crossings = inside(rec, ground, state, &[0], skipped, |token| few.push(token));
        if many.is_none() && few.len() > self.trie().vocab_size().div_ceil(32) {
            many = Some(self.trie().alloc_token_set());
        }
        if let Some(many) = &mut many {
            for token in few.drain(..) {
                many.allow_token(token);
            }
        }
        few.shrink_to_fit();
        let ways = crossings.into_iter().map(|it| self.way(it));
        Table {
            few,
            many,
            ways: ways.collect(),
        }
    }

    fn way(&self, crossing: Crossing) -> Way {
        let Crossing { path, nodes } = crossing;
        let sizes = nodes
            .iter()
            .map(|it| self.trie.nodes()[*it as usize].size());
        let is_merged = nodes.len() >= 8 && sizes.sum::<usize>() <= MAX_MERGED_NODES;
        let merged = is_merged.then(|| self.trie.merged(&nodes));
        let nodes = if is_merged { vec![0] } else { nodes };
        Way {
            path,
            merged,
            nodes,
        }
    }
}

/// The lexer's result for all tokens in one of its states.
struct Table {
    /// Tokens that end inside the lexeme: as a list, or as a set if there are many.
    few: Vec<u32>,
    many: Option<SimpleVob>,
    ways: Vec<Way>,
}

/// A [`Crossing`].
struct Way {
    path: Vec<u8>,
    /// Merged subtrees of its nodes, unless they are large: many tokens share suffixes.
    merged: Option<Trie>,
    nodes: Vec<u32>,
}

impl Table {
    fn bytes(&self) -> usize {
        let many = self.many.as_ref().map_or(0, |many| many.as_slice().len());
        let ways = self.ways.iter().map(|way| {
            let merged = way.merged.as_ref().map_or(0, Trie::bytes);
            size_of::<Way>() + way.path.len() + merged + way.nodes.len() * 4
        });
        size_of::<Self>() + (self.few.len() + many) * 4 + ways.sum::<usize>()
    }
}

/// The masks of one grammar.
pub(crate) struct Bias {
    words: Arc<Words>,
    first: [bool; 256],
    /// Tables of the scouted states. A state has the same number in each matcher, because all begin with the lexer of
    /// the scout.
    tables: HashMap<StateID, OnceLock<Table>>,
    /// Size of the kept tables.
    bytes: AtomicUsize,
}

impl Bias {
    pub(crate) fn new(
        words: Arc<Words>,
        first: [bool; 256],
        states: impl Iterator<Item = StateID>,
    ) -> Self {
        Self {
            words,
            first,
            tables: states.map(|state| (state, OnceLock::new())).collect(),
            bytes: AtomicUsize::new(0),
        }
    }

    fn apply(&self, rec: &mut ParserRecognizer<'_>, table: &Table) -> SimpleVob {
        let mut set = match &table.many {
            Some(many) => many.clone(),
            None => self.trie().alloc_token_set(),
        };
        for token in &table.few {
            set.allow_token(*token);
        }
        for way in &table.ways {
            let ground = Ground {
                trie: way.merged.as_ref().unwrap_or(&self.words.trie),
                first: &self.first,
            };
            follow(rec, ground, &way.path, &way.nodes, &mut set);
        }
        set
    }

    /// Table of a state; kept if there is room.
    fn look_up(
        &self,
        rec: &mut ParserRecognizer<'_>,
        state: StateID,
        kept: &OnceLock<Table>,
    ) -> SimpleVob {
        if let Some(table) = kept.get() {
            return self.apply(rec, table);
        }
        let table = self.words.table(rec, &self.first, state);
        let set = self.apply(rec, &table);
        let bytes = table.bytes();
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_TABLE_BYTES
            || kept.set(table).is_err()
        {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        set
    }
}

impl BiasComputer for Bias {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let state = rec.lexer_state();
        let Some(kept) = self.tables.get(&state).filter(|_| start.is_empty()) else {
            return self.words.sliced.compute_bias(rec, start);
        };
        rec.trie_started("table");
        let mut set = self.look_up(rec, state, kept);
        rec.trie_finished();
        self.words.marked.add_bias(rec, &mut set, &[]);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.words.trie()
    }
}
