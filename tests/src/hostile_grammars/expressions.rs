//! Regular expressions, and choices.

use super::siege::{Make, Random};
use serde_json::{Value, json};

pub(super) const FAMILIES: &[(&str, Make)] = &[
    ("repeats of repeats", repeats),
    ("one long repeat", long_repeat),
    ("a letter far back", far_back),
    ("anything, far back", anything),
    ("groups in groups", groups),
    ("many alternatives", alternatives),
    ("letters of all scripts", scripts),
    ("stars of stars", stars),
    ("no expression", broken),
    ("a large choice", choice),
];

fn held(expression: String) -> Value {
    json!({"structured_outputs": {"regex": expression}})
}

fn repeats(random: &mut Random) -> Value {
    let mut expression = random.one(&["a", "[a-z]", "(a|b)", "\\w", "."]).to_owned();
    for level in 0..random.between(1, 5) {
        let (least, most) = (random.between(0, 1), random.size(2, 1000));
        let end = random.one(&["", "x?", "y", "(z|)"]);
        expression = format!(
            "({expression}{{{least},{most}}}{end}){}",
            ["", "+"][level % 2]
        );
    }
    held(expression)
}

fn long_repeat(random: &mut Random) -> Value {
    let set = random.one(&["a", "(a|b|ab)", "[^a]", "(ab?)", "\\pL"]);
    let most = random.size(500, 1_000_000);
    held(format!("{set}{{{},{most}}}c", random.between(1, most)))
}

fn far_back(random: &mut Random) -> Value {
    let distance = random.size(8, 3000);
    let letters = random.one(&["(a|b)", "[a-c]", "[0-9a-f]", "(a|b|\\n)"]);
    held(format!(
        "{letters}*{}{letters}{{{distance}}}",
        random.one(&["a", "b", "ab"])
    ))
}

fn anything(random: &mut Random) -> Value {
    let (distance, times) = (random.size(4, 300), random.between(1, 12));
    let letter = random.word();
    held(format!("(.*{letter}.{{{distance}}}){{{times}}}"))
}

fn groups(random: &mut Random) -> Value {
    let depth = random.size(50, 9000);
    let close = random.one(&[")", ")*", ")?", ")+"]);
    held(format!(
        "{}{}{}",
        "(".repeat(depth),
        random.word(),
        close.repeat(depth)
    ))
}

fn alternatives(random: &mut Random) -> Value {
    let count = random.size(200, 20_000);
    let end = random.one(&["", ".*", "[a-z]{1,40}"]);
    let texts: Vec<String> = (0..count)
        .map(|_| format!("{}{end}", random.word()))
        .collect();
    held(format!("({}){{1,{}}}", texts.join("|"), random.size(1, 50)))
}

fn scripts(random: &mut Random) -> Value {
    let class = random.one(&[
        "\\p{L}",
        "[\\p{Han}\\p{Hiragana}]",
        "\\P{Lu}",
        "[^\\p{N}]",
        "\\p{Cyrillic}",
    ]);
    let flag = random.one(&["", "(?i)", "(?s)"]);
    let (inner, outer) = (random.size(1, 200), random.size(1, 200));
    held(format!(
        "{flag}(({class}{{1,{inner}}}|{}) ?){{1,{outer}}}",
        random.word()
    ))
}

fn stars(random: &mut Random) -> Value {
    let depth = random.between(2, 60);
    let mut expression = random.word();
    for _ in 0..depth {
        expression = format!(
            "({expression}{}|{})*",
            random.one(&["", "?", "+"]),
            random.word()
        );
    }
    held(expression)
}

fn broken(random: &mut Random) -> Value {
    let word = random.word();
    let wrong = random.one(&[
        "(",
        "[",
        "a{9999999999}",
        "(?=x)",
        "\\1",
        "(?<x",
        "*",
        "[z-a]",
        "\\p{Nothing}",
    ]);
    held(format!("{word}{wrong}"))
}

fn choice(random: &mut Random) -> Value {
    let count = random.size(500, 20_000);
    let texts: Vec<String> = (0..count)
        .map(|it| format!("{} {it}", random.word()))
        .collect();
    json!({"structured_outputs": {"choice": texts}})
}
