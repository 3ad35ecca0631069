//! Data files that are part of the binary. Their own tests read them; a broken one can't be released.

mod causes;
mod hypotheses;
mod ladder;

pub(crate) use causes::{CauseEntry, LearnedWeight, causes, learned};
pub(crate) use hypotheses::{Mistake, hypotheses};
pub(crate) use ladder::{Haystack, Judge, Rung, ladder};
