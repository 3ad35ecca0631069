//! A running process and all its descendants, from `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use lucid_findings::{EngineKind, Step, redact};
use regex::Regex;

use super::{Mount, Patient, PatientError, ProcessFacts, Source, packages, shell};

/// More bytes than this of one `/proc` file are not read.
const MOST_BYTES: u64 = 8 << 20;
/// More processes than this belong to no deployment.
const MOST_PROCESSES: usize = 512;
/// More servers than this don't fit on one machine.
const MOST_NEIGHBOURS: usize = 64;
/// More lines than this of one kind are cut.
const MOST_LINES: usize = 400;

/// `TP3` of `VLLM::Worker_TP3`, `sglang::scheduler_TP3`.
static TENSOR_RANK: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)(?:^|[^a-z])TP(\d+)"));
/// Libraries whose exact file matters: collectives, the driver's own library, CUDA's runtime, anything from a compat folder.
static LIBRARIES: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"/(?:libnccl\.so|libcuda\.so|libcudart[-.]|libnvshmem|libtorch_cuda\.so|libmooncake|libnixl)[^/]*$|/compat/",
    )
});

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The deployment that process `pid` belongs to: if it is a rank or engine core, the serving command is its ancestor's.
/// `proc` is where `/proc` is seen.
///
/// # Errors
/// If the process doesn't exist or its command line may not be read.
pub fn from_process(proc: &Path, pid: u32, progress: &mut dyn FnMut(Step)) -> Result<Patient, PatientError> {
    let table = process_table(proc);
    let asked = proc.join(pid.to_string());
    let unreadable = |path: PathBuf| move |source| PatientError::Unreadable { path: path.clone(), source };
    fs::metadata(&asked).map_err(unreadable(asked.clone()))?;
    // A rank's own command line is a title (`VLLM::Worker_TP0`) or a spawn helper: climb to who was told to serve.
    let serving = climb(proc, &table, pid);
    let base = proc.join(serving.to_string());
    let path = base.join("cmdline");
    let raw = read(&path).map_err(unreadable(path))?;
    let words = null_separated(&raw);

    let mut patient = Patient::new(Source::Process(serving));
    let variables = match read(&base.join("environ")) {
        Ok(raw) => null_separated(&raw)
            .iter()
            .filter_map(|word| super::environment::assignment(word))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        Err(error) => {
            patient.notes.push(format!(
                "{}/environ: {error}: the environment is unknown; run as root",
                base.display()
            ));
            Vec::new()
        }
    };
    let command = shell::from_words(&words);
    patient.serve(command, variables);
    patient.root = Some(base.join("root"));
    patient.working_directory = link(&base.join("cwd"));

    let family = descendants(&table, serving);
    let uptime = uptime(proc);
    for (done, &member) in family.iter().enumerate() {
        progress(Step {
            done: done as u64,
            of: family.len() as u64,
            unit: "processes",
            text: format!("reading process {member}"),
        });
        match process_facts(proc, member, table.get(&member).copied().unwrap_or(0), uptime) {
            Some(facts) => patient.processes.push(facts),
            None => patient.notes.push(format!("process {member} ended while it was read")),
        }
        read_maps(&proc.join(member.to_string()), &mut patient);
    }
    if family.len() == MOST_PROCESSES {
        patient.notes.push(format!("only the first {MOST_PROCESSES} descendants were read"));
    }
    // A wrapper above the server (`timeout`, a shell) has its words, and is no other server.
    let own: Vec<u32> = family.iter().copied().chain(ancestors(&table, serving)).collect();
    patient.neighbours = neighbours(proc, &table, &own, uptime);
    patient.python = interpreter(proc, &family);
    read_mounts(&base, &mut patient);
    packages::add_folders(&mut patient);
    Ok(patient)
}

/// The servers of known engines among all processes, and engines' helpers whose server is gone: where to point when nobody
/// said a process id.
#[must_use]
pub fn serving_processes(proc: &Path) -> Vec<ProcessFacts> {
    neighbours(proc, &process_table(proc), &[], uptime(proc))
}

/// Servers and orphaned helpers outside of `family`.
fn neighbours(
    proc: &Path,
    table: &BTreeMap<u32, u32>,
    family: &[u32],
    uptime: Option<f64>,
) -> Vec<ProcessFacts> {
    let words = |pid: u32| read(&proc.join(pid.to_string()).join("cmdline")).map(|raw| null_separated(&raw));
    // Whoever reads or edits a text about a server serves nothing.
    let reads = |words: &[String]| {
        let program = words.first().map(|word| shell::base_name(word)).unwrap_or_default();
        matches!(
            program,
            "vi" | "vim"
                | "nvim"
                | "nano"
                | "emacs"
                | "less"
                | "more"
                | "cat"
                | "tail"
                | "grep"
                | "rg"
                | "man"
                | "pgrep"
        )
    };
    let serves =
        |pid: u32| words(pid).is_ok_and(|words| !reads(&words) && shell::from_words(&words).engine.is_some());
    let orphan = |pid: u32, parent: u32| {
        let titled =
            words(pid).is_ok_and(|words| words.first().is_some_and(|word| titled_engine(word).is_some()));
        // In a container the server itself may be process 1.
        titled && (parent == 1 || !table.contains_key(&parent)) && !serves(parent)
    };
    table
        .iter()
        .filter(|&(pid, _)| !family.contains(pid))
        // A shell that wraps a server serves by its words, too: of the two, the upper one is told.
        .filter(|&(&pid, &parent)| (serves(pid) && !serves(parent)) || orphan(pid, parent))
        .filter_map(|(&pid, &parent)| process_facts(proc, pid, parent, uptime))
        .take(MOST_NEIGHBOURS)
        .collect()
}

/// Every process and its parent.
pub(crate) fn process_table(proc: &Path) -> BTreeMap<u32, u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = read(&entry.path().join("stat")).ok()?;
            let stat = String::from_utf8_lossy(&stat).into_owned();
            // The name stands in parentheses and may hold anything, parentheses too.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}

/// The nearest process upwards, itself included, whose command line serves.
fn climb(proc: &Path, table: &BTreeMap<u32, u32>, pid: u32) -> u32 {
    let mut at = pid;
    let mut seen = BTreeSet::new();
    while at > 0 && seen.insert(at) {
        let words = read(&proc.join(at.to_string()).join("cmdline")).map(|raw| null_separated(&raw));
        if words.is_ok_and(|words| shell::from_words(&words).engine.is_some()) {
            return at;
        }
        at = table.get(&at).copied().unwrap_or(0);
    }
    pid
}

/// Everything above a process.
fn ancestors(table: &BTreeMap<u32, u32>, pid: u32) -> Vec<u32> {
    let mut above = Vec::new();
    let mut at = table.get(&pid).copied().unwrap_or(0);
    while at > 0 && !above.contains(&at) {
        above.push(at);
        at = table.get(&at).copied().unwrap_or(0);
    }
    above
}

/// The process and everything below it, parents first.
fn descendants(table: &BTreeMap<u32, u32>, pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        at += 1;
        for (&child, _) in table.iter().filter(|&(&child, &above)| above == parent && child != parent) {
            if family.len() < MOST_PROCESSES && !family.contains(&child) {
                family.push(child);
            }
        }
    }
    family
}

fn process_facts(proc: &Path, pid: u32, parent: u32, uptime: Option<f64>) -> Option<ProcessFacts> {
    let base = proc.join(pid.to_string());
    let status = String::from_utf8_lossy(&read(&base.join("status")).ok()?).into_owned();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let number = |name: &str| field(name)?.split_whitespace().next()?.parse::<u64>().ok();
    let words = read(&base.join("cmdline")).map(|raw| null_separated(&raw)).unwrap_or_default();
    // setproctitle overwrites the command line with one word; else the kernel's short name says more.
    let title = match words.as_slice() {
        [only] => only.clone(),
        _ => field("Name").unwrap_or_default(),
    };
    let title: String = redact(&title).chars().take(120).collect();
    let stat = String::from_utf8_lossy(&read(&base.join("stat")).ok()?).into_owned();
    // Field 22 of stat(5), in clock ticks of 1/100 s on every Linux that serves models; 20th behind the name.
    let started =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse::<f64>().ok());
    Some(ProcessFacts {
        pid,
        parent,
        tensor_rank: TENSOR_RANK.captures(&title).and_then(|found| found[1].parse().ok()),
        title,
        state: field("State").and_then(|state| state.chars().next()).map(String::from).unwrap_or_default(),
        resident_bytes: number("VmRSS").unwrap_or(0) * 1024,
        threads: number("Threads").and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        uptime_s: uptime.zip(started).map(|(now, ticks)| (now - ticks / 100.0).max(0.0)),
    })
}

fn uptime(proc: &Path) -> Option<f64> {
    String::from_utf8_lossy(&read(&proc.join("uptime")).ok()?).split_whitespace().next()?.parse().ok()
}

/// What a process maps: package folders, libraries that matter, files that are gone.
fn read_maps(base: &Path, patient: &mut Patient) {
    let maps = match read(&base.join("maps")) {
        Ok(maps) => String::from_utf8_lossy(&maps).into_owned(),
        Err(error) => {
            if patient.notes.len() < MOST_LINES {
                patient.notes.push(format!("{}/maps: {error}: mapped packages are unknown", base.display()));
            }
            return;
        }
    };
    let mut seen = BTreeSet::new();
    for line in maps.lines() {
        // Address, permissions, offset, device, inode, path; the path begins at the first slash.
        let Some(path) = line.find('/').map(|at| &line[at..]).filter(|path| seen.insert(*path)) else {
            continue;
        };
        let (path, replaced) = path.strip_suffix(" (deleted)").map_or((path, false), |path| (path, true));
        // Shared memory and temporary files are deleted on purpose.
        let file = path.contains(".so") && !path.starts_with("/dev/") && !path.starts_with("/memfd:");
        if replaced && file && !path.starts_with("/tmp/") {
            add(&mut patient.replaced_libraries, path);
        }
        for folder in ["/site-packages/", "/dist-packages/"] {
            if let Some(at) = path.find(folder) {
                add(&mut patient.site_packages, &path[..at + folder.len() - 1]);
            }
        }
        if LIBRARIES.is_match(path) {
            add(&mut patient.libraries, path);
        }
    }
    let preloaded = patient.deployment.environment.get("LD_PRELOAD").cloned().unwrap_or_default();
    for library in preloaded.split([':', ' ']).filter(|library| !library.is_empty()) {
        add(&mut patient.libraries, library);
    }
}

fn add(list: &mut Vec<String>, text: &str) {
    if list.len() < MOST_LINES && !list.iter().any(|other| other == text) {
        list.push(text.to_owned());
    }
}

/// The interpreter that the family runs, as the patient sees it: by the name that it was started under, since `bin/python` of a
/// virtual environment is a link and `exe` shows where it leads.
fn interpreter(proc: &Path, family: &[u32]) -> Option<String> {
    family.iter().find_map(|pid| {
        let base = proc.join(pid.to_string());
        let exe = link(&base.join("exe"))?;
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
        let python = |path: &str| shell::base_name(path).starts_with("python");
        if !python(&exe) {
            return None;
        }
        let words = read(&base.join("cmdline")).map(|raw| null_separated(&raw)).unwrap_or_default();
        Some(words.into_iter().next().filter(|word| word.starts_with('/') && python(word)).unwrap_or(exe))
    })
}

/// Overlays and binds that the process sees.
fn read_mounts(base: &Path, patient: &mut Patient) {
    let Ok(text) = read(&base.join("mountinfo")) else {
        patient.notes.push(format!("{}/mountinfo: unreadable: mounts are unknown", base.display()));
        return;
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    for line in text.lines() {
        // proc(5): id parent device root target options [tags] - kind source options.
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let mut right = right.split(' ');
        let (Some(inner), Some(target)) = (left.get(3), left.get(4)) else { continue };
        let (kind, source) = (right.next().unwrap_or(""), right.next().unwrap_or(""));
        // The kernel's own file systems say nothing about packages or memory, except shared memory.
        if matches!(
            kind,
            "proc"
                | "sysfs"
                | "devpts"
                | "mqueue"
                | "cgroup"
                | "cgroup2"
                | "devtmpfs"
                | "tracefs"
                | "debugfs"
                | "securityfs"
        ) {
            continue;
        }
        if patient.mounts.len() == MOST_LINES {
            patient.notes.push(format!("only the first {MOST_LINES} mounts were kept"));
            break;
        }
        let bound = *inner != "/" && kind != "overlay";
        let source = if bound { (*inner).to_owned() } else { source.to_owned() };
        let source = redact(&source).into_owned();
        patient.mounts.push(Mount {
            target: unescape(target),
            source: unescape(&source),
            kind: kind.to_owned(),
            size_bytes: None,
        });
    }
}

/// mountinfo writes blanks as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn link(path: &Path) -> Option<String> {
    fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned())
}

fn null_separated(raw: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(raw);
    let text = text.trim_end_matches('\0');
    if text.is_empty() { Vec::new() } else { text.split('\0').map(ToOwned::to_owned).collect() }
}

/// Whether a title is that of an engine's helper process.
pub(crate) fn titled_engine(title: &str) -> Option<EngineKind> {
    let lower = title.to_ascii_lowercase();
    if lower.starts_with("vllm::") {
        Some(EngineKind::Vllm)
    } else if lower.starts_with("sglang::") {
        Some(EngineKind::Sglang)
    } else {
        None
    }
}
