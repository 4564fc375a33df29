//! Glushkov automaton of a lexeme: one position for each class in it.

use super::Tree;
use super::class::{Bytes, Class};
use std::collections::{HashMap, HashSet};

/// Maximum number of copies of a repeated part. A larger repetition is approximated by an unbounded one, which includes
/// its texts.
const MAX_COPIES: u32 = 8;

/// Automaton of a lexeme.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    places: Vec<Place>,
    /// Positions at which a text may begin.
    first: Vec<usize>,
    first_bytes: Bytes,
    pub(super) is_nullable: bool,
}

#[derive(Debug)]
struct Place {
    class: Class,
    next: Vec<usize>,
    is_last: bool,
}

/// Relation of a lexeme's texts to another lexeme.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Meeting {
    /// The lexemes have a text in common.
    pub(super) at_end: bool,
    /// Bytes that may continue a text of the first lexeme towards a text of the second.
    pub(super) onward: Bytes,
}

struct Part {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    pub(super) fn new(tree: &Tree) -> Self {
        let mut automaton = Self::default();
        let whole = automaton.add(tree);
        for place in whole.last {
            automaton.places[place].is_last = true;
        }
        for place in &mut automaton.places {
            place.next.sort_unstable();
            place.next.dedup();
        }
        automaton.first_bytes = automaton.bytes(&whole.first);
        automaton.first = whole.first;
        automaton.is_nullable = whole.is_nullable;
        automaton
    }

    pub(super) fn first_bytes(&self) -> Bytes {
        self.first_bytes
    }

    fn bytes(&self, places: &[usize]) -> Bytes {
        let mut bytes = Bytes::default();
        for place in places {
            bytes.add(self.places[*place].class.first_bytes());
        }
        bytes
    }

    /// Compares with another lexeme. `steps`: remaining budget, reduced by the work. `None` if it does not suffice.
    pub(super) fn meeting(&self, other: &Self, steps: &mut usize) -> Option<Meeting> {
        let mut meeting = Meeting {
            at_end: self.is_nullable && other.is_nullable,
            onward: Bytes::default(),
        };
        // Most pairs have nothing in common.
        if !self.first_bytes().meets(other.first_bytes()) {
            return Some(meeting);
        }
        let mut seen = HashSet::new();
        let mut open = Vec::new();
        let mut go = |ours: &[usize], theirs: &[usize], open: &mut Vec<(usize, usize)>| {
            *steps = steps.checked_sub(1 + ours.len() * theirs.len())?;
            for our in ours {
                for their in theirs {
                    let (class, its) = (&self.places[*our].class, &other.places[*their].class);
                    if class.meets(its) && seen.insert((*our, *their)) {
                        open.push((*our, *their));
                    }
                }
            }
            Some(())
        };
        go(&self.first, &other.first, &mut open)?;
        while let Some((our, their)) = open.pop() {
            let (our, their) = (&self.places[our], &other.places[their]);
            if our.is_last {
                meeting.at_end |= their.is_last;
                meeting.onward.add(other.bytes(&their.next));
            }
            go(&our.next, &their.next, &mut open)?;
        }
        Some(meeting)
    }

    fn add(&mut self, tree: &Tree) -> Part {
        match tree {
            Tree::Empty | Tree::Rule(_) => Part::empty(),
            Tree::Class(class) => {
                let at = self.place(class);
                Part {
                    first: vec![at],
                    last: vec![at],
                    is_nullable: false,
                }
            }
            Tree::Sequence(trees) => trees.iter().fold(Part::empty(), |before, tree| {
                let part = self.add(tree);
                self.join(before, part)
            }),
            Tree::Either(trees) => {
                let (words, trees): (Vec<&Tree>, Vec<&Tree>) =
                    trees.iter().partition(|tree| tree.is_word());
                let mut whole = self.words(&words);
                for tree in trees {
                    let part = self.add(tree);
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                    whole.is_nullable |= part.is_nullable;
                }
                whole
            }
            Tree::Repeat(tree, min, max) => self.repeat(tree, *min, *max),
        }
    }

    /// Words with a common prefix share positions.
    fn words(&mut self, words: &[&Tree]) -> Part {
        let mut part = Part::empty();
        part.is_nullable = false;
        let mut known: HashMap<(Option<usize>, &Class), usize> = HashMap::new();
        for word in words {
            let mut at = None;
            for class in word.classes() {
                let next = *known.entry((at, class)).or_insert_with(|| {
                    let place = self.place(class);
                    match at {
                        Some(at) => self.places[at].next.push(place),
                        None => part.first.push(place),
                    }
                    place
                });
                at = Some(next);
            }
            part.last.extend(at);
        }
        part
    }

    fn place(&mut self, class: &Class) -> usize {
        self.places.push(Place {
            class: class.clone(),
            next: Vec::new(),
            is_last: false,
        });
        self.places.len() - 1
    }

    fn repeat(&mut self, tree: &Tree, min: u32, max: Option<u32>) -> Part {
        let copies = max.filter(|max| *max <= MAX_COPIES);
        let mut whole = Part::empty();
        for copy in 0..copies.unwrap_or(1) {
            let mut part = self.add(tree);
            if copies.is_none() {
                self.follow(&part.last, &part.first);
            }
            part.is_nullable |= copy >= min;
            whole = self.join(whole, part);
        }
        whole
    }

    fn join(&mut self, mut before: Part, part: Part) -> Part {
        self.follow(&before.last, &part.first);
        if before.is_nullable {
            before.first.extend(part.first);
        }
        if !part.is_nullable {
            before.last.clear();
        }
        before.last.extend(part.last);
        before.is_nullable &= part.is_nullable;
        before
    }

    fn follow(&mut self, last: &[usize], first: &[usize]) {
        for place in last {
            self.places[*place].next.extend(first);
        }
    }
}

impl Part {
    fn empty() -> Self {
        Self {
            first: Vec::new(),
            last: Vec::new(),
            is_nullable: true,
        }
    }
}
