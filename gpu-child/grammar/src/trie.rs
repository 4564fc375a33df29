//! Trie of the tokens' bytes, in the order of the walk.

/// Each node precedes its descendants, and siblings are sorted by byte. The first one is the root.
pub(crate) struct Trie {
    nodes: Vec<Node>,
    /// Tokens in the order of their end nodes.
    tokens: Vec<u32>,
}

#[derive(Clone, Copy)]
pub(crate) struct Node {
    /// Number of [`Trie::tokens`] that end before this node.
    before: u32,
    /// Number of nodes: itself and its descendants.
    size: u32,
    /// Bytes from the root, including its own.
    depth: u16,
    pub(crate) byte: u8,
    /// Bit `i`: all tokens here and below are in set `i`.
    pub(crate) sets: u8,
}

/// A token, its bytes, and its sets.
pub(crate) type Entry<'a> = (&'a [u8], u32, u8);

impl Trie {
    /// Trie of tokens with at least one and fewer than 2¹⁶ bytes.
    pub(crate) fn new(mut entries: Vec<Entry<'_>>) -> Self {
        entries.sort_unstable_by_key(|(bytes, token, _)| (*bytes, *token));
        let mut growing = Growing::new();
        let mut last: &[u8] = &[];
        for (bytes, token, sets) in entries {
            let common = last.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            growing.close(common);
            for byte in &bytes[common..] {
                growing.open(*byte);
            }
            growing.token(token, sets);
            last = bytes;
        }
        growing.done()
    }

    /// Union of the subtrees below all these nodes, with a root of its own.
    pub(crate) fn merged(&self, nodes: &[u32]) -> Self {
        let mut growing = Growing::new();
        self.merge(nodes, &mut growing);
        growing.done()
    }

    fn merge(&self, nodes: &[u32], growing: &mut Growing) {
        let mut below = Vec::new();
        for node in nodes {
            let node = *node as usize;
            for token in self.tokens(node) {
                growing.token(*token, 0);
            }
            let mut child = node + 1;
            while child < node + self.nodes[node].size() {
                below.push((self.nodes[child].byte, child as u32));
                child += self.nodes[child].size();
            }
        }
        if nodes.len() > 1 {
            below.sort_unstable();
        }
        let depth = growing.open.len() - 1;
        let mut alike = Vec::new();
        for of_a_byte in below.chunk_by(|a, b| a.0 == b.0) {
            growing.open(of_a_byte[0].0);
            alike.clear();
            alike.extend(of_a_byte.iter().map(|(_, node)| *node));
            self.merge(&alike, growing);
            growing.close(depth);
        }
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Tokens that end at a node.
    pub(crate) fn tokens(&self, node: usize) -> &[u32] {
        let end = self.nodes.get(node + 1);
        let end = end.map_or(self.tokens.len(), |next| next.before as usize);
        &self.tokens[self.nodes[node].before as usize..end]
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node>() + self.tokens.len() * size_of::<u32>()
    }
}

impl Node {
    pub(crate) fn depth(&self) -> usize {
        self.depth.into()
    }

    pub(crate) fn size(&self) -> usize {
        self.size as usize
    }
}

struct Growing {
    trie: Trie,
    /// Path from the root to the last node.
    open: Vec<usize>,
}

impl Growing {
    fn new() -> Self {
        let mut growing = Self {
            trie: Trie {
                nodes: Vec::new(),
                tokens: Vec::new(),
            },
            open: Vec::new(),
        };
        growing.open(0);
        growing
    }

    fn open(&mut self, byte: u8) {
        self.trie.nodes.push(Node {
            before: self.trie.tokens.len() as u32,
            size: 1,
            depth: self.open.len() as u16,
            byte,
            sets: u8::MAX,
        });
        self.open.push(self.trie.nodes.len() - 1);
    }

    /// Adds a token that ends at the last node.
    fn token(&mut self, token: u32, sets: u8) {
        self.trie.tokens.push(token);
        if let Some(node) = self.trie.nodes.last_mut() {
            node.sets &= sets;
        }
    }

    /// Closes the path down to `depth` nodes below the root.
    fn close(&mut self, depth: usize) {
        while self.open.len() > depth + 1
            && let Some(at) = self.open.pop()
        {
            self.finish(at);
        }
    }

    /// Closes a node: its subtree is complete.
    fn finish(&mut self, at: usize) {
        let nodes = &mut self.trie.nodes;
        let (mut child, mut sets) = (at + 1, nodes[at].sets);
        while let Some(node) = nodes.get(child) {
            sets &= node.sets;
            child += node.size();
        }
        (nodes[at].size, nodes[at].sets) = ((nodes.len() - at) as u32, sets);
    }

    fn done(mut self) -> Trie {
        self.close(0);
        self.finish(0);
        self.trie
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_say_what_is_below_them() {
        let entries = [
            ("b", 5, 3),
            ("ab", 0, 1),
            ("abc", 1, 3),
            ("ab", 2, 3),
            ("ad", 3, 2),
            ("bc", 4, 2),
        ];
        let entries = entries.map(|(text, token, sets)| (text.as_bytes(), token, sets));
        let trie = Trie::new(entries.to_vec());
        let expected = "0 root 7 [] 0, 1 a 4 [] 0, 2 b 2 [0, 2] 1, 3 c 1 [1] 3, 2 d 1 [3] 2, 1 b 2 [5] 2, 2 c 1 [4] 2";
        assert_eq!(shown(&trie), expected);
        // Below "ab" and "b".
        let expected = "0 root 2 [0, 2, 5] 0, 1 c 1 [1, 4] 0";
        assert_eq!(shown(&trie.merged(&[2, 5])), expected);
    }

    fn shown(trie: &Trie) -> String {
        let nodes = trie.nodes().iter().enumerate().map(|(at, node)| {
            let byte = match node.byte {
                0 => "root".to_owned(),
                byte => char::from(byte).to_string(),
            };
            let (depth, size, tokens) = (node.depth, node.size, trie.tokens(at));
            format!("{depth} {byte} {size} {tokens:?} {}", node.sets)
        });
        nodes.collect::<Vec<_>>().join(", ")
    }
}
