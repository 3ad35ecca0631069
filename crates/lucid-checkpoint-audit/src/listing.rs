//! The files of a checkpoint: which shards there are, which are promised, what lies beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lucid_root::Root;

use crate::evidence::{CheckpointEvidence, Container, FileFacts, FileKind};
use crate::header::read_small;

/// The most files that are listed.
pub(crate) const MAX_FILES: usize = 4096;

/// A file of the folder, resolved.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// Links followed, below the root; `None` when they lead nowhere.
    pub(crate) path: Option<PathBuf>,
    pub(crate) bytes: u64,
    pub(crate) kind: FileKind,
}

impl Listed {
    pub(crate) fn is_shard(&self) -> bool {
        self.kind != FileKind::Incomplete
            && (self.name.ends_with(".safetensors") || self.name.ends_with(".gguf"))
    }
}

/// What was pointed at, found.
#[derive(Debug)]
pub(crate) struct Listing {
    /// As the processes below the root see it.
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<Listed>,
    pub(crate) container: Container,
}

impl Listing {
    pub(crate) fn find(&self, name: &str) -> Option<&Listed> {
        self.files.iter().find(|file| file.name == name)
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Listed> {
        let ending = if self.container == Container::Gguf { ".gguf" } else { ".safetensors" };
        self.files.iter().filter(move |file| file.is_shard() && file.name.ends_with(ending))
    }
}

/// Lists the folder that `path` is, or the model that the file `path` belongs to.
pub(crate) fn list(root: &Path, path: &Path, evidence: &mut CheckpointEvidence) -> std::io::Result<Listing> {
    let snapshot = hub_snapshot(root, path);
    if let Some(snapshot) = &snapshot {
        evidence.note(format!(
            "{} is a folder of the Hugging Face cache; looked at {}",
            path.display(),
            snapshot.display()
        ));
    }
    let path = snapshot.as_deref().unwrap_or(path);
    let place = Root::new(root).resolve(path)?;
    let metadata = std::fs::metadata(&place)?;
    let (folder, only) = if metadata.is_dir() {
        (path.to_owned(), None)
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (path.parent().unwrap_or(Path::new("/")).to_owned(), Some(name))
    };
    let physical = Root::new(root).resolve(&folder)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&physical)? {
        match entry {
            Ok(entry) => names.push(entry.file_name()),
            Err(error) => evidence.note(format!("{}: {error}", physical.display())),
        }
    }
    names.sort_unstable();
    let mut files = Vec::new();
    for raw in &names {
        let name = raw.to_string_lossy().into_owned();
        if raw.to_str().is_none() {
            evidence.note(format!("a file name is not UTF-8: {name}"));
        }
        if let Some(only) = &only
            && !same_model(only, &name)
        {
            continue;
        }
        let listed = look(root, &folder.join(raw), name);
        if files.len() == MAX_FILES && listed.is_shard() {
            evidence
                .note(format!("more than {MAX_FILES} files; {} and later ones were left out", listed.name));
        }
        evidence
            .files
            .push(MAX_FILES, FileFacts { name: listed.name.clone(), bytes: listed.bytes, kind: listed.kind });
        if files.len() < MAX_FILES {
            files.push(listed);
        }
    }
    let container = container(&files, only.as_deref());
    let listing = Listing { folder, files, container };
    sets(&listing, only.as_deref(), evidence);
    Ok(listing)
}

/// Of `models--OWNER--NAME` in the Hugging Face cache, the snapshot that `refs/main` names, or the only one.
fn hub_snapshot(root: &Path, path: &Path) -> Option<PathBuf> {
    let snapshots = path.join("snapshots");
    let folder = Root::new(root).resolve(&snapshots).ok()?;
    let mut revisions = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let reference = Root::new(root).resolve(&path.join("refs/main")).ok()?;
    if let Ok(Some(revision)) = read_small(&reference, 200) {
        let revision = String::from_utf8_lossy(&revision).trim().to_owned();
        if !revision.is_empty() && !revision.contains(['/', '\\']) && revision != ".." {
            return Some(snapshots.join(revision));
        }
    }
    revisions.next().filter(|_| revisions.next().is_none()).map(|only| snapshots.join(only))
}

fn look(root: &Path, path: &Path, name: String) -> Listed {
    let broken = |name| Listed { name, path: None, bytes: 0, kind: FileKind::BrokenLink };
    let Ok(place) = Root::new(root).resolve(path) else { return broken(name) };
    let Ok(metadata) = std::fs::metadata(&place) else { return broken(name) };
    let unfinished = [".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".tmp", ".lock"];
    let kind = if metadata.is_dir() {
        FileKind::Folder
    } else if !metadata.is_file() {
        FileKind::Other
    } else if unfinished.iter().any(|ending| name.ends_with(ending)) {
        FileKind::Incomplete
    } else {
        FileKind::File
    };
    Listed { name, path: Some(place), bytes: if metadata.is_file() { metadata.len() } else { 0 }, kind }
}

fn container(files: &[Listed], only: Option<&str>) -> Container {
    let has = |ending: &str| files.iter().any(|file| file.is_shard() && file.name.ends_with(ending));
    if only.is_some_and(|name| name.ends_with(".gguf")) {
        return Container::Gguf;
    }
    let config = files.iter().any(|file| file.name == "config.json");
    match (has(".safetensors"), has(".gguf")) {
        (true, _) => Container::Safetensors,
        // Converters are often run beside the model they convert.
        (false, true) if !config || files.iter().all(|file| !file.name.ends_with(".index.json")) => {
            Container::Gguf
        }
        (false, true) => Container::Safetensors,
        (false, false) if config => Container::Safetensors,
        (false, false) => Container::None,
    }
}

/// `NAME-00002-of-00005.safetensors`: everything before the number, the number, the count, the ending, and the widths.
struct Numbered<'a> {
    base: &'a str,
    number: u32,
    count: u32,
    ending: &'a str,
    widths: (usize, usize),
}

fn numbered(name: &str) -> Option<Numbered<'_>> {
    let (rest, ending) = name.rsplit_once('.')?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        ((1..=6).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse().ok())
            .flatten()
    };
    let widths = (number.len(), count.len());
    Some(Numbered { base, number: digits(number)?, count: digits(count)?, ending, widths })
}

fn same_model(only: &str, name: &str) -> bool {
    match (numbered(only), numbered(name)) {
        (Some(a), Some(b)) => (a.base, a.count, a.ending) == (b.base, b.count, b.ending),
        // A safetensors file stands for its folder.
        _ => name == only || only.ends_with(".safetensors"),
    }
}

/// What the names of a set share: base, count, ending, widths of the numbers.
type Set = (String, u32, String, (usize, usize));

/// Which shards the names promise.
fn sets(listing: &Listing, only: Option<&str>, evidence: &mut CheckpointEvidence) {
    let mut sets: BTreeMap<Set, BTreeSet<u32>> = BTreeMap::new();
    for shard in listing.shards() {
        if let Some(n) = numbered(&shard.name).filter(|n| n.count > 0) {
            let key = (n.base.to_owned(), n.count, n.ending.to_owned(), n.widths);
            sets.entry(key).or_default().insert(n.number);
        }
    }
    evidence.shard_sets = sets.keys().map(|(_, count, ..)| *count).take(64).collect();
    let lacking = |count: u32, present: &BTreeSet<u32>| (1..=count).filter(|n| !present.contains(n)).count();
    // Beside a whole set, others are left-overs.
    let whole = sets.iter().any(|((_, count, ..), present)| lacking(*count, present) == 0);
    let fullest = sets.iter().max_by_key(|(_, present)| present.len());
    if let (false, Some(((base, count, ending, widths), present))) = (whole, fullest) {
        for number in (1..=*count).filter(|n| !present.contains(n)) {
            let name = format!("{base}-{number:0a$}-of-{count:0b$}.{ending}", a = widths.0, b = widths.1);
            evidence.missing_shards.push(64, name);
        }
    }
    if let Some(only) = only
        && numbered(only).is_some_and(|n| n.number != 1 && n.ending == "gguf")
    {
        evidence.pointed_at_part = Some(only.to_owned());
    }
}
