//! Cache of compiled grammars: clients repeat the same one.

use crate::limits::{MAX_KEPT_BYTES, MAX_KEPT_GRAMMARS};
use llguidance::TokenParser;
use std::collections::VecDeque;
use std::sync::Arc;
use worker_orcd_ipc::Grammar;

/// The most recently used ones, the newest first.
#[derive(Default)]
pub(crate) struct GrammarCache(VecDeque<(Grammar, Arc<TokenParser>)>);

impl GrammarCache {
    pub(crate) fn find(&mut self, grammar: &Grammar) -> Option<Arc<TokenParser>> {
        let at = self.0.iter().position(|(kept, _)| kept == grammar)?;
        let found = self.0.remove(at)?;
        let parser = Arc::clone(&found.1);
        self.0.push_front(found);
        Some(parser)
    }

    pub(crate) fn keep(&mut self, grammar: &Grammar, parser: &Arc<TokenParser>) {
        // Another thread may have compiled it meanwhile.
        self.0.retain(|(kept, _)| kept != grammar);
        self.0.push_front((grammar.clone(), Arc::clone(parser)));
        self.0.truncate(MAX_KEPT_GRAMMARS);
        while self.bytes() > MAX_KEPT_BYTES {
            self.0.pop_back();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> usize {
        let bytes = self
            .0
            .iter()
            .map(|(grammar, parser)| grammar.text_bytes() + parser.parser.lexer_stats().num_bytes);
        bytes.sum()
    }
}
