//! The machine's memory, limits, disks and clock, as far as serving needs them.

mod gather;
mod resident;

use serde::{Deserialize, Serialize};

pub use resident::resident_memory;

/// Memory and limits around a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryEvidence {
    /// Memory of the machine in bytes.
    pub total_bytes: Option<u64>,
    /// What can be had without swapping.
    pub available_bytes: Option<u64>,
    /// Files in memory.
    pub cached_bytes: Option<u64>,
    /// Shared memory in use.
    pub shared_bytes: Option<u64>,
    /// Swap space.
    pub swap_bytes: Option<u64>,
    /// Of it, in use.
    pub swap_used_bytes: Option<u64>,
    /// Memory set aside as huge pages, used or not.
    pub huge_bytes: Option<u64>,
    /// Of it, free: lost for everybody who doesn't ask for huge pages.
    pub huge_free_bytes: Option<u64>,
    /// `always`, `madvise`, `never`.
    pub transparent_huge_pages: Option<String>,
    /// The patient's `/dev/shm`.
    pub shared_memory: Option<FileSystem>,
    /// Limits of the serving process.
    pub limits: Vec<Limit>,
    /// The patient's control group.
    pub cgroup: Option<CgroupMemory>,
    /// Resident memory of all the patient's processes.
    pub resident_bytes: u64,
    /// How many processes that are.
    pub processes: u32,
    /// Uptime of the oldest of them.
    pub oldest_s: Option<f64>,
    /// Folders that fill up: caches, temporary files, the checkpoint.
    pub disks: Vec<FileSystem>,
    /// Memory nodes, with the processors of each.
    pub memory_nodes: u32,
    /// Whether the kernel moves pages between nodes by itself.
    pub node_balancing: Option<bool>,
    /// The clock.
    pub clock: Clock,
    /// Processes that the kernel killed for memory since it started.
    pub kernel_kills: u64,
    /// Bytes of the checkpoint, to be held against memory.
    pub checkpoint_bytes: Option<u64>,
    /// What could not be read.
    pub notes: Vec<String>,
}

/// A file system behind a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileSystem {
    /// The folder, as the patient sees it.
    pub path: String,
    /// What it is for: `shared memory`, `temporary files`, `Hugging Face cache`.
    pub purpose: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Free for ordinary users.
    pub free_bytes: u64,
    /// Whether it can't be written to.
    pub read_only: bool,
}

/// A limit of a process: `None` is unlimited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// As the kernel calls it: `Max locked memory`.
    pub name: String,
    /// In force.
    pub soft: Option<u64>,
    /// As far as it may be raised.
    pub hard: Option<u64>,
}

/// Memory of a control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupMemory {
    /// Its path below the mount.
    pub path: String,
    /// The lowest limit on the way up, in bytes.
    pub limit_bytes: Option<u64>,
    /// In use.
    pub used_bytes: Option<u64>,
    /// Of that, files in memory, which can be given back.
    pub file_bytes: Option<u64>,
    /// How often the limit was reached.
    pub limit_hits: u64,
    /// Processes killed for it.
    pub kills: u64,
}

/// Whether the clock is kept right.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clock {
    /// Whether something keeps it; `None` where nobody could be asked.
    pub synchronized: Option<bool>,
    /// Who said so.
    pub source: String,
}
