//! The engine's own list of flags and variables, read from its sources as text: nothing of it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use lucid_findings::EngineKind;
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::flags::canonical;

/// What an engine accepts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArgumentList {
    /// The engine's version by its package's metadata.
    pub version: Option<String>,
    /// Where it was read: `…/site-packages`.
    pub source: String,
    /// Canonical names of flags; empty if the sources are arranged in a way that isn't known here. A superset: a name too
    /// many only means a misspelling that isn't noticed.
    pub flags: BTreeSet<String>,
    /// Names of variables that the engine reads.
    pub variables: BTreeSet<String>,
    /// Values of `reasoning-parser` and `tool-call-parser`.
    pub choices: BTreeMap<String, BTreeSet<String>>,
}

/// More files than this are not read, and no file longer than [`LONGEST_SOURCE`].
const MOST_FILES: usize = 60;
/// vLLM's longest is 130 kB.
const LONGEST_SOURCE: u64 = 2 << 20;

/// Files that declare vLLM's flags; `*` stands for every folder there: the server's own flags moved from `openai` to
/// `launchers` (0.32) to `common` (0.33).
const VLLM_FLAGS: [&str; 5] = [
    "vllm/engine/arg_utils.py",
    "vllm/entrypoints/*/cli_args.py",
    "vllm/entrypoints/openai/api_server.py",
    "vllm/entrypoints/cli/serve.py",
    "vllm/utils/argparse_utils.py",
];
/// The same of SGLang; a folder stands for its files.
const SGLANG_FLAGS: [&str; 3] =
    ["sglang/srt/server_args.py", "sglang/launch_server.py", "sglang/srt/arg_groups/fields"];
/// Flags that every version has, from each of the places above: a list that lacks one is not complete, and nothing may be
/// called unknown by it.
const VLLM_MARKS: [&str; 5] =
    ["host", "api-key", "enable-auto-tool-choice", "tensor-parallel-size", "enforce-eager"];
/// The same of SGLang.
const SGLANG_MARKS: [&str; 5] = ["host", "model", "api-key", "tensor-parallel-size", "speculative-algorithm"];

/// Where an engine declares what it accepts.
struct Sources {
    flags: &'static [&'static str],
    marks: &'static [&'static str],
    /// Flags whose values are names of parsers, and the files that may list them.
    parsers: [(&'static str, &'static [&'static str]); 2],
}

const VLLM: Sources = Sources {
    flags: &VLLM_FLAGS,
    marks: &VLLM_MARKS,
    parsers: [
        ("reasoning-parser", &["vllm/reasoning/__init__.py"]),
        (
            "tool-call-parser",
            &["vllm/tool_parsers/__init__.py", "vllm/entrypoints/openai/tool_parsers/__init__.py"],
        ),
    ],
};

const SGLANG: Sources = Sources {
    flags: &SGLANG_FLAGS,
    marks: &SGLANG_MARKS,
    parsers: [
        (
            "reasoning-parser",
            &["sglang/srt/parser/reasoning_parser_names.py", "sglang/srt/parser/reasoning_parser.py"],
        ),
        (
            "tool-call-parser",
            &["sglang/srt/function_call/parser_names.py", "sglang/srt/function_call/function_call_parser.py"],
        ),
    ],
};

static QUOTED_FLAG: LazyLock<Regex> = LazyLock::new(|| pattern(r#"["'](--?[A-Za-z][A-Za-z0-9_-]*)["']"#));
/// A field of a class: `name: type`, four blanks in.
static FIELD: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?m)^    ([a-z][a-z0-9_]*)\s*:\s*\S"));
static VARIABLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b((?:VLLM|SGLANG|SGL)_[A-Z0-9_]+)\b"));
/// A key of a table of parsers: `"kimi_k2": (`, `"kimi_k2": KimiK2Detector`.
static KEY: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?m)^\s+["']([a-z0-9_.-]+)["']\s*:\s*(?:\(|[A-Z_])"#));
/// A name in a list of parsers: `"kimi_k2",`.
static ITEM: LazyLock<Regex> = LazyLock::new(|| pattern(r#"(?m)^\s+["']([a-z0-9_.-]+)["'],"#));

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

impl ArgumentList {
    /// Reads the sources of `engine` with `read` (the text of a file by its path in site-packages) and `list` (the names in a
    /// folder). `None` if the engine's flags are not there or not declared in Python.
    #[must_use]
    pub fn read(
        engine: EngineKind,
        source: &str,
        version: Option<String>,
        read: &dyn Fn(&Path, u64) -> Option<String>,
        list: &dyn Fn(&Path) -> Vec<String>,
    ) -> Option<ArgumentList> {
        let Sources { flags: places, marks, parsers } = match engine {
            EngineKind::Vllm => VLLM,
            EngineKind::Sglang => SGLANG,
            EngineKind::LlamaCpp | EngineKind::Lucid => return None,
        };
        let mut read_list = ArgumentList { version, source: source.to_owned(), ..ArgumentList::default() };
        let mut files = Vec::new();
        for place in places {
            if let Some((folder, file)) = place.split_once("/*/") {
                files.extend(
                    list(Path::new(folder)).into_iter().map(|name| format!("{folder}/{name}/{file}")),
                );
            } else if place.ends_with(".py") {
                files.push((*place).to_owned());
            } else {
                let names = list(Path::new(place)).into_iter().filter(|name| name.ends_with(".py"));
                files.extend(names.map(|name| format!("{place}/{name}")));
            }
        }
        for file in files.iter().take(MOST_FILES) {
            let Some(text) = read(Path::new(file), LONGEST_SOURCE) else { continue };
            let quoted = QUOTED_FLAG.captures_iter(&text).map(|found| canonical(&found[1]));
            let fields = FIELD.captures_iter(&text).map(|found| canonical(&format!("--{}", &found[1])));
            read_list.flags.extend(quoted.chain(fields));
            // Some arguments are declared by their help alone; variables are named everywhere.
            read_list.variables.extend(VARIABLE.captures_iter(&text).map(|found| found[1].to_owned()));
        }
        let environment = match engine {
            EngineKind::Vllm => "vllm/envs.py",
            _ => "sglang/srt/environ.py",
        };
        match read(Path::new(environment), LONGEST_SOURCE) {
            Some(text) => {
                read_list.variables.extend(VARIABLE.captures_iter(&text).map(|found| found[1].to_owned()))
            }
            // Without the list itself, what was met by chance is no list.
            None => read_list.variables.clear(),
        }
        for (flag, files) in parsers {
            let names: BTreeSet<String> = files
                .iter()
                .filter_map(|file| read(Path::new(file), LONGEST_SOURCE))
                .flat_map(|text| [names(&KEY, &text), names(&ITEM, &text)])
                .find(|names| names.len() >= 5)
                .unwrap_or_default();
            if !names.is_empty() {
                read_list.choices.insert(flag.to_owned(), names);
            }
        }
        if !marks.iter().all(|mark| read_list.flags.contains(*mark)) {
            read_list.flags.clear();
        }
        let found =
            !read_list.flags.is_empty() || !read_list.variables.is_empty() || !read_list.choices.is_empty();
        found.then_some(read_list)
    }

    /// Whether a flag is known: by name, as `--no-NAME` of a switch, by its part before the dot, or as argparse's abbreviation.
    #[must_use]
    pub fn accepts(&self, name: &str) -> bool {
        let head = name.split('.').next().unwrap_or(name);
        let bare = head.strip_prefix("no-").unwrap_or(head);
        self.flags.contains(head)
            || self.flags.contains(bare)
            || self.flags.iter().any(|flag| flag.starts_with(head))
    }

    /// The known flag that is spelled most alike, if it is near enough to be what was meant.
    #[must_use]
    pub fn nearest_flag(&self, name: &str) -> Option<&str> {
        nearest(name, self.flags.iter().map(String::as_str))
    }

    /// The known variable that is spelled most alike.
    #[must_use]
    pub fn nearest_variable(&self, name: &str) -> Option<&str> {
        nearest(name, self.variables.iter().map(String::as_str))
    }
}

fn names(pattern: &Regex, text: &str) -> BTreeSet<String> {
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// The nearest of `names` within two edits or a fifth of the length.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = (word.len() / 5).max(2);
    names
        .filter(|name| name.len().abs_diff(word.len()) <= most)
        .map(|name| (edits(word, name), name))
        .filter(|&(edits, _)| edits > 0 && edits <= most)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != *y)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}
