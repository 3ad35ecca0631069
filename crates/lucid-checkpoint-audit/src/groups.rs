//! All tensors of a checkpoint in little room: 276,000 names become some thousand runs of numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::evidence::{Capped, CheckpointEvidence, Duplicate, Members, TensorGroup, shortened};
use crate::names;

/// The most groups that are kept.
const MAX_GROUPS: usize = 20_000;

/// A tensor of any container.
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: &'a str,
    pub(crate) shape: Vec<u64>,
    pub(crate) shard: &'a str,
}

type Key = (String, String, Vec<u64>);

/// Fills groups, prefixes and duplicates. `listed` says whether the index names a shard.
pub(crate) fn fill(tensors: &[Named<'_>], listed: &dyn Fn(&str) -> bool, evidence: &mut CheckpointEvidence) {
    let mut groups: BTreeMap<Key, BTreeMap<Option<u32>, BTreeSet<u32>>> = BTreeMap::new();
    let mut prefixes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut first: HashMap<&str, &str> = HashMap::with_capacity(tensors.len());
    for tensor in tensors {
        if let Some(other) = first.insert(tensor.name, tensor.shard).filter(|other| *other != tensor.shard) {
            let duplicate = Duplicate {
                tensor: shortened(tensor.name, 200),
                first: other.to_owned(),
                second: tensor.shard.to_owned(),
                both_listed: listed(other) && listed(tensor.shard),
            };
            evidence.duplicates.push(64, duplicate);
        }
        let name = names::pattern(tensor.name);
        if !name.prefix.is_empty() {
            *prefixes.entry(name.prefix).or_default() += 1;
        }
        let key = (shortened(&name.pattern, 200), tensor.dtype.to_owned(), tensor.shape.clone());
        let experts = groups.entry(key).or_default().entry(name.layer).or_default();
        experts.extend(name.expert);
    }
    evidence.prefixes = prefixes.into_iter().map(|(prefix, count)| (prefix.to_owned(), count)).collect();
    evidence.groups = Capped::default();
    for ((pattern, dtype, shape), layers) in groups {
        let members =
            layers.into_iter().map(|(layer, experts)| Members { layer, experts: runs(experts) }).collect();
        evidence.groups.push(MAX_GROUPS, TensorGroup { pattern, dtype, shape, members });
    }
}

/// Runs of neighbours, both ends included.
pub(crate) fn runs(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

/// Whether a number is in one of the runs.
pub(crate) fn contains(runs: &[(u32, u32)], number: u32) -> bool {
    runs.iter().any(|(first, last)| (*first..=*last).contains(&number))
}

/// How many numbers the runs hold.
pub(crate) fn count(runs: &[(u32, u32)]) -> u64 {
    runs.iter().map(|(first, last)| u64::from(last.saturating_sub(*first)) + 1).sum()
}

/// `0–3, 7`
pub(crate) fn shown(runs: &[(u32, u32)]) -> String {
    let one = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}–{last}") }
    };
    let mut text = runs.iter().take(6).map(one).collect::<Vec<_>>().join(", ");
    if runs.len() > 6 {
        text.push_str(", …");
    }
    text
}
