//! Pointers to stored rows, one type a layout. How each vector unit reads sixteen columns of them is in `layouts_avx2.rs` and
//! `layouts_avx512.rs`; what a column's value is, in `Rows::value`.

use crate::cpu::row::BLOCK;

/// Some rows of equal length.
pub(super) trait Layout: Copy {
    /// Blocks of sixteen columns that a tile of one token takes in one step: what they share (a scale, the bytes that their codes stand
    /// in) is read once then, and the places of their bits are constants. Rows have a multiple of as many.
    const STEPS: usize = 1;

    /// Whether a whole panel's scales are read before its tiles, and their lines with them.
    const SCALES_FIRST: bool = false;

    /// The same, `rows` rows further on.
    ///
    /// # Safety
    /// Those rows exist.
    unsafe fn skip(self, rows: usize) -> Self;

    /// Where a row's columns `16 * block ..` begin, if fetching them ahead helps: rows of small models are too short for the
    /// hardware to foresee the next one.
    #[inline]
    fn fetch(self, _block: usize) -> Option<*const u8> {
        None
    }

    /// Bytes of a row that [`Layout::fetch`] finds.
    #[inline]
    fn row_bytes(self) -> usize {
        0
    }
}

/// `[rows, cols]`, 4 bytes each.
#[derive(Clone, Copy)]
pub(super) struct F32 {
    pub(super) at: *const u8,
    pub(super) cols: usize,
}

/// `[rows, cols]`, 2 bytes each.
#[derive(Clone, Copy)]
pub(super) struct F16 {
    pub(super) at: *const u8,
    pub(super) cols: usize,
}

/// `[rows, cols]`, 2 bytes each: the upper halves of f32 numbers.
#[derive(Clone, Copy)]
pub(super) struct Bf16 {
    pub(super) at: *const u8,
    pub(super) cols: usize,
}

/// `[rows, cols]`, 1 byte each.
#[derive(Clone, Copy)]
pub(super) struct F8E4m3 {
    pub(super) at: *const u8,
    pub(super) cols: usize,
}

/// Codes `[rows, cols / 2]`, scales `[rows, cols / 16]`.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4 {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) cols: usize,
}

impl Layout for F32 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: inside the rows, as the caller promises; so for the other layouts.
        F32 { at: unsafe { self.at.add(rows * self.cols * 4) }, ..self }
    }
}

impl Layout for F16 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: see `F32`.
        F16 { at: unsafe { self.at.add(rows * self.cols * 2) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(32 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        2 * self.cols
    }
}

impl Layout for Bf16 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: see `F32`.
        Bf16 { at: unsafe { self.at.add(rows * self.cols * 2) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(32 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        2 * self.cols
    }
}

impl Layout for F8E4m3 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: see `F32`.
        F8E4m3 { at: unsafe { self.at.add(rows * self.cols) }, ..self }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.at.wrapping_add(16 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        self.cols
    }
}

impl Layout for Nvfp4 {
    #[inline]
    unsafe fn skip(self, rows: usize) -> Self {
        // SAFETY: see `F32`.
        unsafe {
            Nvfp4 {
                codes: self.codes.add(rows * self.cols / 2),
                scales: self.scales.add(rows * self.cols / BLOCK),
                ..self
            }
        }
    }

    #[inline]
    fn fetch(self, block: usize) -> Option<*const u8> {
        Some(self.codes.wrapping_add(8 * block))
    }

    #[inline]
    fn row_bytes(self) -> usize {
        self.cols / 2
    }
}

/// Calls one of two expressions with the pointers of the stored rows: `$wide` for layouts that are multiplied as stored, whatever
/// the number of tokens, `$packed` for layouts whose decoding costs more than a multiplication.
macro_rules! with_layout {
    ($rows:expr, $load:ident => $wide:expr, $packed:expr) => {{
        use $crate::cpu::dot::layouts::{Bf16, F8E4m3, F16, F32, Nvfp4};
        use $crate::cpu::row::Stored;
        let cols = $rows.cols;
        match $rows.stored {
            Stored::F32(bytes) => {
                let $load = F32 { at: bytes.as_ptr(), cols };
                $wide
            }
            Stored::F16(bytes) => {
                let $load = F16 { at: bytes.as_ptr(), cols };
                $wide
            }
            Stored::Bf16(bytes) => {
                let $load = Bf16 { at: bytes.as_ptr(), cols };
                $wide
            }
            Stored::F8E4m3(bytes) => {
                let $load = F8E4m3 { at: bytes.as_ptr(), cols };
                $packed
            }
            Stored::Nvfp4 { codes, scales } => {
                let $load = Nvfp4 { codes: codes.as_ptr(), scales: scales.as_ptr(), cols };
                $packed
            }
            Stored::Decoded { .. } => unreachable!("`dot::dots` hands over decoded rows"),
        }
    }};
}

pub(super) use with_layout;
