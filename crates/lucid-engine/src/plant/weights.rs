//! Faults in what was loaded.

use lucid_checkpoint::{Bytes, Config, Matrix, Packed, e4m3_to_f32, f32_to_e4m3};

use super::{Dose, Plant, copies, ranks};
use crate::weights::{Experts, FeedForward, Mlp, RouterMistake, Weights};

/// Columns of one NVFP4 scale.
const NVFP4_BLOCK: usize = 16;

/// Makes the mistake; false if there is nothing that it could change.
pub(super) fn change(plant: Plant, dose: &Dose, config: &Config, weights: &mut Weights) -> bool {
    match plant {
        Plant::RouterBiasMissing => on_experts(weights, dose, |experts| experts.bias.take().is_some()),
        Plant::RouterBiasCoarse => on_experts(weights, dose, |experts| {
            let step = dose.strength as f32;
            let biases = experts.bias.iter_mut().flatten();
            biases.map(|bias| *bias = (*bias / step).round() * step).count() > 0
        }),
        Plant::RouterBiasInWeights => on_experts(weights, dose, |experts| {
            experts.mistake = experts.bias.is_some().then_some(RouterMistake::BiasInWeights);
            experts.mistake.is_some()
        }),
        Plant::RouterLogitsCoarse => on_experts(weights, dose, |experts| {
            experts.mistake = Some(RouterMistake::LogitBits(dose.strength as u32));
            true
        }),
        Plant::SharedExpertDropped => on_experts(weights, dose, |experts| experts.shared.take().is_some()),
        Plant::SharedExpertUnderweighted => on_experts(weights, dose, |experts| {
            let factor = config.moe.as_ref().map_or(1.0, |moe| moe.routed_scaling_factor.powf(dose.strength));
            experts.shared.iter_mut().map(|mlp| scale(&mut mlp.down, factor as f32)).count() > 0
                && factor != 1.0
        }),
        Plant::GateUpSwapped => on_experts(weights, dose, |experts| {
            experts.routed.iter_mut().for_each(|mlp| std::mem::swap(&mut mlp.gate, &mut mlp.up));
            true
        }),
        Plant::WeightsRequantized4Bit => on_experts(weights, dose, |experts| {
            let matrices =
                experts.routed.iter_mut().flat_map(|mlp| [&mut mlp.gate, &mut mlp.up, &mut mlp.down]);
            matrices.for_each(|matrix| requantize(matrix, dose.strength as usize));
            true
        }),
        Plant::Nvfp4GlobalScaleInverted => {
            on_nvfp4(weights, dose, |nvfp4| *nvfp4.global = 1.0 / *nvfp4.global)
        }
        Plant::Nvfp4NibblesSwapped => on_nvfp4(weights, dose, |nvfp4| {
            let swapped: Vec<u8> = nvfp4.codes.iter().map(|byte| byte.rotate_left(4)).collect();
            *nvfp4.codes = swapped.into();
        }),
        Plant::Nvfp4ScalesSwizzled => on_nvfp4(weights, dose, |nvfp4| {
            *nvfp4.scales = swizzled(nvfp4.scales, nvfp4.cols / NVFP4_BLOCK).into();
        }),
        Plant::Nvfp4ScalesFolded => on_nvfp4(weights, dose, |nvfp4| {
            let fold = |code: &u8| f32_to_e4m3(e4m3_to_f32(*code) * *nvfp4.global);
            *nvfp4.scales = nvfp4.scales.iter().map(fold).collect::<Vec<u8>>().into();
            *nvfp4.global = 1.0;
        }),
        Plant::Nvfp4GlobalScaleLeftOut => {
            on_nvfp4(weights, dose, |nvfp4| *nvfp4.global = nvfp4.global.powf(dose.strength as f32))
        }
        Plant::ExpertsOfFirstRankAlone => on_experts(weights, dose, |experts| {
            let own = experts.routed.len().div_ceil(dose.strength.max(1.0) as usize);
            experts.routed.iter_mut().skip(own).for_each(|mlp| clear(&mut mlp.down));
            own < experts.routed.len()
        }),
        Plant::ExpertsOfOneRankLost => on_experts(weights, dose, |experts| {
            let (lost, ranks) = ranks::lost_rank(dose.strength);
            let share = experts.routed.len().div_ceil(ranks);
            let first = lost * share;
            let of_rank = experts.routed.iter_mut().skip(first).take(share);
            let cleared = of_rank.map(|mlp| clear(&mut mlp.down)).count();
            cleared > 0
        }),
        Plant::LoaderViewOverwritten => copies::overwrite(dose, config, weights),
        Plant::AttentionSumsLackARank => ranks::lose_a_rank(dose, config, weights, false),
        Plant::SumsLackARank => ranks::lose_a_rank(dose, config, weights, true),
        Plant::KvBShardOrder => kv_b_shards(dose, config, weights),
        _ => true,
    }
}

fn on_experts(weights: &mut Weights, dose: &Dose, mut change: impl FnMut(&mut Experts) -> bool) -> bool {
    let mut changed = false;
    for layer in weights.layers.iter_mut().take(dose.layers.end).skip(dose.layers.start) {
        if let FeedForward::Experts(experts) = &mut layer.feed_forward {
            changed |= change(experts);
        }
    }
    changed
}

/// The parts of an NVFP4 matrix.
struct Nvfp4<'a> {
    codes: &'a mut Bytes,
    scales: &'a mut Bytes,
    global: &'a mut f32,
    cols: usize,
}

fn on_nvfp4(weights: &mut Weights, dose: &Dose, mut change: impl FnMut(Nvfp4<'_>)) -> bool {
    let mut changed = false;
    for layer in weights.layers.iter_mut().take(dose.layers.end).skip(dose.layers.start) {
        let mlps: Vec<&mut Mlp> = match &mut layer.feed_forward {
            FeedForward::Dense(mlp) => vec![&mut **mlp],
            FeedForward::Experts(experts) => experts.routed.iter_mut().chain(&mut experts.shared).collect(),
        };
        for matrix in mlps.into_iter().flat_map(|mlp| [&mut mlp.gate, &mut mlp.up, &mut mlp.down]) {
            let cols = matrix.cols;
            if let Packed::Nvfp4 { codes, scales, global_scale: global, .. } = &mut matrix.packed {
                change(Nvfp4 { codes, scales, global, cols });
                changed = true;
            }
        }
    }
    changed
}

/// Scales `[rows, per_row]` in the order that Blackwell's tensor cores want: tiles of 128 rows and 4 scales, 512 bytes each,
/// row `r` of a tile at `(r % 32) · 16 + (r / 32) · 4`. (NVIDIA, "1D block scaling factors layout", cuBLAS 12.9.) Rows and
/// scales that fill no tile stay where they are.
fn swizzled(scales: &[u8], per_row: usize) -> Vec<u8> {
    let mut out = scales.to_vec();
    let rows = scales.len() / per_row.max(1);
    let (tile_rows, tile_cols) = (rows / 128, per_row / 4);
    if !per_row.is_multiple_of(4) {
        return out;
    }
    for row in 0..tile_rows * 128 {
        for col in 0..tile_cols * 4 {
            let tile = row / 128 * tile_cols + col / 4;
            let inside = row % 32 * 16 + row % 128 / 32 * 4 + col % 4;
            out[tile * 512 + inside] = scales[row * per_row + col];
        }
    }
    out
}

/// Rounds to `round(x / s) s`, `s` the group's largest magnitude / 7: symmetric INT4. Kept as f32, which is exact.
fn requantize(matrix: &mut Matrix, group: usize) {
    let mut bytes = Vec::with_capacity(matrix.rows * matrix.cols * 4);
    let mut row = vec![0f32; matrix.cols];
    for i in 0..matrix.rows {
        matrix.decode_row(i, &mut row);
        for group in row.chunks_mut(group.max(1)) {
            let scale = group.iter().fold(0f32, |most, x| most.max(x.abs())) / 7.0;
            if scale > 0.0 {
                group.iter_mut().for_each(|x| *x = (*x / scale).round() * scale);
            }
        }
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    matrix.packed = Packed::F32(bytes.into());
}

/// Every number times a factor.
fn scale(matrix: &mut Matrix, factor: f32) {
    let mut row = vec![0f32; matrix.cols];
    let mut bytes = Vec::with_capacity(matrix.rows * matrix.cols * 4);
    for i in 0..matrix.rows {
        matrix.decode_row(i, &mut row);
        bytes.extend(row.iter().flat_map(|x| (x * factor).to_le_bytes()));
    }
    matrix.packed = Packed::F32(bytes.into());
}

/// All zeros.
fn clear(matrix: &mut Matrix) {
    matrix.packed = Packed::F32(vec![0; matrix.rows * matrix.cols * 4].into());
}

/// Every rank of a group holds `heads / ranks` heads; here each gets the next rank's.
fn kv_b_shards(dose: &Dose, config: &Config, weights: &mut Weights) -> bool {
    let heads = config.num_attention_heads;
    let shard = heads / (dose.strength as usize).clamp(1, heads);
    let mut changed = false;
    for layer in weights.layers.iter_mut().take(dose.layers.end).skip(dose.layers.start) {
        let attention = &mut layer.attention;
        for matrix in attention.keys_values.matrices_mut() {
            changed |= rotate_rows(matrix, shard * (matrix.rows / heads));
        }
    }
    changed
}

/// Row `i` becomes row `i + by`, around the end. Decoded to f32, which is exact.
fn rotate_rows(matrix: &mut Matrix, by: usize) -> bool {
    if by == 0 || by >= matrix.rows {
        return false;
    }
    let mut bytes = Vec::with_capacity(matrix.rows * matrix.cols * 4);
    let mut row = vec![0f32; matrix.cols];
    for i in 0..matrix.rows {
        matrix.decode_row((i + by) % matrix.rows, &mut row);
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    matrix.packed = Packed::F32(bytes.into());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The corners of a tile, from NVIDIA's figure: row 0, 1, 32 and 33 start at bytes 0, 16, 4 and 20.
    #[test]
    fn scales_are_swizzled_as_the_figure_shows() {
        let per_row = 8;
        let scales: Vec<u8> = (0..128 * per_row).map(|i| (i / per_row) as u8).collect();
        let out = swizzled(&scales, per_row);
        for (row, at) in [(0, 0), (1, 16), (31, 496), (32, 4), (33, 20), (64, 8), (127, 508)] {
            assert_eq!(out[at], row, "row {row}");
            assert_eq!(out[512 + at], row, "row {row} of the second tile");
        }
    }

    #[test]
    fn requantizing_keeps_what_four_bits_hold() {
        let values: Vec<f32> = (0..64).map(|i| (i % 15) as f32 - 7.0).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut matrix = Matrix { name: "m".into(), rows: 1, cols: 64, packed: Packed::F32(bytes.into()) };
        requantize(&mut matrix, 32);
        let mut row = vec![0.0; 64];
        matrix.decode_row(0, &mut row);
        assert_eq!(row, values);
    }
}
