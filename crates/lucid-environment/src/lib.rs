//! What is installed: distributions, their RECORDs, versions that must match, overlays and caches.
//!
//! [`gather`] reads an environment without importing or running anything of it, in any root (`/`, `/proc/PID/root`, an unpacked
//! image), and leaves [`EnvironmentEvidence`], which serializes. The functions of [`checks`] read that evidence alone.
//!
//! | check | function |
//! |---|---|
//! | `env.record-integrity` | [`checks::record_integrity`] |
//! | `env.version-sets` | [`checks::version_sets`] |
//! | `env.monkeypatch` (its start-up part) | [`checks::startup_hooks`] |
//! | `env.overlay` | [`checks::overlay`] |
//! | `env.caches` | [`checks::caches`] |

pub mod checks;
mod distribution;
mod gather;
mod installer;
mod integrity;
mod kernel_caches;
mod metadata;
mod mounts;
mod newer_files;
mod package_index;
mod python;
mod record;
mod served_path;
mod shared_libraries;
mod startup;

pub use checks::{FINDINGS, IsActive};
pub use distribution::{DirectUrl, Distribution, EntryPoint, MetadataFormat};
pub use gather::{EnvironmentEvidence, ForeignModule, GatherOptions, IntegrityOptions, gather};
pub use installer::{Commands, Installer};
pub use integrity::{
    FileKind, FunctionChange, MissingFile, ModifiedFile, RecordIntegrity, RefusedEntry, SharedFiles,
    SourceChanges, UnownedModule, UnrecordedFile,
};
pub use kernel_caches::{KernelCache, Layout, LeftLock, Locks, StaleObject};
pub use lucid_root::Root;
pub use mounts::Mount;
pub use newer_files::NewerFile;
pub use package_index::IndexSettings;
pub use python::{EnvironmentKind, FindError, PythonEnvironment, SiteDirectory};
pub use shared_libraries::{CompiledModule, SharedLibraries};
pub use startup::{Customize, EarlierFolder, PathFile, StartupHooks};
