//! `*.safetensors.index.json` against the shards' headers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use crate::evidence::{IndexFacts, shortened};
use crate::header::read_small;
use crate::listing::{Listed, Listing};
use crate::shards::Shard;

/// The largest index that is read; Kimi-K2.5's has 30 MB.
const MAX_INDEX: u64 = 256 << 20;

/// Compares every index of the folder; the main one comes first. Also gives the shards that the main one names.
pub(crate) fn compare(listing: &Listing, shards: &[Shard]) -> (Vec<IndexFacts>, Option<BTreeSet<String>>) {
    let mut indexes: Vec<&Listed> =
        listing.files.iter().filter(|file| file.name.ends_with(".safetensors.index.json")).collect();
    indexes.sort_by_key(|file| file.name != MAIN);
    let mut owners: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut bytes = 0u64;
    for shard in shards {
        for tensor in &shard.tensors {
            owners.entry(&tensor.name).or_default().push(&shard.facts.name);
            bytes = bytes.saturating_add(tensor.bytes);
        }
    }
    let mut main = None;
    let facts = indexes.iter().take(8).map(|file| {
        let (facts, named) = one(file, shards, &owners, bytes);
        if file.name == MAIN {
            main = named;
        }
        facts
    });
    (facts.collect(), main)
}

/// The index that engines read.
pub(crate) const MAIN: &str = "model.safetensors.index.json";

fn one(
    file: &Listed,
    shards: &[Shard],
    owners: &HashMap<&str, Vec<&str>>,
    tensor_bytes: u64,
) -> (IndexFacts, Option<BTreeSet<String>>) {
    let mut facts = IndexFacts { name: file.name.clone(), tensor_bytes, ..IndexFacts::default() };
    let json = match read(file) {
        Ok(json) => json,
        Err(problem) => {
            facts.problem = Some(problem);
            return (facts, None);
        }
    };
    facts.total_size = json.get("metadata").and_then(|m| m.get("total_size")).and_then(Value::as_u64);
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        facts.problem = Some("it has no weight_map".to_owned());
        return (facts, None);
    };
    facts.entries = map.len() as u64;
    let named: BTreeSet<String> = map.values().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
    let present: BTreeMap<&str, &Shard> =
        shards.iter().map(|shard| (shard.facts.name.as_str(), shard)).collect();
    for (name, shard) in map {
        let shard = shard.as_str().unwrap_or_default();
        match owners.get(name.as_str()).map(Vec::as_slice) {
            None => {
                facts.absent.push(64, format!("{} in {shard}", shortened(name, 200)));
                facts.absent_from_present_shards += u64::from(present.contains_key(shard));
            }
            Some(real) if !real.contains(&shard) => {
                let text = format!("{} is in {}, not in {shard}", shortened(name, 200), real.join(" and "));
                facts.moved.push(64, text);
            }
            Some(_) => {}
        }
    }
    for shard in shards {
        if named.contains(&shard.facts.name) {
            let unlisted = shard.tensors.iter().filter(|tensor| !map.contains_key(&tensor.name));
            for tensor in unlisted {
                facts.unlisted.push(64, shortened(&tensor.name, 200));
            }
        } else {
            facts.unlisted_shards.push(64, shard.facts.name.clone());
        }
    }
    (facts, Some(named))
}

fn read(file: &Listed) -> Result<Value, String> {
    let path = file.path.as_ref().ok_or("it is a link that leads nowhere")?;
    let bytes = read_small(path, MAX_INDEX).map_err(|error| error.to_string())?;
    let bytes = bytes.ok_or_else(|| format!("it is longer than {MAX_INDEX} bytes"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("it is no JSON: {error}"))
}
