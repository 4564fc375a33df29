//! Check of a request's grammar, in an isolated process ([`worker_orcd_engine::interpreter::Grammars`]).

use super::App;
use super::error::ApiError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use worker_orcd_api::mistakes::Constraint;
use worker_orcd_api::structure::{Asked, openai_code};
use worker_orcd_engine::LoadedModel;
use worker_orcd_engine::interpreter::GrammarFault;
use worker_orcd_ipc::Grammar;
use worker_orcd_requests::error_code::ErrorCode;
use worker_orcd_text::Structure;
use worker_orcd_text::tools::Parsing;

/// Time limit of the search for an invalid tool schema, after the check of all tools together.
const LONGEST_SEARCH: Duration = Duration::from_millis(500);

impl App {
    /// Grammar of the complete output, checked in an isolated process; `None` for unconstrained output.
    ///
    /// # Errors
    /// If it is not supported, or if the check did not finish in time.
    pub(super) async fn hold(
        &self,
        model: &Arc<LoadedModel>,
        asked: Option<Asked>,
        parsing: &Parsing,
    ) -> Result<Option<Arc<Grammar>>, ApiError> {
        let Some(Asked { field, structure }) = asked else {
            return Ok(None);
        };
        let grammar = structure.clone().grammar(parsing, model.text.tokenizer());
        let fault = match self.try_out(model, grammar.clone()).await {
            Ok(()) => return Ok(Some(Arc::new(grammar))),
            Err(fault) => fault,
        };
        let Structure::Calls(calls) = structure else {
            return Err(refusal(field, &fault));
        };
        if matches!(fault, GrammarFault::Refused(_)) {
            let each = calls.functions.iter();
            let each = each.map(|function| (&*function.path, function.grammar(parsing.calls)));
            let found = at_fault(each, |grammar| self.try_out(model, grammar)).await;
            if let Some((path, own)) = found {
                return Err(refusal(path, &own));
            }
        }
        Err(refusal(field, &fault))
    }

    async fn try_out(&self, model: &LoadedModel, grammar: Grammar) -> Result<(), GrammarFault> {
        let (grammars, bytes) = (Arc::clone(&model.grammars), grammar.text_bytes());
        let asked = self.pool.run(bytes, move || grammars.ask(&grammar)).await;
        let lost = || GrammarFault::Unavailable("the grammar could not be read".to_owned());
        let limit = self.limits.inference_timeout;
        asked.ok_or_else(lost)?.answer(limit).await
    }
}

/// First grammar that fails on its own; `None` if none was found in time.
async fn at_fault<T, F: Future<Output = Result<(), GrammarFault>>>(
    grammars: impl Iterator<Item = (T, Grammar)>,
    try_out: impl Fn(Grammar) -> F,
) -> Option<(T, GrammarFault)> {
    let search = async {
        for (path, grammar) in grammars {
            if let Err(own) = try_out(grammar).await {
                return Some((path, own));
            }
        }
        None
    };
    timeout(LONGEST_SEARCH, search).await.ok().flatten()
}

fn refusal(field: &str, fault: &GrammarFault) -> ApiError {
    match fault {
        GrammarFault::Refused(why) => {
            let rule = format!("cannot be followed: {why}");
            let error = ApiError::invalid_field(field, Constraint::Unsupported, rule);
            error.with_openai_code(openai_code(field))
        }
        GrammarFault::Busy => ApiError::busy(fault.to_string()),
        GrammarFault::Unavailable(_) => {
            ApiError::of_code(ErrorCode::WorkerUnhealthy, fault.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: usize) -> impl Iterator<Item = (usize, Grammar)> {
        (0..count).map(|place| (place, Grammar::Regex(place.to_string())))
    }

    /// Fails for grammar number `wrong` alone.
    fn judge(grammar: &Grammar, wrong: usize) -> Result<(), GrammarFault> {
        match *grammar == Grammar::Regex(wrong.to_string()) {
            true => Err(GrammarFault::Refused("as ordered".to_owned())),
            false => Ok(()),
        }
    }

    #[tokio::test]
    async fn the_first_grammar_at_fault_is_found() {
        let found = at_fault(numbered(100), async |it| judge(&it, 70)).await;
        let why = GrammarFault::Refused("as ordered".to_owned());
        assert_eq!(found, Some((70, why)));
        let found = at_fault(numbered(100), async |it| judge(&it, 100)).await;
        assert_eq!(found, None);
    }

    #[tokio::test]
    async fn a_search_among_slow_grammars_is_given_up() {
        let tried = std::cell::Cell::new(0);
        let slowly = async |grammar| {
            tried.set(tried.get() + 1);
            tokio::time::sleep(LONGEST_SEARCH / 4).await;
            judge(&grammar, 40)
        };
        assert_eq!(at_fault(numbered(100), slowly).await, None);
        assert!((1..=5).contains(&tried.get()), "{} were tried", tried.get());
        // A check that never ends is abandoned.
        let never = |_| std::future::pending();
        assert_eq!(at_fault(numbered(100), never).await, None);
    }
}
