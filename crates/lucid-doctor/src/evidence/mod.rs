//! What was gathered: exchanges, answers, comparisons. Data only; checks read it.

mod answers;
mod claim;
mod divergence;
mod examination;
mod machine;
mod record;
mod reference;
mod sample;
mod sources;

pub(crate) use answers::{Answer, AnswerKind};
pub use answers::{RungScore, RungState};
pub(crate) use claim::{Claim, FEW as FEW_BEYOND, holds, semantics_of, share};
pub use divergence::{Divergence, HypothesisFit, PositionBin};
pub(crate) use divergence::{Observation, Observed, PositionScore, PromptScore, compare};
pub(crate) use examination::{Evidence, Examination};
pub use machine::MachineEvidence;
pub use record::{Passage, Record, RecordError, Recorded};
pub(crate) use reference::{Reference, observed};
pub(crate) use sample::{Alike, Sample, SampleToken};
pub use sources::{Sources, container_root, gather};

#[cfg(test)]
mod tests;
