//! Grammars in Lark.

use super::siege::{Make, Random};
use serde_json::{Value, json};

pub(super) const FAMILIES: &[(&str, Make)] = &[
    ("ambiguous rules", ambiguous),
    ("left recursion", left_recursion),
    ("rules without text", nullable),
    ("a chain of rules", chain),
    ("rules that double", doubling),
    ("many rules at once", many_rules),
    ("repeats of rules", repeats),
    ("terminals that meet", intersections),
    ("terminals that overlap", overlapping),
    ("brackets in brackets", brackets),
    ("schemas in rules", inline),
    ("rules that are not there", broken),
];

fn held(grammar: String) -> Value {
    json!({"structured_outputs": {"grammar": grammar}})
}

fn ambiguous(random: &mut Random) -> Value {
    let word = random.word();
    let most = random.between(2, 9);
    let sums: Vec<String> = (2..=most).map(|it| vec!["s"; it].join(" ")).collect();
    let empty = random.one(&["", " | \"\""]);
    held(format!(
        "start: s\ns: {} | \"{}\" | /[a-z]/{empty}",
        sums.join(" | "),
        word
    ))
}

fn left_recursion(random: &mut Random) -> Value {
    let count = random.size(1, 300);
    let rules = (0..count).map(|it| {
        let (next, word) = ((it + 1) % count, random.word());
        format!("r{it}: r{next} \"{word}\" | r{it} r{next} | \"{word}\"\n")
    });
    let rules: String = rules.collect();
    held(format!("start: r0\n{rules}"))
}

fn nullable(random: &mut Random) -> Value {
    let count = random.size(2, 300);
    let rules = (0..count).map(|it| {
        let (one, other) = (random.between(0, count - 1), random.between(0, count - 1));
        format!("r{it}: r{one}? r{other}* \"{}\"? \n", random.word())
    });
    let rules: String = rules.collect();
    held(format!("start: r0*\n{rules}"))
}

fn chain(random: &mut Random) -> Value {
    let length = random.size(50, 4090);
    let name = random.one(&["r", "R"]);
    let tail = random.one(&["", " \"a\"", " \"a\"?"]);
    let rules: String = (0..length)
        .map(|it| format!("{name}{it}: {name}{}{tail}\n", it + 1))
        .collect();
    held(format!(
        "start: {name}0\n{rules}{name}{length}: \"{}\"\n",
        random.word()
    ))
}

fn doubling(random: &mut Random) -> Value {
    let levels = random.between(5, 60);
    let name = random.one(&["r", "R"]);
    let between = random.one(&["", " | "]);
    let rules = (0..levels).map(|it| format!("{name}{it}: {name}{0}{between} {name}{0}\n", it + 1));
    let rules: String = rules.collect();
    held(format!(
        "start: {name}0\n{rules}{name}{levels}: \"{}\"\n",
        random.word()
    ))
}

fn many_rules(random: &mut Random) -> Value {
    let count = random.size(100, 4000);
    let rules = (0..count).map(|_| format!("\"{}\" s", random.word()));
    let rules: Vec<String> = rules.collect();
    held(format!("start: s\ns: \"a\" | {}", rules.join(" | ")))
}

fn repeats(random: &mut Random) -> Value {
    let (most, inner) = (random.size(10, 1_000_000), random.size(1, 1000));
    let least = random.between(0, most);
    held(format!(
        "start: (w{{1,{inner}}} \"-\"?){{{least},{most}}}\nw: \"{}\" | \"b\"\n",
        random.word()
    ))
}

fn intersections(random: &mut Random) -> Value {
    let count = random.between(2, 60);
    let part = |random: &mut Random| {
        let not = random.one(&["", "~"]);
        format!(
            "{not}/(a|b)*{}(a|b){{{}}}/",
            random.one(&["a", "b"]),
            random.size(2, 40)
        )
    };
    let parts: Vec<String> = (0..count).map(|_| part(random)).collect();
    held(format!("start: A\nA: {}", parts.join(" & ")))
}

fn overlapping(random: &mut Random) -> Value {
    let count = random.size(10, 1500);
    let set = random.one(&["[a-z]", "[a-z ]", ".", "\\w"]);
    let terminals = (0..count).map(|it| {
        format!(
            "A{it}: /{set}{{1,{}}}{}/\n",
            random.size(1, 60),
            random.word()
        )
    });
    let terminals: String = terminals.collect();
    let names: Vec<String> = (0..count).map(|it| format!("A{it}")).collect();
    held(format!("start: ({})*\n{terminals}", names.join(" | ")))
}

fn brackets(random: &mut Random) -> Value {
    let depth = random.size(20, 50_000);
    let close = random.one(&[")", ")*", ")+", ")?"]);
    held(format!(
        "start: {}\"{}\"{}",
        "(".repeat(depth),
        random.word(),
        close.repeat(depth)
    ))
}

fn inline(random: &mut Random) -> Value {
    let count = random.size(2, 300);
    let rules = (0..count).map(|it| {
        let schema = json!({
            "type": "object",
            "properties": {random.word(): {"type": "string", "maxLength": random.size(1, 2000)}, random.word(): {}},
        });
        format!("r{it}: %json {schema}\n")
    });
    let rules: String = rules.collect();
    let names: Vec<String> = (0..count).map(|it| format!("r{it}")).collect();
    held(format!("start: ({})+\n{rules}", names.join(" | ")))
}

fn broken(random: &mut Random) -> Value {
    let word = random.word();
    let wrong = random.one(&[
        "start: nothing",
        "start: \"a",
        "start: /(/",
        "strt: \"a\"",
        "start: %json {",
        "start: <|nothing|>",
        ": \"a\"",
        "start: start[capture]",
    ]);
    held(format!("{wrong} # {word}"))
}
