//! From deeds to facts: who leads there, when and how often it happens, and what speaks for a leftover or against it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::conditions::{FlagPlace, GuardKind};
use crate::evidence::{CodeFact, Effect, PatchFact};
use crate::knowledge::{MARKS, PATHS};
use crate::names::Origin;
use crate::scan::{Deed, Function, Scanner};
use crate::scan_patch::excerpt;

/// What a file's scan gave.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub facts: Vec<CodeFact>,
    pub patches: Vec<PatchFact>,
    /// Facts below the threshold of keeping, by effect.
    pub ordinary: BTreeMap<Effect, u64>,
}

/// How often code runs, and which marks say so.
struct Timing {
    when: Vec<String>,
    how_often: String,
    marks: Vec<&'static str>,
    /// Offset of the condition that opens the block.
    block: Option<u32>,
    names: Vec<String>,
}

pub(crate) fn judge(scanner: Scanner<'_>) -> Judged {
    let mut judged = Judged::default();
    let area = scanner.subject.area.unwrap_or("");
    if scanner.deeds.is_empty() {
        judged.patches = scanner.patches;
        return judged;
    }
    let forward = reachable(&scanner.functions, area);
    let lines = Lines::new(scanner.subject.text);
    let mut last: Option<(usize, u32, u32)> = None;
    for deed in &scanner.deeds {
        let Some(timing) = timing(deed, &scanner, area) else { continue };
        let line = lines.of(deed.offset);
        // Without a condition of its own, what stands within four lines of the last deed belongs to it.
        let block = match (timing.block, last) {
            (Some(offset), _) => lines.of(offset),
            (None, Some((function, near, block)))
                if function == deed.function && line.abs_diff(near) <= 4 =>
            {
                block
            }
            (None, _) => line,
        };
        last = Some((deed.function, line, block));
        // A host copy of its own is ordinary; inside of a block that has other marks it is part of what the block does.
        match fact(deed, &scanner, timing, forward[deed.function], line, block) {
            Some(fact) => judged.facts.push(fact),
            None => *judged.ordinary.entry(deed.effect).or_default() += 1,
        }
    }
    judged.patches = scanner.patches;
    judged
}

/// Functions that run at every step: those with a name that says so, and what they call in this file.
fn reachable(functions: &[Function<'_>], area: &str) -> Vec<bool> {
    let mut forward: Vec<bool> =
        functions.iter().map(|function| PATHS.steps(area) && PATHS.is_forward(function.name)).collect();
    let mut by_name: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (index, function) in functions.iter().enumerate() {
        by_name.entry(function.name).or_default().push(index);
    }
    let mut todo: Vec<usize> = (0..functions.len()).filter(|&index| forward[index]).collect();
    while let Some(index) = todo.pop() {
        let called = functions[index].calls.iter().filter_map(|name| by_name.get(name)).flatten().copied();
        let inside = functions
            .iter()
            .enumerate()
            .filter(|(_, inner)| inner.parent == Some(index))
            .map(|(inner, _)| inner);
        for next in called.chain(inside).collect::<Vec<_>>() {
            if next != 0 && !forward[next] && !PATHS.starts_up(functions[next].name) {
                forward[next] = true;
                todo.push(next);
            }
        }
    }
    forward
}

fn is_set(function: &Function<'_>, name: &str, extent: (u32, u32)) -> bool {
    function.sets.iter().any(|(set, at)| *set == name && (extent.0..=extent.1).contains(at))
}

/// Puts the guards of a deed (and of the only place that calls its function) in words. `None`: it never runs.
fn timing(deed: &Deed, scanner: &Scanner<'_>, area: &str) -> Option<Timing> {
    let function = &scanner.functions[deed.function];
    let mut timing = Timing {
        when: Vec::new(),
        how_often: String::new(),
        marks: Vec::new(),
        block: None,
        names: Vec::new(),
    };
    let mut once: Option<String> = None;
    let own = deed.guards.iter().map(|guard| (guard, function));
    // A helper that is called from one place runs when that place does.
    let inherited = match scanner.sites.get(function.name) {
        Some(site)
            if site.number == 1 && site.function != deed.function && !PATHS.is_forward(function.name) =>
        {
            let caller = &scanner.functions[site.function];
            site.guards.iter().map(|guard| (guard, caller)).collect()
        }
        _ => Vec::new(),
    };
    for (guard, function) in own.chain(inherited) {
        let mut add = |mark: &'static str| {
            if !timing.marks.contains(&mark) {
                timing.marks.push(mark);
            }
        };
        let mut strong = true;
        match &guard.kind {
            GuardKind::Never => return None,
            GuardKind::TokenCount => add("token-count"),
            GuardKind::TokenRange => {
                add("token-range");
                strong = false;
            }
            GuardKind::Flag(flag) => {
                let set = is_set(function, &flag.name, guard.extent);
                let key = flag.key.as_ref().is_some_and(|key| is_set(function, key, guard.extent));
                if !set && !key && flag.every.is_none() {
                    add("setting");
                    timing.when.push(guard.words.clone());
                    continue;
                }
                add("one-shot");
                timing.names.push(flag.name.clone());
                let ranks = match (flag.place, area) {
                    (FlagPlace::Process, _) => ", so once on each tensor-parallel rank",
                    (FlagPlace::Object, "model" | "layer" | "attention" | "moe" | "quantization") => {
                        ", so once in each layer on each rank"
                    }
                    (FlagPlace::Object, _) => "",
                };
                let per = if flag.place == FlagPlace::Process { "process" } else { "object" };
                let words = &flag.words;
                once = Some(match (flag.every, &flag.key, flag.limit) {
                    (Some(every), ..) => format!("at every {every}th call: {words} counts"),
                    (_, Some(key), _) => format!("once for each `{key}` per {per}: {words} remembers"),
                    (_, _, Some(limit)) if limit > 1 => {
                        format!("at most {limit} times per {per}: {words} counts")
                    }
                    _ => format!("once per {per}{ranks}: {words} is the flag"),
                });
                if timing.block.is_none() {
                    timing.block = Some(guard.offset);
                }
                continue;
            }
            GuardKind::FileAbsent => {
                add("one-shot");
                once = Some(format!("once, as long as {}", guard.words));
            }
            // The variable's own name is no mark: a switch for debugging is rightly named for it.
            GuardKind::Environment(_) => add("environment-switch"),
            GuardKind::Layer => add("layer"),
            GuardKind::NotFinite => add("not-finite"),
            GuardKind::Rank => {}
            GuardKind::Exception => {
                add("exception");
                strong = false;
            }
            GuardKind::Main => add("program"),
            GuardKind::Setting => {
                add("setting");
                strong = false;
            }
            GuardKind::Other => strong = false,
        }
        if strong && timing.block.is_none() {
            timing.block = Some(guard.offset);
        }
        timing.when.push(guard.words.clone());
    }
    timing.when.truncate(8);
    timing.how_often = once.unwrap_or_else(|| match (deed.function, timing.when.is_empty()) {
        (0, _) => "once, when the module is imported".to_owned(),
        (_, true) => "at every call".to_owned(),
        (_, false) => "at every call that meets the condition".to_owned(),
    });
    Some(timing)
}

fn fact(
    deed: &Deed,
    scanner: &Scanner<'_>,
    timing: Timing,
    forward: bool,
    line: u32,
    block: u32,
) -> Option<CodeFact> {
    let area = scanner.subject.area.unwrap_or("other");
    let function = &scanner.functions[deed.function];
    let mut marks: Vec<&str> = vec![deed.effect.name()];
    marks.extend(&timing.marks);
    let mut mark = |mark: &'static str, holds: bool| {
        if holds && !marks.contains(&mark) {
            marks.push(mark);
        }
    };
    mark("forward", forward);
    mark("tool", area == "tool");
    mark("outside", area == "other");
    mark("swallowed", deed.swallowed);
    mark("hidden-name", deed.hidden);
    if let Some(path) = &deed.path {
        let prefix = path.prefix();
        let begins = |folders: &[String]| {
            folders.iter().any(|folder| {
                prefix == folder || folder.ends_with('/') && prefix.starts_with(folder.as_str())
            })
        };
        let temporary = begins(&PATHS.words.temporary);
        let personal = begins(&PATHS.words.personal);
        mark("temporary-folder", temporary);
        mark("personal-folder", personal);
        mark("constant-path", !temporary && !personal && !prefix.is_empty() && !deed.path_given);
        mark("caller-path", deed.path_given);
        mark("rank-file", path.holes().any(|hole| hole.to_ascii_lowercase().contains("rank")));
    }
    let root = deed.spelled.split(['.', '(', '[']).next().unwrap_or("");
    let usual = PATHS.words.usual_aliases.iter().any(|alias| alias == root);
    let import = match deed.origin {
        Some(Origin::Import { offset, renamed: true, local }) => {
            mark("odd-import", local && !usual);
            let (line, text) = line_of(scanner.subject.text, offset);
            Some((text.trim().chars().take(120).collect(), line))
        }
        _ => None,
    };
    let mut names: Vec<&str> = timing.names.iter().map(String::as_str).collect();
    names.push(root);
    let known = deed.path.as_ref().map(|path| path.known()).unwrap_or_default();
    names.push(&known);
    if matches!(deed.effect, Effect::Print | Effect::EnvironmentBranch) {
        names.push(deed.subject.as_deref().unwrap_or(""));
    }
    mark("debug-name", names.iter().any(|name| has_word(name, &PATHS.words.debug)));
    let mut around = Some(deed.function);
    let mut named =
        function.class.as_ref().is_some_and(|class| has_word(class, &PATHS.words.class_named_for_it));
    while let Some(index) = around {
        named |= index != 0 && has_word(scanner.functions[index].name, &PATHS.words.named_for_it);
        around = scanner.functions[index].parent;
    }
    mark("named-for-it", named);
    let score = MARKS.score(marks.iter().copied());
    if score < MARKS.keep {
        return None;
    }
    let from = deed
        .guards
        .iter()
        .filter(|guard| guard.offset <= deed.offset && deed.offset - guard.offset < 600)
        .map(|guard| guard.offset)
        .min();
    let from = from.unwrap_or(deed.offset).min(deed.offset);
    let (_, text) = excerpt(scanner.subject.text, from, deed.offset, deed.offset);
    Some(CodeFact {
        effect: deed.effect,
        site: 0,
        file: scanner.subject.relative.to_owned(),
        line,
        function: function.qualified.clone(),
        area: area.to_owned(),
        call: deed.call.clone(),
        spelled: deed.spelled.clone(),
        import,
        block,
        when: timing.when,
        how_often: timing.how_often,
        writes: deed.path.as_ref().map(|path| path.render()),
        glob: deed.path.as_ref().filter(|path| path.prefix().starts_with('/')).map(|path| path.glob()),
        subject: deed.subject.clone(),
        forward,
        score,
        marks: marks.into_iter().map(str::to_owned).collect(),
        excerpt: (line_of(scanner.subject.text, from).0, text),
    })
}

/// Where lines begin. A generator of kernels prints ten thousand times: counting newlines anew for each would be quadratic.
struct Lines(Vec<u32>);

impl Lines {
    fn new(text: &str) -> Lines {
        Lines(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at as u32).collect())
    }

    fn of(&self, offset: u32) -> u32 {
        self.0.partition_point(|&newline| newline < offset) as u32 + 1
    }
}

/// Whether one of `words` stands in a name: `_dbg_q`, `DumpQuery`, `/tmp/debug.pt`. Words of four letters or more also begin
/// longer ones (`dumped`, `debugging`).
fn has_word(name: &str, words: &[String]) -> bool {
    let mut spaced = String::with_capacity(name.len() + 8);
    let mut lower = false;
    for c in name.chars() {
        if c.is_uppercase() && lower {
            spaced.push(' ');
        }
        lower = c.is_lowercase() || c.is_ascii_digit();
        spaced.extend(c.to_lowercase());
    }
    let parts: Vec<&str> =
        spaced.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).collect();
    words.iter().any(|word| match word.contains('_') {
        true => spaced.contains(word.as_str()),
        false => parts.iter().any(|part| part == word || word.len() >= 4 && part.starts_with(word.as_str())),
    })
}

/// Line number, from 1, and text of the line that holds an offset.
pub(crate) fn line_of(text: &str, offset: u32) -> (u32, &str) {
    let at = (offset as usize).min(text.len());
    let bytes = text.as_bytes();
    let start = bytes[..at].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let end = bytes[at..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |newline| at + newline);
    let line = 1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count() as u32;
    (line, text.get(start..end).unwrap_or(""))
}
