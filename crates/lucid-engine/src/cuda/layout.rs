//! How weights are stored, and which of the kernels take them.

use std::borrow::Cow;

use lucid_checkpoint::gguf::BlockType;
use lucid_checkpoint::{Matrix, Packed, ScaleType, Scales};

use super::arguments::Order;
use crate::Error;

/// How a matrix is stored; numbered as in `layouts.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)] // The checkpoint's layouts.
pub enum Layout {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    F8E4m3 = 3,
    Nvfp4 = 4,
    Int4 = 7,
    F8Blocks = 9,
    Q8_0 = 11,
    Q5_0 = 12,
    Q4K = 13,
    Q5K = 14,
    Q6K = 15,
    Q5_1 = 22,
    Iq4Xs = 23,
    Q2K = 24,
}

impl Layout {
    /// Whether the tensor-core kernels take this layout with so many columns; else the plain ones do.
    #[must_use]
    pub fn is_fast(self, cols: usize) -> bool {
        match self {
            Layout::Bf16 | Layout::F32 => cols.is_multiple_of(32),
            Layout::Nvfp4 | Layout::Int4 | Layout::F8Blocks => cols.is_multiple_of(128),
            _ => self.block_kernels().is_some() && cols.is_multiple_of(128),
        }
    }

    /// How the kernels' names call a block type of GGUF.
    #[must_use]
    pub fn block_kernels(self) -> Option<&'static str> {
        Some(match self {
            Layout::Q8_0 => "q8_0",
            Layout::Q5_0 => "q5_0",
            Layout::Q4K => "q4_k",
            Layout::Q5K => "q5_k",
            Layout::Q6K => "q6_k",
            Layout::Q5_1 => "q5_1",
            Layout::Iq4Xs => "iq4_xs",
            _ => return None,
        })
    }

    /// Whether the tensor-core kernels of experts and of prompts do: all take tiles of 128 columns.
    #[must_use]
    pub fn is_for_experts(self, cols: usize) -> bool {
        self != Layout::F32 && self.is_fast(cols) && cols.is_multiple_of(128)
    }

    /// Whether a scale is for sixteen columns of a tile, `SIXTEENS` of `blocks.cuh`.
    #[must_use]
    pub fn scales_sixteens(self) -> bool {
        self == Layout::Q6K
    }

    /// The kernels' number for a matrix with so many columns: what the tensor-core kernels take is tiled.
    #[must_use]
    pub fn number(self, cols: usize) -> i32 {
        match self {
            Layout::Nvfp4 if self.is_fast(cols) => 5,
            Layout::Bf16 if self.is_fast(cols) => 6,
            Layout::Int4 if self.is_fast(cols) => 8,
            Layout::F8Blocks if self.is_fast(cols) => 10,
            Layout::F32 if self.is_fast(cols) => 21,
            _ if self.block_kernels().is_some() && self.is_fast(cols) => self as i32 + 5,
            _ => self as i32,
        }
    }

    /// The order in which products with such a matrix take their vectors.
    #[must_use]
    pub fn order(self, cols: usize) -> Order {
        if self == Layout::Nvfp4 && self.is_fast(cols) { Order::Nvfp4 } else { Order::Natural }
    }

    /// Bytes of a matrix in the tiles that the tensor-core kernels take (see `layouts.cuh`).
    #[must_use]
    pub fn tiled_bytes(self, rows: usize, cols: usize) -> usize {
        let tiles = match self {
            Layout::Nvfp4 | Layout::Int4 => cols / 128 * 1_152,
            Layout::F8Blocks => cols / 128 * 2_064,
            // Codes, and the scales behind them (see `blocks.cuh`).
            Layout::Q8_0 => cols / 128 * (2_048 + 128),
            Layout::Q5_0 => cols / 128 * (1_280 + 128),
            Layout::Q4K => cols / 128 * (1_024 + 192),
            Layout::Q5K => cols / 128 * (1_280 + 192),
            Layout::Q6K => cols / 128 * (1_536 + 160),
            Layout::Q5_1 => cols / 128 * (1_280 + 256),
            Layout::Iq4Xs => cols / 128 * (2_048 + 256),
            Layout::F32 => cols / 32 * 3 * 1_024,
            _ => cols / 32 * 1_024,
        };
        rows.div_ceil(16) * tiles
    }

    /// How many of a block's `warps` share a row: a power of two, by shape alone, so that the order of sums is too.
    #[must_use]
    pub fn slices(self, cols: usize, warps: usize) -> usize {
        let (step, steps_per_warp) = match self {
            Layout::Nvfp4 | Layout::Int4 | Layout::Q5_0 | Layout::Q5_1 | Layout::Q4K | Layout::Q5K => {
                (128, 14)
            }
            Layout::F8Blocks | Layout::Q8_0 | Layout::Iq4Xs | Layout::Q6K => (128, 7),
            // So few are in the rings before vectors come.
            _ if cols <= 512 => (32, 4),
            _ => (32, 8),
        };
        let wanted = (cols / step / steps_per_warp).clamp(1, warps);
        1 << wanted.ilog2()
    }
}

/// The stored bytes of a matrix, scales as the kernels take them.
pub struct Stored<'a> {
    /// As the kernels take it.
    pub layout: Layout,
    /// The block type, where it takes another one's tiles.
    pub repacked: Option<BlockType>,
    /// Codes or numbers, and the scales among them.
    pub values: &'a [u8],
    /// Scales that are apart.
    pub scales: Cow<'a, [u8]>,
    /// What sums are multiplied with.
    pub global_scale: f32,
}

/// A matrix as the kernels take it, after [`check_layout`].
#[must_use]
pub fn stored(matrix: &Matrix) -> Stored<'_> {
    let plain =
        |layout, values| Stored { layout, repacked: None, values, scales: Cow::default(), global_scale: 1.0 };
    match &matrix.packed {
        Packed::F32(values) => plain(Layout::F32, values),
        Packed::F16(values) => plain(Layout::F16, values),
        Packed::Bf16(values) => plain(Layout::Bf16, values),
        Packed::F8E4m3(values) => plain(Layout::F8E4m3, values),
        Packed::Nvfp4 { codes, scales, global_scale, .. } => Stored {
            layout: Layout::Nvfp4,
            repacked: None,
            values: codes,
            scales: Cow::Borrowed(scales),
            global_scale: *global_scale,
        },
        Packed::Int4 { codes, scales, .. } => {
            Stored { scales: Cow::Borrowed(&scales.bytes), ..plain(Layout::Int4, codes) }
        }
        Packed::F8Blocks { codes, scales, .. } => {
            Stored { scales: f32_scales(scales, matrix), ..plain(Layout::F8Blocks, codes) }
        }
        Packed::Gguf { block, bytes, scale } => match gguf_layout(*block, matrix.cols) {
            Some((layout, repacked)) => Stored { global_scale: *scale, repacked, ..plain(layout, bytes) },
            None => unreachable!("{block:?} was refused by check_layout"),
        },
    }
}

/// How the kernels read a block type of GGUF: as it is, or as another layout that holds the same values in tiles, which have 128 columns.
fn gguf_layout(block: BlockType, cols: usize) -> Option<(Layout, Option<BlockType>)> {
    let as_it_is = |layout| Some((layout, None));
    let in_tiles = |layout: Layout| layout.is_fast(cols).then_some((layout, Some(block)));
    match block {
        BlockType::Q8_0 => as_it_is(Layout::Q8_0),
        BlockType::Q5_0 => as_it_is(Layout::Q5_0),
        BlockType::Q4_K => as_it_is(Layout::Q4K),
        BlockType::Q5_K => as_it_is(Layout::Q5K),
        BlockType::Q6_K => as_it_is(Layout::Q6K),
        BlockType::Q5_1 => as_it_is(Layout::Q5_1),
        BlockType::IQ4_XS => as_it_is(Layout::Iq4Xs),
        BlockType::Q2_K => as_it_is(Layout::Q2K),
        BlockType::Q4_1 => in_tiles(Layout::Q5_1),
        BlockType::MXFP4 => in_tiles(Layout::Iq4Xs),
        BlockType::Q4_0 => in_tiles(Layout::Q5_0),
        BlockType::IQ4_NL => in_tiles(Layout::Q8_0),
        BlockType::Q3_K => in_tiles(Layout::Q6K),
        BlockType::NVFP4 => in_tiles(Layout::Nvfp4),
    }
}

/// Scales of blocks in f32, which holds every type of them exactly.
fn f32_scales<'a>(scales: &'a Scales, matrix: &Matrix) -> Cow<'a, [u8]> {
    if scales.kind == ScaleType::F32 {
        return Cow::Borrowed(&scales.bytes);
    }
    let count = matrix.rows.div_ceil(F8_BLOCK) * matrix.cols.div_ceil(F8_BLOCK);
    Cow::Owned((0..count).flat_map(|i| scales.get(i).to_le_bytes()).collect())
}

/// Rows and columns of FP8's blocks, and INT4's groups: what the kernels are made for.
const F8_BLOCK: usize = 128;
const INT4_GROUP: usize = 32;

/// Whether the kernels can read a matrix as it is stored; else why not.
///
/// # Errors
/// When they can't.
pub fn check_layout(matrix: &Matrix) -> Result<(), Error> {
    let problem = match &matrix.packed {
        Packed::F32(_) | Packed::F16(_) | Packed::Bf16(_) | Packed::F8E4m3(_) | Packed::Nvfp4 { .. } => {
            return Ok(());
        }
        Packed::Int4 { scales, group_size, .. } => {
            if scales.kind == ScaleType::Bf16 && *group_size == INT4_GROUP {
                return Ok(());
            }
            format!("INT4 with scales in {:?} for {group_size} columns", scales.kind)
        }
        Packed::F8Blocks { block, .. } => {
            if *block == [F8_BLOCK; 2] {
                return Ok(());
            }
            format!("E4M3 in blocks of {} by {}", block[0], block[1])
        }
        Packed::Gguf { block, .. } => {
            if gguf_layout(*block, matrix.cols).is_some() {
                return Ok(());
            }
            format!("{block} with rows of {} values", matrix.cols)
        }
    };
    Err(Error::Unsupported {
        what: format!("tensor {}, stored as {problem}, on a GPU,", matrix.name),
        hint: "run it on the CPU, or use a checkpoint in NVFP4, BF16, INT4 with BF16 scales for 32 columns, E4M3 in blocks of 128 by \
               128, or in GGUF's blocks (Q4_0, Q4_1, Q3_K, IQ4_NL, MXFP4 and NVFP4 need rows of multiples of 128 values)",
    })
}
