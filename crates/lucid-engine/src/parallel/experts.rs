//! Which experts a rank has, and which tokens visit the shared one there.

use std::ops::Range;

use super::rank::Rank;
use crate::Error;

/// How ranks share a layer's experts. Everything else is shared in one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExpertSharing {
    /// A rank has an equal part of every expert's width: all ranks have the same work in every step.
    #[default]
    Widths,
    /// A rank has some routed experts, whole: wide products, and less to add up, but a step takes as long as the rank with the most visits. The
    /// shared expert is whole on every rank if it looks like a routed one, and each token visits one of them ([`rank_of_shared`]).
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

/// The rank on which a token visits the shared expert, where all of `ranks` have it whole: the one that has the fewest of the experts that the
/// token has chosen, of `experts`; of several the first from the sum of their numbers on, so that ranks have about the same to do. A token's own
/// choice alone decides: what is computed together with it must not change the order of its sums. (`router.cu` does the same.)
pub fn rank_of_shared(chosen: impl Iterator<Item = usize> + Clone, experts: usize, ranks: usize) -> usize {
    let start = chosen.clone().sum::<usize>();
    let from_start = (start..start + ranks).map(|number| Rank::of(number % ranks, ranks));
    let visits = |rank: &Rank| {
        let of_rank = rank.part(experts);
        chosen.clone().filter(|expert| of_rank.contains(expert)).count()
    };
    // The first of several.
    from_start.min_by_key(visits).map_or(0, Rank::number)
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
    fn the_shared_expert_is_visited_where_the_token_has_the_least_to_do() {
        // Of 32 experts on four ranks, all but rank 2 have one of these.
        assert_eq!(rank_of_shared([0, 9, 31].into_iter(), 32, 4), 2);
        // Ranks 1 and 3 have none: the sum, 18, begins at 2; 17 begins at 1.
        assert_eq!(rank_of_shared([1, 17].into_iter(), 32, 4), 3);
        assert_eq!(rank_of_shared([0, 17].into_iter(), 32, 4), 1);
        assert_eq!(rank_of_shared([5].into_iter(), 32, 1), 0);
    }

    #[test]
    fn a_rank_without_an_expert_is_refused_by_numbers() {
        let last = Rank::of(7, 8);
        let error = ExpertSharing::Whole.of_rank(last, 7).unwrap_err().to_string();
        assert!(error.contains("7 experts on 8 ranks"), "{error}");
        assert_eq!(ExpertSharing::Widths.of_rank(last, 7).unwrap(), 0..7);
    }
}
