//! Which files cannot hold a finding, told without parsing them.
//!
//! Files of engines' packages are always parsed. Of any other file the checks want one thing: whether it changes another module
//! (`scan_patch.rs`). That needs one of
//!
//! 1. an assignment to an attribute: `module.name = …`, where `self.name = …` is an object's own;
//! 2. one of [`NAMES`]: the functions and lists that change modules in other ways, and everything that makes a name out of a string,
//!    so that names need not stand in the text.
//!
//! A file without both has no patch. `tests/prefilter.rs` holds the scan with this filter to the scan without it.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use crate::knowledge::PATHS;
use crate::source::Source;

/// Names without which no patch but an assignment can be: those that `scan_patch.rs` asks for, and those by which `evaluate*.rs`
/// makes names out of strings.
const NAMES: &[&str] = &[
    // Changes by calls and subscripts.
    "setattr",
    "delattr",
    "modules",
    "meta_path",
    "path_hooks",
    "wrap_function_wrapper",
    "patch_function_wrapper",
    "wrap_object",
    "register_model",
    "MethodType",
    "__dict__",
    "vars",
    // The file of a module, which may be written over.
    "__file__",
    "__path__",
    "getsourcefile",
    "getfile",
    "find_spec",
    // Names out of strings.
    "getattr",
    "__getattribute__",
    "attrgetter",
    "__import__",
    "import_module",
    "importlib",
    "__builtins__",
    "globals",
    "locals",
];

// The names are part of the binary, and every test that gathers builds this: no input can make it panic.
static FINDER: LazyLock<AhoCorasick> = LazyLock::new(|| {
    AhoCorasick::new(NAMES).unwrap_or_else(|error| panic!("names of the prefilter: {error}"))
});

/// Whether a file's patches are nobody's finding: tests and tools patch for themselves.
pub(crate) fn is_tool(relative: &str) -> bool {
    PATHS.area(relative) == Some("tool")
        || relative.split('/').any(|part| {
            matches!(part, "tests" | "test" | "testing" | "benchmarks" | "examples")
                || part.starts_with("test_")
        })
}

/// Whether the path alone rules out a finding.
pub(crate) fn ruled_out_by_path(relative: &str) -> bool {
    PATHS.engine(relative).is_none() && is_tool(relative)
}

/// Whether the text rules out a finding.
pub(crate) fn ruled_out_by_text(relative: &str, source: &Source) -> bool {
    PATHS.engine(relative).is_none()
        && !source.assigns_attributes
        && names_are_plain(&source.text)
        && !FINDER.is_match(&source.text)
}

/// Whether every name stands in the text as Python means it. Python reads `ｓｅｔａｔｔｒ` as `setattr` (NFKC), so beyond ASCII only what
/// means nothing but itself may occur: Western, Greek, Cyrillic and Chinese letters, punctuation, arrows, mathematics, lines.
fn names_are_plain(text: &str) -> bool {
    text.chars().all(|c| {
        matches!(c,
            '\0'..='\u{a9}' | '\u{ab}'..='\u{b9}' | '\u{bb}'..='\u{ff}' | '\u{391}'..='\u{3c9}' | '\u{410}'..='\u{44f}'
            | '\u{2010}'..='\u{2032}' | '\u{2190}'..='\u{22ff}' | '\u{2500}'..='\u{25ff}' | '\u{3001}'..='\u{3002}'
            | '\u{4e00}'..='\u{9fff}')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_python_reads_as_others_are_not_plain() {
        assert!(names_are_plain("# Schrödinger’s «cat» → 猫, ∀ε"));
        // Full width, mathematical, ligature, ordinal, long s: NFKC makes ASCII letters of them all.
        for name in ["ｓetattr", "𝐬etattr", "ﬁnd_spec", "vªrs", "ſetattr", "Ⅿodules", "ᵐodules", "\u{212a}"]
        {
            assert!(!names_are_plain(name), "{name}");
        }
    }
}
