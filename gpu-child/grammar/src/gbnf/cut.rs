//! Which parts become lexemes.
//!
//! Two lexemes stand beside each other where some text before them may be followed by either. The parser's lexer reads
//! on as long as one of them goes on. So a text of the first that is complete must not be continued by the second with a byte
//! that may also begin what follows the first: such lexemes are in conflict, and one of them is taken apart.
//! What follows and what stands beside is found as if each place where a rule is used were followed by what follows any of them:
//! some conflicts are none, but none is overlooked.

use super::around::{Around, Set};
use super::{Rules, Tree};
use std::collections::HashSet;

/// Pairs of lexemes and of places in them that are compared, and what is looked at to find them.
const MAX_STEPS: usize = 2_000_000;

/// Classes of a lexeme: it is a part of an answer, and no expression of all of it, which would have a state for
/// each of its characters.
const MAX_SIZE: u64 = 256;

/// Size of what may be repeated often in one lexeme.
const MAX_REPEATED: u64 = 24;

/// A rule around lexemes.
#[derive(Debug)]
pub(super) enum Node {
    Empty,
    /// It refers to no rule.
    Lexeme(Tree),
    Rule(usize),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// # Errors
/// When there is too much to compare.
pub(super) fn lexemes(rules: Rules<Tree>) -> Result<Rules<Node>, String> {
    let mut bodies: Vec<Node> = rules.bodies.into_iter().map(node).collect();
    let mut steps = MAX_STEPS;
    loop {
        let apart = conflicts(&bodies, &mut steps).ok_or("it is too ambiguous or too large")?;
        if apart.is_empty() {
            let names = rules.names;
            return Ok(Rules { names, bodies });
        }
        let mut next = 0;
        for body in &mut bodies {
            each_lexeme(body, &mut |lexeme| {
                if apart.contains(&next)
                    && let Node::Lexeme(tree) = std::mem::replace(lexeme, Node::Empty)
                {
                    *lexeme = taken_apart(tree);
                }
                next += 1;
            });
        }
    }
}

/// The largest parts that refer to no rule and have some size at most.
fn node(tree: Tree) -> Node {
    match tree {
        Tree::Empty => Node::Empty,
        Tree::Rule(id) => Node::Rule(id),
        tree => match size(&tree) {
            Some(size) if size <= MAX_SIZE || is_simple(&tree) => Node::Lexeme(tree),
            _ => taken_apart(tree),
        },
    }
}

fn taken_apart(tree: Tree) -> Node {
    match tree {
        Tree::Sequence(trees) => Node::Sequence(trees.into_iter().map(node).collect()),
        Tree::Either(trees) => either(trees),
        Tree::Repeat(tree, min, max) => Node::Repeat(Box::new(node(*tree)), min, max),
        Tree::Empty => Node::Empty,
        Tree::Rule(id) => Node::Rule(id),
        Tree::Class(_) => Node::Lexeme(tree),
    }
}

/// Classes, as often as they are repeated. None where it refers to a rule.
fn size(tree: &Tree) -> Option<u64> {
    let sum = |trees: &[Tree]| {
        trees
            .iter()
            .try_fold(0, |sum: u64, tree| Some(sum.saturating_add(size(tree)?)))
    };
    match tree {
        Tree::Empty => Some(0),
        Tree::Class(_) => Some(1),
        Tree::Rule(_) => None,
        Tree::Sequence(trees) | Tree::Either(trees) => sum(trees),
        Tree::Repeat(tree, min, max) => {
            let times = max.unwrap_or(*min).max(1);
            Some(size(tree)?.saturating_mul(times.into()))
        }
    }
}

/// Whatever its size: something short that is repeated, or a choice between words.
fn is_simple(tree: &Tree) -> bool {
    match tree {
        Tree::Repeat(tree, ..) => size(tree).is_some_and(|size| size <= MAX_REPEATED),
        Tree::Either(trees) => trees.iter().all(Tree::is_word),
        _ => false,
    }
}

/// Words among other alternatives are one.
fn either(trees: Vec<Tree>) -> Node {
    let (mut words, rest): (Vec<Tree>, Vec<Tree>) = trees.into_iter().partition(Tree::is_word);
    let mut nodes: Vec<Node> = Vec::new();
    if rest.is_empty() || words.len() < 2 {
        nodes.extend(words.drain(..).map(node));
    } else {
        nodes.push(Node::Lexeme(Tree::Either(words)));
    }
    nodes.extend(rest.into_iter().map(node));
    Node::Either(nodes)
}

/// What is gained where it is taken apart: at the end a literal becomes characters.
fn worth(tree: &Tree) -> u8 {
    match tree {
        Tree::Sequence(_) if tree.is_word() => 1,
        Tree::Sequence(_) | Tree::Either(_) => 3,
        Tree::Repeat(..) => 2,
        Tree::Empty | Tree::Class(_) | Tree::Rule(_) => 0,
    }
}

/// In the order in which lexemes are numbered.
fn each_lexeme(node: &mut Node, see: &mut dyn FnMut(&mut Node)) {
    match node {
        Node::Lexeme(_) => see(node),
        Node::Empty | Node::Rule(_) => {}
        Node::Repeat(node, ..) => each_lexeme(node, see),
        Node::Sequence(nodes) | Node::Either(nodes) => {
            nodes.iter_mut().for_each(|node| each_lexeme(node, see));
        }
    }
}

/// The numbers of lexemes to take apart. None where it takes too many steps.
fn conflicts(bodies: &[Node], steps: &mut usize) -> Option<HashSet<usize>> {
    let around = Around::new(bodies, steps)?;
    let mut beside = Beside {
        around: &around,
        seen: vec![Set::new(around.trees.len()); around.trees.len()],
        open: Vec::new(),
        apart: HashSet::new(),
    };
    beside.see(&around.first, &around.first, steps)?;
    let mut seen = HashSet::new();
    while let Some((our, their)) = beside.open.pop() {
        let sets = (&around.follow[our], &around.follow[their]);
        *steps = steps.checked_sub(sets.0.words())?;
        // Many are followed by the same.
        if seen.insert(sets) {
            beside.see(sets.0, sets.1, steps)?;
        }
    }
    Some(beside.apart)
}

/// Lexemes beside each other.
struct Beside<'a> {
    around: &'a Around<'a>,
    seen: Vec<Set>,
    /// Pairs that may end with the same text.
    open: Vec<(usize, usize)>,
    apart: HashSet<usize>,
}

impl Beside<'_> {
    fn see(&mut self, ours: &Set, theirs: &Set, steps: &mut usize) -> Option<()> {
        for our in ours.iter() {
            *steps = steps.checked_sub(theirs.words())?;
            let new = self.seen[our].added(theirs);
            for their in new.iter() {
                self.compare(our, their, steps)?;
            }
        }
        Some(())
    }

    fn compare(&mut self, our: usize, their: usize, steps: &mut usize) -> Option<()> {
        let around = self.around;
        let meeting = around.automata[our].meeting(&around.automata[their], steps)?;
        if meeting.at_end {
            self.open.push((our, their));
        }
        let known = self.apart.contains(&our) || self.apart.contains(&their);
        if !known && meeting.onward.meets(around.after(our)) {
            let is_ours = worth(around.trees[our]) > worth(around.trees[their]);
            self.apart.insert(if is_ours { our } else { their });
        }
        Some(())
    }
}
