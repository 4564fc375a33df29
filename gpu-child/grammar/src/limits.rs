//! Cost limits of an untrusted grammar. Each is a count and not a time, so that the same grammar ends alike on every
//! machine.

use llguidance::api::ParserLimits;

/// Text of a grammar, over all its parts. Published schemas are far smaller.
pub const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// Lines of a Lark grammar. Its rules may form a chain, which is compiled by recursion: one level of the stack for
/// each.
pub const MAX_LARK_LINES: usize = 4096;

/// Alternatives of a Lark grammar, all of which may be examined in parallel for one byte.
pub const MAX_LARK_ALTERNATIVES: usize = 4096;

/// Nested brackets in a Lark grammar, which are parsed by recursion. JSON and regular expressions have such limits in
/// their own parsers.
pub const MAX_LARK_NESTING: usize = 128;

/// Stack of a thread that compiles or computes masks: sufficient for the longest chain of rules or references within
/// the other limits. Untouched pages take no memory.
pub const STACK_BYTES: usize = 256 << 20;

/// Bytes of a message about a grammar. The parser quotes text that it cannot parse.
pub const MAX_MESSAGE_BYTES: usize = 1024;

/// Bytes of a usable token. The trie of the vocabulary is built by recursion, and has no room for longer ones. A longer
/// token is never allowed.
pub const MAX_TOKEN_BYTES: usize = 512;

/// Items that a matcher keeps over all tokens of an answer. Each has [`ITEM_BYTES`]; 16 if rules have parameters, and some 50
/// more if a grammar begins inside another.
pub const MAX_KEPT_ITEMS: usize = 4 << 20;

/// Size of an item, in the usual case.
pub const ITEM_BYTES: usize = 8;

/// Number of items with the size of one row: its bounds, its lexeme, its position in the text.
pub const ITEMS_OF_A_ROW: usize = 16;

/// A matcher's lexer, states and expressions, in bytes as llguidance estimates them; vectors have up to twice as many.
/// They are counted after each mask and each token: the work of one may exceed the limit by the small part that the
/// fuel of one mask allows (`one_mask_adds_a_bounded_part_to_a_lexer`).
pub const MAX_LEXER_BYTES: usize = 64 << 20;

/// Scouted states of a matcher's lexer before its first mask, in bytes as above. Each matcher has them.
pub const MAX_SCOUTED_BYTES: usize = 3 << 20;

/// Bytes of a text that the scout tries.
pub(crate) const MAX_SCOUTED_TEXT: usize = 256;

/// States of one lexeme that the scout visits. Lexemes that count characters have more.
pub(crate) const MAX_SCOUTED_STATES: usize = 160;

/// States that the scout visits within the work limit of one mask.
pub(crate) const SCOUTED_AT_ONCE: usize = 16;

/// Tokens of the trial answer at a compilation.
pub(crate) const REHEARSED_TOKENS: usize = 12;

/// Lexer work of the trial answer, in llguidance's units: two masks of maximum work.
pub(crate) const MAX_REHEARSED_FUEL: usize = 2 * STEP_LEXER_FUEL as usize;

/// Parts of masks that the matchers of one grammar share. One has some four bytes for each allowed token, or a bit for
/// each token of the vocabulary. Parts without room are recomputed each time.
pub const MAX_TABLE_BYTES: usize = 4 << 20;

/// Compiled grammars in the cache, the most recently used ones.
pub const MAX_KEPT_GRAMMARS: usize = 32;

/// Bytes of their lexers, as above, and of their texts. With tables, a compiler keeps [`MAX_KEPT_GRAMMARS`] *
/// [`MAX_TABLE_BYTES`] more.
pub const MAX_KEPT_BYTES: usize = 64 << 20;

/// States that masks add to a matcher's lexer before it is renewed.
pub(crate) const RENEWED_STATES: usize = 12_000;

/// Bytes, likewise.
pub(crate) const RENEWED_BYTES: usize = 32 << 20;

/// [Narrow](crate::narrow) masks after a full mask that exceeded its limits.
pub(crate) const NARROW_TOKENS: usize = 32;

/// States of a matcher's lexer, including those of one mask. If characters are counted, the answer itself has one for
/// each of its bytes.
const MAX_LEXER_STATES: usize = 48_000;

/// Lexer work of one mask, in llguidance's units. Names of up to 255 characters beside other names
/// (`"patternProperties": {"^.{1,255}$": …}`) take some 120,000; a mask at the limit takes some 20 ms.
const STEP_LEXER_FUEL: u64 = 200_000;

/// Parser items of one mask. A mask near the limit takes longer than a step; the caller moves it to another thread.
const STEP_MAX_ITEMS: usize = 50_000;

/// Symbols of all rules. Schemas within [`MAX_GRAMMAR_BYTES`] have fewer, unless they are designed to explode.
const MAX_GRAMMAR_SIZE: usize = 200_000;

/// Work to build the lexer, in llguidance's units.
const INITIAL_LEXER_FUEL: u64 = 1_000_000;

/// Positions in rules at one position of the text: an ambiguous grammar multiplies them.
const MAX_ITEMS_IN_ROW: usize = 2000;

pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ITEMS_IN_ROW,
        initial_lexer_fuel: INITIAL_LEXER_FUEL,
        step_lexer_fuel: STEP_LEXER_FUEL,
        step_max_items: STEP_MAX_ITEMS,
        max_lexer_states: MAX_LEXER_STATES,
        max_grammar_size: MAX_GRAMMAR_SIZE,
        // Work at compile time, within the fuel above, for less at each mask.
        precompute_large_lexemes: true,
        // They would repeat the grammar and the generated text.
        verbose_errors: false,
    }
}
