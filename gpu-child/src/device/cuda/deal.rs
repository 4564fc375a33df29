//! Assignment of attention to blocks in a step that is one launch ([`decode_step`](super::decode_step)).

/// At most one block in so many computes attention; the others stream weights.
const ATTENTION_SHARE: usize = 3;

/// Number of blocks for each pair of a row and a KV head. A single block keeps partial results in shared memory while they
/// fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deal {
    pub blocks: usize,
    /// Blocks for each pair.
    pub parts: usize,
    /// Published splits for each head; 0: none are published.
    pub published: usize,
}

impl Deal {
    /// Each of the `teams` of a block computes one split at a time. A block has room for `kept` splits of a pair.
    pub fn of(teams: usize, kept: usize, pairs: usize, splits: usize, blocks: usize) -> Self {
        let most = (blocks / ATTENTION_SHARE).max(1);
        let alone = Self {
            blocks: pairs.min(most),
            parts: 1,
            published: 0,
        };
        if splits <= kept {
            return alone;
        }
        let parts = splits.div_ceil(teams).min(most / pairs);
        let published = splits;
        if parts <= 1 {
            return Self { published, ..alone };
        }
        Self {
            blocks: pairs * parts,
            parts,
            published,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_as_many_blocks_as_the_others_and_no_more_than_a_share_in_all() {
        let (teams, kept, blocks) = (3, 3, 132);
        for pairs in 1..=64 {
            for splits in 1..=300 {
                let deal = Deal::of(teams, kept, pairs, splits, blocks);
                assert!(deal.blocks * ATTENTION_SHARE <= blocks, "{deal:?}");
                // A block belongs to one part of a pair, or has whole pairs.
                assert!(deal.parts == 1 || deal.blocks == pairs * deal.parts);
                assert!(deal.blocks <= pairs * deal.parts);
                assert!(deal.parts <= splits);
                assert_eq!(deal.published, if splits <= kept { 0 } else { splits });
            }
        }
        // One stream of a 7B.
        assert_eq!(Deal::of(teams, kept, 4, 2, blocks).blocks, 4);
        assert_eq!(Deal::of(teams, kept, 4, 32, blocks).parts, 11);
    }
}
