//! Immutable bytes that many owners share without copying.

use std::ops::{Deref, Range};
use std::sync::Arc;

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
    Map(Arc<memmap2::Mmap>),
    Static(&'static [u8]),
    Owned(Arc<[u8]>),
}

impl Bytes {
    /// Bytes that are part of the binary.
    #[must_use]
    pub fn from_static(bytes: &'static [u8]) -> Bytes {
        Bytes { source: Source::Static(bytes), range: 0..bytes.len() }
    }

    pub(crate) fn from_map(map: memmap2::Mmap) -> Bytes {
        Bytes { range: 0..map.len(), source: Source::Map(Arc::new(map)) }
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
            Source::Map(map) => map,
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
    #[allow(clippy::reversed_empty_ranges)]
    fn a_range_that_is_not_within_the_bytes_is_refused() {
        let bytes = Bytes::from_static(b"abcd").slice(1..3).unwrap();
        assert!(bytes.slice(0..3).is_none(), "the parent has a third byte, the slice has not");
        assert!(bytes.slice(2..1).is_none());
        assert!(bytes.slice(usize::MAX..usize::MAX).is_none());
        assert_eq!(bytes.slice(2..2).unwrap().len(), 0);
    }
}
