//! What was gathered on the patient's machine: data that can be stored, sent, and read later, when the container is gone.

use lucid_findings::Deployment;
use serde::{Deserialize, Serialize};

/// Evidence of a machine, one section for each kind. A section is missing if nothing was pointed at or nothing could be read;
/// `notes` then says why.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineEvidence {
    /// When it was gathered, RFC 3339, UTC. Not a section: an archive keeps it in its manifest.
    #[serde(skip_serializing)]
    pub gathered: String,
    /// Which engine serves which model, and how.
    pub deployment: Deployment,
    /// What stood in the way of gathering.
    pub notes: Vec<String>,
}

impl MachineEvidence {
    /// The names of the sections, as an archive has them.
    pub const SECTIONS: &'static [&'static str] = &["deployment", "notes"];
}
