//! Numbers of values that a schema says nothing of: llguidance writes them with exponents of any length, as 8E657,
//! which no `f64` holds. Bounds of schemas do not reach them, so their lexeme is exchanged for a narrower one.

use crate::error::GrammarError;
use llguidance::derivre::RegexAst;
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};

/// As llguidance's JSON compiler has it (`rx_float_range` without bounds).
const ANY: &str = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?";

/// Below 10¹⁸ and exponents below 100.
const HELD: &str = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?";

/// # Errors
/// Where llguidance has no room for the lexeme.
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

/// The place of a lexeme, which may have been there.
fn added(spec: &mut LexerSpec, regex: &str) -> Result<usize, GrammarError> {
    let regex = RegexAst::Regex(regex.to_owned());
    let lexeme = spec.add_greedy_lexeme(String::new(), regex, false, None, usize::MAX);
    Ok(lexeme.map_err(GrammarError::new)?.as_usize())
}
