//! Narrow masks of few tokens, for a position where a full mask is too much work.
//!
//! An expression such as `a.{90}$` has as many states as there are sets of 90 positions. A token of several bytes leads
//! through several of them, and a full mask through thousands. A token of one byte leads to one. If the vocabulary has
//! a token for each byte, such tokens can write any text.

use crate::walk::is_marked;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};

/// Allows tokens of one byte alone, and control tokens named in the grammar.
pub(crate) struct Narrow {
    few: TokTrie,
    env: TokEnv,
}

impl Narrow {
    pub(crate) fn new(env: &TokEnv) -> Self {
        let trie = env.tok_trie();
        let mut set = trie.alloc_token_set();
        for token in 0..trie.vocab_size() as u32 {
            if trie.token(token).len() == 1 || is_marked(trie, token) {
                set.allow_token(token);
            }
        }
        Self {
            few: trie.filter(&set),
            env: env.clone(),
        }
    }
}

impl BiasComputer for Narrow {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut set = self.trie().alloc_token_set();
        self.few.add_bias(rec, &mut set, start);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}

/// Allows nothing. A mask with it gives the lexer its fuel, and visits no state.
pub(crate) struct Idle(pub(crate) TokEnv);

impl BiasComputer for Idle {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        self.trie().alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}
