//! The checks: evidence in, findings out.

mod debug_code;
mod debug_words;
mod monkeypatch;

pub use debug_code::{IsModified, debug_code};
pub use monkeypatch::monkeypatch;

/// Every finding that the checks give, and what it means.
pub const FINDINGS: &[(&str, &str)] = &[
    (
        "env.debug-code/file-write",
        "Code on an engine's path writes a file in a way that looks like leftover debugging.",
    ),
    (
        "env.debug-code/hard-coded-path",
        "Code on an engine's path hands a hard-coded temporary path to a function.",
    ),
    ("env.debug-code/breakpoint", "Code on an engine's path stops in a debugger."),
    ("env.debug-code/sleep", "Code on an engine's path sleeps."),
    ("env.debug-code/subprocess", "Code on an engine's path starts another program."),
    ("env.debug-code/print", "Code on an engine's path prints."),
    ("env.debug-code/host-sync", "Code on an engine's path waits for the device under an odd condition."),
    (
        "env.debug-code/environment-branch",
        "Code on an engine's path asks for an undocumented environment variable.",
    ),
    ("env.debug-code/dump-files", "Dump files lie in folders for temporary files."),
    ("env.debug-code/syntax-error", "An engine's file has a syntax error."),
    ("env.debug-code/none", "No leftover debugging code was found in the engines' files."),
    ("env.monkeypatch/patch", "A package replaces attributes of another package."),
    (
        "env.monkeypatch/modified-patch",
        "A file that differs from its wheel replaces attributes of another package.",
    ),
    ("env.monkeypatch/twice", "Two files replace the same attribute of an engine."),
    ("env.monkeypatch/source-rewrite", "Code writes over another package's source files."),
    ("env.monkeypatch/import-hook", "A package hooks into imports."),
    ("env.monkeypatch/registration", "A package registers a model with an engine."),
    ("env.monkeypatch/none", "No package was found to replace an engine's code."),
];
