//! The one pass over the bytes: statistics of every tensor and the digest of every file, at the disk's speed.
//!
//! Shards are read side by side, each from its beginning to its end. While one buffer is hashed and counted, the next is
//! read. Memory is bounded by two buffers a thread and the tensors' results.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lucid_findings::Step;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::header::{TensorEntry, read_up_to};
use crate::statistics::{Moments, Partial, Reading};

/// Bytes of a buffer.
const BUFFER: u64 = 8 << 20;

/// Bytes of a piece that one thread counts.
const PIECE: u64 = 1 << 20;

/// The most files that are read side by side.
const MAX_READERS: usize = 16;

/// A file to be read.
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Sorted by place; empty when no statistics are wanted.
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) hash: bool,
}

/// What was read of a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) sha256: Option<String>,
    /// In the order of the task's tensors; `None` for one that could not be read.
    pub(crate) moments: Vec<Option<Moments>>,
    pub(crate) bytes: u64,
    pub(crate) error: Option<String>,
}

/// A file that was read before, unchanged since.
#[derive(Serialize, Deserialize)]
struct Saved {
    key: Key,
    outcome: Outcome,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Key {
    version: u32,
    name: String,
    bytes: u64,
    modified: (i64, i64),
    inode: (u64, u64),
    tensors: u64,
    hash: bool,
}

/// Runs all tasks; the outcomes come in their order. `state` is a file that keeps what is done, so that a second run goes on.
pub(crate) fn run(
    tasks: &[Task],
    state: Option<&Path>,
    progress: &mut dyn FnMut(Step),
    notes: &mut Vec<String>,
) -> Vec<Outcome> {
    let total: u64 = tasks.iter().map(|task| task.bytes).sum();
    let saved = state.map(|path| saved(path, notes)).unwrap_or_default();
    let mut append = None;
    if let Some(path) = state {
        match OpenOptions::new().create(true).append(true).open(path) {
            Ok(file) => append = Some(Mutex::new(file)),
            Err(error) => notes.push(format!("{}: the state can't be kept: {error}", path.display())),
        }
    }
    let read_one = |task: &Task, done: &(dyn Fn(u64) + Sync)| {
        let key = key(task);
        if let Some(outcome) = key.as_ref().and_then(|key| saved.get(key)) {
            done(task.bytes);
            return outcome.clone();
        }
        let outcome = read(task, done);
        if let (Some(file), Some(key), None) = (&append, key, &outcome.error)
            && let Ok(mut line) = serde_json::to_vec(&Saved { key, outcome: outcome.clone() })
            && let Ok(mut file) = file.lock()
        {
            line.push(b'\n');
            // What can't be kept is read again.
            let _ = file.write_all(&line);
        }
        outcome
    };
    // Readers are threads of their own and wait for the pool: a pool thread that waits would begin with another file,
    // and so on, and hold the buffers of all of them.
    let readers = rayon::current_num_threads().min(tasks.len()).min(MAX_READERS);
    let outcomes: Vec<Mutex<Outcome>> = tasks.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel::<u64>();
    let work = |sender: mpsc::Sender<u64>| {
        // The receiver stays until all senders are gone.
        let done = |bytes| {
            let _ = sender.send(bytes);
        };
        while let Some((task, slot)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            tasks.get(i).zip(outcomes.get(i))
        } {
            let outcome = read_one(task, &done);
            if let Ok(mut slot) = slot.lock() {
                *slot = outcome;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..readers {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        let started = Instant::now();
        let mut done = 0;
        let mut shown: Option<Instant> = None;
        while let Ok(bytes) = receiver.recv() {
            done += bytes;
            let often = shown.is_some_and(|shown| shown.elapsed() < Duration::from_millis(100));
            if !often || done >= total {
                shown = Some(Instant::now());
                let text = speed(done, total, started.elapsed());
                progress(Step { done, of: total, unit: "bytes", text });
            }
        }
    });
    outcomes.into_iter().map(|slot| slot.into_inner().unwrap_or_default()).collect()
}

/// `12.3 of 540.0 GB, 1.9 GB/s, 4 min 38 s left`
fn speed(done: u64, total: u64, elapsed: Duration) -> String {
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    let rate = gigabytes(done) / elapsed.as_secs_f64().max(1e-3);
    let left = gigabytes(total.saturating_sub(done)) / rate.max(1e-6);
    let left = match left as u64 {
        seconds if seconds < 60 => format!("{seconds} s"),
        seconds if seconds < 3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    };
    format!(
        "reading weights: {:.1} of {:.1} GB, {rate:.2} GB/s, {left} left",
        gigabytes(done),
        gigabytes(total)
    )
}

fn key(task: &Task) -> Option<Key> {
    let metadata = std::fs::metadata(&task.path).ok()?;
    Some(Key {
        version: 1,
        name: task.name.clone(),
        bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        inode: (metadata.dev(), metadata.ino()),
        tensors: task.tensors.len() as u64,
        hash: task.hash,
    })
}

/// The state file has a line for each file; a line that was cut off by an interruption is no line.
fn saved(path: &Path, notes: &mut Vec<String>) -> HashMap<Key, Outcome> {
    let mut saved = HashMap::new();
    let Ok(file) = File::open(path) else { return saved };
    let mut odd = 0;
    for line in BufReader::new(file).split(b'\n') {
        let Ok(line) = line else { break };
        match serde_json::from_slice::<Saved>(&line) {
            Ok(Saved { key, outcome }) => drop(saved.insert(key, outcome)),
            Err(_) => odd += usize::from(!line.is_empty()),
        }
    }
    if odd > 0 {
        notes.push(format!(
            "{}: {odd} lines of the state were cut off, those files are read again",
            path.display()
        ));
    }
    saved
}

/// A stretch of a file and the pieces of tensors in it.
struct Stretch {
    start: u64,
    end: u64,
    pieces: Vec<Piece>,
}

struct Piece {
    tensor: usize,
    start: u64,
    end: u64,
}

/// Cuts the file into stretches of about a buffer, such that no value is cut. A tensor that overlaps one before it, or
/// ends beyond the file, has no pieces.
fn plan(task: &Task) -> (Vec<Stretch>, Vec<bool>) {
    let mut stretches = Vec::new();
    let mut readable = vec![false; task.tensors.len()];
    let mut current = Stretch { start: 0, end: 0, pieces: Vec::new() };
    let extend = |current: &mut Stretch, stretches: &mut Vec<Stretch>, end: u64| {
        current.end = end;
        if current.end - current.start >= BUFFER {
            let next = Stretch { start: end, end, pieces: Vec::new() };
            stretches.push(std::mem::replace(current, next));
        }
    };
    let mut at = 0;
    // Bytes that belong to no tensor are read only for the digest.
    let gap = |current: &mut Stretch, stretches: &mut Vec<Stretch>, mut at: u64, end: u64| {
        if !task.hash && end - at > PIECE {
            if current.end > current.start {
                stretches.push(std::mem::replace(current, Stretch { start: end, end, pieces: Vec::new() }));
            }
            (current.start, current.end) = (end, end);
            return;
        }
        while at < end {
            at = end.min(at + PIECE);
            extend(current, stretches, at);
        }
    };
    for (i, tensor) in task.tensors.iter().enumerate() {
        let unit = Reading::of(&tensor.name, &tensor.dtype).unit() as u64;
        if tensor.start < at || tensor.end() > task.bytes || !tensor.bytes.is_multiple_of(unit) {
            continue;
        }
        readable[i] = true;
        gap(&mut current, &mut stretches, at, tensor.start);
        at = tensor.start;
        let step = PIECE / unit * unit;
        while at < tensor.end() {
            let end = tensor.end().min(at + step.max(unit));
            current.pieces.push(Piece { tensor: i, start: at, end });
            at = end;
            extend(&mut current, &mut stretches, at);
        }
    }
    if task.hash {
        gap(&mut current, &mut stretches, at, task.bytes);
    }
    if current.end > current.start {
        stretches.push(current);
    }
    (stretches, readable)
}

fn read(task: &Task, done: &(dyn Fn(u64) + Sync)) -> Outcome {
    let mut outcome = Outcome::default();
    let file = match File::open(&task.path) {
        Ok(file) => file,
        Err(error) => {
            done(task.bytes);
            return Outcome { error: Some(error.to_string()), ..outcome };
        }
    };
    let (stretches, readable) = plan(task);
    let counted = AtomicU64::new(0);
    let load = |stretch: Option<&Stretch>, mut buffer: Vec<u8>| -> Result<Vec<u8>, String> {
        let Some(stretch) = stretch else { return Ok(Vec::new()) };
        buffer.resize((stretch.end - stretch.start) as usize, 0);
        match read_up_to(&file, &mut buffer, stretch.start) {
            Ok(got) if got == buffer.len() => {
                counted.fetch_add(got as u64, Ordering::Relaxed);
                done(got as u64);
                Ok(buffer)
            }
            Ok(_) => Err("the file shrank while it was read".to_owned()),
            Err(error) => Err(format!("at byte {}: {error}", stretch.start)),
        }
    };
    let mut digest = task.hash.then(Sha256::new);
    let mut partials: Vec<Partial> = vec![Partial::default(); task.tensors.len()];
    let mut buffer = load(stretches.first(), Vec::new());
    let mut spare = Vec::new();
    for (i, stretch) in stretches.iter().enumerate() {
        let bytes = match buffer {
            Ok(bytes) => bytes,
            Err(error) => {
                outcome.error = Some(error);
                break;
            }
        };
        let count = |piece: &Piece| {
            let tensor = &task.tensors[piece.tensor];
            let range = (piece.start - stretch.start) as usize..(piece.end - stretch.start) as usize;
            Partial::of(Reading::of(&tensor.name, &tensor.dtype), &bytes[range], piece.start - tensor.start)
        };
        let next_buffer = std::mem::take(&mut spare);
        let (next, (counts, ())) = rayon::join(
            || load(stretches.get(i + 1), next_buffer),
            || {
                rayon::join(
                    || {
                        stretch
                            .pieces
                            .par_iter()
                            .with_min_len(1 + stretch.pieces.len() / 64)
                            .map(count)
                            .collect::<Vec<_>>()
                    },
                    || {
                        if let Some(digest) = &mut digest {
                            digest.update(&bytes);
                        }
                    },
                )
            },
        );
        for (piece, partial) in stretch.pieces.iter().zip(counts) {
            partials[piece.tensor].add(partial);
        }
        spare = bytes;
        buffer = next;
    }
    let counted = counted.into_inner();
    // What was skipped is done too, so that the progress ends at its end.
    done(task.bytes.saturating_sub(counted));
    outcome.bytes = counted;
    if outcome.error.is_none() {
        outcome.sha256 = digest.map(|digest| crate::digest::hexadecimal(&digest.finalize()));
    }
    let whole = outcome.error.is_none();
    outcome.moments = partials
        .into_iter()
        .zip(readable)
        .map(|(partial, readable)| (readable && whole).then(|| partial.finish()))
        .collect();
    outcome
}
