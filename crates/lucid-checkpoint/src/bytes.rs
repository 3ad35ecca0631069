//! Immutable bytes that many owners share without copying.

use std::fs::File;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::Error;

/// Shared immutable bytes: a slice of a memory map, of the binary, or of owned memory. Cloning is cheap.
///
/// A mapped file must not be changed or truncated while it is in use: the operating system then changes the bytes
/// under us, or ends the process (SIGBUS). That is the price of reading 540 GB without copying it.
#[derive(Clone)]
pub struct Bytes {
    source: Source,
    /// Always within `source`.
    range: Range<usize>,
}

#[derive(Clone)]
enum Source {
    Map(Arc<Map>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
}

/// A memory map and the file behind it.
struct Map {
    map: memmap2::Mmap,
    /// `None`: no file, only memory.
    file: Option<(File, String)>,
}

impl Bytes {
    /// Bytes that are part of the binary.
    #[must_use]
    pub fn from_static(bytes: &'static [u8]) -> Bytes {
        Bytes { source: Source::Static(bytes), range: 0..bytes.len() }
    }

    /// A whole file, mapped; `location` is its name in messages.
    pub(crate) fn from_map(map: memmap2::Mmap, file: File, location: String) -> Bytes {
        let range = 0..map.len();
        Bytes { range, source: Source::Map(Arc::new(Map { map, file: Some((file, location)) })) }
    }

    /// The same bytes in memory of their own, which goes back to the operating system with the last clone. Mapped bytes are read
    /// from the file, not through the map: pages that were touched in a map count as this process' memory for as long as it
    /// lives. Bytes that are in memory anyway are not copied.
    ///
    /// # Errors
    /// When the file can't be read, or there is no memory.
    pub fn read(&self) -> Result<Bytes, Error> {
        let Source::Map(mapped) = &self.source else { return Ok(self.clone()) };
        let Some((file, location)) = mapped.file.as_ref().filter(|_| !self.is_empty()) else {
            return Ok(self.clone());
        };
        let read = || {
            let mut memory = memmap2::MmapMut::map_anon(self.range.len())?;
            read_exact_at(file, &mut memory, self.range.start as u64)?;
            memory.make_read_only()
        };
        let map = read().map_err(|cause| Error::Io { location: location.clone(), cause })?;
        Ok(Bytes { range: 0..map.len(), source: Source::Map(Arc::new(Map { map, file: None })) })
    }

    /// Copies of `all`, each at the beginning of a cache line, in one piece of memory for which the operating system is asked for its
    /// largest pages. A mapped file has small ones, and looking up where each of them lies is a wait in every few rows of a matrix.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn side_by_side(all: &[&Bytes]) -> std::io::Result<Vec<Bytes>> {
        const LINE: usize = 64;
        let len = all.iter().map(|bytes| bytes.len().next_multiple_of(LINE)).sum::<usize>();
        let mut memory = memmap2::MmapMut::map_anon(len.max(LINE))?;
        // Only a hint: without it, or where a system has only small pages, everything is the same, but slower.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let mut places = Vec::with_capacity(all.len());
        let mut start = 0;
        for bytes in all {
            memory[start..start + bytes.len()].copy_from_slice(bytes);
            places.push(start..start + bytes.len());
            start += bytes.len().next_multiple_of(LINE);
        }
        let map = Arc::new(Map { map: memory.make_read_only()?, file: None });
        Ok(places.into_iter().map(|range| Bytes { source: Source::Map(Arc::clone(&map)), range }).collect())
    }

    /// Asks the operating system to have a mapped part of a file ready soon. Only a hint.
    pub fn will_be_read(&self) {
        #[cfg(unix)]
        if let Source::Map(mapped) = &self.source
            && mapped.file.is_some()
        {
            // Without the hint, reading waits for the disk a little more often.
            let _ = mapped.map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// A part of these bytes, sharing the memory; `None` when `range` is not within them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        // No overflow: both are at most `self.range.end`.
        let start = self.range.start + range.start;
        Some(Bytes { source: self.source.clone(), range: start..start + range.len() })
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes { range: 0..bytes.len(), source: Source::Owned(bytes.into()) }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.source {
            Source::Map(mapped) => &mapped.map,
            Source::Static(bytes) => bytes,
            Source::Owned(bytes) => bytes,
        };
        // Within bounds by construction; the range never changes.
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    /// Only the length: weights have no place in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

/// Reads all of `out` from a place in a file, whatever the file's own position is.
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
    }
    #[cfg(windows)]
    {
        let (mut out, mut offset) = (out, offset);
        while !out.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(file, out, offset)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => (out, offset) = (&mut out[count..], offset + count as u64),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_counts_from_the_slice() {
        let bytes = Bytes::from(vec![0, 1, 2, 3, 4, 5]);
        let inner = bytes.slice(1..5).unwrap().slice(1..3).unwrap();
        assert_eq!(&*inner, &[2, 3]);
    }

    #[test]
    fn what_is_read_is_what_is_mapped_and_owned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &content).unwrap();
        let mapped = crate::Files::Folder(folder.path().to_owned()).find("file").unwrap().unwrap();
        let part = mapped.slice(4_001..300_017).unwrap();
        part.will_be_read();
        let read = part.read().unwrap();
        assert_eq!(&*read, &content[4_001..300_017]);
        // In memory now: what becomes of the file is nothing to it.
        drop((part, mapped));
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(&*read.slice(5..9).unwrap().read().unwrap(), &content[4_006..4_010]);
    }

    #[test]
    fn copies_side_by_side_are_what_was_copied_and_begin_with_a_line() {
        let all =
            [Bytes::from_static(b"abc"), Bytes::from(vec![]), Bytes::from(vec![7; 65]), Bytes::from(vec![1])];
        let copies = Bytes::side_by_side(&all.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(copies.len(), all.len());
        for (copy, bytes) in copies.iter().zip(&all) {
            assert_eq!(**copy, **bytes);
            assert!(copy.as_ptr().addr().is_multiple_of(64));
        }
        assert!(Bytes::side_by_side(&[]).unwrap().is_empty());
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn a_range_that_is_not_within_the_bytes_is_refused() {
        let bytes = Bytes::from_static(b"abcd").slice(1..3).unwrap();
        assert!(bytes.slice(0..3).is_none(), "the parent has a third byte, the slice has not");
        assert!(bytes.slice(2..1).is_none());
        assert!(bytes.slice(usize::MAX..usize::MAX).is_none());
        assert_eq!(bytes.slice(2..2).unwrap().len(), 0);
    }
}
