//! The shards' headers and holes.

use std::fs::File;

use rayon::prelude::*;

use crate::evidence::{Capped, Container, ExtentKind, ExtentProblem, FileKind, ShardFacts, shortened};
use crate::header::{self, Header, MAX_PROBLEMS, TensorEntry};
use crate::holes::holes;
use crate::listing::{Listed, Listing};

/// A shard with its tensors.
pub(crate) struct Shard {
    pub(crate) facts: ShardFacts,
    /// Sorted by place.
    pub(crate) tensors: Vec<TensorEntry>,
}

/// Reads all headers, shards side by side.
pub(crate) fn read(listing: &Listing) -> Vec<Shard> {
    let listed: Vec<&Listed> = listing.shards().collect();
    let mut shards: Vec<Shard> = listed.into_par_iter().map(read_one).collect();
    if listing.container == Container::Gguf {
        check_alone(&mut shards);
    }
    shards
}

fn read_one(listed: &Listed) -> Shard {
    let mut facts = ShardFacts { name: listed.name.clone(), bytes: listed.bytes, ..ShardFacts::default() };
    let refuse = |mut facts: ShardFacts, kind, text: String| {
        facts.problems.push(MAX_PROBLEMS, ExtentProblem { kind, tensor: None, at: None, bytes: None, text });
        Shard { facts, tensors: Vec::new() }
    };
    let path = match (listed.kind, &listed.path) {
        (FileKind::File, Some(path)) => path.clone(),
        (FileKind::Folder, _) => return refuse(facts, ExtentKind::NotAFile, "this is a folder".to_owned()),
        (FileKind::BrokenLink, _) => {
            let text = "a link that leads nowhere, in a circle, or out of the root".to_owned();
            return refuse(facts, ExtentKind::NotAFile, text);
        }
        _ => return refuse(facts, ExtentKind::NotAFile, "this is no regular file".to_owned()),
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) => return refuse(facts, ExtentKind::Unreadable, shortened(&error.to_string(), 200)),
    };
    let Header { tensors, data_start, split, problems } = header::read(&file, listed.bytes, &listed.name);
    facts.header_bytes = data_start;
    facts.tensors = tensors.len() as u64;
    facts.described_bytes = tensors.iter().map(TensorEntry::end).max().unwrap_or(data_start);
    facts.problems = problems;
    if let Some((number, count)) = split {
        check_split(&mut facts, number, count);
    }
    check_holes(&file, &mut facts, &tensors);
    Shard { facts, tensors }
}

fn check_holes(file: &File, facts: &mut ShardFacts, tensors: &[TensorEntry]) {
    let holes = holes(file, facts.bytes);
    facts.hole_bytes = holes.iter().map(|(start, end)| end - start).sum();
    if holes.is_empty() {
        return;
    }
    let mut hit: Capped<ExtentProblem> = Capped::default();
    for tensor in tensors {
        let first = holes.partition_point(|(_, end)| *end <= tensor.start);
        let within = holes.iter().skip(first).take_while(|(start, _)| *start < tensor.end());
        let parts: Vec<(u64, u64)> =
            within.map(|(start, end)| ((*start).max(tensor.start), (*end).min(tensor.end()))).collect();
        let bytes: u64 = parts.iter().map(|(start, end)| end - start).sum();
        if let Some((at, _)) = parts.first().filter(|_| bytes > 0) {
            let share = 100.0 * bytes as f64 / tensor.bytes.max(1) as f64;
            let text = format!(
                "{bytes} bytes of {} ({share:.1} %) were never written, from byte {at} of the file on; \
                    they read as zeros",
                tensor.name
            );
            let (kind, tensor) = (ExtentKind::Hole, Some(shortened(&tensor.name, 200)));
            hit.push(MAX_PROBLEMS, ExtentProblem { kind, tensor, at: Some(*at), bytes: Some(bytes), text });
        }
    }
    let unlisted = hit.total - hit.kept.len() as u64;
    for problem in hit.kept {
        facts.problems.push(MAX_PROBLEMS, problem);
    }
    facts.problems.total += unlisted;
}

/// `split.no` counts from 0, the name from 1.
fn check_split(facts: &mut ShardFacts, number: u64, count: u64) {
    let name = facts.name.clone();
    let in_name = || {
        let (rest, total) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (_, part) = rest.rsplit_once('-')?;
        Some((part.parse::<u64>().ok()?, total.parse::<u64>().ok()?))
    };
    let said = in_name().unwrap_or((1, 1));
    if count.max(1) != said.1 || number + 1 != said.0 {
        let text = format!(
            "the file says that it is part {} of {}, its name says part {} of {}",
            number.saturating_add(1),
            count.max(1),
            said.0,
            said.1
        );
        let problem = ExtentProblem { kind: ExtentKind::Split, tensor: None, at: None, bytes: None, text };
        facts.problems.push(MAX_PROBLEMS, problem);
    }
}

/// Other GGUF models in the folder (an `mmproj`, another quantization) are no parts of one.
fn check_alone(shards: &mut [Shard]) {
    for shard in shards.iter_mut().filter(|shard| shard.facts.name.contains("mmproj")) {
        // The projector of a multimodal model: its header counts, its tensors are no language model's.
        shard.facts.problems.kept.retain(|problem| problem.kind != ExtentKind::Split);
        shard.facts.problems.total = shard.facts.problems.kept.len() as u64;
    }
}
