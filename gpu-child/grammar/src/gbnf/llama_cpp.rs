//! Conformance with llama.cpp: the grammars and texts of its own `tests/test-grammar-integration.cpp`, without those
//! that refer to tokens.

use super::tests::{accepts, compiler};
use super::*;

/// A grammar, texts that it accepts, and texts that it does not.
const CASES: &[(&str, &[&str], &[&str])] = &[
    (
        r#"root ::= expr
expr ::= term ("+" term)*
term ::= number
number ::= [0-9]+"#,
        &["42", "1+2+3+4+5", "123+456"],
        &["+", "/ 3", "1+2+3+4+5+", "12a45"],
    ),
    (
        r#"root ::= expression
expression ::= term ws (("+"|"-") ws term)*
term ::= factor ws (("*"|"/") ws factor)*
factor ::= number | variable | "(" expression ")" | function-call
number ::= [0-9]+
variable ::= [a-zA-Z_][a-zA-Z0-9_]*
function-call ::= variable ws "(" (expression ("," ws expression)*)? ")"
ws ::= [ \t\n\r]?"#,
        &[
            "42",
            "1*2*3*4*5",
            "x",
            "x+10",
            "x1+y2",
            "(a+b)*(c-d)",
            "func()",
            "func(x,y+2)",
            "a*(b+c)-d/e",
            "f(g(x),h(y,z))",
            "x + 10",
            "x1 + y2",
            "(a + b) * (c - d)",
            "func(x, y + 2)",
            "a * (b + c) - d / e",
            "f(g(x), h(y, z))",
            "123+456",
            "123*456*789-123/456+789*123",
            "123+456*789-123/456+789*123-456/789+123*456-789/123+456*789-123/456+789*123-456",
        ],
        &[
            "+",
            "/ 3x",
            "x + + y",
            "a * / b",
            "func(,)",
            "func(x y)",
            "(a + b",
            "x + y)",
            "a + b * (c - d",
            "42 +",
            "x +",
            "x + 10 +",
            "(a + b) * (c - d",
            "func(",
            "func(x, y + 2",
            "a * (b + c) - d /",
            "f(g(x), h(y, z)",
            "123+456*789-123/456+789*123-456/789+123*456-789/123+456*789-123/456+789*123-456/",
        ],
    ),
    (
        r#"root ::= ... "abc" ..."#,
        &["abcabcabc", "aaaabcccc", "🔵🟠✅abc❌🟠🔵"],
        &[
            "aaabcccc",
            "aaaaabcccc",
            "aaaabccc",
            "aaaabccccc",
            "🔵🟠✅❌abc❌✅🟠🔵",
            "🔵🟠abc🟠🔵",
        ],
    ),
    (
        r#"root ::= "a"*"#,
        &[
            "",
            "a",
            "aaaaa",
            "aaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ],
        &[
            "b",
            "ab",
            "aab",
            "ba",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
        ],
    ),
    (
        r#"root ::= "a"+"#,
        &[
            "a",
            "aaaaa",
            "aaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ],
        &[
            "",
            "b",
            "ab",
            "aab",
            "ba",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
        ],
    ),
    (r#"root ::= "a"?"#, &["", "a"], &["b", "ab", "aa", "ba"]),
    (
        "root ::= cons+ vowel* cons? (vowel cons)*
vowel ::= [aeiouy]
cons ::= [bcdfghjklmnpqrstvwxyz]",
        &["yes", "no", "noyes", "crwth", "four", "bryyyy"],
        &["yess", "yesno", "forty", "catyyy"],
    ),
    (
        "root ::= [ab]{4}",
        &["aaaa", "bbbb", "abab"],
        &["a", "b", "aaaaa"],
    ),
    (
        "root ::= [ab]{4,}",
        &["aaaa", "aaaaab", "bbbb", "ababab"],
        &["", "aba"],
    ),
    (
        "root ::= [ab]{0,4}",
        &["", "a", "aa", "aaa", "aaab"],
        &["aaaaa"],
    ),
    (
        r#"root ::= ("0x" [A-F0-9]{2} " "?){3,5}"#,
        &["0xFF 0x12 0xAB", "0xFF 0x12 0xAB 0x00 0x00"],
        &["", "0xFF", "0xFF 0x12", "0xFF 0x12 0xAB 0x00 0x00 0x00"],
    ),
    ("root ::= ( [x]* )*", &["", "x", "xx"], &["y", "yy"]),
];

#[test]
fn grammars_of_llama_cpps_own_tests_accept_what_they_accept_there() {
    let compiler = compiler();
    for (grammar, are, are_not) in CASES {
        let lark = gbnf_to_lark(grammar).expect("a grammar");
        let texts = are.iter().map(|text| (text, true));
        for (text, is_one) in texts.chain(are_not.iter().map(|text| (text, false))) {
            let seen = accepts(&compiler, &lark, text);
            assert_eq!(seen, is_one, "{text:?} under\n{grammar}\nwhich is\n{lark}");
        }
    }
}

#[test]
fn grammars_that_llama_cpps_own_tests_refuse_are_refused() {
    for (grammar, why) in [
        (r#"rot ::= "a""#, "no rule root"),
        ("root ::= numero\nnumber ::= [0-9]+", "numero"),
        (r#"root ::= "a"{,}"#, "a number must stand here"),
        (r#"root ::= "a"{,10}"#, "a number must stand here"),
        (r#"root ::= "a"{5000}"#, "2000"),
        (r#"root ::= "a"{5000,}"#, "2000"),
        (r#"root ::= "a"{5000,6000}"#, "2000"),
    ] {
        let refused = gbnf_to_lark(grammar).expect_err(grammar);
        assert!(refused.contains(why), "{grammar}: {refused}");
    }
}
