//! How many pages the KV cache gets.
//!
//! Pure: what is free and what is needed come as numbers.

/// Kept free whatever was ordered: graphs, and what the driver takes beside our allocations.
const RESERVE_BYTES: u64 = 256 << 20;
/// Kept free of a cache that takes what it may: the context of a standby process (518 MiB on an
/// H200), beside the reserve.
const SPARE_BYTES: u64 = RESERVE_BYTES + (518 << 20);

/// What there is, and what everything but the KV cache needs of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub total: u64,
    pub free: u64,
    pub fixed: u64,
    pub page_bytes: u64,
}

/// Not even one page fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLittle {
    pub required: u64,
    pub available: u64,
}

impl Budget {
    /// As many pages as fit into `bytes`, which somebody asked for.
    ///
    /// # Errors
    /// When `bytes` do not fit, or hold no page.
    pub fn ordered(&self, bytes: u64) -> Result<u32, TooLittle> {
        let pages = bytes / self.page_bytes;
        self.check(pages, self.free.saturating_sub(RESERVE_BYTES))
    }

    /// As many as `permille` of the device hold beside everything else, but no more than
    /// `useful`: what sequences can never fill is left to others.
    ///
    /// # Errors
    /// When that is not one.
    pub fn by_share(&self, permille: u16, useful: u64) -> Result<u32, TooLittle> {
        let share = self.total / 1000 * u64::from(permille.min(1000));
        let available = share.min(self.free.saturating_sub(SPARE_BYTES));
        let pages = available.saturating_sub(self.fixed) / self.page_bytes;
        self.check(pages.min(useful.max(1)), available)
    }

    fn check(&self, pages: u64, available: u64) -> Result<u32, TooLittle> {
        let kv = pages.max(1).saturating_mul(self.page_bytes);
        let required = self.fixed.saturating_add(kv);
        if pages == 0 || required > available {
            return Err(TooLittle {
                required,
                available,
            });
        }
        // Kernels count pages in 31 bits.
        Ok(pages.min(i32::MAX as u64) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// An empty card of 140 GiB and a model of 15.
    fn budget() -> Budget {
        Budget {
            total: 140 * GIB,
            free: 139 * GIB,
            fixed: 15 * GIB,
            page_bytes: 2 << 20,
        }
    }

    fn taken(budget: &Budget, pages: u32) -> u64 {
        budget.fixed + u64::from(pages) * budget.page_bytes
    }

    #[test]
    fn a_share_is_of_the_whole_device_and_of_everything_on_it() {
        let budget = budget();
        let pages = budget.by_share(900, u64::MAX).unwrap();
        let share = taken(&budget, pages) as f64 / budget.total as f64;
        assert!((0.899..=0.9).contains(&share), "{share}");
        let half = budget.by_share(450, u64::MAX).unwrap();
        assert!(taken(&budget, half) <= budget.total * 45 / 100);
    }

    #[test]
    fn what_sequences_cannot_fill_is_not_taken() {
        assert_eq!(budget().by_share(900, 16 * 256), Ok(16 * 256));
    }

    #[test]
    fn room_is_left_for_a_standby_even_when_all_is_asked_for() {
        let budget = budget();
        let pages = budget.by_share(1000, u64::MAX).unwrap();
        let left = budget.free - taken(&budget, pages);
        assert!((SPARE_BYTES..SPARE_BYTES + budget.page_bytes).contains(&left));
    }

    #[test]
    fn a_neighbour_s_memory_is_not_counted_on() {
        let crowded = Budget {
            free: 20 * GIB,
            ..budget()
        };
        let pages = crowded.by_share(900, u64::MAX).unwrap();
        assert!(taken(&crowded, pages) <= crowded.free - SPARE_BYTES);
    }

    #[test]
    fn an_order_is_followed_or_refused() {
        let budget = budget();
        assert_eq!(budget.ordered(GIB), Ok(512));
        assert_eq!(
            budget.ordered(budget.page_bytes - 1).unwrap_err().required,
            taken(&budget, 1)
        );
        let refused = budget.ordered(130 * GIB).unwrap_err();
        assert!(refused.required > refused.available, "{refused:?}");
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_what_it_needs() {
        let small = Budget {
            total: 16 * GIB,
            free: 15 * GIB,
            ..budget()
        };
        let refused = small.by_share(900, u64::MAX).unwrap_err();
        assert_eq!(refused.required, taken(&small, 1));
        assert!(refused.available < refused.required);
    }
}
