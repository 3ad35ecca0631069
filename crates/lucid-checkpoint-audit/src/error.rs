//! What keeps a checkpoint from being looked at at all.

/// Why nothing could be gathered. Anything less is a note in the evidence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The place can't be listed.
    #[error("{location}: {cause}; give the folder with config.json and *.safetensors, or a .gguf file")]
    Place {
        /// What was pointed at.
        location: String,
        /// What the operating system said.
        cause: std::io::Error,
    },
    /// The manifest can't be used.
    #[error("the manifest can't be used: {problem}")]
    Manifest {
        /// File and reason.
        problem: String,
    },
}
