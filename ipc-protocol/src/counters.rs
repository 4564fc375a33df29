//! Table of the counters of a child's scheduler.

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counters of a child's scheduler since the child's start.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Sum of two children's counters. They are unchecked input, so sums saturate.
            #[must_use]
            pub fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name.saturating_add(other.$name),)+ }
            }

            /// Increase since an earlier report of the same child. A counter that fell did not increase.
            #[must_use]
            pub fn since(self, earlier: Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name),)+ }
            }

            /// Names and values in the order of the table.
            pub fn named(self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Prompt tokens found in the prefix cache.
    prefix_hit_tokens,
    /// Prompt tokens looked up in the prefix cache.
    prompt_tokens,
    /// Tokens drawn.
    generated_tokens,
    /// Drafts that were verified.
    draft_tokens,
    /// Drafts that were accepted.
    accepted_draft_tokens,
    /// Verified drafts of the draft model.
    model_draft_tokens,
    /// Accepted drafts of the draft model.
    accepted_model_draft_tokens,
    /// Tokens of adopted pages, which were not computed again.
    adopted_tokens,
    /// Pages refused for adoption because their checksum differs from the sealed one.
    changed_pages,
    /// Steps with both decoded and prompt tokens.
    mixed_steps,
    /// Prompt tokens of these steps.
    mixed_prompt_tokens,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_stay_in_range() {
        let [small, large] = [3, u64::MAX].map(|mixed_steps| Counters {
            mixed_steps,
            changed_pages: 1,
            ..Counters::default()
        });
        let sum = small.plus(large);
        assert_eq!((sum.mixed_steps, sum.changed_pages), (u64::MAX, 2));
        assert_eq!(large.since(small).mixed_steps, u64::MAX - 3);
        assert_eq!(small.since(large).mixed_steps, 0);
    }
}
