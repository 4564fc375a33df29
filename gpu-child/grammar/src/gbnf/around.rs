//! First and follow sets of the lexemes.

use super::Tree;
use super::automaton::Automaton;
use super::class::Bytes;
use super::cut::Node;

/// Maximum number of lexemes, counted once per occurrence.
const MAX_LEXEMES: usize = 4096;

/// Set of lexemes, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Set(Vec<u64>);

impl Set {
    pub(super) fn new(numbers: usize) -> Self {
        Self(vec![0; numbers.div_ceil(64)])
    }

    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    /// Adds the other set, and returns the new elements.
    pub(super) fn added(&mut self, other: &Self) -> Self {
        let both = self.0.iter_mut().zip(&other.0);
        let new = both.map(|(ours, theirs)| {
            let new = theirs & !*ours;
            *ours |= theirs;
            new
        });
        Self(new.collect())
    }

    /// Number of words that an operation on the whole set reads.
    pub(super) fn words(&self) -> usize {
        self.0.len()
    }

    /// Adds the other set. True if an element is new.
    fn add(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (ours, theirs) in self.0.iter_mut().zip(&other.0) {
            changed |= theirs & !*ours != 0;
            *ours |= theirs;
        }
        changed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(index, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| index * 64 + bit)
        })
    }
}

pub(super) struct Around<'a> {
    pub(super) trees: Vec<&'a Tree>,
    pub(super) automata: Vec<Automaton>,
    /// Lexemes that may begin an answer.
    pub(super) first: Set,
    /// Lexemes that may follow each lexeme.
    pub(super) follow: Vec<Set>,
    /// Bytes that may follow a text of each lexeme.
    after: Vec<Bytes>,
}

impl<'a> Around<'a> {
    /// Computes the sets. `None` if it takes too many steps.
    pub(super) fn new(bodies: &'a [Node], steps: &mut usize) -> Option<Self> {
        let mut trees = Vec::new();
        bodies.iter().for_each(|body| collect(body, &mut trees));
        if trees.len() > MAX_LEXEMES {
            return None;
        }
        let automata: Vec<Automaton> = trees.iter().map(|tree| Automaton::new(tree)).collect();
        let mut seeker = Seeker {
            automata: &automata,
            rules: vec![Rule::new(trees.len()); bodies.len()],
            follow: vec![Set::new(trees.len()); trees.len()],
            changed: true,
        };
        let mut end = 0;
        let ends = bodies.iter().map(|body| {
            end += count(body);
            end
        });
        let ends: Vec<usize> = ends.collect();
        let sweep = (bodies.len() + trees.len()) * trees.len().div_ceil(64);
        // The first set of a rule follows from the rules in it, its follow set from the rules around it.
        while std::mem::take(&mut seeker.changed) {
            *steps = steps.checked_sub(sweep)?;
            for (id, body) in bodies.iter().enumerate().rev() {
                seeker.begin(id, body, ends[id]);
            }
        }
        seeker.changed = true;
        while std::mem::take(&mut seeker.changed) {
            *steps = steps.checked_sub(sweep)?;
            for (id, body) in bodies.iter().enumerate() {
                let after = seeker.rules[id].follow.clone();
                seeker.part(body, ends[id], &after);
            }
        }
        let first = seeker.rules[0].first.clone();
        let follow = seeker.follow;
        let after = follow.iter().map(|set| {
            let mut bytes = Bytes::default();
            set.iter()
                .for_each(|it| bytes.add(automata[it].first_bytes()));
            bytes
        });
        Some(Self {
            after: after.collect(),
            trees,
            automata,
            first,
            follow,
        })
    }

    pub(super) fn after(&self, lexeme: usize) -> Bytes {
        self.after[lexeme]
    }
}

fn collect<'a>(node: &'a Node, trees: &mut Vec<&'a Tree>) {
    match node {
        Node::Lexeme(tree) => trees.push(tree),
        Node::Empty | Node::Rule(_) => {}
        Node::Repeat(node, ..) => collect(node, trees),
        Node::Sequence(nodes) | Node::Either(nodes) => {
            nodes.iter().for_each(|node| collect(node, trees));
        }
    }
}

#[derive(Clone)]
struct Rule {
    first: Set,
    follow: Set,
    is_nullable: bool,
}

impl Rule {
    fn new(lexemes: usize) -> Self {
        Self {
            first: Set::new(lexemes),
            follow: Set::new(lexemes),
            is_nullable: false,
        }
    }
}

/// Iterates over all rules until nothing changes.
struct Seeker<'a> {
    automata: &'a [Automaton],
    rules: Vec<Rule>,
    follow: Vec<Set>,
    changed: bool,
}

/// First set of a part.
struct Start {
    first: Set,
    is_nullable: bool,
}

impl Seeker<'_> {
    fn begin(&mut self, id: usize, body: &Node, end: usize) {
        let start = self.start(body, end);
        let rule = &mut self.rules[id];
        self.changed |= rule.first.add(&start.first) | (rule.is_nullable != start.is_nullable);
        rule.is_nullable = start.is_nullable;
    }

    /// Computes the first set of a node. `end`: one more than the number of its last lexeme.
    fn start(&self, node: &Node, end: usize) -> Start {
        match node {
            Node::Empty => self.nothing(true),
            Node::Lexeme(_) => {
                let mut start = self.nothing(self.automata[end - 1].is_nullable);
                start.first.insert(end - 1);
                start
            }
            Node::Rule(id) => Start {
                first: self.rules[*id].first.clone(),
                is_nullable: self.rules[*id].is_nullable,
            },
            Node::Sequence(nodes) => {
                let mut whole = self.nothing(true);
                for (node, end) in ends(nodes, end) {
                    let start = self.start(node, end);
                    if !start.is_nullable {
                        whole = self.nothing(false);
                    }
                    whole.first.add(&start.first);
                }
                whole
            }
            Node::Either(nodes) => {
                let mut whole = self.nothing(false);
                for (node, end) in ends(nodes, end) {
                    let start = self.start(node, end);
                    whole.first.add(&start.first);
                    whole.is_nullable |= start.is_nullable;
                }
                whole
            }
            Node::Repeat(node, min, _) => {
                let mut start = self.start(node, end);
                start.is_nullable |= *min == 0;
                start
            }
        }
    }

    /// Records the follow sets of its lexemes and rules, if `after` follows it.
    fn part(&mut self, node: &Node, end: usize, after: &Set) {
        match node {
            Node::Empty => {}
            Node::Lexeme(_) => self.changed |= self.follow[end - 1].add(after),
            Node::Rule(id) => self.changed |= self.rules[*id].follow.add(after),
            Node::Sequence(nodes) => {
                let mut after = after.clone();
                for (node, end) in ends(nodes, end) {
                    self.part(node, end, &after);
                    let start = self.start(node, end);
                    if !start.is_nullable {
                        after = self.nothing(true).first;
                    }
                    after.add(&start.first);
                }
            }
            Node::Either(nodes) => {
                for (node, end) in ends(nodes, end) {
                    self.part(node, end, after);
                }
            }
            Node::Repeat(node, _, Some(1)) => self.part(node, end, after),
            Node::Repeat(node, ..) => {
                let mut after = after.clone();
                after.add(&self.start(node, end).first);
                self.part(node, end, &after);
            }
        }
    }

    fn nothing(&self, is_nullable: bool) -> Start {
        Start {
            first: Set::new(self.automata.len()),
            is_nullable,
        }
    }
}

/// Each part with its end, from the last one to the first one.
fn ends(nodes: &[Node], mut end: usize) -> impl Iterator<Item = (&Node, usize)> {
    nodes.iter().rev().map(move |node| {
        let its = end;
        end -= count(node);
        (node, its)
    })
}

fn count(node: &Node) -> usize {
    match node {
        Node::Lexeme(_) => 1,
        Node::Empty | Node::Rule(_) => 0,
        Node::Repeat(node, ..) => count(node),
        Node::Sequence(nodes) | Node::Either(nodes) => nodes.iter().map(count).sum(),
    }
}
