//! Counts and moments of a tensor's values, gathered piece by piece.

use lucid_checkpoint::{e4m3_to_f32, e8m0_to_f32, f16_to_f32};
use serde::{Deserialize, Serialize};

use super::gguf_blocks;
use super::zero_run::ZeroRuns;

/// How a tensor's bytes are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Bf16,
    F16,
    F32,
    F64,
    E4m3,
    E5m2,
    E8m0,
    /// Two E2M1 codes a byte.
    Nvfp4Codes,
    /// Two unsigned nibbles a byte, 8 is zero.
    Int4Codes,
    /// The scales of GGUF blocks of so many bytes.
    Gguf(gguf_blocks::Block),
    /// Integers, or a type that is not known: only zeros and constants are looked for.
    Raw(usize),
}

impl Reading {
    /// By type and name: packed codes are stored as integers.
    pub(crate) fn of(name: &str, dtype: &str) -> Reading {
        match dtype {
            "BF16" => Reading::Bf16,
            "F16" => Reading::F16,
            "F32" => Reading::F32,
            "F64" => Reading::F64,
            "F8_E4M3" => Reading::E4m3,
            "F8_E5M2" => Reading::E5m2,
            "F8_E8M0" => Reading::E8m0,
            "F4" => Reading::Nvfp4Codes,
            // Older exports of block scales with powers of two.
            "U8" if name.ends_with("_scale") || name.ends_with("_scale_inv") => Reading::E8m0,
            "U8" if name.ends_with(".weight") || name.ends_with(".weight_packed") => Reading::Nvfp4Codes,
            "I32" if name.ends_with(".weight_packed") => Reading::Int4Codes,
            "U16" | "I16" => Reading::Raw(2),
            "U32" | "I32" => Reading::Raw(4),
            "U64" | "I64" => Reading::Raw(8),
            other => match gguf_blocks::Block::of(other) {
                Some(block) => Reading::Gguf(block),
                None => Reading::Raw(1),
            },
        }
    }

    /// Bytes that belong together.
    pub(crate) fn unit(self) -> usize {
        match self {
            Reading::Bf16 | Reading::F16 => 2,
            Reading::F32 => 4,
            Reading::F64 => 8,
            Reading::Gguf(block) => block.bytes,
            Reading::Raw(size) => size,
            Reading::E4m3 | Reading::E5m2 | Reading::E8m0 | Reading::Nvfp4Codes | Reading::Int4Codes => 1,
        }
    }
}

/// What the bytes of a tensor say. Of GGUF blocks, `elements` and all counts are of the blocks' scales.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moments {
    /// Values that were read.
    pub elements: u64,
    /// Values that are no number.
    pub nan: u64,
    /// Infinities.
    pub infinite: u64,
    /// Zeros of either sign.
    pub zero: u64,
    /// Values below the type's normal range, zeros not counted.
    pub subnormal: u64,
    /// Values below zero.
    pub negative: u64,
    /// Mean of the squares of the finite values.
    pub mean_square: f64,
    /// Largest magnitude of a finite value.
    pub largest: f64,
    /// Every value has the same bits.
    pub constant: bool,
    /// Bytes that are zero in runs of 512 and more.
    pub zero_run_bytes: u64,
    /// The longest such run: bytes from the tensor's beginning, and length.
    pub zero_run: Option<(u64, u64)>,
    /// The value of a scalar.
    pub scalar: Option<f64>,
}

/// [`Moments`] while they grow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partial {
    elements: u64,
    nan: u64,
    infinite: u64,
    zero: u64,
    subnormal: u64,
    negative: u64,
    sum_squares: f64,
    largest: f64,
    /// Smallest and largest bits.
    bits: Option<(u64, u64)>,
    zeros: ZeroRuns,
    scalar: Option<f64>,
}

impl Partial {
    /// The piece that begins `at` bytes into the tensor; its length is a multiple of the reading's unit.
    pub(crate) fn of(reading: Reading, bytes: &[u8], at: u64) -> Partial {
        let mut partial = Partial { zeros: ZeroRuns::of(bytes, at), ..Partial::default() };
        match reading {
            Reading::Bf16 => partial.half::<0x7f80>(bytes, |bits| f32::from_bits(u32::from(bits) << 16)),
            Reading::F16 => partial.half::<0x7c00>(bytes, f16_to_f32),
            Reading::F32 => partial.single(bytes),
            Reading::F64 => {
                for x in bytes.as_chunks::<8>().0 {
                    let value = f64::from_le_bytes(*x);
                    partial.value(value, value.is_subnormal(), value.to_bits(), 1);
                }
            }
            Reading::E4m3 => partial
                .table(bytes, |code| vec![(f64::from(e4m3_to_f32(code)), matches!(code & 0x7f, 1..=7))]),
            Reading::E5m2 => partial.table(bytes, |code| {
                // The upper half of an F16.
                vec![(f64::from(f16_to_f32(u16::from(code) << 8)), matches!(code & 0x7f, 1..=3))]
            }),
            Reading::E8m0 => partial.table(bytes, |code| vec![(f64::from(e8m0_to_f32(code)), code == 0)]),
            Reading::Nvfp4Codes => partial.table(bytes, |byte| {
                [byte & 15, byte >> 4].map(|code| (E2M1[usize::from(code)], false)).to_vec()
            }),
            Reading::Int4Codes => partial.table(bytes, |byte| {
                [byte & 15, byte >> 4].map(|code| (f64::from(code) - 8.0, false)).to_vec()
            }),
            Reading::Gguf(block) => block.scales(bytes, |value, subnormal, bits| {
                partial.value(value, subnormal, bits, 1);
            }),
            Reading::Raw(_) => {
                partial.table(bytes, |byte| vec![(f64::from(byte), false)]);
                (partial.sum_squares, partial.largest) = (0.0, 0.0);
            }
        }
        if partial.elements > 1 {
            partial.scalar = None;
        }
        partial
    }

    fn value(&mut self, value: f64, subnormal: bool, bits: u64, count: u64) {
        self.elements += count;
        self.bits = Some(self.bits.map_or((bits, bits), |(low, high)| (low.min(bits), high.max(bits))));
        if value.is_nan() {
            self.nan += count;
        } else if value.is_infinite() {
            self.infinite += count;
        } else {
            self.zero += count * u64::from(value == 0.0);
            self.subnormal += count * u64::from(subnormal);
            self.sum_squares += count as f64 * value * value;
            self.largest = self.largest.max(value.abs());
        }
        self.negative += count * u64::from(value < 0.0);
        self.scalar = Some(value);
    }

    /// One-byte types: count the bytes, then look at 256 sums. Four tables, so that equal neighbours don't wait for each other.
    fn table(&mut self, bytes: &[u8], values: impl Fn(u8) -> Vec<(f64, bool)>) {
        let mut tables = [[0u32; 256]; 4];
        let (fours, rest) = bytes.as_chunks::<4>();
        for four in fours {
            for (table, &byte) in tables.iter_mut().zip(four) {
                table[usize::from(byte)] += 1;
            }
        }
        for &byte in rest {
            tables[0][usize::from(byte)] += 1;
        }
        for byte in 0..=255u8 {
            let count = tables.iter().map(|table| u64::from(table[usize::from(byte)])).sum();
            if count > 0 {
                for (value, subnormal) in values(byte) {
                    self.value(value, subnormal, u64::from(byte), count);
                }
            }
        }
    }

    /// BF16 and F16: `EXPONENT` masks the exponent. Branch-free over short stretches, so that the compiler makes vectors of it.
    fn half<const EXPONENT: u16>(&mut self, bytes: &[u8], decode: fn(u16) -> f32) {
        let (mut low, mut high, mut most) = (u16::MAX, 0u16, 0u16);
        for stretch in bytes.as_chunks::<2>().0.chunks(4096) {
            let (mut odd, mut zero, mut small, mut negative) = (0u16, 0u16, 0u16, 0u16);
            let mut squares = [0f32; 16];
            for lanes in stretch.chunks(16) {
                for (lane, bytes) in squares.iter_mut().zip(lanes) {
                    let bits = u16::from_le_bytes(*bytes);
                    let magnitude = bits & 0x7fff;
                    let finite = magnitude < EXPONENT;
                    odd += u16::from(!finite);
                    zero += u16::from(magnitude == 0);
                    small += u16::from(magnitude & EXPONENT == 0);
                    negative += u16::from(bits > 0x8000 && magnitude <= EXPONENT);
                    low = low.min(bits);
                    high = high.max(bits);
                    let kept = if finite { magnitude } else { 0 };
                    most = most.max(kept);
                    let value = decode(kept);
                    *lane += value * value;
                }
            }
            self.zero += u64::from(zero);
            self.subnormal += u64::from(small - zero);
            self.negative += u64::from(negative);
            self.sum_squares += squares.iter().map(|&x| f64::from(x)).sum::<f64>();
            if odd > 0 {
                let nan = |bytes: &&[u8; 2]| u16::from_le_bytes(**bytes) & 0x7fff > EXPONENT;
                let nan = stretch.iter().filter(nan).count() as u64;
                self.nan += nan;
                self.infinite += u64::from(odd) - nan;
            }
            self.elements += stretch.len() as u64;
        }
        if let [one] = bytes.as_chunks::<2>().0 {
            self.scalar = Some(f64::from(decode(u16::from_le_bytes(*one))));
        }
        if self.elements > 0 {
            self.bits = Some((u64::from(low), u64::from(high)));
            self.largest = f64::from(decode(most));
        }
    }

    fn single(&mut self, bytes: &[u8]) {
        const EXPONENT: u32 = 0x7f80_0000;
        let (mut low, mut high, mut most) = (u32::MAX, 0u32, 0u32);
        for stretch in bytes.as_chunks::<4>().0.chunks(4096) {
            let (mut odd, mut zero, mut small, mut negative) = (0u32, 0u32, 0u32, 0u32);
            let mut squares = [0f64; 8];
            for lanes in stretch.chunks(8) {
                for (lane, bytes) in squares.iter_mut().zip(lanes) {
                    let bits = u32::from_le_bytes(*bytes);
                    let magnitude = bits & 0x7fff_ffff;
                    let finite = magnitude < EXPONENT;
                    odd += u32::from(!finite);
                    zero += u32::from(magnitude == 0);
                    small += u32::from(magnitude & EXPONENT == 0);
                    negative += u32::from(bits > 0x8000_0000 && magnitude <= EXPONENT);
                    low = low.min(bits);
                    high = high.max(bits);
                    let kept = if finite { magnitude } else { 0 };
                    most = most.max(kept);
                    let value = f64::from(f32::from_bits(kept));
                    *lane += value * value;
                }
            }
            self.zero += u64::from(zero);
            self.subnormal += u64::from(small - zero);
            self.negative += u64::from(negative);
            self.sum_squares += squares.iter().sum::<f64>();
            if odd > 0 {
                let nan = |bytes: &&[u8; 4]| u32::from_le_bytes(**bytes) & 0x7fff_ffff > EXPONENT;
                let nan = stretch.iter().filter(nan).count() as u64;
                self.nan += nan;
                self.infinite += u64::from(odd) - nan;
            }
            self.elements += stretch.len() as u64;
        }
        if let [one] = bytes.as_chunks::<4>().0 {
            self.scalar = Some(f64::from(f32::from_le_bytes(*one)));
        }
        if self.elements > 0 {
            self.bits = Some((u64::from(low), u64::from(high)));
            self.largest = f64::from(f32::from_bits(most));
        }
    }

    /// Adds the piece that follows.
    pub(crate) fn add(&mut self, next: Partial) {
        self.scalar = if self.elements == 0 { next.scalar } else { None };
        self.elements += next.elements;
        self.nan += next.nan;
        self.infinite += next.infinite;
        self.zero += next.zero;
        self.subnormal += next.subnormal;
        self.negative += next.negative;
        self.sum_squares += next.sum_squares;
        self.largest = self.largest.max(next.largest);
        self.bits = match (self.bits, next.bits) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, other) => one.or(other),
        };
        self.zeros.add(next.zeros);
    }

    pub(crate) fn finish(mut self) -> Moments {
        self.zeros.end();
        let finite = self.elements - (self.nan + self.infinite).min(self.elements);
        Moments {
            elements: self.elements,
            nan: self.nan,
            infinite: self.infinite,
            zero: self.zero,
            subnormal: self.subnormal,
            negative: self.negative,
            // JSON has no infinity.
            mean_square: (self.sum_squares / (finite.max(1)) as f64).min(f64::MAX),
            largest: self.largest.min(f64::MAX),
            constant: self.elements > 1 && self.bits.is_some_and(|(low, high)| low == high),
            zero_run_bytes: self.zeros.bytes,
            zero_run: self.zeros.longest,
            scalar: self.scalar.filter(|value| value.is_finite()),
        }
    }
}

/// The value of every E2M1 code: bit 3 is the sign.
const E2M1: [f64; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

#[cfg(test)]
mod tests {
    use super::*;

    /// By definition, one value after the other.
    fn plainly(values: &[f64], smallest_normal: f64) -> (u64, u64, u64, u64, u64, f64) {
        let count = |test: &dyn Fn(f64) -> bool| values.iter().filter(|x| test(**x)).count() as u64;
        let squares: f64 = values.iter().filter(|x| x.is_finite()).map(|x| x * x).sum();
        (
            count(&f64::is_nan),
            count(&f64::is_infinite),
            count(&|x| x == 0.0),
            count(&|x| x != 0.0 && x.abs() < smallest_normal),
            count(&|x| x < 0.0),
            squares / count(&f64::is_finite).max(1) as f64,
        )
    }

    fn check(reading: Reading, bytes: &[u8], values: &[f64], smallest_normal: f64) {
        // In pieces of odd numbers of values, as a file gives them.
        let mut whole = Partial::default();
        let mut at = 0;
        for piece in bytes.chunks(37 * reading.unit()) {
            whole.add(Partial::of(reading, piece, at));
            at += piece.len() as u64;
        }
        let got = whole.finish();
        let (nan, infinite, zero, subnormal, negative, mean_square) = plainly(values, smallest_normal);
        assert_eq!(
            (got.nan, got.infinite, got.zero, got.subnormal, got.negative),
            (nan, infinite, zero, subnormal, negative),
            "{reading:?}"
        );
        assert!((got.mean_square - mean_square).abs() <= 1e-5 * mean_square, "{got:?} {mean_square}");
        assert_eq!(got.elements, values.len() as u64);
    }

    #[test]
    fn counts_are_those_of_the_definition() {
        let halves: Vec<u16> =
            (0..=u16::MAX).filter(|x| x & 0x7f80 < 0x5c00 || x & 0x7f80 == 0x7f80).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
        let values: Vec<f64> =
            halves.iter().map(|x| f64::from(f32::from_bits(u32::from(*x) << 16))).collect();
        check(Reading::Bf16, &bytes, &values, 2f64.powi(-126));

        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let values: Vec<f64> = (0..=u16::MAX).map(|x| f64::from(f16_to_f32(x))).collect();
        check(Reading::F16, &bytes, &values, 2f64.powi(-14));

        let singles: Vec<u32> = (0..100_000u32)
            .map(|i| i.wrapping_mul(42_949))
            .filter(|x| x & 0x6000_0000 != 0x6000_0000 || x & 0x7f80_0000 == 0x7f80_0000)
            .collect();
        let bytes: Vec<u8> = singles.iter().flat_map(|x| x.to_le_bytes()).collect();
        let values: Vec<f64> = singles.iter().map(|x| f64::from(f32::from_bits(*x))).collect();
        check(Reading::F32, &bytes, &values, 2f64.powi(-126));

        let bytes: Vec<u8> = (0..=255).collect();
        let values: Vec<f64> = bytes.iter().map(|x| f64::from(e4m3_to_f32(*x))).collect();
        check(Reading::E4m3, &bytes, &values, 2f64.powi(-6));
        let values: Vec<f64> =
            bytes.iter().flat_map(|x| [x & 15, x >> 4]).map(|x| E2M1[usize::from(x)]).collect();
        check(Reading::Nvfp4Codes, &bytes, &values, 0.0);
        let values: Vec<f64> =
            bytes.iter().flat_map(|x| [x & 15, x >> 4]).map(|x| f64::from(x) - 8.0).collect();
        check(Reading::Int4Codes, &bytes, &values, 0.0);
    }

    #[test]
    fn a_scalar_keeps_its_value_and_a_constant_is_one() {
        let scalar = Partial::of(Reading::F32, &0.25f32.to_le_bytes(), 0).finish();
        assert_eq!((scalar.scalar, scalar.constant), (Some(0.25), false));
        let constant = Partial::of(Reading::Bf16, &[0x80, 0x3f].repeat(500), 0).finish();
        assert_eq!((constant.scalar, constant.constant, constant.largest), (None, true, 1.0));
    }
}
