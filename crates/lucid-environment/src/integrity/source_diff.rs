//! What was changed in a source file, by function.

use ruff_python_ast::{PySourceType, Stmt};
use ruff_python_parser::{ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;
use similar::{ChangeTag, TextDiff};

use super::{FunctionChange, SourceChanges};

/// Lines of the diff that a finding shows.
const EXCERPT_LINES: usize = 80;
/// Characters of one line that it shows.
const LINE_SHOWN: usize = 200;
/// Functions that it names.
const FUNCTIONS_NAMED: usize = 60;
/// CPython refuses more nested brackets than this, and a tree of 200,000 would overflow the stack when dropped.
const BRACKETS: usize = 200;
/// Seconds after which a diff becomes approximate.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Where a function or class stands.
struct Definition {
    name: String,
    /// First and last line, from 0; decorators belong to it.
    lines: std::ops::RangeInclusive<usize>,
}

/// Compares two versions of a source.
pub(super) fn compare(original: &str, installed: &str, python: bool, from: String) -> SourceChanges {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(original, installed);
    let (old, new) =
        if python { (definitions(original), definitions(installed)) } else { (Vec::new(), Vec::new()) };
    let mut changes = SourceChanges { original: from, ..SourceChanges::default() };
    // Where in the installed file the last seen line stands: removed lines have no place of their own there.
    let mut here = 0;
    for change in diff.iter_all_changes() {
        let name = match change.tag() {
            ChangeTag::Equal => {
                here = change.new_index().map_or(here, |line| line + 1);
                continue;
            }
            ChangeTag::Insert => {
                here = change.new_index().unwrap_or(here);
                innermost(&new, here)
            }
            ChangeTag::Delete => innermost(&old, change.old_index().unwrap_or(0)),
        };
        let (added, removed) = if change.tag() == ChangeTag::Insert { (1, 0) } else { (0, 1) };
        changes.added += added;
        changes.removed += removed;
        // The empty lines around a new function are no change of the module.
        if change.value().trim().is_empty() {
            continue;
        }
        let at = match changes.functions.iter().position(|function| function.name == name) {
            Some(at) => at,
            None if changes.functions.len() >= FUNCTIONS_NAMED => FUNCTIONS_NAMED - 1,
            None => {
                changes.functions.push(FunctionChange {
                    name: name.to_owned(),
                    line: here + 1,
                    added: 0,
                    removed: 0,
                });
                changes.functions.len() - 1
            }
        };
        changes.functions[at].added += added;
        changes.functions[at].removed += removed;
    }
    let unified = diff.unified_diff().context_radius(2).header("original", "installed").to_string();
    let mut lines = unified.lines();
    for line in lines.by_ref().take(EXCERPT_LINES) {
        changes.excerpt.extend(line.chars().take(LINE_SHOWN));
        changes.excerpt.push('\n');
    }
    changes.lines_left_out = lines.count();
    changes
}

/// Why Python would refuse to import a source, if it would.
pub(super) fn syntax_error(source: &str) -> Option<String> {
    if nests_too_deep(source) {
        return Some(format!("more than {BRACKETS} nested brackets"));
    }
    let parsed = parse_unchecked(source, ParseOptions::from(PySourceType::Python));
    let error = parsed.errors().first()?;
    let start = error.location.start().to_usize().min(source.len());
    let line = source.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1;
    Some(format!("line {line}: {}", error.error))
}

fn nests_too_deep(source: &str) -> bool {
    let mut depth = 0_usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > BRACKETS {
            return true;
        }
    }
    false
}

fn definitions(source: &str) -> Vec<Definition> {
    if nests_too_deep(source) {
        return Vec::new();
    }
    let parsed = parse_unchecked(source, ParseOptions::from(PySourceType::Python));
    let starts: Vec<usize> = std::iter::once(0)
        .chain(source.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1))
        .collect();
    let mut found = Vec::new();
    if let ruff_python_ast::Mod::Module(module) = parsed.syntax() {
        collect(&module.body, "", &starts, &mut found);
    }
    found
}

fn collect(body: &[Stmt], prefix: &str, starts: &[usize], found: &mut Vec<Definition>) {
    for statement in body {
        let (name, inner) = match statement {
            Stmt::FunctionDef(function) => (function.name.as_str(), &function.body),
            Stmt::ClassDef(class) => (class.name.as_str(), &class.body),
            // Definitions under `if TYPE_CHECKING:` or `try:` count as well.
            Stmt::If(statement) => {
                collect(&statement.body, prefix, starts, found);
                for clause in &statement.elif_else_clauses {
                    collect(&clause.body, prefix, starts, found);
                }
                continue;
            }
            Stmt::Try(statement) => {
                for body in [&statement.body, &statement.orelse, &statement.finalbody] {
                    collect(body, prefix, starts, found);
                }
                continue;
            }
            Stmt::With(statement) => {
                collect(&statement.body, prefix, starts, found);
                continue;
            }
            _ => continue,
        };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let line = |offset: usize| starts.partition_point(|&start| start <= offset).saturating_sub(1);
        let range = statement.range();
        let last = range.end().to_usize().saturating_sub(1);
        collect(inner, &name, starts, found);
        found.push(Definition { name, lines: line(range.start().to_usize())..=line(last) });
    }
}

/// The innermost definition that holds a line: the one with the fewest lines.
fn innermost(definitions: &[Definition], line: usize) -> &str {
    definitions
        .iter()
        .filter(|definition| definition.lines.contains(&line))
        .min_by_key(|definition| definition.lines.end() - definition.lines.start())
        .map_or("(module)", |definition| &definition.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: &str = "import torch\n\nclass Attention:\n    def forward(self, q):\n        return q\n\n    def load(self):\n        pass\n\ndef helper():\n    return 1\n";

    #[test]
    fn changes_are_told_by_function() {
        let installed = ORIGINAL
            .replace("        return q\n", "        if q.shape[0] == 5:\n            import torch as _t2\n            _t2.save(q, '/tmp/q.pt')\n        return q\n")
            .replace("    return 1\n", "    return 2\n");
        let changes = compare(ORIGINAL, &installed, true, "x.whl".to_owned());
        let told: Vec<_> =
            changes.functions.iter().map(|f| (f.name.as_str(), f.line, f.added, f.removed)).collect();
        assert_eq!(told, [("Attention.forward", 5, 3, 0), ("helper", 14, 1, 1)]);
        assert!(changes.excerpt.contains("+            _t2.save(q, '/tmp/q.pt')"), "{}", changes.excerpt);
        assert_eq!((changes.added, changes.removed), (4, 1));
    }

    #[test]
    fn removed_functions_and_module_lines_have_names_too() {
        let installed = ORIGINAL
            .replace("import torch\n", "import torch, os\n")
            .replace("    def load(self):\n        pass\n", "");
        let changes = compare(ORIGINAL, &installed, true, String::new());
        let names: Vec<_> = changes.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["(module)", "Attention.load"]);
    }

    #[test]
    fn a_broken_source_says_where() {
        assert_eq!(syntax_error(ORIGINAL), None);
        let error = syntax_error("x = 1\ndef f(:\n    pass\n").unwrap();
        assert!(error.starts_with("line 2: "), "{error}");
        assert!(syntax_error(&"(".repeat(100_000)).unwrap().contains("nested"));
    }
}
