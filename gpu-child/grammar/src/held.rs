//! Numbers without bounds in a schema: llguidance's lexeme allows exponents of any length, as in 8E657, which no `f64`
//! holds. Bounds of schemas do not affect it, so the lexeme is replaced by a narrower one.

use crate::error::GrammarError;
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};

/// llguidance's expression (`rx_float_range` without bounds).
const ANY: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";

/// Replacement: below 10¹⁸, with exponents below 100.
const HELD: &str = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?";

/// Replaces the lexeme.
///
/// # Errors
/// If llguidance has no room for the lexeme.
pub(crate) fn numbers(mut spec: LexerSpec) -> Result<LexerSpec, GrammarError> {
    let current = spec.current_class;
    for class in 0..spec.skip_by_class.len() {
        spec.current_class = LexemeClass::new(class);
        let count = spec.lexemes.len();
        let place = added(&mut spec, ANY)?;
        if place == count {
            // There was none.
            spec.lexemes.pop();
            continue;
        }
        let behind = spec.lexemes.split_off(place + 1);
        spec.lexemes.pop();
        if added(&mut spec, HELD)? != place {
            return Err(GrammarError::new("a number has two lexemes"));
        }
        spec.lexemes.extend(behind);
    }
    spec.current_class = current;
    Ok(spec)
}

/// Index of a lexeme, which may have been present.
fn added(spec: &mut LexerSpec, regex: &str) -> Result<usize, GrammarError> {
    let regex = RegexAst::Regex(regex.to_owned());
    let lexeme = spec.add_greedy_lexeme(String::new(), regex, false, None, usize::MAX);
    Ok(lexeme.map_err(GrammarError::new)?.as_usize())
}
