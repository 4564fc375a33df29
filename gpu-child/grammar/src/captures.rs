//! Captures of a Lark grammar: llguidance keeps a copy of each text that a rule with this attribute has matched.
//! Nobody reads it here, and many rules may keep the same long text, so such a grammar is refused.

use crate::error::GrammarError;
use llguidance::earley::CGrammar;
use std::collections::HashSet;

/// # Errors
/// When a rule that the start leads to captures what it has matched.
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
