//! Compares what the RECORDs say with what is there.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lucid_findings::Step;
use lucid_root::Root;

use super::cache::HashCache;
use super::hashing::{self, Outcome, Task};
use super::original::Originals;
use super::{
    FILES_KEPT, FileKind, MissingFile, ModifiedFile, RecordIntegrity, RefusedEntry, SharedFiles, unrecorded,
};
use crate::distribution::Distribution;
use crate::gather::IntegrityOptions;
use crate::python::{PythonEnvironment, version_in_path};
use crate::record::{self, RecordedHash};

/// Modified sources whose original is looked for and compared.
const COMPARED: usize = 200;
/// Examples kept of files that two distributions recorded differently.
const EXAMPLES: usize = 20;

/// Who recorded a file, and how.
#[derive(Clone, Debug)]
struct Claim {
    distribution: usize,
    hash: Option<RecordedHash>,
    size: Option<u64>,
}

/// Hashes everything that is recorded.
pub(crate) fn gather(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
    options: &IntegrityOptions,
    notes: &mut Vec<String>,
    progress: &mut dyn FnMut(Step),
) -> RecordIntegrity {
    let begun = Instant::now();
    let mut result = RecordIntegrity::default();
    let claims = read_records(root, python, distributions, &mut result, notes);
    let threads =
        options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    result.threads = threads;
    result.files = claims.len() as u64;

    let mut cache = match options.hash_cache.as_deref().map(HashCache::read) {
        Some(Ok(cache)) => cache,
        Some(Err(error)) => {
            notes.push(format!("hash cache: {error}; hashed anew"));
            HashCache::default()
        }
        None => HashCache::default(),
    };
    let tasks = tasks(root, &claims);
    let recorded: Vec<(&Path, usize)> =
        claims.iter().map(|(path, claims)| (path.as_path(), claims[0].distribution)).collect();
    // Looking through the folders waits for the disk more than for the processor: it runs beside the hashing.
    let (outcomes, beside) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| unrecorded::gather(root, python, distributions, &recorded));
        let outcomes = hashing::run(&tasks, &cache, threads, progress);
        (outcomes, walk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    notes.extend(beside.notes);
    result.unrecorded = beside.files;
    result.unrecorded_left_out = beside.left_out;
    result.orphan_bytecode = beside.orphan_bytecode;
    result.unowned = beside.unowned;

    let mut modified: Vec<(ModifiedFile, PathBuf, RecordedHash, usize)> = Vec::new();
    let mut shared: BTreeMap<(usize, usize), SharedFiles> = BTreeMap::new();
    for ((path, claims), (task, outcome)) in claims.iter().zip(tasks.iter().zip(outcomes)) {
        let owner = claims[0].distribution;
        let name = || name_in_site(python, distributions, owner, path);
        match outcome {
            Outcome::Present => {}
            Outcome::Missing => {
                let path = name();
                let distribution = distributions[owner].name.clone();
                result.missing.push(MissingFile { distribution, kind: FileKind::of(&path), path });
            }
            Outcome::Unreadable(reason) => {
                if result.unreadable.len() < FILES_KEPT {
                    result.unreadable.push(format!("{}: {reason}", path.display()));
                }
            }
            Outcome::Hashed { digest, stamp, size, modified: modified_at, links, cached } => {
                result.hashed += 1;
                result.from_cache += u64::from(cached);
                result.bytes += size;
                let matching: Vec<bool> = claims
                    .iter()
                    .map(|c| c.hash.as_ref().is_some_and(|hash| hash.digest == digest))
                    .collect();
                count_shared(&mut shared, distributions, claims, &matching, &name);
                // A row without a hash is what an installer adds for a file that it made itself, beside the wheel's own row: pip
                // compiles bytecode anew, and Python rewrites what lies in __pycache__ whenever it likes.
                let remade = || {
                    claims.iter().any(|claim| claim.hash.is_none())
                        || path.to_string_lossy().contains("__pycache__/")
                };
                if matching.contains(&true) {
                    // As it was published.
                } else if remade() {
                    result.remade += 1;
                } else if let Some(claim) = claims.iter().find(|claim| claim.hash.is_some())
                    && let Some(hash) = &claim.hash
                {
                    let path = name();
                    let file = ModifiedFile {
                        distribution: distributions[claim.distribution].name.clone(),
                        kind: FileKind::of(&path),
                        path,
                        size,
                        recorded_size: claim.size,
                        modified_at,
                        links,
                        syntax_error: None,
                        changes: None,
                        no_original: None,
                    };
                    modified.push((file, task.host.clone(), hash.clone(), claim.distribution));
                }
                if options.hash_cache.is_some()
                    && let Some(algorithm) = task.algorithm
                {
                    cache.put(task.name.clone(), stamp, algorithm, digest);
                }
            }
        }
    }
    if let Some(file) = &options.hash_cache
        && let Err(error) = cache.write(file)
    {
        notes.push(format!("{}: hash cache not written: {error}", file.display()));
    }

    result.shared = shared.into_values().filter(|pair| pair.files > 0).collect();

    modified.sort_by(|(a, ..), (b, ..)| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    let mut originals = Originals::new(root, python, options, notes);
    let compared = modified.len().min(COMPARED);
    for (done, (file, host, hash, owner)) in modified.iter_mut().take(COMPARED).enumerate() {
        if matches!(file.kind, FileKind::Python | FileKind::KernelSource | FileKind::Script) {
            let text = format!("look for the original of {}", file.path);
            progress(Step { done: done as u64, of: compared as u64, unit: "modified files", text });
            originals.explain(file, host, hash, &distributions[*owner], &result.unrecorded);
        }
    }
    result.modified = modified.into_iter().map(|(file, ..)| file).collect();
    result.modified_left_out = cut(&mut result.modified);
    result.missing.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    result.missing_left_out = cut(&mut result.missing);
    // Milliseconds: more digits say nothing, and not every reader of JSON gives them back.
    result.seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3;
    result
}

/// Cuts a list to what is kept; tells how many were left out.
pub(super) fn cut<T>(list: &mut Vec<T>) -> usize {
    let left_out = list.len().saturating_sub(FILES_KEPT);
    list.truncate(FILES_KEPT);
    left_out
}

/// A path as findings say it: below its site folder where it lies there.
pub(super) fn name_in_site(
    python: &PythonEnvironment,
    distributions: &[Distribution],
    owner: usize,
    path: &Path,
) -> String {
    let site = Path::new(&python.site_directories[distributions[owner].site].path);
    path.strip_prefix(site).unwrap_or(path).to_string_lossy().into_owned()
}

fn read_records(
    root: &Root,
    python: &PythonEnvironment,
    distributions: &[Distribution],
    result: &mut RecordIntegrity,
    notes: &mut Vec<String>,
) -> Vec<(PathBuf, Vec<Claim>)> {
    let mut rows: Vec<(PathBuf, Claim)> = Vec::new();
    for (at, distribution) in distributions.iter().enumerate() {
        if !distribution.has_record {
            result.unchecked.push(format!("{} ({})", distribution.label(), why_no_record(distribution)));
            continue;
        }
        let site = Path::new(&python.site_directories[distribution.site].path);
        let file = site.join(&distribution.info).join("RECORD");
        let record = match record::read(root, &file, site, zone(site)) {
            Ok(record) => record,
            Err(error) => {
                notes.push(format!("{}: {error}", file.display()));
                continue;
            }
        };
        if record.cut {
            notes.push(format!("{}: longer than 128 MiB; the rest was not read", file.display()));
        }
        result.distributions += 1;
        result.malformed_rows += record.malformed;
        result.entries += (record.rows.len() + record.refused.len()) as u64;
        for (path, reason) in record.refused {
            if result.refused.len() < FILES_KEPT {
                result.refused.push(RefusedEntry {
                    distribution: distribution.name.clone(),
                    path: path.chars().take(500).collect(),
                    reason: reason.to_owned(),
                });
            } else {
                result.refused_left_out += 1;
            }
        }
        let hashed = record.rows.iter().filter(|row| row.hash.is_some()).count();
        result.without_hash += (record.rows.len() - hashed) as u64;
        if hashed == 0 && record.rows.len() > 1 {
            result.unchecked.push(format!("{} (its RECORD carries no hashes)", distribution.label()));
        }
        for row in record.rows {
            rows.push((row.path, Claim { distribution: at, hash: row.hash, size: row.size }));
        }
    }
    // By bytes, since paths are told apart by bytes here: comparing 70,000 of them part by part takes a tenth of the hashing.
    rows.sort_by(|(a, _), (b, _)| a.as_os_str().cmp(b.as_os_str()));
    let mut claims: Vec<(PathBuf, Vec<Claim>)> = Vec::new();
    for (path, claim) in rows {
        match claims.last_mut() {
            Some((last, claims)) if last.as_os_str() == path.as_os_str() => claims.push(claim),
            _ => claims.push((path, vec![claim])),
        }
    }
    claims
}

fn why_no_record(distribution: &Distribution) -> &'static str {
    use crate::distribution::MetadataFormat;
    match (distribution.format, distribution.installer.as_deref()) {
        (MetadataFormat::EggLink, _) => "development mode: its sources are not recorded",
        (MetadataFormat::EggInfo, _) => "egg-info has no hashes",
        (MetadataFormat::DistInfo, Some("conda")) => "conda keeps its own list",
        (MetadataFormat::DistInfo, _) => "its RECORD is missing",
    }
}

/// What a RECORD may speak of: everything below the prefix whose `lib/pythonX.Y` its site folder lies in, or the folder alone.
fn zone(site: &Path) -> &Path {
    if version_in_path(site).is_some() || site.ends_with("python3/dist-packages") {
        site.ancestors().nth(3).unwrap_or(site)
    } else {
        site
    }
}

fn tasks(root: &Root, claims: &[(PathBuf, Vec<Claim>)]) -> Vec<Task> {
    let mut folders: HashMap<&Path, Option<PathBuf>> = HashMap::new();
    claims
        .iter()
        .map(|(path, claims)| Task {
            host: on_host(root, path, &mut folders),
            name: path.to_string_lossy().into_owned(),
            size: claims.iter().find_map(|claim| claim.size).unwrap_or(0),
            algorithm: claims.iter().find_map(|claim| claim.hash.as_ref()).map(|hash| hash.algorithm),
        })
        .collect()
}

/// Resolves a folder once, not once for each of its files.
fn on_host<'a>(root: &Root, path: &'a Path, folders: &mut HashMap<&'a Path, Option<PathBuf>>) -> PathBuf {
    if root.is_host() {
        return path.to_owned();
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
    let folder = folders.entry(folder).or_insert_with(|| root.resolve(folder).ok());
    let Some(folder) = folder else { return PathBuf::from("/nonexistent/loop") };
    let file = folder.join(name);
    if file.is_symlink() { root.resolve(path).unwrap_or(file) } else { file }
}

fn count_shared(
    shared: &mut BTreeMap<(usize, usize), SharedFiles>,
    distributions: &[Distribution],
    claims: &[Claim],
    matching: &[bool],
    name: &dyn Fn() -> String,
) {
    let Some(first) = claims.first() else { return };
    for (claim, as_second) in claims.iter().zip(matching).skip(1) {
        let (a, b) = (first.distribution, claim.distribution);
        if a == b {
            // Some build tools list a file twice in one RECORD.
            continue;
        }
        let pair = shared.entry((a, b)).or_insert_with(|| SharedFiles {
            first: distributions[a].label(),
            second: distributions[b].label(),
            files: 0,
            differing: 0,
            examples: Vec::new(),
            as_first: 0,
            as_second: 0,
        });
        pair.files += 1;
        if first.hash.is_some() && claim.hash.is_some() && first.hash != claim.hash {
            pair.differing += 1;
            pair.as_first += u64::from(matching[0]);
            pair.as_second += u64::from(*as_second);
            if pair.examples.len() < EXAMPLES {
                pair.examples.push(name());
            }
        }
    }
}
