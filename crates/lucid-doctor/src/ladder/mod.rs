//! The ladder: prompts of rising difficulty, and judges that don't depend on exact wording.

mod haystack;
mod judge;
mod question;

pub(crate) use haystack::{hay, needle, secret};
pub(crate) use judge::{Judged, judge};
pub(crate) use question::{Question, questions};
