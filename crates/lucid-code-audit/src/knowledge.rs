//! The tables: calls, marks, paths. Read once; a test reads them at every build.

use std::sync::LazyLock;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;

use crate::evidence::Effect;
use crate::glob;

/// A call that matters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallRule {
    pub effect: Effect,
    names: Vec<String>,
    /// Position of the path.
    pub path: Option<usize>,
    /// Keywords of the path.
    #[serde(default)]
    pub keywords: Vec<String>,
    /// Position of the mode: it writes only if that says so.
    pub mode: Option<usize>,
    /// Position of what is written.
    pub subject: Option<usize>,
    /// Only an opened file or a known path makes it a write.
    #[serde(default)]
    pub needs_file: bool,
    /// Only a hard-coded path makes it a finding.
    #[serde(default)]
    pub only_hard_coded: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallsFile {
    call: Vec<CallRule>,
    method: Vec<CallRule>,
}

/// All calls by name.
#[derive(Debug)]
pub(crate) struct Calls {
    rules: Vec<CallRule>,
    calls: FxHashMap<String, usize>,
    /// Last components of their names: most names of a file are told from all of them at once.
    last: FxHashSet<String>,
    methods: FxHashMap<String, usize>,
}

impl Calls {
    /// The rule of a full name, and the name that it has in the table. Any module that imported torch leads to it:
    /// `vllm.utils.torch.save` is `torch.save`.
    pub(crate) fn call(&self, name: &str) -> Option<(&CallRule, &str)> {
        if !self.last.contains(name.rsplit('.').next()?) {
            return None;
        }
        let mut tail = name;
        loop {
            if let Some((known, &rule)) = self.calls.get_key_value(tail) {
                return Some((&self.rules[rule], known));
            }
            tail = &tail[tail.find('.')? + 1..];
        }
    }

    /// Whether the full name of a call ends so.
    pub(crate) fn is_last(&self, name: &str) -> bool {
        self.last.contains(name)
    }

    /// The rule of a method name.
    pub(crate) fn method(&self, name: &str) -> Option<&CallRule> {
        self.methods.get(name).map(|&rule| &self.rules[rule])
    }
}

/// A reason for or against.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    pub id: String,
    pub weight: f64,
    pub text: String,
}

/// All marks and the thresholds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Marks {
    pub warning: f64,
    pub error: f64,
    pub keep: f64,
    mark: Vec<Mark>,
}

impl Marks {
    pub(crate) fn get(&self, id: &str) -> Option<&Mark> {
        self.mark.iter().find(|mark| mark.id == id)
    }

    /// The sum of the weights.
    pub(crate) fn score<'m>(&self, ids: impl IntoIterator<Item = &'m str>) -> f64 {
        ids.into_iter().filter_map(|id| self.get(id)).map(|mark| mark.weight).sum()
    }

    /// The strongest reasons in words, those for it first.
    pub(crate) fn words(&self, ids: &[String]) -> Vec<&str> {
        let mut marks: Vec<&Mark> = ids.iter().filter_map(|id| self.get(id)).collect();
        marks.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        marks.iter().map(|mark| mark.text.as_str()).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Engine {
    pub name: String,
    pub package: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Area {
    name: String,
    paths: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forward {
    areas: Vec<String>,
    functions: Vec<String>,
    not: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Words {
    pub debug: Vec<String>,
    pub named_for_it: Vec<String>,
    pub class_named_for_it: Vec<String>,
    pub temporary: Vec<String>,
    pub personal: Vec<String>,
    pub usual_aliases: Vec<String>,
}

/// Which file is which part.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paths {
    pub engine: Vec<Engine>,
    area: Vec<Area>,
    forward: Forward,
    pub words: Words,
}

impl Paths {
    /// The engine that owns a file, by its package.
    pub(crate) fn engine(&self, file: &str) -> Option<&Engine> {
        let top = file.split('/').next()?;
        self.engine.iter().find(|engine| engine.package == top)
    }

    /// The part of an engine that a file is; `None` outside of the engines' packages.
    pub(crate) fn area(&self, file: &str) -> Option<&str> {
        self.engine(file)?;
        let area =
            self.area.iter().find(|area| area.paths.iter().any(|pattern| glob::matches(pattern, file)));
        Some(area.map_or("other", |area| area.name.as_str()))
    }

    /// Whether functions of an area run at every step.
    pub(crate) fn steps(&self, area: &str) -> bool {
        self.forward.areas.iter().any(|name| name == area)
    }

    /// Whether a function of that name runs at start-up, whoever calls it.
    pub(crate) fn starts_up(&self, function: &str) -> bool {
        self.forward.not.iter().any(|pattern| glob::component_matches(pattern, function))
    }

    /// Whether a function of that name is entered at every step.
    pub(crate) fn is_forward(&self, function: &str) -> bool {
        !self.starts_up(function)
            && self.forward.functions.iter().any(|pattern| glob::component_matches(pattern, function))
    }
}

// The tables are part of the binary, and a test reads each: no input from outside can make this panic.
fn table<T: for<'de> Deserialize<'de>>(text: &str, name: &str) -> T {
    toml::from_str(text).unwrap_or_else(|error| panic!("knowledge/{name}: {error}"))
}

pub(crate) static CALLS: LazyLock<Calls> = LazyLock::new(|| {
    let file: CallsFile = table(include_str!("../knowledge/calls.toml"), "calls.toml");
    let (mut calls, mut methods) = (FxHashMap::default(), FxHashMap::default());
    let mut rules = Vec::new();
    for (index, rule) in file.call.into_iter().enumerate() {
        calls.extend(rule.names.iter().map(|name| (name.clone(), index)));
        rules.push(rule);
    }
    for rule in file.method {
        methods.extend(rule.names.iter().map(|name| (name.clone(), rules.len())));
        rules.push(rule);
    }
    let last = calls.keys().filter_map(|name: &String| name.rsplit('.').next()).map(str::to_owned).collect();
    Calls { rules, calls, last, methods }
});

pub(crate) static MARKS: LazyLock<Marks> =
    LazyLock::new(|| table(include_str!("../knowledge/marks.toml"), "marks.toml"));

pub(crate) static PATHS: LazyLock<Paths> =
    LazyLock::new(|| table(include_str!("../knowledge/paths.toml"), "paths.toml"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sound() {
        assert!(CALLS.call("torch.save").is_some());
        assert_eq!(CALLS.call("vllm.utils.torch.save").map(|(_, name)| name), Some("torch.save"));
        assert!(CALLS.call("store.save").is_none());
        assert!(CALLS.method("tofile").is_some());
        assert!(CALLS.rules.iter().all(|rule| MARKS.get(rule.effect.name()).is_some()));
        assert!(MARKS.keep < MARKS.warning && MARKS.warning < MARKS.error);
    }

    #[test]
    fn files_have_areas() {
        for (file, area) in [
            ("vllm/model_executor/models/deepseek_v2.py", Some("model")),
            ("vllm/v1/attention/backends/mla/common.py", Some("attention")),
            ("vllm/model_executor/layers/attention/mla_attention.py", Some("attention")),
            ("vllm/model_executor/layers/quantization/modelopt.py", Some("quantization")),
            ("vllm/model_executor/model_loader/weight_utils.py", Some("loader")),
            ("sglang/srt/layers/moe/topk.py", Some("moe")),
            ("sglang/srt/debug_utils/dumper.py", Some("tool")),
            ("transformers/models/llama/modeling_llama.py", Some("model")),
            ("vllm/logger.py", Some("other")),
            ("requests/api.py", None),
        ] {
            assert_eq!(PATHS.area(file), area, "{file}");
        }
        assert!(
            PATHS.is_forward("forward")
                && PATHS.is_forward("forward_cuda")
                && !PATHS.is_forward("load_weights")
        );
    }
}
