//! Sets of characters.

/// Disjoint ranges in order. None is empty, and there is at least one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Class(Vec<(char, char)>);

impl Class {
    pub(super) fn one(of: char) -> Self {
        Self(vec![(of, of)])
    }

    pub(super) fn every() -> Self {
        Self(vec![(char::MIN, char::MAX)])
    }

    /// `None` for an empty class.
    pub(super) fn new(mut ranges: Vec<(char, char)>, negated: bool) -> Option<Self> {
        ranges.sort_unstable();
        let mut united: Vec<(char, char)> = Vec::new();
        for (first, last) in ranges {
            match united.last_mut() {
                Some((_, end)) if after(*end).is_none_or(|next| first <= next) => {
                    *end = (*end).max(last);
                }
                _ => united.push((first, last)),
            }
        }
        let ranges = if negated { rest(&united) } else { united };
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    pub(super) fn ranges(&self) -> &[(char, char)] {
        &self.0
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(our), Some(their)) = (ours.peek(), theirs.peek()) {
            if our.1 < their.0 {
                ours.next();
            } else if their.1 < our.0 {
                theirs.next();
            } else {
                return true;
            }
        }
        false
    }

    /// First bytes of its characters in UTF-8.
    pub(super) fn first_bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for (first, last) in &self.0 {
            for byte in lead(*first)..=lead(*last) {
                bytes.0[usize::from(byte) / 64] |= 1 << (byte % 64);
            }
        }
        bytes
    }
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    pub(super) fn add(&mut self, other: Self) {
        for (ours, theirs) in self.0.iter_mut().zip(other.0) {
            *ours |= theirs;
        }
    }

    pub(super) fn meets(self, other: Self) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .any(|(ours, theirs)| ours & theirs != 0)
    }
}

fn lead(of: char) -> u8 {
    let mut buffer = [0; 4];
    of.encode_utf8(&mut buffer);
    buffer[0]
}

/// The next character. Surrogates are not characters and are skipped.
fn after(of: char) -> Option<char> {
    (of..=char::MAX).nth(1)
}

fn before(of: char) -> Option<char> {
    (char::MIN..=of).rev().nth(1)
}

fn rest(ranges: &[(char, char)]) -> Vec<(char, char)> {
    let mut left = Vec::new();
    let mut next = Some(char::MIN);
    for (first, last) in ranges {
        if let (Some(from), Some(to)) = (next, before(*first))
            && from <= to
        {
            left.push((from, to));
        }
        next = after(*last);
    }
    left.extend(next.map(|from| (from, char::MAX)));
    left
}
