//! The k largest of many values, without sorting all.

use super::lanes;
use std::cmp::Ordering;

/// The `k` largest of the values from `least` on, with their indices, and all equals of the smallest of them: by
/// falling value, equals by rising index. `k` is at least 1; above the number of values it selects all.
pub(super) fn top(values: &[f32], k: usize, least: f32) -> Vec<(u32, f32)> {
    let bound = if k < values.len() {
        lower_bound(values, k)
    } else {
        f32::NEG_INFINITY
    };
    let bound = bound.max(least);
    let mut found: Vec<(u32, f32)> = (0..)
        .zip(values.iter().copied())
        .filter(|(_, value)| *value >= bound)
        .collect();
    found.sort_unstable_by(by_value_then_index);
    if let Some(&(_, smallest)) = found.get(k - 1) {
        let length = found.partition_point(|(_, value)| *value >= smallest);
        found.truncate(length);
    }
    found
}

/// A lower bound of the k-th largest value, not far below it: the k-th largest of the blocks' maxima.
fn lower_bound(values: &[f32], k: usize) -> f32 {
    // About four blocks for each selected value: enough that a block rarely holds two.
    let block = (values.len() / (4 * k)).clamp(1, 64);
    let mut maxima: Vec<f32> = values.chunks(block).map(lanes::max).collect();
    let (_, bound, _) = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    *bound
}

fn by_value_then_index(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_front_of_the_sorted_list(
            values in prop::collection::vec((-20_i32..20).prop_map(|value| value as f32), 1..400),
            k in 1_usize..450,
            least in (-21_i32..21).prop_map(|value| value as f32),
        ) {
            let mut sorted: Vec<(u32, f32)> = (0..).zip(values.iter().copied()).collect();
            sorted.sort_by(by_value_then_index);
            let smallest = sorted[k.min(sorted.len()) - 1].1;
            sorted.retain(|(_, value)| *value >= smallest.max(least));
            prop_assert_eq!(top(&values, k, least), sorted);
        }
    }
}
