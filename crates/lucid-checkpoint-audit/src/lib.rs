//! Whether a checkpoint's files are whole, and what their scales, names and tokenizer say.
//!
//! [`gather`] looks at a folder or a GGUF file, tensor by tensor, also where a strict reader refuses it; with
//! [`Options::statistics`] and the options for digests it reads every byte once. What it gives, [`CheckpointEvidence`], is small
//! whatever the checkpoint's size, and serializable; the checks ([`extents`], [`index`], [`architecture`], [`scales`], [`digest`],
//! [`tokenizer`]) read nothing else.

mod architecture;
mod checks;
mod digest;
mod error;
mod evidence;
mod exclusions;
mod findings;
mod gather;
mod groups;
mod header;
mod holes;
mod index;
mod listing;
mod names;
mod pass;
mod published;
mod shards;
mod sizes;
mod statistics;
mod tokenizer;

pub use checks::{architecture, digest, extents, index, scales, tokenizer};
pub use error::Error;
pub use evidence::{
    Capped, CheckpointEvidence, Container, DigestFacts, Duplicate, ExtentKind, ExtentProblem, FileDigest,
    FileFacts, FileKind, IndexFacts, Members, ModelSizes, QuantizationFacts, ShardFacts, TensorGroup,
};
pub use findings::FINDINGS;
pub use gather::{Options, gather};
pub use statistics::{
    KvScales, LayerStatistics, Notable, NotableKind, NotableTensor, ScalarStatistics, Statistics,
};
pub use tokenizer::{AddedTokens, Marker, SpecialId, TemplateFacts, TokenizerFacts, TwinFacts};
