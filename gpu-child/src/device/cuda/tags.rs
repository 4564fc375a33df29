//! Tags of the exchanges of `decode_step.cu` (`kernels/cuda/exchange.cuh`).

/// Unused tags. Between two clearings of their memory no two exchanges get the same tag,
/// however long the device runs, and no tag is zero.
#[derive(Debug, Default)]
pub struct Tags {
    last: u32,
}

impl Tags {
    /// First of a step's `count` tags, and whether the memory must be cleared before.
    pub fn next(&mut self, count: u32) -> (u32, bool) {
        let begins_again = self.last > u32::MAX - count;
        if begins_again {
            self.last = 0;
        }
        let first = self.last + 1;
        self.last += count;
        (first, begins_again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tag_is_given_out_twice_between_two_clearings() {
        let mut tags = Tags {
            last: u32::MAX - 10,
        };
        assert_eq!(tags.next(7), (u32::MAX - 9, false));
        // Three are left, which is too few.
        assert_eq!(tags.next(4), (1, true));
        assert_eq!(tags.next(4), (5, false));
    }
}
