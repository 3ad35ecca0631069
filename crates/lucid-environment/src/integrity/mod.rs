//! Whether the installed files are those that were published: every RECORD entry hashed, everything else counted.

mod cache;
mod compare;
mod hashing;
mod lanes;
mod original;
mod sha256_pair;
mod source_diff;
mod unrecorded;

use serde::{Deserialize, Serialize};

pub(crate) use compare::gather;
pub(crate) use hashing::digest_of;

/// The longest source that is compared; the longest in vLLM has 600 KB.
pub(crate) const SOURCE_READ: u64 = 8 << 20;
/// Deviating files kept of each kind; the rest is counted.
pub(crate) const FILES_KEPT: usize = 1_000;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// `.py`.
    Python,
    /// A shared object.
    Native,
    /// Source that is compiled at run time: CUDA, C++, headers.
    KernelSource,
    /// `.pyc`.
    Bytecode,
    /// A launcher in `bin`.
    Script,
    /// Inside the metadata folder.
    Metadata,
    /// A copy that an editor or a patch left: `.bak`, `.orig`, `~`.
    Backup,
    /// Anything else.
    Data,
}

impl FileKind {
    /// Told by the path alone.
    #[must_use]
    pub fn of(path: &str) -> FileKind {
        let name = path.rsplit('/').next().unwrap_or(path);
        let in_metadata = path.rsplit('/').nth(1).is_some_and(|folder| folder.ends_with(".dist-info"))
            || path.contains(".dist-info/");
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let lower = name.to_ascii_lowercase();
        if in_metadata {
            return FileKind::Metadata;
        }
        if name.ends_with('~')
            || [".bak", ".orig", ".rej", ".old", ".save", ".swp", ".backup"]
                .iter()
                .any(|end| lower.ends_with(end))
            || lower.contains(".py.")
            || lower.contains(".bak")
        {
            return FileKind::Backup;
        }
        if path.contains("/bin/") && !path.contains("-packages/") {
            return FileKind::Script;
        }
        match extension {
            "py" => FileKind::Python,
            "pyc" => FileKind::Bytecode,
            "so" => FileKind::Native,
            "cu" | "cuh" | "h" | "hpp" | "cpp" | "cc" | "c" | "inc" | "jinja" => FileKind::KernelSource,
            _ if name.contains(".so.") => FileKind::Native,
            _ => FileKind::Data,
        }
    }
}

/// A recorded file whose content is another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModifiedFile {
    /// Name of the distribution that recorded it.
    pub distribution: String,
    /// Below its site folder, or absolute where it lies elsewhere.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes now.
    pub size: u64,
    /// Bytes recorded.
    pub recorded_size: Option<u64>,
    /// When it was last written, in seconds since 1970.
    pub modified_at: i64,
    /// Hard links to it: an installer's cache that shares the file has been changed with it.
    pub links: u64,
    /// Why Python cannot parse it, if it cannot.
    pub syntax_error: Option<String>,
    /// What was changed, if the original was found.
    pub changes: Option<SourceChanges>,
    /// Why the index had no original, if it was asked.
    #[serde(default)]
    pub no_original: Option<String>,
}

/// What was changed in a source file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceChanges {
    /// Where the original came from.
    pub original: String,
    /// Lines added.
    pub added: usize,
    /// Lines removed.
    pub removed: usize,
    /// Functions and classes touched, in their order; lines outside any stand under `(module)`.
    pub functions: Vec<FunctionChange>,
    /// Beginning of the unified diff.
    pub excerpt: String,
    /// Lines of the diff that were left out.
    pub lines_left_out: usize,
}

/// How one function or class was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionChange {
    /// `DeepseekV2MLAAttention.forward`.
    pub name: String,
    /// First changed line in the installed file, from 1.
    pub line: usize,
    /// Lines added.
    pub added: usize,
    /// Lines removed.
    pub removed: usize,
}

/// A recorded file that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFile {
    /// Name of the distribution that recorded it.
    pub distribution: String,
    /// As for [`ModifiedFile::path`].
    pub path: String,
    /// What it was.
    pub kind: FileKind,
}

/// A file in a distribution's folders that no RECORD lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnrecordedFile {
    /// The distribution whose folder it lies in.
    pub distribution: String,
    /// Below its site folder.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// When it was last written, in seconds since 1970.
    pub modified_at: i64,
    /// The recorded module that Python would no longer import because of it.
    pub hides: Option<String>,
}

/// A folder or module at the top of site-packages that no distribution owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnownedModule {
    /// Its name.
    pub path: String,
    /// Python files and shared objects in it.
    pub code_files: u64,
    /// Files in it.
    pub files: u64,
}

/// Two distributions that recorded the same files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFiles {
    /// The one distribution, as `name version`.
    pub first: String,
    /// The other.
    pub second: String,
    /// Files that both recorded.
    pub files: u64,
    /// Files recorded with different contents.
    pub differing: u64,
    /// Some of those that differ.
    pub examples: Vec<String>,
    /// Of the differing files, how many are as the first recorded them.
    pub as_first: u64,
    /// And as the second did.
    pub as_second: u64,
}

/// A RECORD row that was not followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedEntry {
    /// Name of the distribution.
    pub distribution: String,
    /// The path as recorded, shortened to 500 characters.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// What the comparison with the RECORDs gave. Lists are cut at 1,000 entries and followed by the number that was left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordIntegrity {
    /// Distributions with a RECORD.
    pub distributions: usize,
    /// Rows of their RECORDs.
    pub entries: u64,
    /// Different files among them.
    pub files: u64,
    /// Files hashed, or taken from the hash cache.
    pub hashed: u64,
    /// Of these, taken from the cache.
    pub from_cache: u64,
    /// Bytes hashed.
    pub bytes: u64,
    /// Rows without a hash: bytecode, RECORD itself, whole RECORDs of some packagers.
    pub without_hash: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Threads that hashed.
    pub threads: usize,
    /// Files with another content, the likeliest to matter first.
    pub modified: Vec<ModifiedFile>,
    /// Modified files not listed.
    pub modified_left_out: usize,
    /// Files that are gone.
    pub missing: Vec<MissingFile>,
    /// Missing files not listed.
    pub missing_left_out: usize,
    /// Files that no RECORD lists.
    pub unrecorded: Vec<UnrecordedFile>,
    /// Unrecorded files not listed.
    pub unrecorded_left_out: usize,
    /// Recorded bytecode that was compiled anew: counted only.
    pub remade: u64,
    /// Bytecode without a source: counted only.
    pub orphan_bytecode: u64,
    /// Modules without a distribution.
    pub unowned: Vec<UnownedModule>,
    /// Pairs of distributions with the same files.
    pub shared: Vec<SharedFiles>,
    /// Rows that lead out of the environment.
    pub refused: Vec<RefusedEntry>,
    /// Refused rows not listed.
    pub refused_left_out: usize,
    /// Files that could not be read, with the reason.
    pub unreadable: Vec<String>,
    /// Rows that are no CSV or carry no readable hash.
    pub malformed_rows: u64,
    /// Distributions that cannot be checked: no RECORD, or one without hashes.
    pub unchecked: Vec<String>,
}
