//! Which parsers a model's answers need: by its chat template, unless the operator says.

use super::{Parsing, Syntax, Thoughts, thinking};
use std::str::FromStr as _;
use strum::VariantArray as _;

/// What the operator says: nothing, none, or one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice<T> {
    #[default]
    ByTemplate,
    None,
    One(T),
}

impl<T> Choice<T> {
    fn resolve(self, by_template: Option<T>) -> Option<T> {
        match self {
            Self::ByTemplate => by_template,
            Self::None => None,
            Self::One(one) => Some(one),
        }
    }
}

/// `--tool-call-parser` and `--reasoning-parser`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choices {
    pub calls: Choice<Syntax>,
    pub thinking: Choice<Thoughts>,
}

impl Choices {
    /// # Errors
    /// The values that there are.
    pub fn parse_calls(text: &str) -> Result<Choice<Syntax>, String> {
        let known = Syntax::VARIANTS.iter().map(|syntax| (*syntax).into());
        let known: Vec<&'static str> = known.collect();
        match (text, Syntax::from_str(text)) {
            ("none", _) => Ok(Choice::None),
            (_, Ok(syntax)) => Ok(Choice::One(syntax)),
            _ => Err(format!("{text:?} is neither {} nor none", known.join(", "))),
        }
    }

    /// # Errors
    /// The values that there are.
    pub fn parse_thinking(text: &str) -> Result<Choice<Thoughts>, String> {
        match text {
            "none" => Ok(Choice::None),
            "think" => Ok(Choice::One(Thoughts::Tagged)),
            _ => Err(format!("{text:?} is neither think nor none")),
        }
    }

    /// What answers of a model may need, by its chat template. A request without tools needs no calls.
    #[must_use]
    pub fn resolve(self, jinja: Option<&str>) -> Parsing {
        let taught = jinja.and_then(Syntax::of_template);
        let thinks = jinja.is_some_and(thinking::is_taught_by);
        Parsing {
            calls: self.calls.resolve(taught),
            thinking: self.thinking.resolve(thinks.then_some(Thoughts::Tagged)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_s_word_goes_before_the_template_s() {
        let jinja = Some("<tool_call> <think>");
        let both = Choices::default().resolve(jinja);
        assert_eq!(both.calls, Some(Syntax::Hermes));
        assert_eq!(both.thinking, Some(Thoughts::Tagged));
        assert_eq!(Choices::default().resolve(None), Parsing::default());
        let chosen = Choices {
            calls: Choices::parse_calls("phi").unwrap(),
            thinking: Choices::parse_thinking("none").unwrap(),
        };
        let parsing = chosen.resolve(jinja);
        assert_eq!((parsing.calls, parsing.thinking), (Some(Syntax::Phi), None));
    }

    #[test]
    fn every_parser_has_a_word_and_others_are_refused_with_all_of_them() {
        for word in ["hermes", "llama3", "mistral", "phi"] {
            assert!(
                matches!(Choices::parse_calls(word), Ok(Choice::One(_))),
                "{word}"
            );
        }
        assert_eq!(Choices::parse_calls("none"), Ok(Choice::None));
        let said = Choices::parse_calls("Hermes").unwrap_err();
        assert!(said.contains("hermes, llama3, mistral, phi"), "{said}");
        assert!(Choices::parse_thinking("qwen3").is_err());
    }
}
