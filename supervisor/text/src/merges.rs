//! A ranked list of pairs of tokens, by which the tokens of a word are merged: the earliest pair of the list first, the
//! leftmost of equal ones.

use super::TextError;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Pairs of tokens.
#[derive(Debug)]
pub(super) struct Merges(HashMap<(u32, u32), Merged>);

#[derive(Debug, Clone, Copy)]
struct Merged {
    rank: u32,
    id: u32,
}

impl Merges {
    /// Reads a list of `left right`. `ids`: token of each text.
    ///
    /// # Errors
    /// If an entry is malformed, or one of its tokens is missing.
    pub(super) fn read(merges: &[String], ids: &HashMap<&str, u32>) -> Result<Self, TextError> {
        let merges = (0..).zip(merges).map(|(rank, it)| read(rank, it, ids));
        merges.collect::<Result<_, _>>().map(Self)
    }
}

fn read(
    rank: u32,
    merge: &str,
    ids: &HashMap<&str, u32>,
) -> Result<((u32, u32), Merged), TextError> {
    let malformed = |why: String| TextError::Malformed(why);
    let (left, right) =
        split_merge(merge).ok_or_else(|| malformed(format!("no merge: {merge:?}")))?;
    let id = |token: &str| {
        let id = ids.get(token).copied();
        id.ok_or_else(|| malformed(format!("the merge {merge:?} needs a token {token:?}")))
    };
    let merged = Merged {
        rank,
        id: id(&[left, right].concat())?,
    };
    Ok(((id(left)?, id(right)?), merged))
}

/// Splits `left right`. The left side may begin with a space.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}

/// Tokens of a word, which are merged in place.
#[derive(Debug)]
pub(super) struct Symbols(Vec<Symbol>);

/// `len` is in bytes. It is 0 after the merge into the left neighbour.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    len: u32,
    previous: Option<u32>,
    next: u32,
}

impl Symbols {
    /// Tokens, each with its length in bytes.
    pub(super) fn new(tokens: impl Iterator<Item = (u32, u32)>) -> Self {
        let symbol = |(index, (id, len)): (u32, (u32, u32))| Symbol {
            id,
            len,
            previous: index.checked_sub(1),
            next: index + 1,
        };
        Self((0..).zip(tokens).map(symbol).collect())
    }

    /// The tokens that remain when all pairs are merged, each with its length in bytes.
    pub(super) fn merged(mut self, merges: &Merges) -> Vec<(u32, usize)> {
        self.merge(&merges.0);
        let symbols = self.0.iter().filter(|symbol| symbol.len > 0);
        symbols.map(|it| (it.id, it.len as usize)).collect()
    }

    fn merge(&mut self, merges: &HashMap<(u32, u32), Merged>) {
        // Ordered by rank, then by position.
        let mut queue = BinaryHeap::new();
        let consider = |this: &Self, queue: &mut BinaryHeap<_>, left: u32| {
            let merged = this.pair(left).and_then(|pair| merges.get(&pair));
            queue.extend(merged.map(|merged| Reverse((merged.rank, left))));
        };
        for left in 0..self.0.len() as u32 {
            consider(self, &mut queue, left);
        }
        while let Some(Reverse((rank, left))) = queue.pop() {
            let merged = self.pair(left).and_then(|pair| merges.get(&pair));
            // Stale entry: one of the two symbols was merged since.
            let Some(merged) = merged.filter(|merged| merged.rank == rank) else {
                continue;
            };
            self.join(left, merged.id);
            consider(self, &mut queue, left);
            if let Some(previous) = self.0[left as usize].previous {
                consider(self, &mut queue, previous);
            }
        }
    }

    /// Ids of a symbol and the next one. `None` if either is missing or was merged.
    fn pair(&self, left: u32) -> Option<(u32, u32)> {
        let left = self.0.get(left as usize).filter(|left| left.len > 0)?;
        let right = self.0.get(left.next as usize)?;
        Some((left.id, right.id))
    }

    fn join(&mut self, left: u32, id: u32) {
        let right = self.0[left as usize].next as usize;
        let (len, next) = (self.0[right].len, self.0[right].next);
        self.0[right].len = 0;
        let joined = &mut self.0[left as usize];
        *joined = Symbol {
            id,
            len: joined.len + len,
            previous: joined.previous,
            next,
        };
        if let Some(next) = self.0.get_mut(next as usize) {
            next.previous = Some(left);
        }
    }
}
