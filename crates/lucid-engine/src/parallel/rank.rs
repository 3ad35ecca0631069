//! Which part of the model a rank has.

use std::ops::Range;

use crate::Error;

/// Rank `number` of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    number: usize,
    count: usize,
}

impl Rank {
    /// The only one.
    pub const ALONE: Rank = Rank { number: 0, count: 1 };

    /// One of `count` ranks.
    #[must_use]
    pub fn of(number: usize, count: usize) -> Rank {
        debug_assert!(number < count);
        Rank { number, count }
    }

    /// All of `count` ranks.
    pub fn all(count: usize) -> impl Iterator<Item = Rank> {
        (0..count).map(move |number| Rank { number, count })
    }

    /// Which one, from 0.
    #[must_use]
    pub fn number(self) -> usize {
        self.number
    }

    /// Of how many.
    #[must_use]
    pub fn count(self) -> usize {
        self.count
    }

    /// Whether there is no other.
    #[must_use]
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// Its equal part of `total` things.
    ///
    /// # Errors
    /// When they can't be dealt out equally.
    pub fn equal_part(self, what: &str, total: usize) -> Result<Range<usize>, Error> {
        if !total.is_multiple_of(self.count) {
            return Err(Error::Unsupported {
                what: format!("{total} {what} on {} ranks", self.count),
                hint: "choose a number of ranks that divides heads and widths",
            });
        }
        Ok(self.part(total))
    }

    /// Its part of `total` things, as equal as can be.
    #[must_use]
    pub fn part(self, total: usize) -> Range<usize> {
        self.number * total / self.count..(self.number + 1) * total / self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for (count, total) in [(1, 7), (2, 7), (3, 8), (8, 4_096), (5, 3)] {
            let parts: Vec<usize> = Rank::all(count).flat_map(|rank| rank.part(total)).collect();
            assert_eq!(parts, (0..total).collect::<Vec<_>>(), "{total} on {count}");
        }
    }

    #[test]
    fn what_cannot_be_dealt_out_is_refused_by_name() {
        let rank = Rank::all(3).next().unwrap();
        let error = rank.equal_part("attention heads", 8).unwrap_err().to_string();
        assert!(error.contains("8 attention heads on 3 ranks"), "{error}");
    }
}
