//! Hashes many files on all cores, the largest first.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use lucid_findings::Step;
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::cache::{HashCache, Stamp};
use super::lanes::Lanes;
use super::sha256_pair::Unit;
use crate::record::Algorithm;

/// Bytes read at a time: large enough to hide the system call, small enough to stay in the second-level cache.
pub(super) const BLOCK: usize = 128 << 10;

/// A file to look at.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// Where it lies on this machine.
    pub host: PathBuf,
    /// Key in the cache.
    pub name: String,
    /// Bytes to expect.
    pub size: u64,
    /// `None`: only see whether it is there.
    pub algorithm: Option<Algorithm>,
}

/// What was found of it.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Its hash.
    Hashed { digest: Vec<u8>, stamp: Stamp, size: u64, modified: i64, links: u64, cached: bool },
    /// It is there; nothing to compare.
    Present,
    /// It is not.
    Missing,
    /// It is there and cannot be read.
    Unreadable(String),
}

/// Looks at all tasks; outcomes stand in the order of the tasks.
pub(super) fn run(
    tasks: &[Task],
    cache: &HashCache,
    threads: usize,
    progress: &mut dyn FnMut(Step),
) -> Vec<Outcome> {
    // A single file's SHA-256 cannot be split, so a large file that is begun last would leave the other cores idle.
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order
        .sort_by_key(|&at| std::cmp::Reverse(if tasks[at].algorithm.is_some() { tasks[at].size } else { 0 }));
    let of: u64 = tasks.iter().filter(|t| t.algorithm.is_some()).map(|t| t.size).sum();
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<Option<Outcome>> = vec![None; tasks.len()];
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.max(1) {
            let (sender, order, next) = (sender.clone(), &order, &next);
            scope.spawn(move || {
                let mut more = || order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
                // Nobody listens any more if the receiver is gone; then nothing is left to do.
                let mut tell = |at, outcome| sender.send((at, outcome)).is_ok();
                match Unit::detect() {
                    Some(unit) => Lanes::new(unit, tasks, cache).run(&mut more, &mut tell),
                    None => one_by_one(tasks, cache, &mut more, &mut tell),
                }
            });
        }
        drop(sender);
        let (mut done, mut told) = (0, 0);
        for (at, outcome) in receiver {
            if tasks[at].algorithm.is_some() {
                done += tasks[at].size;
            }
            outcomes[at] = Some(outcome);
            // A hundred steps are enough to draw a bar.
            if done - told >= of / 100 || done == of {
                told = done;
                progress(Step { done, of, unit: "bytes", text: "hashing installed files".to_owned() });
            }
        }
    });
    // Every index was handed out exactly once; a worker that died leaves its file unread.
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(|| Outcome::Unreadable("not examined".to_owned())))
        .collect()
}

/// Without SHA instructions of its own, a core hashes one file after the other.
fn one_by_one(
    tasks: &[Task],
    cache: &HashCache,
    more: &mut dyn FnMut() -> Option<usize>,
    tell: &mut dyn FnMut(usize, Outcome) -> bool,
) {
    let mut block = vec![0; BLOCK];
    while let Some(at) = more() {
        let outcome = match begin(&tasks[at], cache) {
            Begun::Settled(outcome) => outcome,
            Begun::ToRead(about, algorithm) => {
                about.hashed(digest(&tasks[at].host, about.size, algorithm, &mut block))
            }
        };
        if !tell(at, outcome) {
            break;
        }
    }
}

/// What is known of a file before it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub size: u64,
    stamp: Stamp,
    modified: i64,
    links: u64,
}

impl About {
    /// The outcome of reading it.
    pub(super) fn hashed(self, digest: io::Result<Vec<u8>>) -> Outcome {
        let About { size, stamp, modified, links } = self;
        match digest {
            Ok(digest) => Outcome::Hashed { digest, stamp, size, modified, links, cached: false },
            Err(error) => Outcome::Unreadable(error.to_string()),
        }
    }
}

/// How far a look at a file's metadata leads.
pub(super) enum Begun {
    /// Nothing has to be read.
    Settled(Outcome),
    /// Its bytes decide.
    ToRead(About, Algorithm),
}

/// Looks at a file's metadata.
pub(super) fn begin(task: &Task, cache: &HashCache) -> Begun {
    use std::os::unix::fs::MetadataExt;
    let metadata = match fs::metadata(&task.host) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Begun::Settled(Outcome::Missing);
        }
        Err(error) => return Begun::Settled(Outcome::Unreadable(error.to_string())),
    };
    let Some(algorithm) = task.algorithm else { return Begun::Settled(Outcome::Present) };
    if !metadata.is_file() {
        return Begun::Settled(Outcome::Unreadable("no regular file".to_owned()));
    }
    let stamp = Stamp::of(&metadata);
    let about = About { size: metadata.len(), stamp, modified: metadata.mtime(), links: metadata.nlink() };
    match cache.get(&task.name, stamp, algorithm) {
        Some(known) => {
            let About { size, stamp, modified, links } = about;
            let digest = known.to_vec();
            Begun::Settled(Outcome::Hashed { digest, stamp, size, modified, links, cached: true })
        }
        None => Begun::ToRead(about, algorithm),
    }
}

pub(super) fn digest(
    path: &Path,
    length: u64,
    algorithm: Algorithm,
    block: &mut [u8],
) -> io::Result<Vec<u8>> {
    match algorithm {
        Algorithm::Sha256 => digest_with::<Sha256>(path, length, block),
        Algorithm::Sha384 => digest_with::<Sha384>(path, length, block),
        Algorithm::Sha512 => digest_with::<Sha512>(path, length, block),
    }
}

/// The hash of a file that was `length` bytes long a moment ago.
fn digest_with<D: Digest>(path: &Path, length: u64, block: &mut [u8]) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut hasher = D::new();
    let mut seen = 0;
    loop {
        match file.read(block) {
            Ok(0) => return Ok(hasher.finalize().to_vec()),
            Ok(read) => {
                hasher.update(&block[..read]);
                seen += read as u64;
                // Most files are short, and asking them for their end costs as much as reading them.
                if seen == length {
                    return Ok(hasher.finalize().to_vec());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The hash of bytes in memory.
pub(crate) fn digest_of(bytes: &[u8], algorithm: Algorithm) -> Vec<u8> {
    match algorithm {
        Algorithm::Sha256 => Sha256::digest(bytes).to_vec(),
        Algorithm::Sha384 => Sha384::digest(bytes).to_vec(),
        Algorithm::Sha512 => Sha512::digest(bytes).to_vec(),
    }
}
