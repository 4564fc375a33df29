//! Lark text of lexemes and the rules around them.

use super::class::Class;
use super::cut::Node;
use super::{Rules, Tree};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

pub(super) fn lark(rules: &Rules<Node>) -> String {
    let mut writer = Writer {
        rules: names(&rules.names),
        lexemes: HashMap::new(),
        text: String::new(),
        defined: String::new(),
    };
    for (id, body) in rules.bodies.iter().enumerate() {
        let name = writer.rules[id].clone();
        writer.text.push_str(&name);
        writer.text.push_str(": ");
        writer.node(body, false);
        writer.text.push('\n');
    }
    writer.text + &writer.defined
}

/// Lark names of the rules, in lower case. The first one is the start.
fn names(names: &[String]) -> Vec<String> {
    let mut taken = HashSet::from(["start".to_owned()]);
    let rest = names.iter().skip(1).map(|name| {
        let name = name.to_ascii_lowercase().replace('-', "_");
        let base = format!("r_{name}");
        let mut new = base.clone();
        let mut number = 2;
        while !taken.insert(new.clone()) {
            new = format!("{base}_{number}");
            number += 1;
        }
        new
    });
    let rest: Vec<String> = rest.collect();
    [vec!["start".to_owned()], rest].concat()
}

struct Writer {
    rules: Vec<String>,
    /// Lexemes by their expressions.
    lexemes: HashMap<String, usize>,
    text: String,
    /// Definitions of the lexemes.
    defined: String,
}

impl Writer {
    fn node(&mut self, node: &Node, is_inside: bool) {
        match node {
            Node::Empty => self.text.push_str("\"\""),
            Node::Rule(id) => self.text.push_str(&self.rules[*id]),
            Node::Lexeme(tree) => self.lexeme(tree),
            Node::Sequence(nodes) => self.list(nodes, " ", is_inside),
            Node::Either(nodes) => self.list(nodes, " | ", is_inside),
            Node::Repeat(node, min, max) => {
                let is_repeat = matches!(**node, Node::Repeat(..));
                let [open, close] = if is_repeat { ["(", ")"] } else { ["", ""] };
                self.text.push_str(open);
                self.node(node, true);
                self.text.push_str(close);
                self.text.push_str(&times(*min, *max));
            }
        }
    }

    fn list(&mut self, nodes: &[Node], between: &str, is_inside: bool) {
        if is_inside {
            self.text.push('(');
        }
        for (index, node) in nodes.iter().enumerate() {
            if index > 0 {
                self.text.push_str(between);
            }
            self.node(node, true);
        }
        if is_inside {
            self.text.push(')');
        }
    }

    fn lexeme(&mut self, tree: &Tree) {
        let mut expression = String::new();
        regex(tree, &mut expression);
        let next = self.lexemes.len();
        let number = *self
            .lexemes
            .entry(expression)
            .or_insert_with_key(|expression| {
                self.defined.push_str(&format!("T{next}: /{expression}/\n"));
                next
            });
        self.text.push_str(&format!("T{number}"));
    }
}

fn regex(tree: &Tree, text: &mut String) {
    match tree {
        Tree::Empty | Tree::Rule(_) => text.push_str("(?:)"),
        Tree::Class(of) => class(of, text),
        Tree::Sequence(trees) => trees.iter().for_each(|tree| regex(tree, text)),
        Tree::Either(trees) => {
            text.push_str("(?:");
            for (index, tree) in trees.iter().enumerate() {
                if index > 0 {
                    text.push('|');
                }
                regex(tree, text);
            }
            text.push(')');
        }
        Tree::Repeat(tree, min, max) => {
            text.push_str("(?:");
            regex(tree, text);
            text.push(')');
            text.push_str(&times(*min, *max));
        }
    }
}

fn class(of: &Class, text: &mut String) {
    match of.ranges() {
        [(first, last)] if first == last => char(*first, text),
        ranges => {
            text.push('[');
            for (first, last) in ranges {
                char(*first, text);
                if first != last {
                    text.push('-');
                    char(*last, text);
                }
            }
            text.push(']');
        }
    }
}

/// Writes a character, as a number if it might have a special meaning.
fn char(of: char, text: &mut String) {
    if of.is_ascii_alphanumeric() || of == ' ' {
        text.push(of);
    } else {
        let _ = write!(text, "\\u{{{:X}}}", u32::from(of));
    }
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}
