//! Which routed experts a rank has.

use std::ops::Range;

use super::rank::Rank;
use crate::Error;

/// How ranks share a layer's routed experts. Everything else is shared in one way, the shared expert by its width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpertSharing {
    /// A rank has an equal part of every expert's width: all ranks have the same work in every step.
    #[default]
    Widths,
    /// A rank has some experts, whole: wide products, and less to add up, but a step takes as long as the rank with the most visits.
    Whole,
}

impl ExpertSharing {
    /// The numbers of the experts, of `experts`, that a rank has weights of. Whole ones are dealt out as equally as can be.
    ///
    /// # Errors
    /// When there are more ranks than experts.
    pub fn of_rank(self, rank: Rank, experts: usize) -> Result<Range<usize>, Error> {
        match self {
            ExpertSharing::Widths => Ok(0..experts),
            ExpertSharing::Whole if experts < rank.count() => Err(Error::Unsupported {
                what: format!("expert parallelism of {experts} experts on {} ranks", rank.count()),
                hint: "take no more ranks than experts, or go without --enable-expert-parallel",
            }),
            ExpertSharing::Whole => Ok(rank.part(experts)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_is_whole_on_one_rank_or_cut_on_all() {
        for (ranks, experts) in [(1, 7), (2, 384), (3, 32), (8, 256), (5, 5)] {
            let of = |sharing: ExpertSharing| -> Vec<Range<usize>> {
                Rank::all(ranks).map(|rank| sharing.of_rank(rank, experts).unwrap()).collect()
            };
            assert!(of(ExpertSharing::Widths).iter().all(|all| *all == (0..experts)));
            let whole = of(ExpertSharing::Whole);
            assert!(whole.iter().cloned().flatten().eq(0..experts), "{experts} on {ranks}");
            let most = whole.iter().map(Range::len).max().unwrap();
            assert_eq!(most, experts.div_ceil(ranks), "{experts} on {ranks}");
        }
    }

    #[test]
    fn a_rank_without_an_expert_is_refused_by_numbers() {
        let last = Rank::of(7, 8);
        let error = ExpertSharing::Whole.of_rank(last, 7).unwrap_err().to_string();
        assert!(error.contains("7 experts on 8 ranks"), "{error}");
        assert_eq!(ExpertSharing::Widths.of_rank(last, 7).unwrap(), 0..7);
    }
}
