//! The values of the KV cache: for every token and layer the normalized latent and the rotated key part, in pages.

use super::vectorize::vectorized;
use crate::Mode;
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// `[layers][pages, PAGE_TOKENS, width]`, `width` = kv_lora_rank + qk_rope_head_dim.
pub struct LatentCache {
    layers: Vec<Values>,
    width: usize,
}

enum Values {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

impl LatentCache {
    /// A cache of `pages` pages. The memory is asked for zeroed, so the operating system gives it page by page as it is used.
    #[must_use]
    pub fn new(layers: usize, pages: usize, width: usize, mode: Mode) -> LatentCache {
        let len = pages * PAGE_TOKENS * width;
        let values = || match mode {
            Mode::Reference => Values::F32(vec![0.0; len]),
            Mode::Serving => Values::Bf16(vec![0; len]),
        };
        LatentCache { layers: (0..layers).map(|_| values()).collect(), width }
    }

    /// Stores the entry `[width]` of one token.
    pub fn write(&mut self, layer: usize, page: PageId, slot: usize, entry: &[f32]) {
        let at = (page.index() * PAGE_TOKENS + slot) * self.width;
        match &mut self.layers[layer] {
            Values::F32(values) => values[at..at + self.width].copy_from_slice(entry),
            Values::Bf16(values) => {
                round_to_bf16(entry, &mut values[at..at + self.width]);
            }
        }
    }

    /// The first `count` entries of a page as f32 `[count, width]`: in place, or decoded into `scratch`.
    pub fn page<'a>(
        &'a self,
        layer: usize,
        page: PageId,
        count: usize,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let at = page.index() * PAGE_TOKENS * self.width;
        let range = at..at + count * self.width;
        match &self.layers[layer] {
            Values::F32(values) => &values[range],
            Values::Bf16(values) => {
                scratch.clear();
                scratch.extend(values[range].iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)));
                scratch
            }
        }
    }

    /// The first `count` entries of a page as they are stored, if that is bf16: `[count, width]`.
    #[must_use]
    pub fn bf16_page(&self, layer: usize, page: PageId, count: usize) -> Option<&[u16]> {
        let at = page.index() * PAGE_TOKENS * self.width;
        match &self.layers[layer] {
            Values::F32(_) => None,
            Values::Bf16(values) => Some(&values[at..at + count * self.width]),
        }
    }

    /// Values of one entry.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }
}

vectorized! {
    fn round_to_bf16(values: &[f32], out: &mut [u16]) {
        for (out, &x) in out.iter_mut().zip(values) {
            *out = f32_to_bf16(x);
        }
    }
}

/// Round to nearest, ties to even; NaN stays NaN.
#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let nan = (bits >> 16) as u16 | 0x40;
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if x.is_nan() { nan } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::f32_to_bf16;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        assert_eq!(f32_to_bf16(1.0), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8001)), 0x3f81);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
        assert_eq!(f32_to_bf16(f32::INFINITY), 0x7f80);
        assert!(f32::from_bits(u32::from(f32_to_bf16(f32::NAN)) << 16).is_nan());
    }
}
