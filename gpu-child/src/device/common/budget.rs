//! Number of pages of the KV cache.
//!
//! Pure: free and required memory are arguments.

use super::LoadOptions;
use worker_orcd_ipc::Fault;

/// Memory kept free on a card for a standby process: its context (518 MiB on an H200).
const STANDBY_BYTES: u64 = 518 << 20;
/// Sequences of full length for which a cache in host memory has room unless its size is ordered …
const DEFAULT_SEQUENCES: u64 = 8;
/// … and the size that it does not exceed unless one sequence needs more.
const DEFAULT_BYTES: u64 = 1 << 30;

/// Memory of a device, and the demand of everything but the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    pub total: u64,
    pub free: u64,
    /// Memory kept free regardless of the order.
    pub reserve: u64,
    pub fixed: u64,
    pub page_bytes: u64,
    /// KV caches that must fit side by side, each with its pages.
    pub kv_caches: u64,
}

/// Error: no room for a single page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLittle {
    pub required: u64,
    pub available: u64,
}

impl Budget {
    /// The ordered number of pages, or else the result of `unordered`.
    ///
    /// # Errors
    /// [`Fault::InsufficientMemory`] if they do not fit on `device`, or there are none.
    pub fn pages(
        &self,
        options: &LoadOptions,
        device: &str,
        unordered: impl FnOnce(&Self) -> Result<u32, TooLittle>,
    ) -> Result<u32, Fault> {
        let refuse = |device: String, too_little: TooLittle| Fault::InsufficientMemory {
            required_bytes: too_little.required,
            available_bytes: too_little.available,
            device,
            model: options.model.clone(),
        };
        let pages = match options.kv_cache_bytes {
            Some(available) if available < self.page_bytes => {
                let required = self.page_bytes;
                let place = format!("the KV cache ordered on {device}");
                return Err(refuse(
                    place,
                    TooLittle {
                        required,
                        available,
                    },
                ));
            }
            Some(bytes) => self.ordered(bytes),
            None => unordered(self),
        };
        pages.map_err(|too_little| refuse(device.to_owned(), too_little))
    }

    /// Pages that fit into `permille` of a card besides the rest, at most `useful`: memory that sequences can never
    /// fill is left to other processes.
    ///
    /// # Errors
    /// If there is no room for a page.
    pub fn by_share(&self, permille: u16, useful: u64) -> Result<u32, TooLittle> {
        let share = self.total / 1000 * u64::from(permille.min(1000));
        let available = share.min(self.free.saturating_sub(self.reserve + STANDBY_BYTES));
        let pages = available.saturating_sub(self.fixed) / (self.kv_caches * self.page_bytes);
        self.check(pages.min(useful.max(1)), available)
    }

    /// Pages for a few sequences of `sequence_pages`, in memory that other processes need too.
    ///
    /// # Errors
    /// If there is no room for a page.
    pub fn by_sequences(&self, sequence_pages: u64) -> Result<u32, TooLittle> {
        let sequence = sequence_pages * self.page_bytes;
        let wanted = DEFAULT_BYTES
            .max(sequence)
            .min(DEFAULT_SEQUENCES * sequence);
        let bytes = wanted.min(self.free.saturating_sub(self.fixed) / 4);
        self.ordered(bytes.max(self.page_bytes))
    }

    fn ordered(&self, bytes: u64) -> Result<u32, TooLittle> {
        let pages = bytes / self.page_bytes;
        self.check(pages, self.free.saturating_sub(self.reserve))
    }

    fn check(&self, pages: u64, available: u64) -> Result<u32, TooLittle> {
        let kv = pages
            .max(1)
            .saturating_mul(self.kv_caches * self.page_bytes);
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

    /// An empty card of 140 GiB and a model of 15 GiB.
    fn budget() -> Budget {
        Budget {
            total: 140 * GIB,
            free: 139 * GIB,
            reserve: GIB / 4,
            fixed: 15 * GIB,
            page_bytes: 2 << 20,
            kv_caches: 1,
        }
    }

    #[test]
    fn two_caches_get_half_of_what_one_gets() {
        let one = budget();
        let two = Budget {
            kv_caches: 2,
            ..one
        };
        let pages = one.by_share(900, u64::MAX).unwrap();
        assert_eq!(two.by_share(900, u64::MAX), Ok(pages / 2));
        assert_eq!(two.by_share(900, 16), Ok(16), "room for both");
        assert_eq!(two.ordered(60 * GIB), Ok(60 * 512));
        let refused = two.ordered(70 * GIB).unwrap_err();
        assert_eq!(refused.required, taken(&one, 2 * 70 * 512));
        assert_eq!(one.ordered(70 * GIB), Ok(70 * 512));
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
        let spare = budget.reserve + STANDBY_BYTES;
        assert!((spare..spare + budget.page_bytes).contains(&left));
    }

    #[test]
    fn a_neighbour_s_memory_is_not_counted_on() {
        let crowded = Budget {
            free: 20 * GIB,
            ..budget()
        };
        let pages = crowded.by_share(900, u64::MAX).unwrap();
        assert!(taken(&crowded, pages) <= crowded.free - crowded.reserve - STANDBY_BYTES);
    }

    #[test]
    fn in_the_machine_s_memory_a_few_sequences_are_enough() {
        let budget = budget();
        assert_eq!(budget.by_sequences(16), Ok(8 * 16));
        assert_eq!(budget.by_sequences(256), Ok(512), "a gibibyte");
        assert_eq!(budget.by_sequences(1024), Ok(1024), "one sequence");
        let crowded = Budget {
            free: budget.fixed + GIB,
            reserve: 0,
            ..budget
        };
        assert_eq!(crowded.by_sequences(1024), Ok(128), "a quarter of the rest");
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
