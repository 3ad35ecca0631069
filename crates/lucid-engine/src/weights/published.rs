//! What the loader looks for in published checkpoints, against what transformers' models have for the same configs.
//! `tests/published/tensors.py` wrote the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lucid_checkpoint::Config;
use serde_json::Value;

use super::Weights;

/// Pattern and shape, to layers and experts.
type Groups = BTreeMap<(String, Vec<usize>), (String, String)>;

fn config(file: &str) -> Config {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lucid-checkpoint/tests/configs");
    Config::from_json(file, &std::fs::read(folder.join(file)).unwrap()).unwrap()
}

/// `0-2 5` for 0, 1, 2, 5.
fn runs(numbers: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let run = |(a, b): (usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.into_iter().map(run).collect::<Vec<_>>().join(" ")
}

fn grouped(needed: Vec<(String, Vec<usize>)>) -> Groups {
    let mut groups: BTreeMap<_, [BTreeSet<usize>; 2]> = BTreeMap::new();
    for (name, shape) in needed {
        let mut numbers = [None, None];
        let (mut pattern, mut before) = (Vec::new(), "");
        for part in name.split('.') {
            let place = ["layers", "experts"].iter().position(|list| *list == before);
            match place.and_then(|place| Some((place, part.parse::<usize>().ok()?))) {
                Some((place, number)) => {
                    numbers[place] = Some(number);
                    pattern.push("*");
                }
                None => pattern.push(part),
            }
            before = part;
        }
        let group = groups.entry((pattern.join("."), shape)).or_default();
        for (set, number) in group.iter_mut().zip(numbers) {
            set.extend(number);
        }
    }
    let runs = |[layers, experts]: [BTreeSet<usize>; 2]| (runs(&layers), runs(&experts));
    groups.into_iter().map(|(key, sets)| (key, runs(sets))).collect()
}

#[test]
fn every_tensor_of_every_published_model() {
    let listed = include_str!("../../tests/published/tensors.json");
    let listed: BTreeMap<String, Value> = serde_json::from_str(listed).unwrap();
    assert_eq!(listed.len(), 20);
    for (file, groups) in &listed {
        // Equal lists are there once, then by the name of the first.
        let groups = groups.as_str().map_or(groups, |same| &listed[same]);
        let groups: Vec<(String, Vec<usize>, String, String)> =
            serde_json::from_value(groups.clone()).unwrap();
        let expected: Groups = groups
            .into_iter()
            .map(|(pattern, shape, layers, experts)| ((pattern, shape), (layers, experts)))
            .collect();
        assert_eq!(grouped(Weights::needed(&config(file))), expected, "{file}");
    }
}

/// The sizes that the models' reports state, in billions.
#[test]
fn parameters_add_up_to_the_published_sizes() {
    for (file, billions) in [
        ("deepseek-ai--DeepSeek-V3_config.json", 671),
        ("moonshotai--Kimi-K2-Instruct_config.json", 1026),
        ("zai-org--GLM-5_config.json", 744),
    ] {
        let parameters: usize =
            Weights::needed(&config(file)).iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(parameters.div_ceil(500_000_000) / 2, billions, "{file}: {parameters}");
    }
}
