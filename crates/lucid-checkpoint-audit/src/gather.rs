//! Gathers the evidence: files, headers, config, tokenizer, and on request one pass over all bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use lucid_checkpoint::{Checkpoint, Config, Files};
use lucid_findings::Step;
use lucid_root::Root;
use serde_json::Value;

use crate::Error;
use crate::digest::{self, Expected};
use crate::evidence::{CheckpointEvidence, Container, DigestFacts, FileDigest, FileKind, shortened};
use crate::groups::{self, Named};
use crate::header::read_small;
use crate::listing::{self, Listing, MAX_FILES};
use crate::pass::{self, Outcome, Task};
use crate::shards::{self, Shard};
use crate::statistics::{Read, summarize};
use crate::{index, sizes, tokenizer};

/// How much is read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Read every weight and keep statistics.
    pub statistics: bool,
    /// Hash every file of which something says what its digest should be; with [`all_digests`](Self::all_digests), every file.
    pub digests: bool,
    /// Hash also files of which nothing says what they should be, so that another machine's can be compared.
    pub all_digests: bool,
    /// Expected digests: what `sha256sum` writes, the JSON of the Hugging Face API, or a folder with Git LFS pointers.
    pub manifest: Option<PathBuf>,
    /// A file that keeps what was read, so that an interrupted pass goes on where it was, by whole files.
    pub state: Option<PathBuf>,
}

/// The largest config that is read.
const MAX_CONFIG: u64 = 16 << 20;

/// Gathers the evidence of the checkpoint at `path` (a folder, or a `.gguf` file) below `root`: `/`, or a container's root
/// such as `/proc/PID/root`. Links are followed as the processes below the root would.
///
/// # Errors
/// When `path` can't be listed or the manifest can't be used. Everything else that is odd is in the evidence.
pub fn gather(
    root: &Path,
    path: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Step),
) -> Result<CheckpointEvidence, Error> {
    let started = Instant::now();
    let place = |cause| Error::Place { location: path.display().to_string(), cause };
    let mut evidence =
        CheckpointEvidence { location: path.display().to_string(), ..CheckpointEvidence::default() };
    let manifest = match &options.manifest {
        Some(manifest) => digest::manifest(manifest).map_err(|problem| Error::Manifest { problem })?,
        None => BTreeMap::new(),
    };
    // A path without a beginning means the working directory, which only the real root has.
    let absolute =
        if root == Path::new("/") { std::path::absolute(path).map_err(place)? } else { path.to_owned() };
    let listing = listing::list(root, &absolute, &mut evidence).map_err(place)?;
    evidence.container = listing.container;
    progress(Step { done: 0, of: 0, unit: "files", text: "reading shard headers".to_owned() });
    let shards = shards::read(&listing);

    let (indexes, named) = index::compare(&listing, &shards);
    evidence.indexes = indexes;
    for name in named.iter().flatten() {
        if listing.find(name).is_none() && !evidence.missing_shards.kept.contains(name) {
            evidence.missing_shards.push(64, name.clone());
        }
    }
    let listed = |shard: &str| named.as_ref().is_none_or(|named| named.contains(shard));

    let config = json(&listing, "config.json", &mut evidence);
    let hf_quant = json(&listing, "hf_quant_config.json", &mut evidence);
    evidence.quantization = sizes::quantization(config.as_ref(), hf_quant.as_ref());
    let files = native_files(root, &absolute, &listing, &mut evidence);
    match listing.container {
        Container::Gguf => gguf_model(files.as_ref(), &mut evidence),
        _ => {
            match &config {
                Some(config) => match Config::from_json("config.json", config.to_string().as_bytes()) {
                    Ok(config) => evidence.sizes = Some(sizes::sizes(&config)),
                    Err(error) => evidence.sizes_problem = Some(shortened(&error.to_string(), 400)),
                },
                None => evidence.sizes_problem = Some("config.json is missing or can't be read".to_owned()),
            }
            let tensors: Vec<Named<'_>> = shards
                .iter()
                .flat_map(|shard| {
                    shard.tensors.iter().map(|tensor| Named {
                        name: &tensor.name,
                        dtype: &tensor.dtype,
                        shape: tensor.shape.clone(),
                        shard: &shard.facts.name,
                    })
                })
                .collect();
            groups::fill(&tensors, &listed, &mut evidence);
        }
    }
    if let Some(files) = &files {
        evidence.tokenizer = Some(tokenizer::gather(files, &listing, config.as_ref()));
    }
    read_bytes(&listing, &shards, &manifest, options, progress, &mut evidence);
    for shard in shards {
        evidence.shards.push(MAX_FILES, shard.facts);
    }
    evidence.seconds = started.elapsed().as_secs_f64();
    Ok(evidence)
}

/// A small JSON file of the folder; what is wrong with it is noted.
fn json(listing: &Listing, name: &str, evidence: &mut CheckpointEvidence) -> Option<Value> {
    let path = listing.find(name)?.path.as_ref()?;
    let read = || -> Result<Value, String> {
        let bytes = read_small(path, MAX_CONFIG).map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or_else(|| format!("longer than {MAX_CONFIG} bytes"))?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    };
    match read() {
        Ok(value) => Some(value),
        Err(problem) => {
            evidence.note(format!("{name}: {problem}"));
            None
        }
    }
}

/// The folder for readers that follow links by themselves; `None` where they would leave the root.
fn native_files(
    root: &Path,
    path: &Path,
    listing: &Listing,
    evidence: &mut CheckpointEvidence,
) -> Option<Files> {
    let folder = Root::new(root).resolve(&listing.folder).ok()?;
    for file in &listing.files {
        let small =
            file.name.ends_with(".json") || file.name.ends_with(".jinja") || file.name.ends_with(".model");
        if (small || listing.container == Container::Gguf) && file.kind == FileKind::File {
            let native = std::fs::canonicalize(folder.join(&file.name)).ok();
            let ours = file.path.as_ref().and_then(|path| std::fs::canonicalize(path).ok());
            if native != ours {
                evidence.note(format!(
                    "{}: its link leads elsewhere outside {}; tokenizer not examined",
                    file.name,
                    root.display()
                ));
                return None;
            }
        }
    }
    let place = if listing.container == Container::Gguf {
        // A folder with several GGUF files is refused by the reader; the file that was pointed at is not.
        let name = path.file_name().filter(|name| name.to_string_lossy().ends_with(".gguf"));
        let first = || {
            let model = |file: &&crate::listing::Listed| !file.name.contains("mmproj");
            listing.shards().filter(model).map(|file| std::ffi::OsString::from(&file.name)).next()
        };
        folder.join(name.map(ToOwned::to_owned).or_else(first)?)
    } else {
        folder
    };
    match Files::open(&place) {
        Ok(files) => Some(files),
        Err(error) => {
            evidence.note(error.to_string());
            None
        }
    }
}

/// Sizes and tensors of a GGUF model, under the names of safetensors checkpoints.
fn gguf_model(files: Option<&Files>, evidence: &mut CheckpointEvidence) {
    let Some(files) = files else {
        evidence.sizes_problem = Some("the GGUF file could not be opened".to_owned());
        return;
    };
    match Checkpoint::open(files.clone()) {
        Ok(checkpoint) => {
            evidence.sizes = Some(sizes::sizes(checkpoint.config()));
            let tensors: Vec<Named<'_>> = checkpoint
                .tensors()
                .map(|tensor| Named {
                    name: &tensor.name,
                    dtype: tensor.dtype.as_str(),
                    shape: tensor.shape.iter().map(|dim| *dim as u64).collect(),
                    shard: &tensor.shard,
                })
                .collect();
            groups::fill(&tensors, &|_| true, evidence);
        }
        Err(error) => evidence.sizes_problem = Some(shortened(&error.to_string(), 400)),
    }
}

/// The pass over the bytes, as far as it was asked for.
fn read_bytes(
    listing: &Listing,
    shards: &[Shard],
    manifest: &BTreeMap<String, Expected>,
    options: &Options,
    progress: &mut dyn FnMut(Step),
    evidence: &mut CheckpointEvidence,
) {
    let folder =
        listing.find("config.json").and_then(|file| file.path.as_ref()?.parent().map(Path::to_owned));
    let expected = |name: &str, target: Option<&PathBuf>| {
        manifest
            .get(name)
            .cloned()
            .or_else(|| digest::cache_blob(target?))
            .or_else(|| digest::download_record(folder.as_ref()?, name))
    };
    let mut tasks = Vec::new();
    // Index into `shards` of those that are.
    let mut owners = Vec::new();
    let mut digests: Vec<FileDigest> = Vec::new();
    for file in listing.files.iter().filter(|file| file.kind == FileKind::File) {
        let Some(path) = &file.path else { continue };
        let shard = shards.iter().position(|shard| shard.facts.name == file.name);
        let expected = expected(&file.name, Some(path));
        let known = expected.as_ref().is_some_and(|expected| expected.sha256.is_some());
        let hash = options.all_digests || (options.digests && known);
        let tensors = match shard.and_then(|i| shards.get(i)) {
            Some(shard) if options.statistics => shard.tensors.clone(),
            _ => Vec::new(),
        };
        if !hash && tensors.is_empty() {
            if (options.digests || options.all_digests) && expected.is_some() {
                digests.push(file_digest(file, expected, shard.is_some()));
            }
            continue;
        }
        if hash {
            digests.push(file_digest(file, expected, shard.is_some()));
        }
        owners.push(shard);
        tasks.push(Task { name: file.name.clone(), path: path.clone(), bytes: file.bytes, tensors, hash });
    }
    let hashing = options.digests || options.all_digests;
    let started = Instant::now();
    let mut notes = Vec::new();
    let outcomes = pass::run(&tasks, options.state.as_deref(), progress, &mut notes);
    let seconds = started.elapsed().as_secs_f64();
    for note in notes {
        evidence.note(note);
    }
    for (task, outcome) in tasks.iter().zip(&outcomes) {
        if let Some(error) = &outcome.error {
            evidence.note(format!("{}: {error}", task.name));
        }
    }
    if hashing {
        evidence.digests = Some(digest_facts(digests, &tasks, &outcomes, manifest, listing, seconds));
    }
    if options.statistics {
        let statistics = statistics(shards, &tasks, &owners, &outcomes, seconds, evidence);
        evidence.statistics = statistics;
    }
}

fn file_digest(file: &listing::Listed, expected: Option<Expected>, weights: bool) -> FileDigest {
    let (sha256, bytes, source) = match expected {
        Some(expected) => (expected.sha256, expected.bytes, Some(expected.source)),
        None => (None, None, None),
    };
    FileDigest {
        name: file.name.clone(),
        bytes: file.bytes,
        sha256: None,
        expected: sha256,
        expected_bytes: bytes,
        source,
        weights,
    }
}

fn digest_facts(
    digests: Vec<FileDigest>,
    tasks: &[Task],
    outcomes: &[Outcome],
    manifest: &BTreeMap<String, Expected>,
    listing: &Listing,
    seconds: f64,
) -> DigestFacts {
    let mut facts = DigestFacts { seconds, ..DigestFacts::default() };
    let found: BTreeMap<&str, &Outcome> = tasks
        .iter()
        .zip(outcomes)
        .filter(|(task, _)| task.hash)
        .map(|(task, outcome)| (task.name.as_str(), outcome))
        .collect();
    for mut digest in digests {
        if let Some(outcome) = found.get(digest.name.as_str()) {
            digest.sha256 = outcome.sha256.clone();
            facts.bytes += if outcome.sha256.is_some() { digest.bytes } else { 0 };
        }
        if let Some(source) = &digest.source
            && !facts.sources.contains(source)
            && facts.sources.len() < 16
        {
            facts.sources.push(source.clone());
        }
        facts.files.push(MAX_FILES, digest);
    }
    for name in manifest.keys().filter(|name| listing.find(name).is_none()) {
        facts.absent.push(64, shortened(name, 200));
    }
    facts
}

fn statistics(
    shards: &[Shard],
    tasks: &[Task],
    owners: &[Option<usize>],
    outcomes: &[Outcome],
    seconds: f64,
    evidence: &CheckpointEvidence,
) -> Option<crate::statistics::Statistics> {
    let mut read = Vec::new();
    let mut unread = crate::evidence::Capped::default();
    let mut bytes = 0;
    for ((task, owner), outcome) in tasks.iter().zip(owners).zip(outcomes) {
        let Some(shard) = owner.and_then(|i| shards.get(i)).filter(|_| !task.tensors.is_empty()) else {
            continue;
        };
        bytes += outcome.bytes;
        for (i, entry) in shard.tensors.iter().enumerate() {
            match outcome.moments.get(i) {
                Some(Some(moments)) => read.push(Read { entry, shard: &shard.facts.name, moments }),
                _ => {
                    let why = outcome
                        .error
                        .as_deref()
                        .unwrap_or("its bytes are not all in the file, or overlap others");
                    unread
                        .push(64, format!("{} in {}: {why}", shortened(&entry.name, 200), shard.facts.name));
                }
            }
        }
    }
    if read.is_empty() && unread.is_empty() {
        return None;
    }
    let static_scales = evidence.quantization.as_ref().and_then(|q| q.static_input_scales) == Some(true);
    let mut statistics = summarize(&read, static_scales);
    (statistics.bytes, statistics.seconds, statistics.unread) = (bytes, seconds, unread);
    Some(statistics)
}
