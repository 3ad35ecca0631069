//! The archive that `lucid collect` writes and `lucid doctor --evidence` reads: a zip of JSON files, one for each kind of
//! evidence, redacted, bounded in size, and the same bytes for the same evidence.

mod anonymous;

use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use crate::evidence::MachineEvidence;
use anonymous::Anonymous;

/// Version of the archive's form.
const SCHEMA: u32 = 1;
/// Largest archive that is written, in bytes: what people still attach to an issue.
const MOST_PACKED: usize = 24 << 20;
/// Largest evidence that is read from an archive, unpacked, in bytes.
const MOST_UNPACKED: u64 = 512 << 20;
const MANIFEST: &str = "manifest.json";

/// Why an archive can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A file can't be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no archive of ours.
    #[error("{}: {what}; `lucid collect` writes such archives", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The evidence is larger than an archive may be.
    #[error(
        "the evidence takes {bytes} bytes, and an archive holds {MOST_PACKED} at the most: leave something out, for example the oldest logs"
    )]
    TooLarge {
        /// Its size, packed.
        bytes: usize,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    schema: u32,
    lucid: String,
    /// When the evidence was gathered, RFC 3339.
    gathered: String,
}

/// The archive's bytes.
///
/// # Errors
/// If the evidence is larger than an archive may be.
pub fn pack(evidence: &MachineEvidence) -> Result<Vec<u8>, ArchiveError> {
    let form = |error: &dyn std::fmt::Display| ArchiveError::Form {
        path: PathBuf::from("evidence"),
        what: error.to_string(),
    };
    let manifest = Manifest {
        schema: SCHEMA,
        lucid: env!("CARGO_PKG_VERSION").to_owned(),
        gathered: evidence.gathered.clone(),
    };
    let mut parts =
        vec![(MANIFEST.to_owned(), serde_json::to_value(&manifest).map_err(|error| form(&error))?)];
    let Value::Object(sections) = serde_json::to_value(evidence).map_err(|error| form(&error))? else {
        return Err(form(&"the evidence is no object"));
    };
    let mut anonymous = Anonymous::default();
    for (name, mut section) in sections.into_iter().filter(|(_, section)| !section.is_null()) {
        anonymous.redact(&mut section, Anonymous::has_addresses(&name));
        parts.push((format!("{name}.json"), section));
    }
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    // No times and no owners: the same evidence gives the same bytes.
    let options = SimpleFileOptions::default().unix_permissions(0o600);
    for (name, value) in parts {
        zip.start_file(name, options).map_err(|error| form(&error))?;
        let text = serde_json::to_vec_pretty(&value).map_err(|error| form(&error))?;
        zip.write_all(&text).map_err(|error| form(&error))?;
    }
    let bytes = zip.finish().map_err(|error| form(&error))?.into_inner();
    if bytes.len() > MOST_PACKED {
        return Err(ArchiveError::TooLarge { bytes: bytes.len() });
    }
    Ok(bytes)
}

/// Reads an archive. Its parts are read up to a fixed size, whatever they claim to be.
///
/// # Errors
/// If the file can't be read, is no archive of ours, or was written by a newer version.
pub fn read(path: &Path) -> Result<MachineEvidence, ArchiveError> {
    let bytes = std::fs::read(path).map_err(|source| ArchiveError::File { path: path.to_owned(), source })?;
    unpack(&bytes, path)
}

/// Reads an archive's bytes; `path` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn unpack(bytes: &[u8], path: &Path) -> Result<MachineEvidence, ArchiveError> {
    let form = |what: String| ArchiveError::Form { path: path.to_owned(), what };
    let mut zip =
        ZipArchive::new(Cursor::new(bytes)).map_err(|error| form(format!("no archive: {error}")))?;
    let mut left = MOST_UNPACKED;
    let mut part = |zip: &mut ZipArchive<Cursor<&[u8]>>, name: &str| -> Result<Value, ArchiveError> {
        let file = zip.by_name(name).map_err(|error| form(format!("{name}: {error}")))?;
        let mut text = Vec::new();
        let read =
            file.take(left + 1).read_to_end(&mut text).map_err(|error| form(format!("{name}: {error}")))?;
        left = left
            .checked_sub(read as u64)
            .ok_or_else(|| form(format!("{name}: unpacks to more than {MOST_UNPACKED} bytes")))?;
        serde_json::from_slice(&text).map_err(|error| form(format!("{name}: {error}")))
    };
    let manifest: Manifest = serde_json::from_value(part(&mut zip, MANIFEST)?)
        .map_err(|error| form(format!("{MANIFEST}: {error}")))?;
    if manifest.schema > SCHEMA {
        return Err(form(format!(
            "written by Lucid {} in form {}, this one reads forms up to {SCHEMA}: update Lucid",
            manifest.lucid, manifest.schema
        )));
    }
    let names: Vec<String> = zip.file_names().filter(|name| *name != MANIFEST).map(str::to_owned).collect();
    let mut sections = serde_json::Map::new();
    for name in names {
        // A part that a newer version added, or somebody else, is none of ours.
        let Some(section) =
            name.strip_suffix(".json").filter(|section| MachineEvidence::SECTIONS.contains(section))
        else {
            continue;
        };
        sections.insert(section.to_owned(), part(&mut zip, &name)?);
    }
    sections.insert("gathered".to_owned(), manifest.gathered.into());
    serde_json::from_value(Value::Object(sections)).map_err(|error| form(error.to_string()))
}
