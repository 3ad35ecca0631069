//! Machines: an environment, a checkpoint, a log, a command, with one thing wrong or with nothing wrong. They are files below a
//! folder, written anew for every run; the doctor reads them as it reads any patient's.

mod faults;
mod logs;
mod tree;

use std::io;
use std::path::PathBuf;

use lucid_checkpoint::Files;
use lucid_doctor::statistics::Random;
use lucid_doctor::{Depth, Progress, Report, Sources, Subject, diagnose, gather};
use tree::{MODEL, Tree};

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Nothing wrong.
    Clean,
    /// Nothing wrong, with the log of a start and some service.
    CleanLog,
    /// Debugging code in a file that serves.
    DebugCode,
    /// A changed line in a file that serves.
    EditedFile,
    /// Two packages that don't belong together.
    VersionSkew,
    /// What was compiled or tuned earlier and is wrong now.
    StaleCache,
    /// A shard that is cut, hollow or no shard.
    DamagedShard,
    /// NVFP4 global scales in the other convention.
    InvertedScales,
    /// A template whose turns end otherwise than answers do.
    ForeignTemplate,
    /// A vocabulary of another revision.
    ForeignTokenizer,
    /// A reasoning parser of another family.
    ReasoningParserFlag,
    /// A tool parser of another family.
    ToolParserFlag,
    /// A log that ends with NaN in sampling.
    NanLog,
    /// A log that ends with the GPU's memory used up.
    MemoryLog,
    /// A log that ends with a collective operation timed out.
    CollectiveLog,
    /// A log that ends with a GPU lost.
    GpuLog,
    /// A log that ends in the middle of the start, by systemd.
    KilledLog,
}

/// Examines a machine; what was done to it comes with the report.
///
/// # Errors
/// When its files can't be written, or the model lacks what the fault changes.
pub(crate) fn examine(
    machine: Machine,
    model: &Files,
    seed: u64,
    depth: Depth,
    progress: &mut dyn FnMut(Progress),
) -> io::Result<(Option<String>, Report)> {
    let tree = Tree::new(model)?;
    // Neighbouring seeds shall not draw the same variant of every fault.
    let mut draws = Random::new(seed ^ (machine as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let left = faults::plant(machine, &tree, &mut draws)?;
    let mut sources = Sources {
        root: Some(tree.root().to_owned()),
        home: Some(PathBuf::from("/root")),
        ..Sources::default()
    };
    match &left.log {
        // A log comes alone: often nothing else is left.
        Some(log) => {
            tree.write("var/log/vllm.log", log)?;
            sources.logs = vec![lucid_logs::Source::File(tree.root().join("var/log/vllm.log"))];
        }
        None => {
            sources.env = Some(PathBuf::from("/opt/venv"));
            sources.command = Some(left.command);
            sources.checkpoint = Some(PathBuf::from("/").join(MODEL));
            sources.weights = true;
        }
    }
    let evidence = gather(&sources, &mut |_, _| {});
    let subject = Subject { machine: Some(evidence), seed, depth, ..Subject::default() };
    Ok((left.note, diagnose(subject, progress)))
}
