//! The highest of many scores, by a rule that leaves nothing open.

/// Finds the positions of the `out.len()` highest `scores`, of equal ones the earlier, and writes them in ascending order.
/// False if a score is NaN: there are then no highest ones.
///
/// # Panics
/// When there are fewer scores than places.
pub(super) fn top(scores: &[f32], order: &mut Vec<u64>, out: &mut [u32]) -> bool {
    if scores.iter().any(|score| score.is_nan()) {
        return false;
    }
    order.clear();
    // Ascending numbers are descending scores, then ascending positions; no two are equal, so any selection finds the same.
    order
        .extend(scores.iter().zip(0u64..).map(|(&score, position)| u64::from(!rank(score)) << 32 | position));
    if let Some(last) = out.len().checked_sub(1) {
        order.select_nth_unstable(last);
    }
    for (out, &number) in out.iter_mut().zip(&*order) {
        *out = number as u32;
    }
    out.sort_unstable();
    true
}

/// Numbers in the order of the floats; both zeros are equal.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: sort by score, highest first, then by position.
    fn plain(scores: &[f32], count: usize) -> Vec<u32> {
        let mut positions: Vec<u32> = (0..scores.len() as u32).collect();
        positions
            .sort_by(|&a, &b| scores[b as usize].partial_cmp(&scores[a as usize]).unwrap().then(a.cmp(&b)));
        positions.truncate(count);
        positions.sort_unstable();
        positions
    }

    proptest! {
        #[test]
        fn the_highest_are_those_of_a_stable_sort(
            // Few different values, so that most are ties; both zeros and infinities among them.
            scores in prop::collection::vec(
                prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY]),
                1..200,
            ),
            count in 1usize..200,
        ) {
            let count = count.min(scores.len());
            let mut out = vec![u32::MAX; count];
            prop_assert!(top(&scores, &mut vec![7; 3], &mut out));
            prop_assert_eq!(out, plain(&scores, count));
        }
    }

    #[test]
    fn equal_scores_go_to_the_earlier_and_nan_is_told() {
        let mut out = [0; 3];
        assert!(top(&[-0.0, 2.0, 0.0, 0.0, -1.0], &mut Vec::new(), &mut out));
        assert_eq!(out, [0, 1, 2]);
        assert!(!top(&[1.0, f32::NAN, 0.0, 0.0], &mut Vec::new(), &mut out));
    }
}
