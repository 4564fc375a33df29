//! Selection of the parts that become lexemes.
//!
//! Two lexemes are alternatives if either may follow the same text. The parser's lexer continues while one of them
//! matches. So a complete text of the first must not be continued by the second with a byte that may also begin a
//! follower of the first: such lexemes are in conflict, and one of them is split. Follow sets and alternatives are
//! computed as if every use of a rule had the followers of all its uses: this finds some false conflicts, but misses
//! none.

use super::around::{Around, Set};
use super::{Rules, Tree};
use std::collections::HashSet;

/// Budget: compared pairs of lexemes and of positions in them, and the work to find them.
const MAX_STEPS: usize = 2_000_000;

/// Maximum number of classes of a lexeme: it is a part of an answer, and no expression of all of it, which would have a
/// state for each of its characters.
const MAX_SIZE: u64 = 256;

/// Maximum size of a part with many repetitions in one lexeme.
const MAX_REPEATED: u64 = 24;

/// A rule around lexemes.
#[derive(Debug)]
pub(super) enum Node {
    Empty,
    /// A part without references to rules.
    Lexeme(Tree),
    Rule(usize),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Divides the rules into lexemes.
///
/// # Errors
/// If the comparison exceeds its budget.
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

/// The largest parts without references to rules, up to a maximum size.
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

/// Number of classes, multiplied by repetitions. `None` if it refers to a rule.
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

/// True for a part that is a lexeme at any size: a repetition of a short part, or a choice between words.
fn is_simple(tree: &Tree) -> bool {
    match tree {
        Tree::Repeat(tree, ..) => size(tree).is_some_and(|size| size <= MAX_REPEATED),
        Tree::Either(trees) => trees.iter().all(Tree::is_word),
        _ => false,
    }
}

/// Merges the words among the alternatives to one.
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

/// Priority for splitting: a literal is split into characters last.
fn worth(tree: &Tree) -> u8 {
    match tree {
        Tree::Sequence(_) if tree.is_word() => 1,
        Tree::Sequence(_) | Tree::Either(_) => 3,
        Tree::Repeat(..) => 2,
        Tree::Empty | Tree::Class(_) | Tree::Rule(_) => 0,
    }
}

/// Visits all lexemes in the order of their numbers.
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

/// Numbers of lexemes to split. `None` if it takes too many steps.
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
        // Many have the same followers.
        if seen.insert(sets) {
            beside.see(sets.0, sets.1, steps)?;
        }
    }
    Some(beside.apart)
}

/// Alternative lexemes.
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
