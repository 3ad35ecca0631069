//! The values of the KV cache: for every token and layer the normalized latent and the rotated key part, in pages.

use lucid_checkpoint::{E4M3, f32_to_e4m3};

use super::aligned::Aligned;
use super::indexer::IndexKeys;
use super::row::Rows;
use super::vectorize::vectorized;
use crate::KvCacheDtype;
use crate::kv_cache::{PAGE_TOKENS, PageId};

/// What a processor keeps of every token.
pub struct Cache {
    /// For attention.
    pub latent: LatentCache,
    /// For the sparse-attention indexer; nothing without one.
    pub index_keys: IndexKeys,
}

/// `[layers][pages, PAGE_TOKENS, width]`, `width` = kv_lora_rank + qk_rope_head_dim.
pub struct LatentCache {
    layers: Vec<Values>,
    width: usize,
    /// One a layer: what E4M3 codes are multiplied with.
    scales: Vec<f32>,
}

enum Values {
    F32(Aligned<f32>),
    Bf16(Aligned<u16>),
    /// E4M3 codes of the values divided by the layer's scale.
    Fp8(Aligned<u8>),
}

/// Entries that attention reads without decoding them first.
#[derive(Clone, Copy)]
pub enum Entries<'a> {
    /// f32 numbers.
    F32(&'a [f32]),
    /// bf16 numbers.
    Bf16(&'a [u16]),
}

impl<'a> Entries<'a> {
    /// Values.
    pub fn len(self) -> usize {
        match self {
            Entries::F32(values) => values.len(),
            Entries::Bf16(values) => values.len(),
        }
    }

    /// As rows of a product.
    pub fn rows(self, cols: usize) -> Rows<'a> {
        match self {
            Entries::F32(values) => Rows::f32s(values, cols),
            Entries::Bf16(values) => Rows::halves(values, cols),
        }
    }
}

impl LatentCache {
    /// A cache of `pages` pages. The memory is asked for zeroed, so the operating system gives it page by page as it is used.
    #[must_use]
    pub fn new(layers: usize, pages: usize, width: usize, dtype: KvCacheDtype) -> LatentCache {
        let len = pages * PAGE_TOKENS * width;
        let values = || match dtype {
            KvCacheDtype::F32 => Values::F32(Aligned::zeros(len)),
            KvCacheDtype::Bf16 => Values::Bf16(Aligned::zeros(len)),
            KvCacheDtype::Fp8E4m3 => Values::Fp8(Aligned::zeros(len)),
        };
        LatentCache { layers: (0..layers).map(|_| values()).collect(), width, scales: vec![1.0; layers] }
    }

    /// The same with a scale a layer, for fp8. Finite and greater than zero, one for each layer.
    #[must_use]
    pub fn with_scales(self, scales: &[f32]) -> LatentCache {
        assert_eq!(scales.len(), self.layers.len(), "one scale a layer");
        LatentCache { scales: scales.to_vec(), ..self }
    }

    /// Stores the entry `[width]` of one token.
    pub fn write(&mut self, layer: usize, page: PageId, slot: usize, entry: &[f32]) {
        let at = (page.index() * PAGE_TOKENS + slot) * self.width;
        match &mut self.layers[layer] {
            Values::F32(values) => values[at..at + self.width].copy_from_slice(entry),
            Values::Bf16(values) => {
                round_to_bf16(entry, &mut values[at..at + self.width]);
            }
            Values::Fp8(values) => {
                round_to_fp8(entry, self.scales[layer], &mut values[at..at + self.width]);
            }
        }
    }

    /// The first `count` entries of a page as f32 `[count, width]`: in place, or decoded into `scratch`.
    pub fn page<'a>(
        &'a self,
        layer: usize,
        page: PageId,
        count: usize,
        scratch: &'a mut Aligned<f32>,
    ) -> &'a [f32] {
        let at = page.index() * PAGE_TOKENS * self.width;
        let range = at..at + count * self.width;
        match &self.layers[layer] {
            Values::F32(values) => &values[range],
            Values::Bf16(values) => {
                let out = room(scratch, range.len());
                widen_bf16(&values[range], out);
                out
            }
            Values::Fp8(values) => {
                let out = room(scratch, range.len());
                widen_fp8(&values[range], self.scales[layer], out);
                out
            }
        }
    }

    /// Reads one entry as f32 into `out` `[width]`.
    pub fn entry(&self, layer: usize, page: PageId, slot: usize, out: &mut [f32]) {
        let at = (page.index() * PAGE_TOKENS + slot) * self.width;
        let range = at..at + self.width;
        match &self.layers[layer] {
            Values::F32(values) => out.copy_from_slice(&values[range]),
            Values::Bf16(values) => {
                for (out, &bits) in out.iter_mut().zip(&values[range]) {
                    *out = f32::from_bits(u32::from(bits) << 16);
                }
            }
            Values::Fp8(values) => {
                let scale = self.scales[layer];
                for (out, &code) in out.iter_mut().zip(&values[range]) {
                    *out = E4M3[code as usize] * scale;
                }
            }
        }
    }

    /// The first `count` entries of a page `[count, width]`: in place if they are f32 or bf16, else decoded into `scratch`.
    pub fn entries<'a>(
        &'a self,
        layer: usize,
        page: PageId,
        count: usize,
        scratch: &'a mut Aligned<f32>,
    ) -> Entries<'a> {
        match self.bf16_page(layer, page, count) {
            Some(values) if cfg!(target_endian = "little") => Entries::Bf16(values),
            _ => Entries::F32(self.page(layer, page, count, scratch)),
        }
    }

    /// The first `count` entries of a page as they are stored, if that is bf16: `[count, width]`.
    #[must_use]
    pub fn bf16_page(&self, layer: usize, page: PageId, count: usize) -> Option<&[u16]> {
        let at = page.index() * PAGE_TOKENS * self.width;
        match &self.layers[layer] {
            Values::F32(_) | Values::Fp8(_) => None,
            Values::Bf16(values) => Some(&values[at..at + count * self.width]),
        }
    }

    /// Whether the entries are stored as bf16.
    #[must_use]
    pub fn is_bf16(&self) -> bool {
        matches!(self.layers.first(), Some(Values::Bf16(_)))
    }

    /// Values of one entry.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }
}

/// The first `len` values of a buffer that grows once and is reused.
fn room(buffer: &mut Aligned<f32>, len: usize) -> &mut [f32] {
    buffer.grow(len, 0.0);
    &mut buffer[..len]
}

vectorized! {
    fn widen_bf16(values: &[u16], out: &mut [f32]) {
        for (out, &bits) in out.iter_mut().zip(values) {
            *out = f32::from_bits(u32::from(bits) << 16);
        }
    }

    fn widen_fp8(values: &[u8], scale: f32, out: &mut [f32]) {
        for (out, &code) in out.iter_mut().zip(values) {
            *out = E4M3[code as usize] * scale;
        }
    }

    fn round_to_bf16(values: &[f32], out: &mut [u16]) {
        for (out, &x) in out.iter_mut().zip(values) {
            *out = f32_to_bf16(x);
        }
    }

    fn round_to_fp8(values: &[f32], scale: f32, out: &mut [u8]) {
        for (out, &x) in out.iter_mut().zip(values) {
            *out = f32_to_e4m3(x / scale);
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
    use super::*;
    use crate::kv_cache::PagePool;

    /// Powers of two as scales: what comes back is exact for values that E4M3 has, and saturates beyond 448 times the scale.
    #[test]
    fn an_fp8_entry_comes_back_times_the_scale_of_its_layer() {
        let (mut pool, mut pages) = (PagePool::new(PAGE_TOKENS), Vec::new());
        assert!(pool.extend(&mut pages, 1));
        let mut cache = LatentCache::new(2, 1, 4, KvCacheDtype::Fp8E4m3).with_scales(&[1.0, 0.25]);
        let entry = [1.0, -0.0625, 300.0, -1e9];
        for layer in 0..2 {
            cache.write(layer, pages[0], 3, &entry);
        }
        let mut scratch = Aligned::new();
        // 300 lies between 288 and 320; as 1,200 it is beyond 448.
        assert_eq!(cache.page(0, pages[0], 4, &mut scratch)[12..], [1.0, -0.0625, 288.0, -448.0]);
        assert_eq!(cache.page(1, pages[0], 4, &mut scratch)[12..], [1.0, -0.0625, 112.0, -112.0]);
        assert!(cache.bf16_page(0, pages[0], 1).is_none());
    }

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
