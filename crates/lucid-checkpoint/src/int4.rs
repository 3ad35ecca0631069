//! INT4: whole numbers from -8 to 7, a scale for each group along a row, as compressed-tensors packs them.

use crate::Scales;

/// Decodes one row: `out[i] = (nibble(i) - 8) * scale[i / group_size]`, the product rounded to `f32`.
///
/// `codes` holds `out.len() / 2` bytes: little-endian words of eight codes, the first in the lowest bits, so the even
/// column of a byte is its low nibble. The row's scales begin at `first_scale`.
///
/// Source: compressed-tensors, `compressors/pack_quantized/helpers.py`.
pub fn decode_row(codes: &[u8], scales: &Scales, first_scale: usize, group_size: usize, out: &mut [f32]) {
    for (group, out) in out.chunks_mut(group_size).enumerate() {
        let scale = scales.get(first_scale + group);
        for (i, out) in out.iter_mut().enumerate() {
            let column = group * group_size + i;
            let code = codes[column / 2] >> (4 * (column % 2)) & 15;
            *out = (f32::from(code) - 8.0) * scale;
        }
    }
}
