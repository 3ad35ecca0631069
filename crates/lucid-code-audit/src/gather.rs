//! Reads an environment's code: every Python file is parsed once, in parallel, and nothing of it is imported or run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use lucid_findings::Step;
use lucid_root::Root;
use ruff_python_ast::PySourceType;

use crate::evidence::{CodeEvidence, Distribution, FACTS, Notes, PATCHES};
use crate::imports::module_name;
use crate::judge::{Judged, judge};
use crate::knowledge::PATHS;
use crate::model_map::{ModelFile, ModelMap, is_model_file};
use crate::scan::{Scanner, Subject};
use crate::walk::{Found, python_files};
use crate::{leftovers, prefilter, source};

/// Stacks of the parse threads: `source::check_nesting` lets expressions through that need more than a thread's usual 2 MiB.
const STACK: usize = 64 << 20;
/// Files between two reports of progress.
const STEP: usize = 1_024;

/// Why nothing was gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// None of the folders could be read.
    #[error(
        "no site-packages folder could be read among {0}: name one with --env, or the root that it lies in"
    )]
    NoSitePackages(String),
    /// The system gave no threads.
    #[error("threads for parsing could not be started: {0}")]
    Threads(String),
}

/// What one file gave.
#[derive(Default)]
struct Outcome {
    site: usize,
    parsed: bool,
    ruled_out: bool,
    bytes: u64,
    judged: Judged,
    model: Option<ModelFile>,
    notes: Notes,
}

/// How the code is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Leave out of parsing what cannot hold a finding. Only a test wants it otherwise.
    pub prefilter: bool,
    /// Threads that read.
    pub threads: usize,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        let threads = std::thread::available_parallelism().map_or(1, Into::into);
        ReadOptions { prefilter: true, threads }
    }
}

/// Reads the code under the site-packages folders. `root` is the patient's file tree (`/`, `/proc/PID/root`, an unpacked image),
/// the folders are paths as the patient sees them, or here and under the root.
///
/// # Errors
/// If none of the folders can be read, or no threads can be started; everything else becomes a note.
pub fn gather(
    root: &Path,
    site_packages: &[PathBuf],
    progress: &mut dyn FnMut(Step),
) -> Result<CodeEvidence, GatherError> {
    gather_with(root, site_packages, ReadOptions::default(), progress)
}

/// As [`gather`], in a way of one's own.
///
/// # Errors
/// As [`gather`].
pub fn gather_with(
    root: &Path,
    site_packages: &[PathBuf],
    options: ReadOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<CodeEvidence, GatherError> {
    let started = Instant::now();
    let root = Root::new(root);
    let mut evidence = CodeEvidence::default();
    let mut found: Vec<(usize, Found)> = Vec::new();
    for folder in site_packages {
        let patient = root.inside(folder);
        if !root.resolve(&patient).is_ok_and(|here| here.is_dir()) {
            evidence.notes.add(&patient.to_string_lossy(), "no folder that could be read".to_owned());
            continue;
        }
        let site = evidence.site_packages.len();
        evidence.site_packages.push(patient.to_string_lossy().into_owned());
        found.extend(python_files(&root, &patient, &mut evidence.notes).into_iter().map(|file| (site, file)));
        distributions(&root, &patient, &mut evidence.distributions);
    }
    if evidence.site_packages.is_empty() {
        let names =
            site_packages.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(GatherError::NoSitePackages(names));
    }
    let of = found.len() as u64;
    evidence.files = of;
    let mut models = Vec::new();
    let mut ordinary: BTreeMap<String, u64> = BTreeMap::new();
    for mut read in read_all(&found, options, progress)? {
        evidence.parsed += u64::from(read.parsed);
        evidence.ruled_out += u64::from(read.ruled_out);
        evidence.bytes += read.bytes;
        for fact in &mut read.judged.facts {
            fact.site = read.site;
        }
        for patch in &mut read.judged.patches {
            patch.site = read.site;
        }
        evidence.facts.append(&mut read.judged.facts);
        evidence.patches.append(&mut read.judged.patches);
        for (effect, count) in read.judged.ordinary {
            *ordinary.entry(effect.name().to_owned()).or_default() += count;
        }
        models.extend(read.model);
        evidence.notes.extend(read.notes);
    }
    progress(Step { done: of, of, unit: "files", text: "reading the code".to_owned() });
    for (_, file) in &found {
        if let Some(engine) = PATHS.engine(&file.relative) {
            *evidence.engine_files.entry(engine.name.clone()).or_default() += 1;
        }
    }
    evidence.ordinary = ordinary;
    evidence.models = ModelMap::build(models);
    evidence
        .facts
        .sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| (&a.file, a.line).cmp(&(&b.file, b.line))));
    evidence.facts_left_out = evidence.facts.len().saturating_sub(FACTS) as u64;
    evidence.facts.truncate(FACTS);
    evidence.patches_left_out = evidence.patches.len().saturating_sub(PATCHES) as u64;
    evidence.patches.truncate(PATCHES);
    // Only what could be a leftover is looked for: a tool's cache folder is full of files that nobody forgot.
    let globs: BTreeSet<String> = evidence
        .facts
        .iter()
        .filter(|fact| fact.score >= crate::knowledge::MARKS.warning)
        .filter_map(|fact| fact.glob.clone())
        .collect();
    let globs: Vec<String> = globs.into_iter().collect();
    evidence.leftovers = leftovers::matching(&root, &globs, &mut evidence.notes);
    evidence.dumps = leftovers::dumps(&root, &mut evidence.notes);
    evidence.seconds = started.elapsed().as_secs_f64();
    Ok(evidence)
}

/// Reads all files, the largest first, so that no thread is left with a long one at the end. Outcomes stand in the order of the files.
fn read_all(
    found: &[(usize, Found)],
    options: ReadOptions,
    progress: &mut dyn FnMut(Step),
) -> Result<Vec<Outcome>, GatherError> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(found[at].1.bytes));
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<Outcome> = Vec::new();
    outcomes.resize_with(found.len(), Outcome::default);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..options.threads.clamp(1, found.len().max(1)) {
            let (sender, order, next) = (sender.clone(), &order, &next);
            let work = move || {
                let mut room = Vec::new();
                while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (site, file) = &found[at];
                    if sender.send((at, read_guarded(*site, file, options.prefilter, &mut room))).is_err() {
                        break;
                    }
                }
            };
            std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, work)
                .map_err(|error| GatherError::Threads(error.to_string()))?;
        }
        drop(sender);
        for (done, (at, outcome)) in receiver.into_iter().enumerate() {
            if done % STEP == 0 {
                let (done, of) = (done as u64, found.len() as u64);
                progress(Step { done, of, unit: "files", text: "reading the code".to_owned() });
            }
            outcomes[at] = outcome;
        }
        Ok(())
    })?;
    Ok(outcomes)
}

/// One file's trouble is a note, a fault of ours included.
fn read_guarded(site: usize, file: &Found, prefilter: bool, room: &mut Vec<u8>) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| read(site, file, prefilter, room))).unwrap_or_else(|_| {
        let mut failed = Outcome { site, ..Outcome::default() };
        failed.notes.add(&file.relative, "could not be analysed: a fault of this program".to_owned());
        failed
    })
}

fn read(site: usize, file: &Found, prefilter: bool, room: &mut Vec<u8>) -> Outcome {
    let mut read = Outcome { site, bytes: file.bytes, ..Outcome::default() };
    if prefilter && prefilter::ruled_out_by_path(&file.relative) {
        read.ruled_out = true;
        return read;
    }
    let source = match source::read(&file.here, std::mem::take(room)) {
        Ok(source) => source,
        Err(error) => {
            read.notes.add(&file.relative, error.to_string());
            return read;
        }
    };
    examine(file, &source, prefilter, &mut read);
    *room = source.text.into_bytes();
    read
}

fn examine(file: &Found, source: &source::Source, prefilter: bool, read: &mut Outcome) {
    if let Some(note) = &source.note {
        read.notes.add(&file.relative, note.clone());
    }
    if prefilter && prefilter::ruled_out_by_text(&file.relative, source) {
        read.ruled_out = true;
        return;
    }
    let text = source.text.as_str();
    let parsed = ruff_python_parser::parse_unchecked_source(text, PySourceType::Python);
    if let Some(error) = parsed.errors().first() {
        let (line, _) = crate::judge::line_of(text, ruff_text_size::Ranged::range(error).start().to_u32());
        read.notes.add(
            &file.relative,
            format!("syntax error in line {line}: {}; read as far as it could be", error.error),
        );
    }
    read.parsed = true;
    let body = &parsed.syntax().body;
    let module = module_name(&file.relative);
    let area = PATHS.area(&file.relative);
    let scanner = || Scanner::new(Subject { relative: &file.relative, module: &module, text, area });
    // Outside of engines few files change others: a first look finds out which, before conditions are put in words.
    if prefilter && area.is_none() {
        let mut first = scanner();
        first.guarding = false;
        first.module(body);
        if first.patches.is_empty() {
            return;
        }
    }
    let mut scanner = scanner();
    scanner.module(body);
    read.judged = judge(scanner);
    if is_model_file(&file.relative) {
        read.model = Some(ModelFile::read(&file.relative, body));
    }
}

/// The installed distributions by the folders that they own.
fn distributions(root: &Root, site_packages: &Path, found: &mut BTreeMap<String, Distribution>) {
    let Ok(here) = root.resolve(site_packages) else { return };
    let Ok(entries) = std::fs::read_dir(here) else { return };
    for entry in entries.flatten() {
        let folder = entry.file_name();
        let folder = folder.to_string_lossy();
        let Some((name, version)) = folder.strip_suffix(".dist-info").and_then(|stem| stem.split_once('-'))
        else {
            continue;
        };
        let start_of = |file: &str| {
            let path = root.resolve(&site_packages.join(&*folder).join(file)).ok()?;
            if !path.is_file() {
                return None;
            }
            let mut text = Vec::new();
            std::fs::File::open(path).ok()?.take(1 << 16).read_to_end(&mut text).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        };
        let installer = start_of("INSTALLER").map(|text| text.trim().chars().take(40).collect());
        let distribution = Distribution { name: name.to_owned(), version: version.to_owned(), installer };
        let mut tops: BTreeSet<String> = BTreeSet::from([name.replace('-', "_")]);
        for line in start_of("RECORD").unwrap_or_default().lines() {
            if let Some((top, rest)) = line.split_once('/')
                && rest.split(',').next().is_some_and(|path| path.ends_with(".py"))
                && !top.contains('.')
            {
                tops.insert(top.to_owned());
            }
        }
        for top in tops {
            found.entry(top).or_insert_with(|| distribution.clone());
        }
    }
}
