//! Inlining of non-recursive rules.
//!
//! A rule that refers to itself at its end alone (`ws ::= [ \n] ws | ""`), or at its beginning alone, is a repetition.

use super::{MAX_DEPTH, MAX_PARTS, Rules, Tree};

/// Recursive rules, and the root. Their bodies refer to no others.
///
/// # Errors
/// If they have too many parts, or a rule matches no text at all.
pub(super) fn written_out(mut rules: Rules<Tree>) -> Result<Rules<Tree>, String> {
    check_productive(&rules)?;
    for (id, body) in rules.bodies.iter_mut().enumerate() {
        if let Some(repetition) = repetition(body, id) {
            *body = repetition;
        }
    }
    let recursive = recursive(&rules);
    let mut writer = Writer {
        rules: &rules,
        recursive: &recursive,
        parts: 0,
        kept: vec![0],
    };
    let mut bodies = Vec::new();
    while let Some(id) = writer.kept.get(bodies.len()) {
        bodies.push(writer.tree(&rules.bodies[*id], 0)?);
    }
    let names = writer.kept.iter().map(|id| rules.names[*id].clone());
    let names = names.collect();
    Ok(Rules { names, bodies })
}

struct Writer<'a> {
    rules: &'a Rules<Tree>,
    recursive: &'a [bool],
    parts: usize,
    /// Remaining rules, by their old indices.
    kept: Vec<usize>,
}

impl Writer<'_> {
    fn tree(&mut self, tree: &Tree, depth: usize) -> Result<Tree, String> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return Err(format!(
                "its rules have more than {MAX_PARTS} parts, where those that are not recursive are written out"
            ));
        }
        if depth > MAX_DEPTH {
            return Err(format!(
                "its rules have more than {MAX_DEPTH} parts inside parts"
            ));
        }
        let mut all = |trees: &[Tree]| -> Result<Vec<Tree>, String> {
            let trees = trees.iter();
            trees.map(|tree| self.tree(tree, depth + 1)).collect()
        };
        Ok(match tree {
            Tree::Empty | Tree::Class(_) => tree.clone(),
            Tree::Sequence(trees) => Tree::Sequence(all(trees)?),
            Tree::Either(trees) => Tree::Either(all(trees)?),
            Tree::Repeat(tree, min, max) => {
                Tree::Repeat(Box::new(self.tree(tree, depth + 1)?), *min, *max)
            }
            Tree::Rule(id) if self.recursive[*id] => {
                let known = self.kept.iter().position(|kept| kept == id);
                Tree::Rule(known.unwrap_or_else(|| {
                    self.kept.push(*id);
                    self.kept.len() - 1
                }))
            }
            Tree::Rule(id) => {
                let rules = self.rules;
                self.tree(&rules.bodies[*id], depth + 1)?
            }
        })
    }
}

/// The rule as a repetition, if it refers to itself at one side alone.
fn repetition(body: &Tree, id: usize) -> Option<Tree> {
    if !refers(body, id) {
        return None;
    }
    for at_end in [true, false] {
        let mut loops = Vec::new();
        let mut ends = Vec::new();
        if split(body, id, at_end, &mut loops, &mut ends).is_some() {
            let again = Tree::Repeat(Box::new(Tree::Either(loops)), 0, None);
            let mut sides = vec![again, Tree::Either(ends)];
            if !at_end {
                sides.reverse();
            }
            return Some(Tree::Sequence(sides));
        }
    }
    None
}

/// Splits alternatives into the parts next to the reference, and alternatives without one.
fn split(
    tree: &Tree,
    id: usize,
    at_end: bool,
    loops: &mut Vec<Tree>,
    ends: &mut Vec<Tree>,
) -> Option<()> {
    match tree {
        tree if !refers(tree, id) => ends.push(tree.clone()),
        Tree::Rule(_) => loops.push(Tree::Empty),
        Tree::Either(trees) => {
            for tree in trees {
                split(tree, id, at_end, loops, ends)?;
            }
        }
        Tree::Repeat(tree, 0, Some(1)) => {
            split(tree, id, at_end, loops, ends)?;
            ends.push(Tree::Empty);
        }
        Tree::Sequence(trees) => {
            let (side, rest) = if at_end {
                trees.split_last()?
            } else {
                trees.split_first()?
            };
            if rest.iter().any(|tree| refers(tree, id)) {
                return None;
            }
            let (mut inner_loops, mut inner_ends) = (Vec::new(), Vec::new());
            split(side, id, at_end, &mut inner_loops, &mut inner_ends)?;
            for (inner, outer) in [(inner_loops, loops), (inner_ends, ends)] {
                if !inner.is_empty() {
                    let mut trees = rest.to_vec();
                    trees.insert(if at_end { trees.len() } else { 0 }, Tree::Either(inner));
                    outer.push(Tree::Sequence(trees));
                }
            }
        }
        _ => return None,
    }
    Some(())
}

fn refers(tree: &Tree, id: usize) -> bool {
    let mut found = false;
    references(tree, &mut |other| found |= other == id);
    found
}

fn references(tree: &Tree, see: &mut dyn FnMut(usize)) {
    match tree {
        Tree::Empty | Tree::Class(_) => {}
        Tree::Rule(id) => see(*id),
        Tree::Repeat(tree, ..) => references(tree, see),
        Tree::Sequence(trees) | Tree::Either(trees) => {
            trees.iter().for_each(|tree| references(tree, see));
        }
    }
}

/// Rules that lead to a cycle of references: the rest after repeated removal of rules without remaining references.
fn recursive(rules: &Rules<Tree>) -> Vec<bool> {
    let mut recursive = vec![true; rules.bodies.len()];
    loop {
        let mut changed = false;
        for (id, body) in rules.bodies.iter().enumerate() {
            let mut open = false;
            references(body, &mut |other| open |= recursive[other]);
            changed |= recursive[id] && !open;
            recursive[id] &= open;
        }
        if !changed {
            return recursive;
        }
    }
}

/// Refuses rules without a finite text: an answer could begin such a rule and never end.
fn check_productive(rules: &Rules<Tree>) -> Result<(), String> {
    let mut ends = vec![false; rules.bodies.len()];
    loop {
        let mut changed = false;
        for (id, body) in rules.bodies.iter().enumerate() {
            if !ends[id] && can_end(body, &ends) {
                ends[id] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    match ends.iter().position(|ends| !ends) {
        Some(id) => Err(format!(
            "no text is complete under the rule {}: it always needs itself",
            rules.names[id]
        )),
        None => Ok(()),
    }
}

fn can_end(tree: &Tree, ends: &[bool]) -> bool {
    match tree {
        Tree::Empty | Tree::Class(_) | Tree::Repeat(_, 0, _) => true,
        Tree::Rule(id) => ends[*id],
        Tree::Repeat(tree, ..) => can_end(tree, ends),
        Tree::Sequence(trees) => trees.iter().all(|tree| can_end(tree, ends)),
        Tree::Either(trees) => trees.iter().any(|tree| can_end(tree, ends)),
    }
}
