//! Captures of a Lark grammar. For a rule with this attribute llguidance keeps a copy of each matched text. This crate
//! does not use them, and many rules may keep the same long text, so such a grammar is refused.

use crate::error::GrammarError;
use llguidance::earley::CGrammar;
use std::collections::HashSet;

/// Refuses captures.
///
/// # Errors
/// If a rule that is reachable from the start captures its match.
pub(crate) fn refuse(grammar: &CGrammar) -> Result<(), GrammarError> {
    let mut seen = HashSet::from([grammar.start()]);
    let mut unseen = vec![grammar.start()];
    while let Some(symbol) = unseen.pop() {
        let symbol = grammar.sym_data(symbol);
        let props = &symbol.props;
        let name = props
            .capture_name
            .as_ref()
            .or(props.stop_capture_name.as_ref());
        if let Some(name) = name {
            let why = format!("a capture is not implemented: {name:?}");
            return Err(GrammarError::new(why));
        }
        let parts = symbol
            .rules
            .iter()
            .flat_map(|rule| grammar.rule_rhs(*rule).0);
        unseen.extend(parts.filter(|part| seen.insert(**part)));
    }
    Ok(())
}
