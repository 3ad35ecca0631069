//! What a rank of a group adds to a sum, and what is left where its part is lost.

use lucid_checkpoint::{Config, Matrix, Packed};

use super::Dose;
use crate::weights::{FeedForward, Weights};

/// Which rank of how many: 4.25 is the second of four.
pub(super) fn lost_rank(strength: f64) -> (usize, usize) {
    let ranks = strength.trunc().max(1.0);
    ((strength.fract() * ranks).round() as usize, ranks as usize)
}

/// Sums after attention lack a rank's heads, and with `feed_forward` those after experts and MLPs its share of the widths. What a rank adds
/// is the product of its own columns: without them there is nothing of it. False where a rank has nothing of its own.
pub(super) fn lose_a_rank(dose: &Dose, config: &Config, weights: &mut Weights, feed_forward: bool) -> bool {
    let (lost, ranks) = lost_rank(dose.strength);
    let heads = config.num_attention_heads;
    if ranks < 2 || !heads.is_multiple_of(ranks) {
        return false;
    }
    for layer in weights.layers.iter_mut().take(dose.layers.end).skip(dose.layers.start) {
        clear_share(&mut layer.attention.o, lost, ranks);
        if !feed_forward {
            continue;
        }
        match &mut layer.feed_forward {
            FeedForward::Dense(mlp) => clear_share(&mut mlp.down, lost, ranks),
            FeedForward::Experts(experts) => experts
                .routed
                .iter_mut()
                .chain(&mut experts.shared)
                .for_each(|mlp| clear_share(&mut mlp.down, lost, ranks)),
        }
    }
    true
}

/// Zeros in the columns that a rank holds of `[rows, cols]`. Decoded to f32, which is exact.
fn clear_share(matrix: &mut Matrix, rank: usize, ranks: usize) {
    let share = matrix.cols.div_ceil(ranks);
    let columns = (rank * share).min(matrix.cols)..((rank + 1) * share).min(matrix.cols);
    let mut row = vec![0f32; matrix.cols];
    let mut bytes = Vec::with_capacity(matrix.rows * matrix.cols * 4);
    for i in 0..matrix.rows {
        matrix.decode_row(i, &mut row);
        row[columns.clone()].fill(0.0);
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    matrix.packed = Packed::F32(bytes.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_holds_its_own_columns() {
        let bytes: Vec<u8> = (1..=16).flat_map(|x| (x as f32).to_le_bytes()).collect();
        let mut matrix = Matrix { name: "o".into(), rows: 2, cols: 8, packed: Packed::F32(bytes.into()) };
        clear_share(&mut matrix, 1, 4);
        let mut row = [0f32; 8];
        matrix.decode_row(1, &mut row);
        assert_eq!(row, [9.0, 10.0, 0.0, 0.0, 13.0, 14.0, 15.0, 16.0]);
        assert_eq!((lost_rank(4.25), lost_rank(8.875), lost_rank(2.0)), ((1, 4), (7, 8), (0, 2)));
    }
}
