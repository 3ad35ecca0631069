//! Finds debugging code and monkey patches in installed Python packages, from their syntax trees.

mod checks;
mod conditions;
mod evaluate;
mod evaluate_call;
mod evidence;
mod flags;
mod gather;
mod glob;
mod imports;
mod judge;
mod knowledge;
mod leftovers;
mod measures;
mod mentions;
mod model_map;
mod names;
mod prefilter;
mod scan;
mod scan_call;
mod scan_flow;
mod scan_names;
mod scan_patch;
mod source;
mod template;
mod walk;

pub mod active;

pub use checks::{FINDINGS, IsModified, debug_code, monkeypatch};
pub use evidence::{CodeEvidence, CodeFact, Distribution, Effect, Notes, PatchFact, PatchKind};
pub use gather::{GatherError, ReadOptions, gather, gather_with};
pub use leftovers::{DumpFolder, FileGroup, Leftover};
