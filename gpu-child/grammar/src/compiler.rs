//! Compiler: from a grammar to a matcher.

use crate::bias::Words;
use crate::cache::GrammarCache;
use crate::captures;
use crate::dict::DICT;
use crate::error::GrammarError;
use crate::limits::parser_limits;
use crate::matcher::Matcher;
use crate::narrow::Narrow;
use crate::parameters::PARAMETERS;
use crate::rehearsal::rehearsed;
use crate::scout::scouted;
use crate::source::top_level;
use crate::tokens::token_env;
use crate::{held, inline};
use llguidance::api::GrammarInit;
use llguidance::{ParserFactory, TokenParser, panic_utils};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker_orcd_ipc::{Grammar, TokenizerFacts};

/// Compiler of grammars for one vocabulary. Its construction takes a part of a second for a large one. It takes several
/// times the vocabulary's memory, and some [for compiled grammars](crate::limits::MAX_KEPT_BYTES).
pub struct Compiler {
    factory: ParserFactory,
    words: Arc<Words>,
    narrow: Arc<Narrow>,
    vocabulary: usize,
    kept: Mutex<GrammarCache>,
}

impl Compiler {
    /// Prepares a vocabulary.
    ///
    /// # Errors
    /// If the facts are inconsistent, or no token ends a generation.
    pub fn new(facts: &TokenizerFacts) -> Result<Self, GrammarError> {
        // The vocabulary is untrusted, so llguidance may panic.
        let (factory, words, narrow) = caught(|| {
            let tokens = token_env(facts)?;
            let mut factory = ParserFactory::new_simple(&tokens).map_err(GrammarError::new)?;
            *factory.limits_mut() = parser_limits();
            factory.quiet();
            let words = Words::new(&tokens, factory.slicer())?;
            Ok((factory, Arc::new(words), Arc::new(Narrow::new(&tokens))))
        })?;
        Ok(Self {
            factory,
            words,
            narrow,
            vocabulary: facts.tokens.len(),
            kept: Mutex::default(),
        })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// If the grammar is malformed, has an unsupported feature, or exceeds a limit.
    pub fn compile(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        caught(|| {
            let kept = self.kept().find(grammar);
            let parser = match kept {
                Some(parser) => parser,
                None => {
                    let parser = self.prepared(grammar)?;
                    self.kept().keep(grammar, &parser);
                    parser
                }
            };
            Ok(Matcher::new(parser, self.vocabulary).with_narrow(&self.narrow))
        })
    }

    fn kept(&self) -> MutexGuard<'_, GrammarCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A parser before its first token, for copying.
    fn prepared(&self, grammar: &Grammar) -> Result<Arc<TokenParser>, GrammarError> {
        let mut parser = self.parser(grammar)?;
        captures::refuse(parser.parser.grammar())?;
        parser.start_without_prompt();
        // A failure there is not a failure of the answer.
        let scouted = caught(|| Ok(scouted(&parser.parser, &self.words)));
        let mut is_done = false;
        if let Ok(Some(scouted)) = scouted {
            parser.parser = scouted.parser;
            parser.bias_computer = Arc::new(scouted.bias);
            is_done = scouted.is_done;
        }
        let parser = Arc::new(parser);
        if !is_done {
            rehearsed(Matcher::new(Arc::clone(&parser), self.vocabulary))?;
        }
        Ok(parser)
    }

    fn parser(&self, grammar: &Grammar) -> Result<TokenParser, GrammarError> {
        let init = GrammarInit::Serialized(top_level(grammar)?);
        let limits = self.factory.limits().clone();
        let tokens = Some(self.factory.tok_env().clone());
        let (rules, mut lexer) = init
            .to_internal(tokens, limits)
            .map_err(GrammarError::new)?;
        if may_have_schemas(grammar) {
            lexer = held::numbers(lexer)?;
        }
        let init = GrammarInit::Internal(rules, lexer);
        let parser = self.factory.create_parser_from_init_default(init);
        parser.map_err(GrammarError::new)
    }
}

fn may_have_schemas(grammar: &Grammar) -> bool {
    match grammar {
        Grammar::JsonSchema(_) => true,
        Grammar::Lark(text) => [inline::JSON, PARAMETERS, DICT]
            .iter()
            .any(|it| text.contains(it)),
        Grammar::Regex(_) | Grammar::Choice(_) | Grammar::Gbnf(_) => false,
    }
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vocabulary = &self.vocabulary;
        let mut shown = f.debug_struct("Compiler");
        shown
            .field("vocabulary", vocabulary)
            .finish_non_exhaustive()
    }
}

/// Converts a panic to an error; no panic hook runs.
pub(crate) fn caught<T>(run: impl FnOnce() -> Result<T, GrammarError>) -> Result<T, GrammarError> {
    let answer = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(run())));
    answer.unwrap_or_else(|panic| Err(GrammarError::new(panic)))
}

#[cfg(test)]
pub(crate) mod tests;
