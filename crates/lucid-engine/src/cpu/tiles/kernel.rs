//! The loops over tiles, in assembly: stable Rust has no intrinsics for the tile unit.
//!
//! Each block of assembly is a whole product of some tiles, from zeroing or loading the sums to storing them, so that no tile
//! register lives from one block to the next. Registers 0 to 5 hold sums; the others weights and vectors.

use std::arch::asm;
use std::arch::x86_64::*;

use super::parts::PARTS;
use super::transpose::transpose;
use super::vectors::{Form, Line};
use super::weights::Panel;
use crate::cpu::dot::Target;

/// Rows of a tile.
pub const ROWS: usize = 16;

/// Shapes of the eight tile registers (Intel SDM, volume 2A, LDTILECFG).
#[repr(C, align(64))]
struct Configuration([u8; 64]);

/// The tile unit of this thread, set up; given back when dropped, so that a context switch saves nothing.
pub struct Tiles(());

impl Tiles {
    /// Every register as (rows, bytes of a row).
    ///
    /// # Safety
    /// The CPU has AMX, and the operating system permits it.
    pub unsafe fn configure(registers: [(usize, usize); 8]) -> Tiles {
        let mut bytes = [0u8; 64];
        bytes[0] = 1; // the only palette there is
        for (i, (rows, row_bytes)) in registers.into_iter().enumerate() {
            bytes[16 + 2 * i] = row_bytes as u8;
            bytes[48 + i] = rows as u8;
        }
        let configuration = Configuration(bytes);
        // SAFETY: promised by the caller; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        Tiles(())
    }

    /// For [`multiply_block`]: `rows` rows of weights at a time against blocks of this form.
    ///
    /// # Safety
    /// As [`Tiles::configure`].
    pub unsafe fn for_product(rows: usize, form: Form) -> Tiles {
        let columns = 4 * form.tile_columns();
        let (sums, weights, vectors) = ((rows, columns), (rows, 64), (ROWS, columns));
        let registers = if form.is_narrow() {
            [sums, sums, sums, sums, weights, weights, weights, vectors]
        } else {
            [sums, sums, sums, sums, sums, sums, vectors, weights]
        };
        // SAFETY: promised by the caller.
        unsafe { Tiles::configure(registers) }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: there are tiles, or there would be no `Tiles`.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sums of six tiles on their way from the tile unit. A thread keeps them: clearing them costs a tenth of a short product.
pub type Sums = [[Line; ROWS]; 6];

/// Sums that hold nothing yet.
pub const NO_SUMS: Sums = [[Line::ZERO; ROWS]; 6];

/// Every row of `panel` times every vector of `block`.
///
/// # Safety
/// The CPU has AMX and AVX-512; the tiles are configured for `min(16, panel.rows)` rows and `form`; `block` was packed in this
/// form with as many columns; `target` is valid for writes at every row and vector, and nobody else touches it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn multiply_block(panel: Panel, form: Form, block: *const u32, sums: &mut Sums, target: Target) {
    let height = panel.rows.min(ROWS);
    let tiles = panel.rows.div_ceil(ROWS);
    // The last tile begins earlier if need be: what it computes twice comes out twice the same.
    let start = |tile: usize| (tile * ROWS).min(panel.rows - height);
    let step_bytes = 4 * form.step_len();
    let stride = 4 * form.tile_columns();
    let at = sums.as_mut_ptr().cast::<u8>();
    let mut tile = 0;
    while tile < tiles {
        let here =
            if form.is_narrow() { if tiles - tile >= 4 { 4 } else { 1 } } else { (tiles - tile).min(2) };
        // SAFETY: the rows of every tile are inside the panel; sums have room for six tiles.
        unsafe {
            let row = |i: usize| panel.at.add(start(tile + i) * panel.stride);
            match (form.is_narrow(), here) {
                (true, 4) => {
                    let rows = [row(0), row(1), row(2), row(3)];
                    narrow_4(rows, panel.stride, block, stride, step_bytes, panel.steps, at);
                }
                (true, _) => narrow_1(row(0), panel.stride, block, stride, step_bytes, panel.steps, at),
                (false, 2) => {
                    wide_2([row(0), row(1)], panel.stride, block, stride, step_bytes, panel.steps, at);
                }
                (false, _) => wide_1(row(0), panel.stride, block, stride, step_bytes, panel.steps, at),
            }
            for i in 0..here {
                let sums = if form.is_narrow() { &sums[i..=i] } else { &sums[PARTS * i..PARTS * (i + 1)] };
                put(sums, form, start(tile + i), height, target);
            }
        }
        tile += here;
    }
}

/// Adds the parts, small ones first, and writes `height` rows of every vector.
///
/// # Safety
/// The processor has AVX-512, and `target` holds `first_row + height` rows of every vector of the form, which no other thread writes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put(sums: &[[Line; ROWS]], form: Form, first_row: usize, height: usize, target: Target) {
    let mask = ((1u32 << height) - 1) as u16;
    let scale = _mm512_set1_ps(target.scale);
    // No closures here: they would not have the vector features.
    // SAFETY: a line is sixteen floats; lanes above `height` are masked; rows and vectors as promised by the caller.
    unsafe {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        if let [low, middle, high] = sums {
            for i in 0..ROWS {
                let sum = add_parts(load(&low[i]), load(&middle[i]), load(&high[i]));
                rows[i] = _mm512_castps_si512(sum);
            }
            rows = transpose(rows);
        } else {
            for i in 0..ROWS {
                rows[i] = _mm512_castps_si512(load(&sums[0][i]));
            }
            let turned = transpose(rows);
            for (i, row) in rows.iter_mut().enumerate().take(form.vectors) {
                let (middle, high) = (turned[form.vectors + i], turned[2 * form.vectors + i]);
                let low = _mm512_castsi512_ps(turned[i]);
                let sum = add_parts(low, _mm512_castsi512_ps(middle), _mm512_castsi512_ps(high));
                *row = _mm512_castps_si512(sum);
            }
        }
        for (i, &row) in rows.iter().enumerate().take(form.vectors) {
            let products = _mm512_mul_ps(_mm512_castsi512_ps(row), scale);
            _mm512_mask_storeu_ps(target.at.add(i * target.stride + first_row), mask, products);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(line: &Line) -> __m512 {
    // SAFETY: a line is sixteen aligned floats.
    unsafe { _mm512_load_ps(line.0.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_parts(low: __m512, middle: __m512, high: __m512) -> __m512 {
    _mm512_add_ps(high, _mm512_add_ps(middle, low))
}

/// Four tiles of rows against a tile of all parts.
///
/// # Safety
/// As [`multiply_block`]; `sums` has room for four tiles, rows 64 bytes apart.
unsafe fn narrow_4(
    [a, b, c, d]: [*const u8; 4],
    row_stride: usize,
    block: *const u32,
    stride: usize,
    step_bytes: usize,
    steps: usize,
    sums: *mut u8,
) {
    // SAFETY: promised by the caller; every tile's memory is inside its rows, its block or the sums.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm7, [{x} + {xs}*1]",
            "tileloadd tmm4, [{a} + {ws}*1]",
            "tdpbf16ps tmm0, tmm4, tmm7",
            "tileloadd tmm5, [{b} + {ws}*1]",
            "tdpbf16ps tmm1, tmm5, tmm7",
            "tileloadd tmm6, [{c} + {ws}*1]",
            "tdpbf16ps tmm2, tmm6, tmm7",
            "tileloadd tmm4, [{d} + {ws}*1]",
            "tdpbf16ps tmm3, tmm4, tmm7",
            "add {a}, 64",
            "add {b}, 64",
            "add {c}, 64",
            "add {d}, 64",
            "add {x}, {step}",
            "dec {steps}",
            "jnz 2b",
            "mov {x}, 64",
            "tilestored [{sums} + {x}*1], tmm0",
            "tilestored [{sums} + {x}*1 + 1024], tmm1",
            "tilestored [{sums} + {x}*1 + 2048], tmm2",
            "tilestored [{sums} + {x}*1 + 3072], tmm3",
            a = inout(reg) a => _, b = inout(reg) b => _, c = inout(reg) c => _, d = inout(reg) d => _,
            ws = in(reg) row_stride, x = inout(reg) block => _, xs = in(reg) stride, step = in(reg) step_bytes,
            steps = inout(reg) steps => _, sums = in(reg) sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// One tile of rows against a tile of all parts.
///
/// # Safety
/// As [`multiply_block`]; `sums` has room for a tile.
unsafe fn narrow_1(
    a: *const u8,
    row_stride: usize,
    block: *const u32,
    stride: usize,
    step_bytes: usize,
    steps: usize,
    sums: *mut u8,
) {
    // SAFETY: as in `narrow_4`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm7, [{x} + {xs}*1]",
            "tileloadd tmm4, [{a} + {ws}*1]",
            "tdpbf16ps tmm0, tmm4, tmm7",
            "add {a}, 64",
            "add {x}, {step}",
            "dec {steps}",
            "jnz 2b",
            "mov {x}, 64",
            "tilestored [{sums} + {x}*1], tmm0",
            a = inout(reg) a => _, ws = in(reg) row_stride,
            x = inout(reg) block => _, xs = in(reg) stride, step = in(reg) step_bytes,
            steps = inout(reg) steps => _, sums = in(reg) sums,
            out("tmm0") _, out("tmm4") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Two tiles of rows against three tiles, one a part.
///
/// # Safety
/// As [`multiply_block`]; `sums` has room for six tiles.
unsafe fn wide_2(
    [a, b]: [*const u8; 2],
    row_stride: usize,
    block: *const u32,
    stride: usize,
    step_bytes: usize,
    steps: usize,
    sums: *mut u8,
) {
    // SAFETY: as in `narrow_4`. A part is sixteen rows of `stride` bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "tilezero tmm4",
            "tilezero tmm5",
            "2:",
            "tileloadd tmm6, [{x} + {xs}*1]",
            "tileloadd tmm7, [{a} + {ws}*1]",
            "tdpbf16ps tmm0, tmm7, tmm6",
            "tileloadd tmm7, [{b} + {ws}*1]",
            "tdpbf16ps tmm3, tmm7, tmm6",
            "tileloadd tmm6, [{y} + {xs}*1]",
            "tdpbf16ps tmm4, tmm7, tmm6",
            "tileloadd tmm7, [{a} + {ws}*1]",
            "tdpbf16ps tmm1, tmm7, tmm6",
            "tileloadd tmm6, [{z} + {xs}*1]",
            "tdpbf16ps tmm2, tmm7, tmm6",
            "tileloadd tmm7, [{b} + {ws}*1]",
            "tdpbf16ps tmm5, tmm7, tmm6",
            "add {a}, 64",
            "add {b}, 64",
            "add {x}, {step}",
            "add {y}, {step}",
            "add {z}, {step}",
            "dec {steps}",
            "jnz 2b",
            "mov {x}, 64",
            "tilestored [{sums} + {x}*1], tmm0",
            "tilestored [{sums} + {x}*1 + 1024], tmm1",
            "tilestored [{sums} + {x}*1 + 2048], tmm2",
            "tilestored [{sums} + {x}*1 + 3072], tmm3",
            "tilestored [{sums} + {x}*1 + 4096], tmm4",
            "tilestored [{sums} + {x}*1 + 5120], tmm5",
            a = inout(reg) a => _, b = inout(reg) b => _, ws = in(reg) row_stride,
            x = inout(reg) block => _,
            y = inout(reg) block.byte_add(16 * stride) => _,
            z = inout(reg) block.byte_add(32 * stride) => _,
            xs = in(reg) stride, step = in(reg) step_bytes,
            steps = inout(reg) steps => _, sums = in(reg) sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// One tile of rows against three tiles, one a part.
///
/// # Safety
/// As [`multiply_block`]; `sums` has room for three tiles.
unsafe fn wide_1(
    a: *const u8,
    row_stride: usize,
    block: *const u32,
    stride: usize,
    step_bytes: usize,
    steps: usize,
    sums: *mut u8,
) {
    // SAFETY: as in `wide_2`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "2:",
            "tileloadd tmm7, [{a} + {ws}*1]",
            "tileloadd tmm6, [{x} + {xs}*1]",
            "tdpbf16ps tmm0, tmm7, tmm6",
            "tileloadd tmm6, [{y} + {xs}*1]",
            "tdpbf16ps tmm1, tmm7, tmm6",
            "tileloadd tmm6, [{z} + {xs}*1]",
            "tdpbf16ps tmm2, tmm7, tmm6",
            "add {a}, 64",
            "add {x}, {step}",
            "add {y}, {step}",
            "add {z}, {step}",
            "dec {steps}",
            "jnz 2b",
            "mov {x}, 64",
            "tilestored [{sums} + {x}*1], tmm0",
            "tilestored [{sums} + {x}*1 + 1024], tmm1",
            "tilestored [{sums} + {x}*1 + 2048], tmm2",
            a = inout(reg) a => _, ws = in(reg) row_stride,
            x = inout(reg) block => _,
            y = inout(reg) block.byte_add(16 * stride) => _,
            z = inout(reg) block.byte_add(32 * stride) => _,
            xs = in(reg) stride, step = in(reg) step_bytes,
            steps = inout(reg) steps => _, sums = in(reg) sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

impl Tiles {
    /// For [`add_weighted`]: `rows` queries at a time.
    ///
    /// # Safety
    /// As [`Tiles::configure`].
    pub unsafe fn for_weighted_sum(rows: usize) -> Tiles {
        let (sums, weights, values) = ((rows, 64), (rows, 64), (ROWS, 64));
        // SAFETY: promised by the caller.
        unsafe { Tiles::configure([sums, sums, sums, sums, weights, weights, weights, values]) }
    }
}

/// `sums[q] += Σ_j weights[q, j] · values[j]` over a page, four tiles of columns at a time, low parts first.
///
/// `weights` `[3 parts, 16, 64]` bf16, `values` `[32 pairs, latent]`, `sums` `[rows, latent]`.
///
/// # Safety
/// The CPU has AMX; `tiles` is [`Tiles::for_weighted_sum`] of the rows that `sums` has; `latent` is a multiple of 64.
pub unsafe fn add_weighted(
    _: &Tiles,
    weights: *const Line,
    values: *const Line,
    latent: usize,
    sums: *mut f32,
) {
    let stride = latent * 4;
    for column in (0..latent).step_by(64) {
        // SAFETY: promised by the caller: 64 columns of all sums and values, two steps of all weights.
        unsafe {
            asm!(
                "tileloadd tmm0, [{sums} + {stride}*1]",
                "tileloadd tmm1, [{sums} + {stride}*1 + 64]",
                "tileloadd tmm2, [{sums} + {stride}*1 + 128]",
                "tileloadd tmm3, [{sums} + {stride}*1 + 192]",
                "2:",
                "tileloadd tmm4, [{weights} + {row}*1]",
                "tileloadd tmm5, [{weights} + {row}*1 + 2048]",
                "tileloadd tmm6, [{weights} + {row}*1 + 4096]",
                "tileloadd tmm7, [{values} + {stride}*1]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm0, tmm5, tmm7",
                "tdpbf16ps tmm0, tmm6, tmm7",
                "tileloadd tmm7, [{values} + {stride}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm1, tmm5, tmm7",
                "tdpbf16ps tmm1, tmm6, tmm7",
                "tileloadd tmm7, [{values} + {stride}*1 + 128]",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tdpbf16ps tmm2, tmm6, tmm7",
                "tileloadd tmm7, [{values} + {stride}*1 + 192]",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tdpbf16ps tmm3, tmm6, tmm7",
                "add {weights}, 64",
                "add {values}, {next}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilestored [{sums} + {stride}*1 + 64], tmm1",
                "tilestored [{sums} + {stride}*1 + 128], tmm2",
                "tilestored [{sums} + {stride}*1 + 192], tmm3",
                sums = in(reg) sums.add(column), stride = in(reg) stride,
                weights = inout(reg) weights => _, row = in(reg) 128usize,
                values = inout(reg) values.add(column / 16) => _, next = in(reg) 16 * stride,
                steps = inout(reg) 2usize => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
