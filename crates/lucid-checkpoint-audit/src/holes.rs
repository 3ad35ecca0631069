//! Holes of the file system: ranges that were never written and read as zeros.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom, seek};

/// The most holes that are looked at in a file.
const MAX_HOLES: usize = 100_000;

/// The holes `(start, end)` of a file of `length` bytes. Empty when the file system does not tell.
pub(crate) fn holes(file: &File, length: u64) -> Vec<(u64, u64)> {
    let mut holes = Vec::new();
    // A file that has all its blocks has no hole, and most file systems say so without a search.
    if !file.metadata().is_ok_and(|metadata| metadata.blocks().saturating_mul(512) < length) {
        return holes;
    }
    let mut at = 0;
    while at < length && holes.len() < MAX_HOLES {
        let Ok(hole) = seek(file, SeekFrom::Hole(at)) else { break };
        // Every file ends with a hole of no length.
        if hole >= length {
            break;
        }
        let end = seek(file, SeekFrom::Data(hole)).unwrap_or(length).min(length);
        holes.push((hole, end));
        if end <= at {
            break;
        }
        at = end;
    }
    holes
}
