//! Why a server could not be made, could not be started or went down.

use std::io;

/// Errors of a server's life; those of single requests go to their clients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] lucid_checkpoint::Error),
    /// The tokenizer or the chat template cannot be read.
    #[error(transparent)]
    Text(#[from] lucid_text::Error),
    /// The model cannot be loaded.
    #[error(transparent)]
    Engine(#[from] lucid_engine::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {hint}")]
    Bind {
        /// The address.
        address: String,
        /// What is wrong, and what to do.
        hint: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system refused a thread or a runtime.
    #[error("cannot start the server's threads: {0}")]
    Threads(io::Error),
    /// The server's thread panicked: a bug.
    #[error("the server's thread ended in a panic")]
    Panicked,
}

impl Error {
    pub(crate) fn bind(address: &str, source: io::Error) -> Error {
        let hint = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "the port is in use. Choose another port (0 takes a free one), or stop the program that has it".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "not permitted. Ports below 1024 need privileges: choose a higher one".to_owned()
            }
            io::ErrorKind::AddrNotAvailable => "this machine has no such address. 127.0.0.1 always works".to_owned(),
            _ => source.to_string(),
        };
        Error::Bind { address: address.to_owned(), hint, source }
    }
}
