//! Buffers that begin with a cache line.
//!
//! A vector of 64 bytes that lies across two lines is read twice. Ordinary allocations begin 16 bytes off a line, so every vector of
//! every row would: attention's sums ran at 82 instead of 104 G multiply-adds a second, products of f32 rows at 53 instead of 72.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Numbers whose first one begins a cache line; otherwise like a `Vec` of them.
#[derive(Debug, Default)]
pub struct Aligned<T> {
    /// A line longer than what is used of it.
    values: Vec<T>,
    start: usize,
    len: usize,
}

/// Numbers that are all zero bits at first.
pub trait Number: Copy {
    /// `vec![0; len]` takes memory from the operating system page by page as it is written, for a literal zero of a primitive type.
    fn zeros(len: usize) -> Vec<Self>;
}

macro_rules! numbers {
    ($($number:ty: $zero:literal),*) => {$(
        impl Number for $number {
            fn zeros(len: usize) -> Vec<$number> {
                vec![$zero; len]
            }
        }
    )*};
}
numbers!(f32: 0.0, u16: 0, u8: 0);

impl<T> Aligned<T> {
    /// Nothing yet.
    pub const fn new() -> Aligned<T> {
        Aligned { values: Vec::new(), start: 0, len: 0 }
    }

    /// Empties it; what it has room for stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T: Number> Aligned<T> {
    /// `len` zeros, which take memory only as they are written.
    pub fn zeros(len: usize) -> Aligned<T> {
        let spare = LINE / size_of::<T>();
        let values = T::zeros(len + spare);
        // At most `spare`, but a platform may refuse to tell.
        let start = values.as_ptr().align_offset(LINE).min(spare);
        Aligned { values, start, len }
    }

    /// As `Vec::resize`.
    pub fn resize(&mut self, len: usize, value: T) {
        self.reserve(len);
        let old = self.len;
        self.len = len;
        if len > old {
            self[old..].fill(value);
        }
    }

    /// At least `len` numbers; what is new is `value`.
    pub fn grow(&mut self, len: usize, value: T) {
        if len > self.len {
            self.resize(len, value);
        }
    }

    /// As `Vec::extend_from_slice`.
    pub fn extend_from_slice(&mut self, more: &[T]) {
        let old = self.len;
        self.reserve(old + more.len());
        self.len = old + more.len();
        self[old..].copy_from_slice(more);
    }

    /// Room for `len` numbers in all.
    fn reserve(&mut self, len: usize) {
        if self.start + len > self.values.len() {
            // Half as much again, as it may grow by small pieces.
            let mut larger = Aligned::zeros(len.max(self.len + self.len / 2));
            larger[..self.len].copy_from_slice(self);
            larger.len = self.len;
            *self = larger;
        }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.values[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_vec_that_begins_with_a_line() {
        let (mut aligned, mut plain) = (Aligned::<u16>::new(), Vec::new());
        assert_eq!(*aligned, *plain);
        for (len, value) in [(3, 7), (1, 8), (5, 9), (700, 1), (20, 2), (701, 3)] {
            aligned.resize(len, value);
            plain.resize(len, value);
            assert_eq!(*aligned, *plain);
            assert_eq!(aligned.as_ptr() as usize % LINE, 0);
            aligned.extend_from_slice(&[4; 33]);
            plain.extend_from_slice(&[4; 33]);
            assert_eq!(*aligned, *plain);
            assert_eq!(aligned.as_ptr() as usize % LINE, 0);
        }
        aligned.clear();
        assert!(aligned.is_empty());
        aligned.grow(2, 6);
        aligned.grow(1, 5);
        assert_eq!(*aligned, [6, 6]);
        assert_eq!(*Aligned::<f32>::zeros(100), [0.0; 100]);
    }
}
