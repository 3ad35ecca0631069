//! What was read in the patient's code: facts with short excerpts, small enough for an archive.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::active::ModelMap;
use crate::leftovers::{DumpFolder, Leftover};

/// Facts kept at the most; the rest is counted in [`CodeEvidence::facts_left_out`].
pub const FACTS: usize = 4_000;
/// Patches kept at the most.
pub const PATCHES: usize = 4_000;
/// Notes kept at the most.
pub const NOTES: usize = 300;
/// Characters of an excerpt.
pub(crate) const EXCERPT: usize = 900;

/// Everything that the code checks need to know of an environment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeEvidence {
    /// The site-packages folders that were read, as the patient sees them.
    pub site_packages: Vec<String>,
    /// Python files found.
    pub files: u64,
    /// Python files that were parsed, syntax errors included.
    pub parsed: u64,
    /// Python files of other packages than the engines' that cannot hold a finding, by their path or text: not parsed.
    pub ruled_out: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Seconds that the reading took.
    pub seconds: f64,
    /// Installed distributions by the folder that they own: `vllm` → `vllm 0.33.0, installed by uv`.
    pub distributions: BTreeMap<String, Distribution>,
    /// Python files on the engines' paths, by engine.
    pub engine_files: BTreeMap<String, u64>,
    /// Facts, the most conspicuous first.
    pub facts: Vec<CodeFact>,
    /// Facts left out for their number.
    pub facts_left_out: u64,
    /// How many of the inconspicuous facts (`.item()` in a scheduler, a shipped debugging tool) were counted only, by kind.
    pub ordinary: BTreeMap<String, u64>,
    /// Changes to other modules.
    pub patches: Vec<PatchFact>,
    /// Patches left out for their number.
    pub patches_left_out: u64,
    /// Files that match what the facts write.
    pub leftovers: Vec<Leftover>,
    /// Dump files in the folders for temporary files, whoever wrote them.
    pub dumps: Vec<DumpFolder>,
    /// Which architecture runs which file.
    pub models: ModelMap,
    /// Oddities: files that couldn't be read, syntax errors, loops of links.
    pub notes: Notes,
}

/// An installed distribution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Its name: `vllm`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What the INSTALLER file says: `pip`, `uv`.
    pub installer: Option<String>,
}

/// Oddities, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notes {
    /// File and what is odd about it.
    pub kept: Vec<(String, String)>,
    /// Further ones.
    pub left_out: u64,
}

impl Notes {
    /// Adds a note while there is room.
    pub fn add(&mut self, file: &str, text: String) {
        if self.kept.len() < NOTES {
            self.kept.push((file.to_owned(), text.chars().take(300).collect()));
        } else {
            self.left_out += 1;
        }
    }

    /// Adds all of another's.
    pub fn extend(&mut self, other: Notes) {
        for (file, text) in other.kept {
            self.add(&file, text);
        }
        self.left_out += other.left_out;
    }
}

/// What a piece of code does that a served model should not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Writes a file.
    FileWrite,
    /// Hands a hard-coded path of a folder for temporary files to a function that is not known.
    HardCodedPath,
    /// Stops in a debugger.
    Breakpoint,
    /// Sleeps.
    Sleep,
    /// Starts another program.
    Subprocess,
    /// Prints.
    Print,
    /// Waits for the device and copies to the host.
    HostSync,
    /// Asks the process's environment.
    EnvironmentBranch,
}

impl Effect {
    /// The name as it stands in ids and data.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Effect::FileWrite => "file-write",
            Effect::HardCodedPath => "hard-coded-path",
            Effect::Breakpoint => "breakpoint",
            Effect::Sleep => "sleep",
            Effect::Subprocess => "subprocess",
            Effect::Print => "print",
            Effect::HostSync => "host-sync",
            Effect::EnvironmentBranch => "environment-branch",
        }
    }
}

/// One thing that the code does, with everything that says whether it belongs there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodeFact {
    /// What it does.
    pub effect: Effect,
    /// Which of [`CodeEvidence::site_packages`].
    pub site: usize,
    /// File, relative to site-packages.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Qualified name of the function: `DeepseekV2MLAAttention.forward`; `<module>` at the top.
    pub function: String,
    /// Part of an engine: `model`, `attention`, `sampler`, …; `other` elsewhere in an engine's package.
    pub area: String,
    /// The call by its full name: `torch.save`.
    pub call: String,
    /// As it is spelled: `_t2.save`.
    pub spelled: String,
    /// The import behind the spelling, if it is a renamed one: `import torch as _t2` and its line.
    pub import: Option<(String, u32)>,
    /// Line of the block that it stands in: facts of one block are one finding.
    pub block: u32,
    /// Conditions in words: `exactly 5 query tokens are processed`.
    pub when: Vec<String>,
    /// How often: `once per process: the class attribute … is the flag`.
    pub how_often: String,
    /// The path that it writes, with computed parts in braces.
    pub writes: Option<String>,
    /// That path as a pattern of files.
    pub glob: Option<String>,
    /// What is written or asked: `q`; the variable of the environment for an environment branch.
    pub subject: Option<String>,
    /// Whether other code of the file leads here from a forward function.
    pub forward: bool,
    /// Reasons for and against, ids of `knowledge/marks.toml`.
    pub marks: Vec<String>,
    /// Sum of the marks' weights.
    pub score: f64,
    /// First line of the excerpt, and the excerpt.
    pub excerpt: (u32, String),
}

/// In which way a module changes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchKind {
    /// `module.name = …`, `setattr(module, …)` and the like.
    Attribute,
    /// `sys.modules[…] = …`.
    Module,
    /// `sys.meta_path`, `sys.path_hooks`, `builtins.__import__`.
    ImportHook,
    /// `instance.forward = types.MethodType(…)`.
    Method,
    /// `text.replace(…)` written over a module's own file.
    SourceRewrite,
    /// A plugin's registration through the engine's interface.
    Registration,
}

/// A change to another module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatchFact {
    /// In which way.
    pub kind: PatchKind,
    /// Which of [`CodeEvidence::site_packages`].
    pub site: usize,
    /// File, relative to site-packages.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Function, or `<module>`: there it happens at import.
    pub function: String,
    /// What is changed: `vllm.model_executor.models.deepseek_v2.DeepseekV2MoE.forward`.
    pub target: String,
    /// What it becomes, in the source's words.
    pub with: String,
    /// Conditions in words.
    pub when: Vec<String>,
    /// Whether it only adds what is absent (`if not hasattr(…)`).
    pub adds_absent: bool,
    /// Whether the original is kept and called, a wrapper.
    pub keeps_original: bool,
    /// First line of the excerpt, and the excerpt.
    pub excerpt: (u32, String),
}
