//! Comparison of the Lark grammars with a recognizer of GBNF without lexemes.

use super::*;
use crate::Compiler;
use crate::compiler::tests::{facts, random};
use std::collections::HashSet;
use worker_orcd_ipc::{Grammar, TokenId};

pub(super) fn compiler() -> Compiler {
    Compiler::new(&facts()).expect("a vocabulary")
}

/// Byte by byte: a lexeme must not depend on the tokenization.
pub(super) fn accepts(compiler: &Compiler, lark: &str, text: &str) -> bool {
    let grammar = Grammar::Lark(lark.to_owned());
    let matcher = compiler.compile(&grammar);
    let mut matcher = matcher.unwrap_or_else(|error| panic!("{error}: {lark}"));
    text.bytes().all(|byte| {
        let token = TokenId(u32::from(byte));
        matcher.mask().is_ok_and(|mask| mask.allows(token)) && matcher.accept(token).is_ok()
    }) && matcher.is_complete().is_ok_and(|complete| complete)
}

/// Finds the ends of the rule's texts that begin at `from`, by exhaustive search.
struct Recognizer<'a> {
    rules: &'a Rules<Tree>,
    text: Vec<char>,
}

impl Recognizer<'_> {
    fn accepts(&self) -> bool {
        // Results for each rule at each position, until a fixed point is reached.
        let places = self.text.len() + 1;
        let mut found = vec![vec![HashSet::new(); places]; self.rules.bodies.len()];
        loop {
            let mut changed = false;
            for rule in 0..self.rules.bodies.len() {
                for from in 0..places {
                    let ends = self.ends(&self.rules.bodies[rule], from, &found);
                    changed |= ends.iter().any(|end| found[rule][from].insert(*end));
                }
            }
            if !changed {
                return found[0][0].contains(&self.text.len());
            }
        }
    }

    fn ends(&self, tree: &Tree, from: usize, found: &[Vec<HashSet<usize>>]) -> HashSet<usize> {
        let through = |ends: HashSet<usize>, tree: &Tree| -> HashSet<usize> {
            let ends = ends.into_iter();
            ends.flat_map(|from| self.ends(tree, from, found)).collect()
        };
        match tree {
            Tree::Empty => HashSet::from([from]),
            Tree::Class(class) => {
                let next = self.text.get(from);
                let is_in = next.is_some_and(|next| class.meets(&Class::one(*next)));
                is_in.then_some(from + 1).into_iter().collect()
            }
            Tree::Sequence(trees) => trees.iter().fold(HashSet::from([from]), through),
            Tree::Either(trees) => {
                let ends = trees.iter().flat_map(|tree| self.ends(tree, from, found));
                ends.collect()
            }
            Tree::Repeat(tree, min, max) => {
                let mut ends = HashSet::from([from]);
                let mut all = HashSet::new();
                // More repetitions of a short text have the same ends.
                for times in 0..=max.unwrap_or(min + self.text.len() as u32 + 1) {
                    if times >= *min {
                        all.extend(&ends);
                    }
                    ends = through(ends, tree);
                }
                all
            }
            Tree::Rule(id) => found[*id][from].clone(),
        }
    }
}

/// A random part of a grammar over a, b, é and è. The last two have equal first bytes.
fn part(state: &mut u64, depth: usize) -> String {
    let classes = ["[ab]", "[^a]", "[é]", "[è-ê]", "a", "[a-é]", "."];
    let literals = [
        "\"a\"", "\"b\"", "\"ab\"", "\"aba\"", "\"é\"", "\"bè\"", "\"\"",
    ];
    let rules = ["one", "Two", "root"];
    match random(state, if depth == 0 { 2 } else { 7 }) {
        0 => classes[random(state, classes.len())].to_owned(),
        1 => literals[random(state, literals.len())].to_owned(),
        2 => rules[random(state, rules.len())].to_owned(),
        3 => format!("({} | {})", part(state, depth - 1), part(state, depth - 1)),
        4 => {
            let times = ["*", "+", "?", "{2}", "{1,}", "{0,2}"];
            let times = times[random(state, times.len())];
            format!("({}){times}", part(state, depth - 1))
        }
        _ => format!("{} {}", part(state, depth - 1), part(state, depth - 1)),
    }
}

#[test]
fn the_language_of_random_grammars_stays_the_same() {
    let compiler = compiler();
    let letters = ['a', 'b', 'é', 'è', 'ê'];
    let mut state = 1;
    let (mut tried, mut taken) = (0, 0);
    for _ in 0..300 {
        let [root, one, two] = [3, 2, 2].map(|depth| part(&mut state, depth));
        let text = format!("root ::= {root}\none ::= {one}\nTwo ::= {two}\na ::= \"a\"");
        let Ok(lark) = gbnf_to_lark(&text) else {
            continue;
        };
        let rules = reader::rules(&text).expect("a grammar");
        for _ in 0..12 {
            let length = random(&mut state, 6);
            let word = (0..length).map(|_| letters[random(&mut state, letters.len())]);
            let word: String = word.collect();
            let recognizer = Recognizer {
                rules: &rules,
                text: word.chars().collect(),
            };
            let expected = recognizer.accepts();
            let seen = accepts(&compiler, &lark, &word);
            assert_eq!(seen, expected, "{word:?} under\n{text}\nwhich is\n{lark}");
            tried += 1;
            taken += usize::from(expected);
        }
    }
    assert!(taken > tried / 20 && taken < tried, "{taken} of {tried}");
}

/// Grammars in the style of llama.cpp's published ones: each with texts inside and outside its language.
const GRAMMARS: &[(&str, &[&str], &[&str])] = &[
    (
        r##"# JSON
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"##,
        &[
            r#"{}"#,
            r#"{"a": [1, -2.5e+3, {"é\u00e9\"": null}], "b":true}"#,
            "{\n\t\"a\":0\n}\n",
        ],
        &[
            "",
            "1",
            "{\"a\":}",
            "{\"a\":01}",
            "{\"a\":1}}",
            "{\"\n\":1}",
            "{  }",
        ],
    ),
    (
        r#"root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*"#,
        &["a=1\n", "a1 +(b_2*3)/4 =\n 5\n\n\n", "x\n=\ny\nz=2\n"],
        &["a=1", "a=1\nb", "1a=2\n", "()=1\n", "a==1\n"],
    ),
    (
        r##"root ::= declaration*
declaration ::= type name "(" (type name)? ")" "{" statement* "}"
type ::= "int" ws | "char" ws
name ::= [a-zA-Z_] [a-zA-Z_0-9]*
statement ::=
    ( type name ws "=" ws sum ";" ) |
    ( name ws "=" ws sum ";" ) |
    ( "return" ws sum ";" ) |
    ( "if" "(" sum ")" "{" statement* "}" ("else" "{" statement* "}")? ) |
    ( "//" [^\n]* "\n" ) | ( "/*" ( [^*] | ("*" [^/]) )* "*/" )
sum ::= product (("+" | "-") product)*
product ::= value(("*" | "/") value)*
value ::= name | [0-9]+ | "-" value | name "(" (sum ("," ws sum)*)? ")" | "(" ws sum ws ")"
ws ::= ([ \t\n]+)"##,
        &[
            "",
            "int f(int x){int y = x*2;y = f(y, -1);return y;}",
            "int f(){if(x){return 1;}else{}/* * / */return 2;// x\n}",
            "int f(){int = 1;return = 2;returned = 3;integer = 4;if(0){}elsewhere = 5;}",
            "int f(){a = ( 1+x );}",
        ],
        &[
            "intf(){}",
            "int f(){int y=1;}",
            "int f(){/* * */ */}",
            "int f(){if(x){}else(y);}",
        ],
    ),
    (
        r#"# Chess
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?"#,
        &[
            "1. e4 e5\n2. Nf3 Nc6+\n",
            "1. a3 O-O-O\n12. axb8=Q Qa1xa2#\n",
        ],
        &[
            "1. e4 e5\n",
            "1. e9 e5\n2. a3 a4\n",
            "1. e4 e5\n2. O-O-O-O a4\n",
        ],
    ),
    (
        r#"root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n""#,
        &["- a\n", "- é - b\n- 日\n", "- - \n"],
        &["", "-a\n", "- \n", "- a\u{2028}\n", "- a\u{85}b\n", "- a"],
    ),
    (
        r#"root ::= char+ ([ \t\n] char+)*
char ::= hiragana | katakana | punctuation | cjk
hiragana ::= [ぁ-ゟ]
katakana ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk ::= [一-鿿]"#,
        &["日本", "ひらがな カタカナ、\n漢"],
        &["", "a", "日 ", "日  本"],
    ),
    (
        // A rule that repeats itself, names with another meaning in Lark, and escapes.
        r##"Root-2 ::= "/" root_2 "\\" | "\U0001F600"
root_2 ::= [\]\[\-^a]? "#" root_2?
root ::= ROOT-2 | Root-2
ROOT-2 ::= words
words ::= [^ #/\U0001F600-\U0001F64F]+ " " words |"##,
        &[
            "/#\\",
            "/]#-##^#[#a#\\",
            "😀",
            "",
            "a é ",
            "a-b \u{10FFFF} ",
        ],
        &["/\\", "😁 ", "a", "/b#\\", "a  b "],
    ),
];

#[test]
fn grammars_as_they_are_published_keep_their_languages() {
    let compiler = compiler();
    for (grammar, are, are_not) in GRAMMARS {
        let lark = gbnf_to_lark(grammar).expect("a grammar");
        let rules = reader::rules(grammar).expect("a grammar");
        for (texts, expected) in [(are, true), (are_not, false)] {
            for text in *texts {
                let seen = accepts(&compiler, &lark, text);
                assert_eq!(
                    seen, expected,
                    "{text:?} under\n{grammar}\nwhich is\n{lark}"
                );
                let text = text.chars().collect();
                let recognizer = Recognizer {
                    rules: &rules,
                    text,
                };
                assert_eq!(recognizer.accepts(), expected, "{:?}", recognizer.text);
            }
        }
    }
}

#[test]
fn what_is_long_is_one_lexeme_where_it_can_be() {
    let lark = gbnf_to_lark(GRAMMARS[0].0).expect("JSON");
    // A string with all of its characters: a lexeme for each of them would be as many rows of the parser.
    let string = lark.lines().find(|line| line.contains("\\u{22}(?:"));
    assert!(string.is_some_and(|line| line.starts_with('T')), "{lark}");
    let lark = gbnf_to_lark(GRAMMARS[3].0).expect("chess");
    assert!(lark.starts_with("start: T0\nT0: /1"), "{lark}");
}

#[test]
fn the_last_of_two_rules_of_one_name_counts() {
    let lark = gbnf_to_lark("root ::= a\na ::= \"x\"\na ::= \"y\"").expect("a grammar");
    let compiler = compiler();
    assert!(accepts(&compiler, &lark, "y") && !accepts(&compiler, &lark, "x"));
}

#[test]
fn what_is_malformed_or_not_implemented_is_refused_with_its_place() {
    for (text, expected) in [
        ("", "no rule root"),
        ("a ::= \"x\"", "no rule root"),
        ("root ::= a", "line 1, column 10: no rule has the name a"),
        ("root ::= \"a\"\n\n ::= b", "line 3, column 2: the name"),
        ("root = a", "line 1, column 6: ::= must follow"),
        ("root ::= \"é\" )", "line 1, column 14: a rule cannot go on"),
        (
            "root ::= (\"a\"\nb",
            "line 2, column 2: line 1, column 10 is not closed",
        ),
        ("root ::= \"a", "line 1, column 12: the text ends"),
        ("root ::= [a", "line 1, column 12: the text ends"),
        ("root ::= []", "line 1, column 10: the class is empty"),
        ("root ::= [z-a]", "line 1, column 11: the range"),
        (
            "root ::= [^\\x00-\\U0010FFFF]",
            "no character is of this class",
        ),
        ("root ::= \"\\q\"", "column 11: \\ must be followed"),
        ("root ::= \"\\x4\"", "2 hexadecimal digits"),
        ("root ::= \"\\x+4\"", "2 hexadecimal digits"),
        ("root ::= \"\\uD800\"", "no character has this number"),
        ("root ::= *", "column 10: * has nothing to repeat"),
        ("root ::= \"a\"{3,2}", "begins at 2000 or less"),
        ("root ::= \"a\"{2001}", "begins at 2000 or less"),
        ("root ::= \"a\"{x}", "a number must stand here"),
        ("root ::= \"a\"{1;2}", "{m}, {m,} or {m,n}"),
        ("root ::= <think> .*", "column 10: references to tokens"),
        ("root ::= !<[7]>*", "column 10: references to tokens"),
        (
            "root ::= \"a\" root",
            "no text is complete under the rule root",
        ),
    ] {
        let refused = gbnf_to_lark(text).expect_err(text);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

/// Each is refused, or inlined in bounded time and size.
#[test]
fn what_is_written_to_cost_much_ends() {
    let doubled = |to: usize| -> String {
        let rules = (1..to).map(|n| format!("r{n} ::= r{m} r{m}\n", m = n + 1));
        format!("root ::= r1\n{}r{to} ::= [a]", rules.collect::<String>())
    };
    let circle = |to: usize| -> String {
        let rules =
            (0..to).map(|n| format!("r{n} ::= \"a\" r{m} | r{n} [b-c]* | [^b]*\n", m = n + 1));
        format!("root ::= r0\n{}r{to} ::= root", rules.collect::<String>())
    };
    let nested = |levels: usize, with: &str| {
        let [open, close] = ["(".repeat(levels), format!("){with}").repeat(levels)];
        format!("root ::= {open}[a]{close} root |")
    };
    let words = |with: &str| -> String {
        let words = (0..1500).map(|n| format!("\"word{n}\"{with} | "));
        format!("root ::= {} [0-9]", words.collect::<String>())
    };
    for (text, refused) in [
        (doubled(40), Some("more than 50000 parts")),
        (doubled(400), Some("parts inside parts")),
        (circle(8), None),
        (circle(100), Some("too ambiguous or too large")),
        (nested(64, "*"), None),
        (nested(64, "{8}"), None),
        (nested(64, "{0,2000}"), None),
        (nested(65, ""), Some("brackets nest deeper than 64")),
        (words(""), None),
        (words(" root"), Some("too ambiguous or too large")),
        (
            format!("root ::= \"{}\" root?", "a".repeat(200_000)),
            Some("more than 50000 parts"),
        ),
        (
            "root ::= ([^a]{1,2000} [^b]{1,2000}){1999} root?".to_owned(),
            None,
        ),
        (
            format!("root ::= ({}) root?", ["[a-z]*"; 3000].join(" | ")),
            Some("too ambiguous"),
        ),
        (
            format!("root ::= {} | [a]", ["root"; 30_000].join(" ")),
            None,
        ),
        (
            format!(
                "root ::= root [a] {}\na ::= [b] a | [c]",
                "| a ".repeat(30_000)
            ),
            Some("more than 50000 parts"),
        ),
        ("a ::= [b]\n".repeat(20_000) + "root ::= a", None),
    ] {
        let shown: String = text.chars().take(60).collect();
        let outcome = gbnf_to_lark(&text);
        match (outcome, refused) {
            (Ok(lark), None) => assert!(lark.len() <= 16 * text.len(), "{shown}"),
            (Err(error), Some(part)) => assert!(error.contains(part), "{shown}: {error}"),
            (outcome, _) => panic!("{shown}: {outcome:?}"),
        }
    }
}
