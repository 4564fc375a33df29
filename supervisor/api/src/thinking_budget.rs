//! Reasoning budget: from the request, else from the operator.
//!
//! vLLM's and llama-server's fields have the same meaning; if both are set, both apply. -1 means no limit, whatever the
//! operator has set.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::RequestLimits;
use crate::mistakes::Constraint;
use crate::no_effect::{accept, values};
use crate::structure::Asked;
use std::sync::Arc;
use worker_orcd_ipc::{Grammar, ThinkingBudget};
use worker_orcd_text::tools::{Parsing, ReasoningFormat, thinking_budget};
use worker_orcd_text::{Structure, Text};

/// Fields of chat: vLLM's, and llama-server's.
pub const FIELDS: &[&str] = &["thinking_token_budget", "thinking_budget_tokens"];

/// Origin of a budget that is not in the request.
const OPTION: &str = "--reasoning-budget";

const NO_BOUND: f64 = -1.0;

/// Limit and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub tokens: u32,
    pub field: &'static str,
}

impl Budget {
    /// The operator's default.
    #[must_use]
    pub fn of_operator(limits: &RequestLimits) -> Option<Self> {
        let field = OPTION;
        limits.reasoning_budget.map(|tokens| Self { tokens, field })
    }

    /// Budget for the child; `None` if the answer's reasoning is not separated.
    ///
    /// # Errors
    /// If the model cannot generate the closing tag.
    pub fn settle(
        budget: Option<Self>,
        parsing: &Parsing,
        text: &Text,
    ) -> Result<Option<Arc<ThinkingBudget>>, ApiError> {
        let (Some(Self { tokens, field }), Some(reasoning)) = (budget, parsing.thinking) else {
            return Ok(None);
        };
        let budget = thinking_budget(tokens, reasoning, text);
        budget.map(|it| Some(Arc::new(it))).ok_or_else(|| {
            let rule = match reasoning {
                ReasoningFormat::Channels => {
                    "cannot be followed: the model's vocabulary cannot write <|end|>"
                }
                ReasoningFormat::Gemma4 => {
                    "cannot be followed: the model's vocabulary cannot write <channel|>"
                }
                _ => "cannot be followed: the model's vocabulary cannot write </think>",
            };
            ApiError::invalid_field(field, Constraint::Unsupported, rule)
        })
    }
}

/// Reads the fields of chat. `parsing`: parsers of the answer.
pub fn read(
    fields: &mut Fields<'_>,
    limits: &RequestLimits,
    parsing: &Parsing,
    structure: Option<&Asked>,
) -> Option<Budget> {
    let is_given = FIELDS.iter().any(|name| fields.has(name));
    let mut smallest: Option<Budget> = None;
    for field in FIELDS.iter().copied() {
        if parsing.thinking.is_none() {
            let rule = "is not supported: the reasoning syntax of this model is none";
            accept(fields, &[values(field, &["-1"], rule)]);
        } else if !fields.take_number(field, NO_BOUND)
            && let Some(tokens) = fields.integer(field, 0..=u64::from(u32::MAX))
            && smallest.is_none_or(|it| u64::from(it.tokens) > tokens)
        {
            let tokens = tokens as u32;
            smallest = Some(Budget { tokens, field });
        }
    }
    // A grammar of the whole output also covers reasoning, and may not allow the closing tag.
    let is_whole = structure.is_some_and(|it| {
        matches!(
            it.structure,
            Structure::Answer(Grammar::Lark(_) | Grammar::Gbnf(_))
        )
    });
    match smallest {
        Some(Budget { field, .. }) if is_whole => {
            let rule = "cannot be given together with a grammar, which is about reasoning, too";
            fields.error(field, Constraint::Conflict, rule);
            None
        }
        None if !is_given && !is_whole => Budget::of_operator(limits),
        budget => budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mistakes::Mistakes;
    use worker_orcd_text::tools::Parameters;

    const LIMITS: RequestLimits = RequestLimits {
        reasoning_budget: Some(70),
        ..RequestLimits::NONE
    };
    const THINKS: Parsing = Parsing {
        calls: None,
        thinking: Some(ReasoningFormat::Tagged),
        parameters: Parameters::NONE,
    };

    fn read_of(
        body: &str,
        parsing: &Parsing,
        structure: Option<&Asked>,
    ) -> Result<Option<u32>, Mistakes> {
        let mut fields = Fields::parse(body, &[FIELDS]).unwrap();
        let budget = read(&mut fields, &LIMITS, parsing, structure);
        fields.finish().map(|()| budget.map(|it| it.tokens))
    }

    fn first_wrong(read: Result<Option<u32>, Mistakes>) -> String {
        read.unwrap_err().listed()[0].field.clone()
    }

    #[test]
    fn a_request_s_word_goes_before_the_operator_s_and_of_two_the_smaller_one_counts() {
        let read = |body: &str| read_of(body, &THINKS, None).unwrap();
        assert_eq!(read("{}"), Some(70));
        assert_eq!(read("{\"thinking_token_budget\": null}"), Some(70));
        assert_eq!(read("{\"thinking_token_budget\": 0}"), Some(0));
        assert_eq!(read("{\"thinking_budget_tokens\": 400}"), Some(400));
        assert_eq!(read("{\"thinking_budget_tokens\": -1}"), None);
        let both = "{\"thinking_token_budget\": 9, \"thinking_budget_tokens\": 8}";
        assert_eq!(read(both), Some(8));
        for wrong in ["-2", "1.5", "\"5\"", "4294967296"] {
            let body = format!("{{\"thinking_token_budget\": {wrong}}}");
            let field = first_wrong(read_of(&body, &THINKS, None));
            assert_eq!(field, "thinking_token_budget", "{wrong}");
        }
    }

    #[test]
    fn where_nothing_is_told_as_thoughts_a_bound_is_refused() {
        let none = Parsing::default();
        let body = "{\"thinking_budget_tokens\": 5}";
        assert_eq!(
            first_wrong(read_of(body, &none, None)),
            "thinking_budget_tokens"
        );
        let body = "{\"thinking_budget_tokens\": -1}";
        assert_eq!(read_of(body, &none, None).unwrap(), None);
    }

    #[test]
    fn a_grammar_of_all_that_is_written_takes_no_bound() {
        let asked = |grammar: Grammar| Asked {
            field: "structured_outputs",
            structure: Structure::Answer(grammar),
        };
        let lark = asked(Grammar::Lark("start: \"a\"".to_owned()));
        let body = "{\"thinking_token_budget\": 5}";
        let field = first_wrong(read_of(body, &THINKS, Some(&lark)));
        assert_eq!(field, "thinking_token_budget");
        assert_eq!(read_of("{}", &THINKS, Some(&lark)).unwrap(), None);
        let regex = asked(Grammar::Regex("a".to_owned()));
        assert_eq!(read_of(body, &THINKS, Some(&regex)).unwrap(), Some(5));
        assert_eq!(read_of("{}", &THINKS, Some(&regex)).unwrap(), Some(70));
    }
}
