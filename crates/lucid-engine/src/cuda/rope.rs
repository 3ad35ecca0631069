//! The angles of RoPE, as the processor computes them, in the GPU's memory.

use lucid_checkpoint::Config;

use super::driver::{Buffer, Gpu};
use crate::Error;
use crate::cpu::Rope;

/// `[positions, dim / 2]` cosines and sines, interleaved.
pub fn upload_angles(gpu: &Gpu, config: &Config, positions: usize) -> Result<Buffer, Error> {
    // Adjacent pairs (1, 0), rotated, are the cosines and sines themselves.
    let rope = Rope::new(config, positions, true);
    let dim = config.qk_rope_head_dim;
    let mut angles = Vec::with_capacity(positions * dim);
    for position in 0..positions {
        let start = angles.len();
        angles.extend((0..dim).map(|i| if i % 2 == 0 { 1.0f32 } else { 0.0 }));
        rope.rotate(&mut angles[start..], position);
    }
    gpu.upload(&angles)
}
