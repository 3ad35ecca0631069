//! Where log lines come from: files, journals, containers.

mod container;
mod files;
mod journal;
mod json;
mod lines;
mod program;
mod stream;

use std::io;
use std::path::PathBuf;

pub(crate) use files::{Expanded, expand};
pub(crate) use lines::MOST_LINE;
pub(crate) use stream::Stream;

use crate::line::Level;
use crate::moment::Moment;

/// A place to read logs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file (plain or gzip; plain text, `journalctl -o json` or `-o export`, Docker json-file, Kubernetes CRI: told apart by
    /// content), or a folder of such files. Rotated files of one log are read oldest first.
    File(PathBuf),
    /// A unit's journal, through the system's `journalctl`; without a unit the kernel's messages.
    Journal {
        /// The unit; `None` for the kernel's messages.
        unit: Option<String>,
        /// `--since`, such as `2 days ago`.
        since: Option<String>,
    },
    /// A container's log, through `docker` or `podman`.
    Container {
        /// Which program.
        tool: ContainerTool,
        /// Name or id.
        name: String,
    },
    /// A pod's log, through `kubectl`.
    Kubernetes {
        /// The pod.
        pod: String,
        /// Its namespace.
        namespace: Option<String>,
        /// The container in it.
        container: Option<String>,
        /// Before it, the log of the container that ended last: a crash is in that one, not in the log of what came after it.
        previous: bool,
    },
    /// What is piped into this program, to its end.
    StandardInput,
    /// Text that is already here.
    Text {
        /// What to call it.
        name: String,
        /// The log.
        bytes: Vec<u8>,
    },
}

/// The program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerTool {
    /// `docker`
    Docker,
    /// `podman`
    Podman,
}

impl ContainerTool {
    /// The program's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            ContainerTool::Docker => "docker",
            ContainerTool::Podman => "podman",
        }
    }
}

/// Why a source could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The path leads out of the root that was given.
    #[error("{path}: leads out of {root} (a symbolic link or `..`); copy the file, or give the host's root")]
    OutsideRoot {
        /// The path.
        path: String,
        /// The root.
        root: String,
    },
    /// Neither file nor folder.
    #[error("{0}: is no regular file; redirect it into a file first, or pipe it and give `-`")]
    NotAFile(String),
    /// A compression that isn't read.
    #[error("{path}: is {kind}, which isn't read; unpack it with `{command} {path}`")]
    Compressed {
        /// The file.
        path: String,
        /// The compression.
        kind: &'static str,
        /// What unpacks it.
        command: &'static str,
    },
    /// The file can't be read.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The program isn't there.
    #[error(
        "`{program}` could not be started ({error}); run it elsewhere with `{command} > FILE` and give that file"
    )]
    NoProgram {
        /// The program.
        program: String,
        /// The whole command.
        command: String,
        /// Why.
        error: io::Error,
    },
    /// The program failed.
    #[error("`{command}` failed ({status}): {message}")]
    Program {
        /// The whole command.
        command: String,
        /// Exit status.
        status: String,
        /// What it wrote to standard error.
        message: String,
    },
}

/// One line as its wrapping gives it: the engine's own text, and what the wrapping knows about it.
#[derive(Default)]
pub(crate) struct Record {
    /// The text, without line end.
    pub text: Vec<u8>,
    /// The wrapping's time, UTC.
    pub time: Option<Moment>,
    /// The writer's name as the wrapping gives it (`systemd`, `kernel`).
    pub ident: Option<String>,
    /// The writer's process id as the wrapping gives it.
    pub pid: Option<u32>,
    /// The wrapping's level.
    pub level: Option<Level>,
    /// Which wrapping.
    pub format: Format,
    /// Number of the raw line in its file, from 1.
    pub line: u64,
}

impl Record {
    /// Forgets everything but the buffer.
    fn clear(&mut self) {
        self.text.clear();
        self.time = None;
        self.ident = None;
        self.pid = None;
        self.level = None;
        self.format = Format::Plain;
    }
}

/// A wrapping of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    #[default]
    Plain,
    Timestamps,
    DockerJson,
    Cri,
    JournalJson,
    JournalExport,
    Json,
}

impl Format {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Format::Plain => "plain",
            Format::Timestamps => "container timestamps",
            Format::DockerJson => "docker json",
            Format::Cri => "kubernetes cri",
            Format::JournalJson => "journal json",
            Format::JournalExport => "journal export",
            Format::Json => "json",
        }
    }
}
