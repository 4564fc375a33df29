//! Trial answer at compilation, for a grammar with more lexer states than the scout finds. If its masks exceed a limit,
//! the grammar is refused early, instead of being matched with [narrow masks](crate::narrow).
//!
//! Tokens are sampled with a fixed sequence of numbers, so that the same grammar has the same result everywhere. The
//! matcher is dropped afterwards. A longer answer may still reach a limit of memory or states.

use crate::error::GrammarError;
use crate::limits::{MAX_REHEARSED_FUEL, REHEARSED_TOKENS};
use crate::matcher::Matcher;

/// Runs the trial.
///
/// # Errors
/// If the answer cannot continue.
pub(crate) fn rehearsed(mut matcher: Matcher) -> Result<(), GrammarError> {
    let (most, mut state) = (matcher.fuel() + MAX_REHEARSED_FUEL, 0);
    for _ in 0..REHEARSED_TOKENS {
        let stepped = step(&mut matcher, &mut state);
        if stepped.map_err(refused)?.is_none() || matcher.fuel() > most {
            break;
        }
    }
    Ok(())
}

/// `None` at the end of an answer, which comes last.
fn step(matcher: &mut Matcher, state: &mut u64) -> Result<Option<()>, GrammarError> {
    let mask = matcher.mask()?;
    let ends = matcher.ends();
    let tokens = || mask.tokens().filter(|token| !ends.contains(&token.0));
    let choices = tokens().count();
    if choices == 0 {
        return Ok(None);
    }
    let token = tokens().nth((random(state) % choices as u64) as usize);
    token.map(|token| matcher.accept(token)).transpose()
}

fn refused(why: GrammarError) -> GrammarError {
    GrammarError::new(format!("an answer could not go on under it: {why}"))
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
