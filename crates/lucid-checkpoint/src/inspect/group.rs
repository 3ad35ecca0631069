//! Puts modules together that differ only in their layer or expert number.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Module;

/// Modules that differ only in layer or expert number, of the same layout and shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleGroup {
    /// The paths, as `model.layers.{1..3}.mlp.experts.*.gate_proj`; ranges include both ends.
    pub pattern: String,
    /// `NVFP4`, `BF16`, …, or `unsupported: …` or `damaged` (a notice says why).
    pub layout: String,
    /// Of one of them: `[rows, cols]` of a matrix, unpacked.
    pub shape: Vec<usize>,
    /// How many there are.
    pub count: u64,
    /// Their weights; scales are not counted.
    pub parameters: u64,
    /// Their bytes, with scales.
    pub bytes: u64,
}

#[derive(Default)]
struct Members {
    layers: BTreeSet<u64>,
    count: u64,
    parameters: u64,
    bytes: u64,
}

pub(super) fn group(modules: &[Module]) -> Vec<ModuleGroup> {
    let mut groups: BTreeMap<(String, String, &str, &[usize]), Members> = BTreeMap::new();
    for module in modules {
        let (before, layer, after) = split(&module.name);
        let group = groups.entry((before, after, &module.layout, &module.shape)).or_default();
        group.layers.extend(layer);
        group.count += 1;
        group.parameters = group.parameters.saturating_add(module.parameters);
        group.bytes += module.bytes;
    }
    let groups = groups.into_iter().map(|((before, after, layout, shape), members)| ModuleGroup {
        pattern: format!("{before}{}{after}", ranges(&members.layers)),
        layout: layout.to_owned(),
        shape: shape.to_vec(),
        count: members.count,
        parameters: members.parameters,
        bytes: members.bytes,
    });
    groups.collect()
}

/// `a.layers.3.b.7.c` becomes `("a.layers.", 3, ".b.*.c")`.
fn split(name: &str) -> (String, Option<u64>, String) {
    let starred = |path: &str| {
        let parts = path.split('.').map(|part| match part.parse::<u64>() {
            Ok(_) => "*",
            Err(_) => part,
        });
        parts.collect::<Vec<_>>().join(".")
    };
    const LAYERS: &str = "layers.";
    if let Some(at) = name.find(LAYERS) {
        let (before, rest) = name.split_at(at + LAYERS.len());
        let (number, after) = match rest.find('.') {
            Some(dot) => rest.split_at(dot),
            None => (rest, ""),
        };
        if let Ok(layer) = number.parse() {
            return (starred(before), Some(layer), starred(after));
        }
    }
    (starred(name), None, String::new())
}

/// `{0,2..4}`; a single number stands alone, none is empty.
fn ranges(numbers: &BTreeSet<u64>) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts: Vec<String> = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}..{last}") })
        .collect();
    match texts.as_slice() {
        [] => String::new(),
        [one] if !one.contains('.') => one.clone(),
        _ => format!("{{{}}}", texts.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, layout: &str) -> Module {
        Module { name: name.into(), layout: layout.into(), shape: vec![2, 16], parameters: 32, bytes: 20 }
    }

    fn patterns(names: &[(&str, &str)]) -> Vec<(String, u64)> {
        let modules: Vec<Module> = names.iter().map(|(name, layout)| module(name, layout)).collect();
        group(&modules).into_iter().map(|g| (g.pattern, g.count)).collect()
    }

    #[test]
    fn layers_become_ranges_and_experts_a_star() {
        let names = [
            ("lm_head", "BF16"),
            ("model.layers.1.mlp.experts.0.up_proj", "NVFP4"),
            ("model.layers.1.mlp.experts.1.up_proj", "NVFP4"),
            ("model.layers.2.mlp.experts.0.up_proj", "NVFP4"),
            ("model.layers.4.mlp.experts.0.up_proj", "NVFP4"),
        ];
        let expected =
            [("lm_head".to_owned(), 1), ("model.layers.{1..2,4}.mlp.experts.*.up_proj".to_owned(), 4)];
        assert_eq!(patterns(&names), expected);
    }

    #[test]
    fn a_layer_that_is_stored_otherwise_stands_alone() {
        let names = [
            ("model.layers.9.mlp.up_proj", "NVFP4"),
            ("model.layers.10.mlp.up_proj", "NVFP4"),
            ("model.layers.11.mlp.up_proj", "BF16"),
        ];
        let expected = [
            ("model.layers.11.mlp.up_proj".to_owned(), 1),
            ("model.layers.{9..10}.mlp.up_proj".to_owned(), 2),
        ];
        assert_eq!(patterns(&names), expected);
    }

    #[test]
    fn names_without_layers_and_huge_numbers_do_no_harm() {
        let huge = u64::MAX.to_string();
        let name = format!("model.layers.{huge}.x");
        let names = [(name.as_str(), "F32"), ("layers.", "F32"), ("", "F32"), ("blocks.3.w", "F32")];
        let found: Vec<String> = patterns(&names).into_iter().map(|(pattern, _)| pattern).collect();
        assert_eq!(found, ["", "blocks.*.w", "layers.", &name]);
    }
}
